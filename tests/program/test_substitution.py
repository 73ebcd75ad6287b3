"""Variables defined by equalities: the reduced program, its points and ghost systems against the program's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dense_ghost import holding

from ffo.cones import Nonneg, Product, Zero
from ffo.program.cone import ConeProgram
from ffo.program.presolve import Presolve
from ffo.program.sparse import SparseBatch, SymmetricBatch
from ffo.program.substitution import Definitions, Substitution
from ffo.solvers import get_solver

BATCH, V, R, SIDES = 3, 4, 5, 6


def least_squares(batched: str = "", entries: int = V, seed: int = 0) -> ConeProgram:
    """1/2 r'Dr + q'(v, r) with F v + C r = b and bounds on v; the rows of F have so many entries."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(R, V)) * (np.argsort(rng.random((R, V)), axis=1) < entries)
    C = np.diag(rng.choice([-1.0, 2.0, 0.5], R))
    A = np.block([[F, C], [rng.normal(size=(SIDES, V)), np.zeros((SIDES, R))]])
    made = ConeProgram.from_matrices(
        np.diag(np.concatenate([np.full(V, 0.1), rng.uniform(0.5, 2.0, R - 1), [0.0]])),
        rng.normal(size=(BATCH, V + R)),
        A,
        np.concatenate([rng.normal(size=(BATCH, R)), rng.uniform(0.5, 1.0, (BATCH, SIDES))], axis=1),
        Product([(Zero(), R), (Nonneg(), SIDES)]),
    ).pruned()
    factor = rng.uniform(0.5, 2.0, (BATCH, 1))
    if "P" in batched:
        made = replace(made, P=made.P.with_values(made.P.values * factor))
    if "A" in batched:
        made = replace(made, A=made.A.with_values(made.A.values * factor))
    return made


def substituted(given: ConeProgram) -> tuple[Substitution, ConeProgram]:
    found = Definitions.of(given)
    assert found is not None
    step = Substitution(found, given.q, given.b)
    return step, step.apply(given)


each_kind = pytest.mark.parametrize(("batched", "entries"), [("", V), ("P", V), ("A", V), ("PA", 2), ("", 1), ("A", 1)])


@each_kind
def test_defined_variables_are_gone(batched: str, entries: int) -> None:
    _, reduced = substituted(least_squares(batched, entries))
    assert (reduced.n, reduced.m) == (V, SIDES)
    assert reduced.A.shared == ("A" not in batched)
    assert reduced.P.shared == (not batched)
    assert reduced.cones.dim == SIDES


@each_kind
def test_solutions_of_the_reduced_program_are_solutions(batched: str, entries: int) -> None:
    given = least_squares(batched, entries)
    step, reduced = substituted(given)
    answer = get_solver("CLARABEL", {"eps": 1e-11}).solve(reduced)
    assert answer.solved.all()
    x, y, s = step.outward(answer.x, answer.y, answer.s)
    np.testing.assert_allclose(given.stationarity(x, y), 0, atol=1e-7)
    np.testing.assert_allclose(given.slack(x), s, atol=1e-7)
    assert (s[:, :R] == 0).all()
    for there, back in zip((answer.x, answer.y, answer.s), step.inward(x, y, s), strict=True):
        np.testing.assert_array_equal(there, back)


@each_kind
def test_ghost_systems_are_solved_by_the_reduced_ones(batched: str, entries: int) -> None:
    given = least_squares(batched, entries)
    step, reduced = substituted(given)
    rng = np.random.default_rng(1)
    r_x, r_s = rng.normal(size=given.q.shape), rng.normal(size=given.b.shape)
    held = np.isin(np.arange(SIDES), [1, 4])

    exact = holding(given, np.concatenate([np.ones(R, dtype=bool), held]))(r_x, r_s)
    found = Presolve.of(step).solve(holding(reduced, held), r_x, r_s)
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@each_kind
def test_some_samples(batched: str, entries: int) -> None:
    given = least_squares(batched, entries)
    step, reduced = substituted(given)
    samples = np.array([2, 0])
    part = step.take(samples)
    some = part.apply(given.take(samples))
    np.testing.assert_allclose(some.q, reduced.q[samples])
    np.testing.assert_allclose(np.atleast_2d(some.P.values), np.atleast_2d(reduced.take(samples).P.values))
    points = [np.ones((BATCH, k)) for k in (V, SIDES, SIDES)]
    for a, b in zip(part.outward(*(v[samples] for v in points)), step.outward(*points), strict=True):
        np.testing.assert_allclose(a, b[samples])


def test_matrices_that_would_fill_up_are_put_in_only_where_rows_are_short() -> None:
    """A factor model, |F'x|^2 + |Dx|^2: only the second norm is substituted."""
    n, k = 40, 4
    rng = np.random.default_rng(2)
    A = np.block(
        [
            [rng.normal(size=(k, n)), -np.eye(k), np.zeros((k, n))],
            [np.diag(rng.uniform(1, 2, n)), np.zeros((n, k)), -np.eye(n)],
            [-np.eye(n), np.zeros((n, k + n))],
        ]
    )
    P = np.diag(np.concatenate([np.zeros(n), np.ones(k + n)]))
    cones = Product([(Zero(), k + n), (Nonneg(), n)])
    given = ConeProgram.from_matrices(P, np.ones((1, 2 * n + k)), A, np.ones((1, 2 * n + k)), cones).pruned()
    _, reduced = substituted(given)
    assert (reduced.n, reduced.m) == (n + k, n + k)


@pytest.mark.parametrize(
    ("row", "entry"), [(R, V), (1, V), (0, V + 1)], ids=["in an inequality", "in two equalities", "again"]
)
def test_variables_in_other_rows_are_left_alone(row: int, entry: int) -> None:
    given = least_squares()
    A = given.A.matrix().toarray()
    A[row, entry] = 1.0
    found = Definitions.of(replace(given, A=SparseBatch.from_matrix(A)))
    assert found is not None
    assert np.arange(V + R)[found.places.gone].tolist() == [k for k in range(V, V + R) if k != entry]


def test_a_variable_is_not_defined_by_a_small_entry_of_its_row() -> None:
    given = least_squares()
    A = given.A.matrix().toarray()
    A[0, V] = 1e-5
    assert Definitions.of(replace(given, A=SparseBatch.from_matrix(A))) is None


def test_products_with_other_variables_and_negative_curvature_are_left_alone() -> None:
    given = least_squares()
    P = given.P.full().toarray()
    P[V, 0] = P[0, V] = 0.01
    found = Definitions.of(replace(given, P=SymmetricBatch.from_matrix(np.triu(P))))
    assert found is not None
    assert V not in np.arange(given.n)[found.places.gone]
    P[V, 0] = P[0, V] = 0.0
    P[V, V] = -1.0
    assert Definitions.of(replace(given, P=SymmetricBatch.from_matrix(np.triu(P)))) is None
