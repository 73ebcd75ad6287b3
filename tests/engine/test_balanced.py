"""Curved cones whose coordinates differ by orders of magnitude at the solution, which shared units had hidden."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import GradientWarning
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


def check(layer: FFOLayer, given: torch.Tensor, expected: torch.Tensor, size: float, atol: float = 1e-7) -> None:
    """Solutions are right, and gradients good and right, relative to a size."""
    (found,) = layer(given)
    torch.testing.assert_close(found / expected, torch.ones_like(found), rtol=0.0, atol=atol)
    weights = torch.tensor([1.0, 2.0, -1.0, 0.5]).to(given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        (gradient,) = torch.autograd.grad(((found / size) @ weights).sum(), given)
    (exact,) = torch.autograd.grad(((expected / size) @ weights).sum(), given)
    good = torch.tensor(layer.info.certificate.good)
    assert good.float().mean() >= 0.9
    torch.testing.assert_close(gradient[good], exact[good], rtol=0.0, atol=10 * atol * exact.abs().max().item())


V = np.array([1.0, 3.0, 0.2, 2.0])
#: convex costs, and the optimal x, up to a factor, under c'x <= budget
COSTS: dict[str, tuple[Callable[[cp.Variable], cp.Expression], Callable[[torch.Tensor], torch.Tensor]]] = {
    "1 / x": (lambda x: cp.sum(cp.inv_pos(x)), lambda c: c**-0.5),
    "v^2 / x": (lambda x: sum(cp.quad_over_lin(v, x[i]) for i, v in enumerate(V)), lambda c: torch.tensor(V) * c**-0.5),
    "v'X^-1 v": (lambda x: cp.matrix_frac(V, cp.diag(x)), lambda c: torch.tensor(V) * c**-0.5),
    "-sqrt(x)": (lambda x: -cp.sum(cp.sqrt(x)), lambda c: c**-2),
    "x^-2": (lambda x: cp.sum(cp.power(x, -2)), lambda c: c ** (-1 / 3)),
}
#: 1 / x^2 is 1e12 where the budget is 1e-6
LEAST = {"x^-2": 1e-3, "v'X^-1 v": 1e-4}


@pytest.mark.parametrize("budget", [1e-5, 1e-4, 1e-3, 1e4, 1e6, 1e7, 1e9])
@pytest.mark.parametrize("name", COSTS)
def test_reciprocals(name: str, budget: float) -> None:
    """1 / x is an entry of (x + t, 2, x - t), which soon has no digits of it: from 1e6 on, x was off by up to its size,
    with residuals from 1e-17 to 1e-5."""
    if budget < LEAST.get(name, 0.0):
        pytest.skip("the objective is more than 1e9 times as large as the data")
    cost, optimum = COSTS[name]
    c, x = cp.Parameter(N), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(cost(x)), [c @ x <= budget]), [c], [x])
    given = prices().requires_grad_()
    share = optimum(given)
    check(layer, given, budget * share / (given * share).sum(-1, keepdim=True), budget)


@pytest.mark.parametrize(
    ("p", "side"), [(1.5, 1e-10), (2.5, 1e-10), (3, 1e-10), (3, 1e-6), (4, 1e-8), (6, 1e-6), (6, 1e-3)]
)
def test_powers_of_small_numbers(p: float, side: float) -> None:
    """A sum of x^6 is 1e-18 at 1e-3, nothing beside a slack of 1: x was off by its size, with residuals of 1e-17."""
    c, x = cp.Parameter(N, nonneg=True), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.power(x, p))), [c @ x >= side, x >= 0]), [c], [x])
    given = prices().requires_grad_()
    share = given ** (1 / (p - 1))
    check(layer, given, side * share / (given * share).sum(-1, keepdim=True), side, 1e-6)


@pytest.mark.parametrize("least", [1e-6, 1e-9, 1e-12])
def test_reciprocals_of_very_different_numbers(least: float) -> None:
    """min 1 / x + vx: x = 1 / sqrt(v), for v between 1 and 1e-12."""
    v, x = cp.Parameter(N), cp.Variable(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.inv_pos(x)) + v @ x)), [v], [x])
    given = torch.tensor(least ** np.random.default_rng(3).uniform(0, 1, (COUNT, N)))
    torch.testing.assert_close(layer(given)[0] * given.sqrt(), torch.ones_like(given), rtol=0.0, atol=1e-8)


def test_blocks_with_zeros_are_left_alone() -> None:
    """x[0]^3 is zero, and zero in any units; x[1] is small. The answer for one must not spoil that for the other."""
    x, q = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.power(x, 3)) + q @ x), [x >= 0]), [q], [x])
    given = torch.tensor([[0.3, -3e-12], [0.5, -0.2], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    (found,) = layer(given)
    torch.testing.assert_close(found, ((-given).clamp(min=0) / 3).sqrt(), rtol=1e-6, atol=1e-12)
    assert layer.info.residual.max() <= 1e-10


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
