"""CUDA tensors are returned on their device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from layers import loss_of, make_layer, tensors

from ffo.errors import InputError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["constrained_least_squares", "ball_constrained", "box_volume"])
def test_values_and_gradients_are_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    case = zoo.build(name)
    layer = make_layer(case)
    values = case.batch(3, np.random.default_rng(0))
    here = tensors(values, dtype=dtype)
    there = [p.detach().cuda().requires_grad_() for p in here]
    expected, found = layer(*here), layer(*there)
    loss_of(expected, batched=True).sum().backward()
    loss_of(found, batched=True).sum().backward()
    for f, e in zip(found, expected, strict=True):
        assert f.is_cuda
        assert f.dtype == dtype
        torch.testing.assert_close(f.cpu(), e, rtol=0, atol=1e-10 if dtype is torch.float64 else 1e-6)
    for t, h in zip(there, here, strict=True):
        assert t.grad.is_cuda
        torch.testing.assert_close(t.grad.cpu(), h.grad, rtol=1e-6, atol=1e-7)


def test_mixed_devices_are_refused() -> None:
    case = zoo.build("constrained_least_squares")
    A, b = tensors(case.values)
    with pytest.raises(InputError, match=r"same device; got 0: cuda:0, 1: cpu"):
        make_layer(case)(A.cuda(), b)
