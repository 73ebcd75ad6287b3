"""Second-order cones that nearly meet in a point: the solver's tolerance does not tell which of them are active."""

from __future__ import annotations

from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.torch import FFOLayer

Array = np.ndarray

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def enclosing_circle() -> tuple[cp.Problem, cp.Parameter, cp.Variable]:
    """The smallest circle around four points of the plane."""
    points, centre = cp.Parameter((4, 2)), cp.Variable(2)
    distances = cp.hstack([cp.norm(centre - points[i]) for i in range(4)])
    return cp.Problem(cp.Minimize(cp.max(distances))), points, centre


def circumcentre(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    rows = 2 * torch.stack([b - a, c - a])
    return torch.linalg.solve(rows, torch.stack([b @ b - a @ a, c @ c - a @ a]))


def exact(points: torch.Tensor) -> torch.Tensor:
    """The centre: halfway between two points, or that of the circle through three; differentiable."""
    centres = [points[[i, j]].mean(0) for i, j in combinations(range(4), 2)]
    centres += [circumcentre(*points[list(some)]) for some in combinations(range(4), 3)]
    return min(centres, key=lambda centre: float((points - centre).detach().norm(dim=1).max()))


@pytest.mark.parametrize("size", [1e-3, 1e-4, 3e-5, 1e-5, 1e-6])
@pytest.mark.parametrize("solver", [None, "CLARABEL"])
def test_the_smallest_circle_around_almost_a_square(size: float, solver: str | None) -> None:
    problem, parameter, centre = enclosing_circle()
    layer = FFOLayer(problem, [parameter], [centre], solver=solver)
    noise = np.random.default_rng(0).normal(size=(40, 4, 2))
    points = torch.tensor(SQUARE + size * noise, requires_grad=True)
    (found,) = layer(points)
    weight = torch.tensor(np.random.default_rng(1).normal(size=(40, 2)))
    (gradient,) = torch.autograd.grad((weight * found).sum(), points)
    assert layer.info is not None
    assert layer.info.ok.all()
    assert layer.info.residual.max() < 1e-10
    assert layer.info.certificate.good.all()
    wanted = torch.stack([exact(each) for each in points])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    (right,) = torch.autograd.grad((weight * wanted).sum(), points)
    torch.testing.assert_close(gradient, right, rtol=1e-8, atol=1e-8)


def test_a_smaller_eps_finds_the_circle_around_points_that_almost_coincide() -> None:
    problem, parameter, centre = enclosing_circle()
    layer = FFOLayer(problem, [parameter], [centre])
    points = torch.tensor(1.0 + 1e-5 * np.random.default_rng(0).normal(size=(30, 4, 2)))
    (found,) = layer(points)
    assert layer.info is not None
    assert layer.info.ok.all()
    assert layer.info.residual.max() < 1e-10
    assert layer.info.retried.any()
    torch.testing.assert_close(found, torch.stack([exact(each) for each in points]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("solver", [None, "CLARABEL"])
def test_a_smaller_eps_separates_eigenvalues_that_almost_coincide(solver: str | None) -> None:
    roots = [np.random.default_rng(seed).normal(size=(3, 3)) for seed in (7, 8)]
    diagonal, weights = cp.Parameter(3), cp.Variable(2)
    matrix = cp.diag(diagonal) + sum(w * (root + root.T) for w, root in zip(weights, roots, strict=True))
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.lambda_max(matrix))), [diagonal], [weights], solver=solver)
    layer(torch.tensor(1.0 + 1e-4 * np.random.default_rng(0).normal(size=(50, 3))))
    assert layer.info is not None
    assert layer.info.ok.all()
    assert layer.info.residual.max() < 1e-10
