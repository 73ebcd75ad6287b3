"""Inference mode: solves need gradients of the functions, which enable_grad() cannot bring back there."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import pytest
import torch

from ffo.bilevel import minimize
from ffo.errors import InputError, Status
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer, Smoothing
from ffo.torch.decision import FixedRegion, regret

D = torch.float64
A = torch.tensor([[0.9, 0.8, 0.1], [-0.2, 0.1, 0.3], [2.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.4, 0.4, 0.4]], dtype=D)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1).double()


def bisection(g: Any, h: Any, e: Any, y0: torch.Tensor) -> torch.Tensor:
    at = y0.clone().requires_grad_()
    (slope,) = torch.autograd.grad(g(at), at)
    return torch.minimum(y0 - slope, torch.full_like(y0, 0.5))  # one step: the objective is a square


@pytest.mark.parametrize("solver", [None, "AUGLAG", "SLSQP", "TRUST-CONSTR", bisection])
@pytest.mark.parametrize("batch", [None, 5])
def test_solutions_are_those_of_other_modes(solver: Any, batch: int | None) -> None:
    net = network()
    layer = FFOFunctionLayer(
        lambda a, y: net(y).sum() + 0.5 * (y - a).square().sum(),
        lambda a, y: y - 0.5,
        shape=3,
        dims=(1,),
        modules=[net],
        solver=solver,
    )
    a = A[0] if batch is None else A
    exact = (a - net.weight.detach()[0]).clamp(max=0.5)
    with torch.inference_mode():
        for theta in (a, a.clone()):  # the copy is an inference tensor
            y = layer(theta, y0=torch.zeros(3, dtype=D))
            assert y.is_inference()
            torch.testing.assert_close(y, exact, atol=1e-5, rtol=0)
            assert set(layer.info.status) == {Status.SOLVED}


def test_smoothed_and_remembered_answers() -> None:
    layer = FFOFunctionLayer(
        lambda a, y: (y - a).square().sum(), lambda a, y: y - 0.5, shape=3, dims=(1,), warm_start=True
    )
    smoothed = layer.smoothed(Smoothing(0.1, draws=4))
    found = [layer(A), smoothed(A)]
    with torch.inference_mode():
        torch.testing.assert_close(layer(A), found[0])
        torch.testing.assert_close(layer.smoothed(Smoothing(0.1, draws=4))(A), found[1])


def test_inference_tensors_in_ordinary_mode() -> None:
    """Autograd cannot save them for the backward pass, so copies are taken."""
    with torch.inference_mode():
        a, net = A.clone(), network()
    b = torch.zeros(5, 3, dtype=D, requires_grad=True)
    layer = FFOFunctionLayer(
        lambda a, b, y: (y - a - b).square().sum() + net(y).sum(), shape=3, dims=(1, 1), modules=[net]
    )
    y = layer(a, b)
    torch.testing.assert_close(y.detach(), A - net.weight.clone().detach() / 2)
    y.sum().backward()
    torch.testing.assert_close(b.grad, torch.ones_like(b))


@pytest.mark.parametrize("inference", [False, True])
def test_inference_tensors_in_a_closure_are_refused_in_words(inference: bool) -> None:
    with torch.inference_mode():
        net = network()
    layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum() + net(y).sum(), shape=3, dims=(1,))
    with torch.inference_mode(inference), pytest.raises(InputError, match="as theta, or give its module in modules="):
        layer(A)


@pytest.mark.parametrize("kind", ["FFOLayer", "FFOQPLayer"])
def test_data_made_in_inference_mode(kind: str) -> None:
    with torch.inference_mode():
        limit = torch.full((3,), 0.5, dtype=D)
    x, p, u = cp.Variable(3), cp.Parameter(3), cp.Parameter(3)
    a = A.clone().requires_grad_()
    if kind == "FFOLayer":
        (found,) = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [x <= u]), [p, u], [x])(a, limit)
    else:
        found = FFOQPLayer()(torch.eye(3, dtype=D), -a, ub=limit)
    torch.testing.assert_close(found.detach(), A.clamp(max=0.5))
    found.sum().backward()
    torch.testing.assert_close(a.grad, (A < 0.5).to(D))


def test_decisions_and_bilevel_problems() -> None:
    x = cp.Variable(3)
    region = FixedRegion(x, [cp.sum(x) == 1, x >= 0])
    expected = regret(region, A, -A)
    with torch.inference_mode():
        torch.testing.assert_close(regret(region, A, -A), expected)
        with pytest.raises(InputError, match="inference mode"):
            minimize(lambda x, y: (x - y).square().sum(), lambda x: x, torch.ones(2), delta=0.1, epsilon=0.1, budget=9)
