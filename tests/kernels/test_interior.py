"""The interior-point method on several samples in lanes: they do not affect each other, even if they fail."""

from __future__ import annotations

import numpy as np
import pytest

from ffo.cones import PSD, Nonneg, Product, SecondOrder, Zero
from ffo.kernels.lanes import LANES
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of, values_of

N = 3


def projections(points: np.ndarray, cone: SecondOrder | PSD | Nonneg, count: int) -> ConeProgram:
    """minimize |x - p|^2 / 2 over x in the cones: for each sample p."""
    eye = np.eye(points.shape[1])
    return ConeProgram.from_matrices(eye, -points, -eye, np.zeros_like(points), Product([(cone, count)]))


def solve(program: ConeProgram) -> tuple[np.ndarray, ...]:
    x, y, s = np.empty((program.batch, program.n)), *np.empty((2, program.batch, program.m))
    done = plan_of(program).interior(values_of(program), x, y, s, 1e-9, 50)
    return done, x, y, s


@pytest.mark.parametrize("cone", [Nonneg(), SecondOrder(2), SecondOrder(5), PSD(2), PSD(4)], ids=str)
@pytest.mark.parametrize("batch", [1, LANES, 2 * LANES + 1])
def test_projections(cone: SecondOrder | PSD | Nonneg, batch: int) -> None:
    count = 2
    points = np.random.default_rng(0).normal(size=(batch, count * cone.dim))
    points[:, 0] += 4.0  # a zero solution has no scale
    program = projections(points, cone, count)
    done, x, y, s = solve(program)
    assert (done > 0).all()
    assert (done <= 12).all()
    np.testing.assert_allclose(x, program.cones.project(points), atol=1e-6)
    np.testing.assert_allclose(s, x, atol=1e-6)
    np.testing.assert_allclose(x - points, y, atol=1e-6)


@pytest.mark.parametrize("order", [3, 8])
def test_semidefinite_programs_without_a_quadratic_term(order: int) -> None:
    """Costs Y + F'v and sides F(X) of positive definite X and Y: there is a solution."""
    rng, d, rows = np.random.default_rng(order), order * (order + 1) // 2, order + 2
    diagonal = np.cumsum(np.arange(1, order + 1)) - 1  # of svec
    F = rng.normal(size=(rows, d))
    X, Y = 0.3 * rng.normal(size=(2, 4 * LANES, d))
    X[:, diagonal] += order
    Y[:, diagonal] += order
    A, cones = np.vstack([F, -np.eye(d)]), Product([(Zero(), rows), (PSD(order), 1)])
    b = np.hstack([X @ F.T, np.zeros_like(X)])
    program = ConeProgram.from_matrices(np.zeros((d, d)), Y + rng.normal(size=(len(X), rows)) @ F, A, b, cones)
    done, *point = solve(program)
    assert (done > 0).all()
    assert (plan_of(program).judge(values_of(program), *point) <= 1e-4).all()


def test_samples_of_a_group_fail_alone() -> None:
    """x = b, x <= 0 is infeasible for one of the four; another has NaN for data."""
    cones = Product([(Zero(), N), (Nonneg(), N)])
    A = np.vstack([np.eye(N), np.eye(N)])
    b = np.zeros((LANES, 2 * N))
    b[:, :N] = -np.arange(1.0, LANES + 1)[:, None]
    b[1, 0], b[2, 1] = 1.0, np.nan
    done, x, _, _ = solve(ConeProgram.from_matrices(np.eye(N), np.ones((LANES, N)), A, b, cones))
    assert (done[[1, 2]] < 0).all()
    assert (done[[0, 3]] > 0).all()
    np.testing.assert_allclose(x[[0, 3]], b[[0, 3], :N], atol=1e-7)


def test_inequalities_that_a_sample_lacks() -> None:
    """minimize |x - 1|^2 / 2, x <= 0 in some coordinates only."""
    b = np.zeros((LANES, N))
    b[np.arange(LANES) % N != 0, 0] = np.inf
    cones = Product([(Nonneg(), N)])
    done, x, y, s = solve(ConeProgram.from_matrices(np.eye(N), -np.ones((LANES, N)), np.eye(N), b, cones))
    assert (done > 0).all()
    np.testing.assert_allclose(x, np.where(b < np.inf, 0.0, 1.0), atol=1e-7)
    assert (y[b == np.inf] == 0.0).all()
    assert (s[b == np.inf] == np.inf).all()
