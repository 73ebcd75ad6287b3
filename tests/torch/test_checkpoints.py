"""Layers inside torch's activation checkpoints, which count the tensors that a forward pass saves."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer

Layer = Callable[[torch.Tensor], torch.Tensor]


def projection() -> Layer:
    x, q = cp.Variable(3), cp.Parameter(3)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - q)), [x >= 0]), [q], [x])
    return lambda a: layer(a)[0]


def quadratic() -> Layer:
    layer = FFOQPLayer()
    return lambda a: layer(torch.eye(3), -a, lb=torch.zeros(3))


def given_by_functions(keys: bool = False, equality: bool = False, **options: object) -> Layer:
    sums = (lambda a, y: y.sum().reshape(1) - a.relu().sum()) if equality else None
    objective = (lambda a, y: (y - a).exp().sum() + y.square().sum()) if keys else lambda a, y: (y - a).square().sum()
    layer = FFOFunctionLayer(objective, lambda a, y: -y, sums, shape=3, dims=(1,), **options)
    return lambda a: layer(a, keys=range(len(a)) if keys else None)


LAYERS = {
    "FFOLayer": projection,
    "FFOQPLayer": quadratic,
    "functions": given_by_functions,
    "functions, equality": lambda: given_by_functions(equality=True),
    "functions, keys": lambda: given_by_functions(keys=True),
    "functions, keys, SLSQP": lambda: given_by_functions(keys=True, solver="SLSQP"),
    "functions, autograd": lambda: given_by_functions(hvp="autograd"),
    "functions, resolve": lambda: given_by_functions(backward="resolve"),
}


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")  # of re-solves, which are coarse
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_checkpoint_changes_no_gradient(name: str, reentrant: bool) -> None:
    a = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.2, -1.0]], requires_grad=True)
    layer = LAYERS[name]()
    weights = torch.tensor([1.0, 2.0, 3.0])
    (expected,) = torch.autograd.grad((layer(a) @ weights).exp().sum(), a)
    loss = (checkpoint(lambda v: layer(2.0 * v / 2.0), a, use_reentrant=reentrant) @ weights).exp().sum()
    loss.backward()
    torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-6)
