"""Assumptions of the benchmark: its problems, their Goldstein distances, and the literal Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks import hypergradient
from benchmarks.bilevel import Stretches, log_slope
from benchmarks.nonsmooth import RHO, Problem, corners, kink, least_norm, simplex, smoothed_kink, valley

D = torch.float64


def gradients(problem: Problem, x: np.ndarray, epsilon: float = 0.3) -> np.ndarray:
    at = torch.tensor(x, dtype=D, requires_grad=True)
    problem.values(at, torch.full((len(x),), epsilon, dtype=D)).sum().backward()
    return at.grad.numpy()


@pytest.mark.parametrize("make", [kink, corners, simplex, valley])
def test_gradients_are_differences_of_values_and_lipschitz(make: object) -> None:
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


@pytest.mark.parametrize("make", [kink, corners, valley])
def test_known_distances_are_those_of_sampled_balls(make: object) -> None:
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


def test_the_reference_hypergradient_is_a_difference_of_tight_solves() -> None:
    problem, x = hypergradient.instance(1)
    n, none = len(problem.u), np.zeros(len(problem.u))

    def value(x: np.ndarray) -> float:
        y, _ = hypergradient.project_and_descend(problem, x, None, none, none, 5000, 1e-15)
        return 0.5 * float(np.sum((y - problem.t) ** 2))

    differences = [(value(x + 1e-6 * e) - value(x - 1e-6 * e)) / 2e-6 for e in np.eye(len(x))]
    np.testing.assert_allclose(hypergradient.reference(problem, x), differences, rtol=1e-6, atol=1e-7)
    y, _ = hypergradient.project_and_descend(problem, x, None, none, none, 5000, 1e-15)
    assert 0.2 * n < np.sum((y == problem.lower) | (y == problem.u + problem.E @ x)) < 0.9 * n


def test_algorithm_one_errs_like_delta_and_converges_linearly() -> None:
    problem, x = hypergradient.instance(1)
    expected = hypergradient.reference(problem, x)
    deltas = [1e-4, 1e-3, 1e-2]
    errors = [
        hypergradient.relative(hypergradient.algorithm_one(problem, x, d, tolerance=1e-14)[0], expected) for d in deltas
    ]
    assert log_slope(deltas, errors) == pytest.approx(1.0, abs=0.05)
    by_calls = [
        hypergradient.relative(hypergradient.algorithm_one(problem, x, None, evaluations=k)[0], expected)
        for k in (40, 80, 120)
    ]
    assert by_calls[1] < 0.3 * by_calls[0]
    assert by_calls[2] < 0.3 * by_calls[1]
