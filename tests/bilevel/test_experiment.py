"""Assumptions of the lab's bilevel experiments: problems, Goldstein distances, and the cost of a hypergradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ffo.bilevel import plan
from ffo.lab.bilevel.hypergradient import PARAMETERS, Descent, LowerLevel, algorithm_one, penalty_method
from ffo.lab.bilevel.problems import (
    RHO,
    BilevelProblem,
    corners,
    disc,
    kink,
    least_norm,
    simplex,
    smoothed_kink,
    valley,
)
from ffo.lab.bilevel.walks import WALKS, Stretches

MakeProblem = Callable[[], BilevelProblem]

D = torch.float64


def gradients(problem: BilevelProblem, x: np.ndarray, epsilon: float = 0.3) -> np.ndarray:
    at = torch.tensor(x, dtype=D, requires_grad=True)
    problem.values(at, torch.full((len(x),), epsilon, dtype=D)).sum().backward()
    return at.grad.numpy()


@pytest.mark.parametrize("make", [kink, corners, simplex, valley, disc])
def test_gradients_are_differences_of_values_and_lipschitz(make: MakeProblem) -> None:
    problem = make()
    rng = np.random.default_rng(3)
    x = rng.uniform(-0.5, 1.6, (12, problem.dimension))
    epsilon = torch.full((12,), 0.3, dtype=D)
    found = gradients(problem, x)
    for i in range(problem.dimension):
        step = 1e-6 * np.eye(problem.dimension)[i]
        plus, minus = (problem.values(torch.tensor(x + s * step, dtype=D), epsilon).numpy() for s in (1, -1))
        np.testing.assert_allclose(found[:, i], (plus - minus) / 2e-6, atol=1e-5)
    starts = np.stack([problem.start(np.random.default_rng(s)) for s in range(8)])
    assert np.linalg.norm(gradients(problem, starts), axis=1).max() <= problem.lipschitz + 1e-6


def test_least_norm_in_a_convex_hull() -> None:
    assert least_norm(np.array([[3.0, 4.0]])) == pytest.approx(5.0)
    assert least_norm(np.array([[1.0, 1.0], [1.0, -1.0]])) == pytest.approx(1.0)
    assert least_norm(np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 5.0]])) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("make", [kink, corners, valley, disc])
def test_known_distances_are_those_of_sampled_balls(make: MakeProblem) -> None:
    problem = make()
    rng = np.random.default_rng(1)
    epsilon, delta = 0.3, 0.35
    for x in rng.uniform(-0.4, 1.5, (4, problem.dimension)):
        ball = rng.standard_normal((3000, problem.dimension))
        radii = rng.uniform(0, 1, (3000, 1)) ** (1 / problem.dimension)
        ball *= delta * radii / np.linalg.norm(ball, axis=1, keepdims=True)
        sampled = least_norm(np.unique(gradients(problem, x + ball, epsilon).round(6), axis=0))
        known = problem.distance(x, delta, epsilon)
        assert known <= sampled + 1e-4  # cells that only just touch the ball may escape the samples
        assert problem.distance(x, 0.9 * delta, epsilon) >= sampled - 1e-4


def test_the_smoothed_kink_has_the_derivative_of_its_closed_form() -> None:
    problem, count = smoothed_kink(), 3000
    for x in (0.95, 1.0, 1.1):
        mean = gradients(problem, np.full((count, 1), x)).mean()
        assert mean == pytest.approx(2 * (x - 1) / RHO, abs=4 / np.sqrt(count))
        assert problem.distance(np.array([x]), 0.0, 1.0) == pytest.approx(abs(2 * (x - 1) / RHO))


def test_stretches_begin_anew_when_they_leave_the_ball() -> None:
    stretches = Stretches(torch.zeros(1, 1, dtype=D), delta=1.0)
    one = torch.ones(1, 1, dtype=D)
    assert [float(v) for v in stretches.add(0 * one, one)] == [1.0, 1.0]
    assert [float(v) for v in stretches.add(0.5 * one, -one)] == [0.0, 2.0]
    assert [float(v) for v in stretches.add(1.5 * one, -one)] == [1.0, 1.0]


@pytest.mark.parametrize("make", [corners, disc])
@pytest.mark.parametrize("name", ["GoldsteinDescent", "minimize"])
def test_walks_end_at_stationary_points_within_the_bound(name: str, make: MakeProblem) -> None:
    problem = make()
    runs = WALKS[name](problem, 0, (0.5, 0.4))
    assert sorted(run.epsilon for run in runs) == [0.4, 0.5]
    for run in runs:
        bound = plan(problem.delta, run.epsilon, problem.lipschitz, problem.gap).steps
        assert run.calls is not None
        assert bound is not None
        assert run.calls <= bound
        assert run.distance is not None
        assert run.distance <= run.epsilon


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_descent_without_windows_is_judged_by_stretches(name: str) -> None:
    loose, tight = WALKS[name](corners(), 0, (0.5, 0.25))
    assert loose.calls is not None
    assert tight.calls is not None
    assert 1 < loose.calls <= tight.calls


@pytest.mark.parametrize("kind", ["box", "ball"])
def test_the_reference_hypergradient_is_a_difference_of_tight_solves(kind: str) -> None:
    lower = LowerLevel.draw(kind, 1)

    def value(x: torch.Tensor) -> float:
        moved = replace(lower, x=x)
        solve = Descent(moved, 1e-11)
        return float(solve(lambda y: moved.objective(x, y), None, None, torch.zeros_like(lower.c)) @ lower.c)

    units = 1e-4 * torch.eye(PARAMETERS, dtype=D)
    differences = [(value(lower.x + e) - value(lower.x - e)) / 2e-4 for e in units]
    np.testing.assert_allclose(lower.reference().numpy(), differences, rtol=1e-5, atol=1e-6)


def slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@pytest.mark.parametrize("kind", ["box", "ball"])
def test_algorithm_one_errs_like_delta_and_costs_a_logarithm(kind: str) -> None:
    """On the layer itself; a penalty method costs one over the error."""
    lower = LowerLevel.draw(kind, 0)
    expected = lower.reference()
    deltas = [1e-3, 1e-2, 1e-1]
    errors = [algorithm_one(lower, expected, 1e-12, delta).error for delta in deltas]
    assert slope(deltas, errors) == pytest.approx(1.0, abs=0.05)
    accuracies = (1e-7, 1e-9, 1e-11)
    ours = [algorithm_one(lower, expected, accuracy) for accuracy in accuracies]
    assert all(cost.error <= 0.3 * accuracy**0.5 for cost, accuracy in zip(ours, accuracies, strict=True))
    more = np.diff([cost.calls for cost in ours])
    assert max(more) <= 1.5 * min(more), "two digits cost the same anywhere"
    penalties = [penalty_method(lower, expected, weight) for weight in (50.0, 200.0)]
    assert slope([1 / cost.error for cost in penalties], [cost.calls for cost in penalties]) > 0.7
    assert penalties[1].error > 10 * ours[0].error
    assert penalties[1].calls > ours[2].calls
