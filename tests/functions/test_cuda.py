"""CUDA tensors stay where they are, forward and backward."""

from __future__ import annotations

import pytest
import torch
from function_problems import gradients, quadratic, quadratic_layer, relative

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    # torch warns if its backward thread is the first to use a device, and continues
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


@pytest.mark.parametrize("hvp", ["difference", "autograd"])
@pytest.mark.parametrize("solver", [None, "SLSQP"])
def test_values_and_gradients_are_those_of_the_cpu(hvp: str, solver: str | None) -> None:
    values = quadratic()
    values[1] = torch.stack([values[1], -values[1]])
    layer = quadratic_layer(hvp=hvp, solver=solver)
    expected = gradients(layer, values)
    found = gradients(layer, [v.cuda() for v in values])
    assert layer(*(v.cuda() for v in values)).is_cuda
    for f, e in zip(found, expected, strict=True):
        assert f.is_cuda
        assert relative(f.cpu(), e) <= 1e-7
