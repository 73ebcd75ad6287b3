"""Powers and p-norms where entries of the solution vanish, against closed forms."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.cones import Power, SecondOrder
from ffo.errors import GradientWarning
from ffo.torch import FFOLayer


def gaussian(*shape: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(7).normal(size=shape), requires_grad=True)


def check(layer: FFOLayer, q: torch.Tensor, exact: torch.Tensor, atol: float = 1e-9) -> None:
    """Solutions and gradients are right to rounding, and none is flagged."""
    (x,) = layer(q)
    weights = torch.linspace(0.5, 2.0, x.shape[-1])
    (gradient,) = torch.autograd.grad((x * weights).sum(), q)
    (expected,) = torch.autograd.grad((exact * weights).sum(), q)
    torch.testing.assert_close(x, exact, rtol=0, atol=atol)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-7)
    assert np.max(layer.info.residual) <= 1e-10
    assert np.all(layer.info.certificate.good)


@pytest.mark.parametrize("p", [1.5, 3.0])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_sums_of_powers(p: float, n: int) -> None:
    """x = clip((max(-q, 0)/p)^(1/(p-1)), 0, 1)."""
    x, q = cp.Variable(n), cp.Parameter(n)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.power(x, p)) + q @ x), [x <= 1]), [q], [x])
    t = gaussian(60, n)
    check(layer, t, ((-t).clamp(min=0) / p).pow(1 / (p - 1)).clamp(max=1))


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_powers_of_magnitudes(p: float) -> None:
    """The same with |x|, whose own constraints are weakly active at 0."""
    x, q = cp.Variable(3), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.power(cp.abs(x), p)) + q @ x), [x >= 0, x <= 1])
    t = gaussian(60, 3)
    check(FFOLayer(problem, [q], [x]), t, ((-t).clamp(min=0) / p).pow(1 / (p - 1)).clamp(max=1))


def test_single_samples_agree_with_batches() -> None:
    x, q = cp.Variable(), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.power(x, 1.5) + q * x), [x <= 1]), [q], [x])
    for value in (0.1, 0.3, 0.3553727090399214, 0.5, 1.0, 3.0, -0.5):
        (found,) = layer(torch.tensor(value, dtype=torch.float64))
        assert found.item() == pytest.approx(min((2 / 3 * max(-value, 0)) ** 2, 1), abs=1e-12)
        assert layer.info.certificate.good[0]


def test_kinks_at_a_ray_are_still_flagged() -> None:
    """x = max(q, 0) has a kink at q = 0, also where y = x is an argument of a power."""
    x, y, q = cp.Variable(), cp.Variable(), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.square(x - q) + cp.power(y, 3)), [y == x])
    layer = FFOLayer(problem, [q], [x])
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (found,) = layer(t)
    with pytest.warns(GradientWarning):
        found.backward()
    assert found.item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("solver", "kind"), [(None, Power), ("CLARABEL", Power), ("INTERIOR", SecondOrder)])
def test_powers_are_power_cones_if_the_solver_has_them(solver: str | None, kind: type) -> None:
    x, q = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cp.power(x, 1.5)) + q @ x), [x <= 1]), [q], [x], solver=solver)
    t = -torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(layer(t)[0], (2 / 3 * torch.ones(2, dtype=torch.float64)) ** 2)
    assert kind in layer.canonical.map.cones.kinds
