"""INTERIOR on programs with exponential and other cones: what it calls solved is solved, in natural units."""

from __future__ import annotations

import numpy as np
import pytest

from ffo.cones import PSD, Exponential, Nonneg, Product, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of, values_of
from ffo.solvers import get_solver

Array = np.ndarray
BATCH = 4


def inside(rng: np.random.Generator, cone: Cone, dual: bool) -> Array:
    """A point inside a cone or its dual."""
    if isinstance(cone, Zero):
        return rng.normal(size=1) if dual else np.zeros(1)
    if isinstance(cone, Nonneg):
        return rng.uniform(0.1, 2, 1)
    if isinstance(cone, SecondOrder):
        v = rng.normal(size=cone.dim)
        v[0] = np.linalg.norm(v[1:]) + rng.uniform(0.1, 1)
        return v
    if isinstance(cone, PSD):
        M = rng.normal(size=(2, 2))
        M = M @ M.T + 0.1 * np.eye(2)
        return np.array([M[0, 0], np.sqrt(2) * M[0, 1], M[1, 1]])
    if dual:
        u, w = -rng.uniform(0.1, 2), rng.uniform(0.1, 2)
        return np.array([u, u + u * np.log(-w / u) + rng.uniform(0.05, 1), w])
    x, y = 2 * rng.normal(), rng.uniform(0.1, 2)
    return np.array([x, y, y * np.exp(x / y) + rng.uniform(0.05, 1)])  # sometimes about 1e7


def random_program(seed: int, scale: float) -> ConeProgram:
    """Strictly feasible, and so is its dual: there is a solution."""
    rng = np.random.default_rng(seed)
    blocks: list[tuple[Cone, int]] = [(Exponential(), int(rng.integers(1, 12)))]
    blocks += [(c, int(k)) for c, k in ((Zero(), rng.integers(4)), (Nonneg(), rng.integers(8))) if k]
    blocks += [(c, 1) for c in (SecondOrder(4), PSD(2)) if rng.random() < 0.5]
    cones = [cone for cone, count in blocks for _ in range(count)]
    m = sum(cone.dim for cone in cones)
    n = int(rng.integers(2, max(3, m - 1)))
    A = rng.normal(size=(m, n)) * (rng.random((m, n)) < 0.5)
    A[np.arange(m), rng.integers(0, n, m)] += 1
    F = rng.normal(size=(n, rng.integers(n + 1)))
    P = rng.choice([0.0, 0.1, 1.0]) * F @ F.T
    q, b = [], []
    for _ in range(BATCH):
        x, s, y = rng.normal(size=n), *(np.concatenate([inside(rng, c, dual) for c in cones]) for dual in (False, True))
        b.append(A @ x + scale * s)
        q.append(-P @ x - A.T @ y)
    return ConeProgram.from_matrices(P, np.array(q), A, np.array(b), Product(blocks))


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_answers_that_are_called_solved_are(scale: float) -> None:
    solved = 0
    for seed in range(25):
        program = random_program(seed, scale)
        answer = get_solver("INTERIOR").solve(program)
        residual = plan_of(program).judge(values_of(program), answer.x, answer.y, answer.s)
        solved += int(answer.solved.sum())
        assert (residual[answer.solved] < 1e-3).all(), seed
    assert solved >= 0.9 * 25 * BATCH  # the rest goes to the next solver
