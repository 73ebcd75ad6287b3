"""Curved cones whose coordinates differ by orders of magnitude at the solution, which shared units had hidden."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.torch import FFOLayer

COUNT, N = 12, 4
Utility = tuple[Callable[[cp.Variable], cp.Expression], float]

#: concave utilities, and the power of c in the optimal x, under c'x <= budget
UTILITIES: dict[str, Utility] = {"log": (cp.log, -1.0), "power": (lambda x: cp.power(x, 0.3), -1 / 0.7)}


def spent(c: torch.Tensor, exponent: float, budget: float) -> torch.Tensor:
    """The optimal x: proportional to a power of c."""
    x = c**exponent
    return budget * x / (c * x).sum(-1, keepdim=True)


def prices(seed: int = 0) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).uniform(0.1, 1.0, (COUNT, N)))


@pytest.mark.parametrize("budget", [1e-6, 1e-3, 1e5, 1e6, 1e7, 1e8, 1e9])
@pytest.mark.parametrize("name", UTILITIES)
def test_utilities_of_large_and_small_budgets(name: str, budget: float) -> None:
    """Every sample had an answer off by up to a factor of three, with a residual of 1e-6, or was refused."""
    utility, exponent = UTILITIES[name]
    c, x = cp.Parameter(N), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Maximize(cp.sum(utility(x))), [c @ x <= budget]), [c], [x])
    given = prices().requires_grad_()
    (found,) = layer(given)
    expected = spent(given, exponent, budget)
    torch.testing.assert_close(found / expected, torch.ones_like(found), rtol=0.0, atol=1e-6)
    weights = torch.tensor([1.0, 2.0, -1.0, 0.5]).to(given)
    ((found / budget) @ weights).sum().backward()
    (exact,) = torch.autograd.grad(((expected / budget) @ weights).sum(), given)
    good = torch.tensor(layer.info.certificate.good)
    torch.testing.assert_close(given.grad[good], exact[good], rtol=1e-6, atol=1e-6)


def test_without_gradients_too() -> None:
    c, x = cp.Parameter(N), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Maximize(cp.sum(cp.log(x))), [c @ x <= 1e8]), [c], [x])
    with torch.no_grad():
        (found,) = layer(prices(1))
    torch.testing.assert_close(found / spent(prices(1), -1.0, 1e8), torch.ones_like(found), rtol=0.0, atol=1e-10)
    assert layer.info.residual.max() <= 1e-10


@pytest.mark.parametrize("side", [1e3, 1e4])
def test_cubes_are_not_called_infeasible(side: float) -> None:
    c, x = cp.Parameter(N, nonneg=True), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.power(x, 3))), [c @ x >= side, x >= 0]), [c], [x])
    (found,) = layer(prices())
    torch.testing.assert_close(found / spent(prices(), 0.5, side), torch.ones_like(found), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("budget", [1e3, 1e4])
def test_reciprocals(budget: float) -> None:
    """1 / x is an entry of (x + t, 2, x - t), which soon has no digits of it."""
    c, x = cp.Parameter(N), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.inv_pos(x))), [c @ x <= budget]), [c], [x])
    (found,) = layer(prices())
    torch.testing.assert_close(found / spent(prices(), -0.5, budget), torch.ones_like(found), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("size", [1e5, 1e6, 1e7, 1e8])
@pytest.mark.parametrize("linear", [False, True])
def test_slacks_without_digits_refuse_nothing(linear: bool, size: float) -> None:
    """On the ball, beside one large entry: s = (1, 1 - 1e-13, ..), whose difference is rounding."""
    x, a = cp.Variable(N), cp.Parameter(N)
    objective = cp.Maximize(a @ x) if linear else cp.Minimize(cp.sum_squares(x - a))
    layer = FFOLayer(cp.Problem(objective, [cp.norm(x) <= 1]), [a], [x])
    given = prices(3)
    given[:, 0] *= size
    with torch.no_grad():
        (found,) = layer(given)
    torch.testing.assert_close(found, given / given.norm(dim=1, keepdim=True), rtol=0.0, atol=1e-9)


def test_remembered_solutions_prove_nothing() -> None:
    """Points with entries of 1e15 looked like proofs that there is no solution."""
    c, x = cp.Parameter(N, nonneg=True), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.power(x, 3))), [c @ x >= 1e5, x >= 0]), [c], [x])
    for _ in range(3):
        with torch.no_grad():
            (found,) = layer(prices(21), keys=list(range(COUNT)))
        torch.testing.assert_close(found / spent(prices(21), 0.5, 1e5), torch.ones_like(found), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("least", [1e-7, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_small_priors_of_relative_entropies(scale: float, least: float) -> None:
    """x = p / sum(p); nearly all samples had been refused, or flagged with an error of 1e-6."""
    x, p = cp.Variable(N), cp.Parameter(N, nonneg=True)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.kl_div(x, p))), [cp.sum(x) == 1]), [p], [x])
    given = prices(2)
    given[:, 0] = least
    given = (scale * given).requires_grad_()
    (found,) = layer(given)
    expected = given / given.sum(-1, keepdim=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-14)
    weights = torch.tensor([1.0, 2.0, -1.0, 0.5]).to(given)
    (found @ weights).sum().backward()
    (exact,) = torch.autograd.grad((expected @ weights).sum(), given)
    good = torch.tensor(layer.info.certificate.good)
    assert good.float().mean() >= 0.75
    torch.testing.assert_close(given.grad[good], exact[good], rtol=1e-6, atol=1e-6)
