"""Every presolve step is undone exactly: points, loss gradients, changes of the data, and their composition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dense_ghost import holding

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.ghost.direct import Direct
from ffo.ghost.oracle import Linearization, linearize
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram
from ffo.program.presolve import MissingRows, Presolve, SharedMatrices, Triple, missing_rows
from ffo.program.scaling import scaling
from ffo.program.sparse import SparseBatch, SymmetricBatch, equal_rows
from ffo.solvers import get_solver

BATCH, N = 3, 4
#: x0 + x1 = b0, six inequalities, |(x0, x1)| <= b7
CONES = Product([(Zero(), 1), (Nonneg(), 6), (SecondOrder(3), 1)])
M = 10
LACKING = [2, 5]


def program(sizes: np.ndarray | None = None, alike: bool = False) -> ConeProgram:
    """Random data with different matrices in every sample; columns of these sizes."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(M, N))
    A[0] = [1, 1, 0, 0]
    A[7:] = [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    made = ConeProgram.from_matrices(
        np.diag([1.0, 2.0, 3.0, 1.0]),
        rng.normal(size=(BATCH, N)),
        A,
        np.concatenate([np.full((BATCH, 1), 0.1), rng.uniform(0.5, 1.0, (BATCH, 7)), np.zeros((BATCH, 2))], axis=1),
        CONES,
    )
    factor = np.ones((BATCH, 1)) if alike else rng.uniform(0.5, 2.0, (BATCH, 1))
    P, C = made.P, made.A
    columns = np.ones(N) if sizes is None else sizes
    return replace(
        made,
        P=SymmetricBatch(P.indptr, P.indices, P.values * factor * columns[P.indices] * columns[P.columns], P.shape),
        q=made.q * columns,
        A=SparseBatch(C.indptr, C.indices, C.values * np.ones_like(factor) * columns[C.columns], C.shape),
    )


def shared() -> tuple[ConeProgram, Presolve]:
    return program(alike=True), Presolve.of(SharedMatrices())


def scaled() -> tuple[ConeProgram, Presolve]:
    given = program(np.array([1e5, 1.0, 1e-4, 10.0]))
    found = scaling(given)
    assert found is not None
    return given, Presolve.of(found)


def lacking() -> tuple[ConeProgram, Presolve]:
    given = program()
    b = given.b.copy()
    b[:, LACKING] = np.inf
    given = given.with_vectors(b=b)
    ((samples, step),) = missing_rows(given) or []
    assert samples.tolist() == list(range(BATCH))
    return given, Presolve.of(step)


def all_of_them() -> tuple[ConeProgram, Presolve]:
    given, _ = scaled()
    b = given.b.copy()
    b[:, LACKING] = np.inf
    given = given.with_vectors(b=b)
    units = scaling(given)
    assert units is not None
    return given, Presolve.of(SharedMatrices(), units, None, *lacking()[1].steps)


STEPS = [shared, scaled, lacking, all_of_them]
Build = Callable[[], tuple[ConeProgram, Presolve]]


def random_change(given: ConeProgram, rng: np.random.Generator) -> ConeProgram:
    """A change of all data, of the sizes of the data; different in every sample."""
    P, A = given.P, given.A
    return replace(
        given,
        P=replace(P, values=rng.normal(size=(BATCH, P.nnz)) * np.abs(P.values)),
        q=rng.normal(size=given.q.shape) * np.abs(given.q),
        A=replace(A, values=rng.normal(size=(BATCH, A.nnz)) * np.abs(A.values)),
        b=rng.normal(size=given.b.shape),
    )


def inner(g: DataGradient, change: ConeProgram) -> float:
    """<gradient in the data, change of the data>, over all samples, from dense matrices."""
    total = float((g.u * change.q).sum() + (g.db * change.b).sum())
    for k in range(BATCH):
        dP, dA = change.P.full(k).toarray(), change.A.matrix(k).toarray()
        total += g.u[k] @ dP @ g.x[k]
        total += g.y[k] @ dA @ g.u[k] + g.v[k] @ dA @ g.x[k]
    return total


@pytest.mark.parametrize("build", STEPS)
def test_points_come_back(build: Build) -> None:
    given, step = build()
    rng = np.random.default_rng(1)
    m = step.apply(given).m
    reduced = tuple(rng.normal(size=(BATCH, k)) for k in (N, m, m))
    for there, back in zip(reduced, step.inward(*step.outward(*reduced)), strict=True):
        np.testing.assert_allclose(back, there, rtol=1e-13)


@pytest.mark.parametrize("build", STEPS)
def test_solutions_of_the_reduced_program_are_solutions(build: Build) -> None:
    given, step = build()
    reduced = step.apply(given)
    answer = get_solver("CLARABEL", {"eps": 1e-11}).solve(reduced)
    assert answer.solved.all()
    x, y, s = step.outward(answer.x, answer.y, answer.s)
    size = np.abs(given.q).max(axis=0) + 1e-3 * np.abs(given.q).max()
    assert (np.abs(given.stationarity(x, y)) <= 1e-6 * size).all()
    there = np.isfinite(given.b)
    assert (np.abs(given.slack(x)[there] - s[there]) <= 1e-7).all()
    assert np.isposinf(s[~there]).all()
    assert (y[~there] == 0).all()


@pytest.mark.parametrize("build", STEPS)
def test_ghost_systems_are_solved_by_the_reduced_ones(build: Build) -> None:
    given, step = build()
    rng = np.random.default_rng(2)
    r_x, r_s = rng.normal(size=(BATCH, N)), rng.normal(size=(BATCH, M))
    held = np.isin(np.arange(M), [0, 3, 8])
    inside = holding(step.apply(given), held[np.isfinite(given.b[0])])
    expected = holding(given, held)(r_x, r_s)
    for found, exact in zip(step.solve(inside, r_x, r_s), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max())


@pytest.mark.parametrize("build", STEPS)
def test_derivatives_through_a_step_are_those_of_the_program(build: Build) -> None:
    """In both directions; the program itself cannot have missing rows, so they are distant ones there."""
    given, step = build()
    plain = given.with_vectors(b=np.where(np.isinf(given.b), 1e3, given.b))
    rng = np.random.default_rng(5)
    change = random_change(given, rng)
    c_x, c_y = rng.normal(size=(BATCH, N)), rng.normal(size=(BATCH, M))
    solve, way = get_solver("CLARABEL", {"eps": 1e-11}).solve, Direct()
    reduced = step.apply(given)
    inside = linearize(reduced, solve(reduced), way)
    start = Presolve.of(scaling(plain))
    alone = start.apply(plain)
    outside = linearize(alone, solve(alone), way)

    def tangent(of: Linearization, steps: Presolve, at: ConeProgram, x: np.ndarray, y: np.ndarray) -> Triple:
        right = -change.stationarity(x, y), np.where(np.isinf(at.b), 0.0, change.slack(x))
        return steps.solve(of.sensitivity, *right)

    x, y, _ = start.outward(outside.x, outside.y, outside.s)
    dx, dy, *_ = tangent(inside, step, given, x, y)
    ex, ey, *_ = tangent(outside, start, given, x, y)
    np.testing.assert_allclose(dx, ex, rtol=1e-6, atol=1e-9 * np.abs(ex).max())
    np.testing.assert_allclose(dy, ey, rtol=1e-6, atol=1e-9 * np.abs(ey).max())
    u, w, *_ = step.solve(inside.sensitivity, -c_x, -c_y)
    assert inner(DataGradient(x, y, u, w, -w), change) == pytest.approx((c_x * dx).sum() + (c_y * dy).sum(), rel=1e-7)


def test_some_samples() -> None:
    given, step = all_of_them()
    samples = np.array([2, 0])
    part = step.take(samples)
    whole, some = step.apply(given), part.apply(given.take(samples))
    np.testing.assert_allclose(some.q, whole.q[samples])
    np.testing.assert_allclose(some.b, whole.b[samples])
    np.testing.assert_allclose(some.P.values, np.atleast_2d(whole.P.values)[samples])


def test_rows_that_are_never_active_do_not_set_units() -> None:
    """In the unit that a row of 1e11 implied for x1, its costs counted as rounding."""
    size = np.array([1.0, 1e-7])
    P, q, A = (
        np.outer(size, size) * [[2.0, 0.5], [0.5, 2.0]],
        np.array([[1.0, -1.0]]) * size,
        np.array([[1.0, 1.0]]) * size,
    )
    near = ConeProgram.from_matrices(P, q, A, np.ones((1, 1)), Product([(Zero(), 1)]))
    rows = np.concatenate([A, A, [[0.5, 1.0]]])
    cones, sides = Product([(Zero(), 1), (Nonneg(), 2)]), np.array([[1.0, 2.0, 1e11]])
    units, expected = scaling(ConeProgram.from_matrices(P, q, rows, sides, cones)), scaling(near)
    assert units is not None
    assert expected is not None
    ratio = [u.D[0, 1] / u.D[0, 0] for u in (units, expected)]
    assert 0.1 < ratio[0] / ratio[1] < 10.0


def test_no_steps_change_nothing() -> None:
    given, nothing = program(), Presolve()
    assert nothing.apply(given) is given
    assert nothing.take(np.array([0])) is nothing


def test_matrices_are_shared_only_if_all_samples_are_alike() -> None:
    alike = program(alike=True)
    found = SharedMatrices().apply(alike)
    assert found.shared_matrices
    np.testing.assert_array_equal(found.A.values, alike.A.values[0])
    for sample in range(BATCH):
        A = replace(alike.A, values=alike.A.values.copy())
        A.values[sample, 3] += 1e-15
        changed = SharedMatrices().apply(replace(alike, A=A))
        assert changed.P.shared
        assert not changed.A.shared
    assert SharedMatrices().apply(found) is found


def test_equal_rows() -> None:
    one = np.arange(3.0)
    assert equal_rows(np.broadcast_to(one, (5, 3))).shape == (3,)
    assert equal_rows(np.tile(one, (5, 1))).shape == (3,)
    assert equal_rows(one[None]).shape == (3,)
    assert equal_rows(np.zeros((2, 0))).shape == (0,)
    different = np.tile(one, (5, 1))
    different[2, 1] = 7.0
    assert equal_rows(different) is different
    unknown = np.full((2, 3), np.nan)
    assert equal_rows(unknown) is unknown


B = [
    [0.2, 1, 5, 0, 0, 3, 4],
    [np.inf, 1, 5, 0, 0, np.inf, 4],
    [0.1, 1, 5, 0, 0, 3, 4],
    [np.inf, 1, 5, 0, 0, 0.3, np.inf],
]


def test_samples_are_grouped_by_the_rows_they_lack() -> None:
    cones = Product([(Nonneg(), 1), (Zero(), 1), (SecondOrder(3), 1), (Nonneg(), 2)])
    whole = ConeProgram.from_matrices(np.eye(2), np.zeros(2), np.ones((7, 2)), np.array(B), cones)
    groups = missing_rows(whole)
    assert groups is not None
    assert sorted((samples.tolist(), step.rows.tolist()) for samples, step in groups) == [
        ([0, 2], [0, 1, 2, 3, 4, 5, 6]),
        ([1], [1, 2, 3, 4, 6]),
        ([3], [1, 2, 3, 4, 5]),
    ]
    assert missing_rows(whole.take(np.array([0, 2]))) is None


def test_a_row_that_was_missing_is_inactive_where_it_is_there_again() -> None:
    step = MissingRows(np.array([True, True, False]))
    _, y, s = step.inward(np.zeros((1, 2)), np.array([[0.0, 2.0, 3.0]]), np.array([[np.inf, 0.0, 1.0]]))
    assert y.tolist() == [[0.0, 2.0]]
    assert s.tolist() == [[1.0, 0.0]]
