"""The parameters of the theory, and its inequality on runs."""

from __future__ import annotations

import math

import pytest
import torch

from ffo.bilevel import GoldsteinDescent, plan
from ffo.errors import InputError


@pytest.mark.parametrize("delta", [1e-3, 0.5])
@pytest.mark.parametrize("epsilon", [0.7, 0.01])
@pytest.mark.parametrize("lipschitz", [1.0, 30.0])
def test_the_bound_is_epsilon(delta: float, epsilon: float, lipschitz: float) -> None:
    """gap / (D T) + (regret of a window) / (D M) <= epsilon, for the regret of gradient descent in a ball."""
    gap = 3.0
    p = plan(delta, epsilon, lipschitz, gap)
    assert p.window * p.radius == pytest.approx(delta)
    regret = (2 * p.radius) ** 2 / (2 * p.lr) + p.lr * lipschitz**2 * p.window / 2
    assert p.steps % p.window == 0
    assert gap / (p.radius * p.steps) + regret / (p.radius * p.window) <= epsilon * (1 + 1e-12)


def test_steps_grow_like_one_over_delta_epsilon_cubed() -> None:
    steps = [plan(delta, epsilon, 1.0, 1.0).steps for delta, epsilon in ((0.01, 0.01), (0.01, 0.005), (0.005, 0.01))]
    assert steps[1] / steps[0] == pytest.approx(8, rel=0.02)
    assert steps[2] / steps[0] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("bad", [{"delta": 0.0}, {"epsilon": -1.0}, {"lipschitz": math.inf}, {"gap": math.nan}])
def test_nonsense_is_named(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        plan(**{"delta": 1.0, "epsilon": 1.0, "lipschitz": 1.0, "gap": 1.0} | bad)


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_over_windows_keeps_the_bound_of_the_theory(seed: int) -> None:
    """On a nonconvex function with kinks, over the T steps of the plan."""
    x = torch.tensor([1.7, -0.6], dtype=torch.float64, requires_grad=True)

    def value() -> torch.Tensor:  # a crossed valley with wells at its ends, 1.5-Lipschitz
        return (x[0].abs() - 1).abs() + 0.5 * torch.maximum(x[1], -2 * x[1]) - 0.2 * torch.sin(x[0])

    delta, epsilon, lipschitz = 0.4, 0.45, 1.6
    gap = float(value().detach()) + 0.2
    p = plan(delta, epsilon, lipschitz, gap)
    walk = GoldsteinDescent([x], p.radius, p.lr, p.window, generator=torch.Generator().manual_seed(seed))
    norms = []

    def closure() -> torch.Tensor:
        walk.zero_grad()
        loss = value()
        loss.backward()
        return loss

    for _ in range(p.steps):
        walk.step(closure)
        if walk.filled == 0:
            norms.append(walk.last.stationarity)
    assert len(norms) == p.steps // p.window
    assert sum(norms) / len(norms) <= epsilon
