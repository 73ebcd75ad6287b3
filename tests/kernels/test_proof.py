"""Compiled proofs against the general ones in NumPy, and their projections against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from tests.outer import outer

from ffo.cones import Nonneg, Product, Zero
from ffo.engine.proof import recedes, refutes
from ffo.kernels import proof
from ffo.kernels.proof import EXACT, NEARLY, NOTHING, PROVEN, Entries, search
from ffo.program.cone import ConeProgram
from ffo.program.plan import values_of

remove = outer(proof._remove)


def searched(program: ConeProgram, ray: bool, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    P, A = program.P.pattern, program.A.pattern
    entries = Entries(P.rows, P.columns, A.rows, A.columns, program.cones.equalities)
    return search(entries, values_of(program), ray, points)


def without_solution(n: int, ray: bool, quadratic: bool, density: float) -> tuple[ConeProgram, np.ndarray]:
    """A program of two equalities and 2n - 2 inequalities, and an exact proof of integers that it has no solution."""
    rng = np.random.default_rng(n)
    m = 2 * n
    rows = rng.integers(-4, 5, size=(m, n)) * (rng.random((m, n)) < density).astype(float)
    root = rng.integers(-3, 4, size=(n // 2, n)).astype(float) * quadratic
    b, q = rng.integers(1, 6, size=m).astype(float), rng.integers(-5, 6, size=n).astype(float)
    if ray:
        v = np.ones(n)
        for each in (rows, root):
            each[:, 0] -= each.sum(axis=1)
        rows[n:, 1] -= 1.0
        q[0] -= q.sum() + 1.0
    else:
        v = np.zeros(m)
        v[[0, 2, 3, 5]] = -1.0, 1.0, 1.0, 1.0
        rows[5] = rows[0] - rows[2] - rows[3]
        b[5] = b[0] - b[2] - b[3] - 1.0
    program = ConeProgram.from_matrices(root.T @ root, q, rows, b, Product([(Zero(), 2), (Nonneg(), m - 2)]))
    return program, v


CASES = [(n, ray, quadratic, density) for n in (6, 40) for ray in (False, True) for quadratic in (False, True)
         for density in (1.0, 0.3)]  # fmt: skip


@pytest.mark.parametrize(("n", "ray", "quadratic", "density"), CASES)
def test_vectors_near_a_proof_are_repaired(n: int, ray: bool, quadratic: bool, density: float) -> None:
    program, v = without_solution(n, ray, quadratic, density)
    general = recedes if ray else refutes
    rng, sizes = np.random.default_rng(0), np.array([0.0, 1e-15, 1e-9, 1e-6, 1e-5])
    points = 3.0 * (v + sizes[:, None] * rng.uniform(-1.0, 1.0, (len(sizes), len(v))))
    batch = program.take(np.zeros(len(sizes), dtype=int))
    found, verdicts = searched(batch, ray, points)
    assert (verdicts == PROVEN).all()
    assert general(found, batch).all()
    np.testing.assert_allclose(np.abs(found).max(axis=1), 1.0)
    np.testing.assert_allclose(found, np.tile(v, (len(sizes), 1)), atol=1e-3)
    assert not general(points[-2:], batch.take(np.arange(2))).any()


@pytest.mark.parametrize(("n", "ray", "quadratic", "density"), CASES)
def test_what_is_no_proof_stays_none(n: int, ray: bool, quadratic: bool, density: float) -> None:
    program, v = without_solution(n, ray, quadratic, density)
    bad = np.stack([np.zeros_like(v), -v, np.full_like(v, np.nan), np.where(v > 0, np.inf, v), np.arange(len(v)) - 2.0])
    verdicts = searched(program.take(np.zeros(len(bad), dtype=int)), ray, bad)[1]
    assert (verdicts == NOTHING).all()
    solvable = program.with_vectors(q=-program.q) if ray else program.with_vectors(b=-program.b)
    assert searched(solvable, ray, v[None])[1] == NOTHING


def test_a_vector_that_is_nearly_a_proof_of_a_program_with_a_solution_stays_as_it_is() -> None:
    """x1 >= 0 and x1 + x2 / 1000 <= -1 hold at (0, -1000)."""
    rows, cones = np.array([[1.0, 1e-3], [-1.0, 0.0]]), Product([(Nonneg(), 2)])
    program = ConeProgram.from_matrices(np.eye(2), np.zeros(2), rows, np.array([-1.0, 0.0]), cones)
    y = np.array([[2.0, 2.0]])
    found, verdicts = searched(program, False, y)
    assert verdicts == NEARLY
    np.testing.assert_array_equal(found, y / 2.0)


@pytest.mark.parametrize("relative", [0.5, 2.0])
@pytest.mark.parametrize("ray", [False, True])
def test_every_sum_is_compared_with_its_own_terms(ray: bool, relative: float) -> None:
    """One sum of many is off by half the tolerance, or twice; its terms are far smaller than those of the others."""
    n, small = 4, 1e-9
    rows = np.array(
        [[1.0, -1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0], [0.0, 0.0, small, -small * (1 - 2 * relative * EXACT)]]
    )
    if ray:
        program = ConeProgram.from_matrices(np.zeros((n, n)), -np.ones(n), rows, np.zeros(3), Product([(Zero(), 3)]))
        v, general = np.ones((1, n)), recedes
    else:
        program = ConeProgram.from_matrices(np.eye(3), np.ones(3), rows.T, -np.ones(n), Product([(Nonneg(), n)]))
        v, general = np.ones((1, n)), refutes
    assert general(v, program)[0] == (relative < 1.0)
    found, verdicts = searched(program, ray, v)
    assert (verdicts[0] == PROVEN and (found == v).all()) == (relative < 1.0)


@pytest.mark.parametrize(("count", "n", "rank"), [(1, 1, 1), (3, 5, 3), (12, 5, 3), (40, 30, 17), (30, 30, 30)])
def test_projections_onto_the_complement_of_dependent_vectors(count: int, n: int, rank: int) -> None:
    rng = np.random.default_rng(count)
    span = rng.normal(size=(rank, n))
    scale = 10.0 ** rng.uniform(-9, 9, (count, 1))
    vectors = scale * np.concatenate([span, rng.normal(size=(count - rank, rank)) @ span])[rng.permutation(count)]
    vectors = np.concatenate([np.zeros((1, n)), vectors])
    v = rng.normal(size=n)
    found = v.copy()
    remove(vectors.copy(), count + 1, found)
    basis = scipy.linalg.orth(span.T)
    np.testing.assert_allclose(found, v - basis @ (basis.T @ v), atol=1e-12)
    assert (np.abs(vectors @ found) <= 1e-13 * np.abs(vectors).sum(axis=1)).all()
