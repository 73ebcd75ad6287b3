"""Flat programs: active sets tried at once give what Newton steps give, or are left to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from ghost.yardstick import Loss
from problems import Known, point, with_pair

import ffo.ghost.flat as flat_module
from ffo.cones import Nonneg, Product, Zero
from ffo.ghost.direct import Direct
from ffo.ghost.flat import FlatSolver, is_flat, polish_flat
from ffo.ghost.oracle import Linearization, linearize
from ffo.ghost.polish import Polished, polish
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch

Array = np.ndarray

EQUAL, ROWS = 3, 8


def flat_program(n: int = 24, batch: int = 6, seed: int = 0, *, batched: bool = False, diagonal: bool = False) -> Known:
    """Equalities, rows and bounds around a known x; about half of the bounds hold, strictly."""
    rng = np.random.default_rng([seed, n, batch])
    A = sp.vstack(
        [
            sp.random_array((EQUAL + ROWS, n), density=0.5, rng=rng, data_sampler=rng.standard_normal),
            2.0 * sp.eye_array(n),
            -0.5 * sp.eye_array(n, format="csr")[rng.permutation(n)[: n - 2]],
        ]
    )
    half = np.diag(rng.uniform(0.5, 2.0, n)) if diagonal else rng.normal(size=(n, n))
    m = A.shape[0]
    cones = Product([(Zero(), EQUAL), (Nonneg(), m - EQUAL)])
    program = ConeProgram.from_matrices(half @ half.T, np.zeros((batch, n)), A, np.zeros((batch, m)), cones)
    if batched:
        values = program.A.values * rng.uniform(0.5, 1.5, (batch, program.A.nnz))
        program = replace(program, A=SparseBatch(program.A.indptr, program.A.indices, values, program.A.shape))
    active = np.zeros((batch, m), dtype=bool)
    active[:, :EQUAL] = True
    for k in range(batch):  # one side of some bounds, and few enough rows to be independent
        fixed = rng.permutation(n)[: n // 2]
        active[k, EQUAL + ROWS + fixed] = True
        active[k, EQUAL + rng.permutation(ROWS)[:2]] = True
    y = np.where(active, rng.uniform(0.5, 1.5, (batch, m)), 0.0)
    y[:, :EQUAL] = rng.normal(size=(batch, EQUAL))
    s = np.where(active, 0.0, rng.uniform(0.5, 1.5, (batch, m)))
    blank = Known(program, rng.normal(size=(batch, n)), y, s)
    return with_pair(blank, s, y)


def only_trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that are left to Newton steps."""
    left: list[int] = []
    original = polish

    def counted(program: ConeProgram, *rest: object) -> Polished:
        left.append(program.batch)
        return original(program, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(flat_module, "polish", counted)
    return left


def newton(known: Known, start: tuple[Array, Array, Array]) -> Linearization:
    done = polish(known.program, *start, Direct())
    return Linearization(known.program, done.x, done.y, done.s, done.parts, done.certificate)


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])
def test_solutions_and_derivatives_are_those_of_newton_steps(
    batched: bool, diagonal: bool, remember: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = flat_program(batched=batched, diagonal=diagonal)
    assert is_flat(known.program)
    left = only_trials(monkeypatch)
    start = known.disturbed(1e-5)
    found = linearize(known.program, start, Direct(remember=remember))
    assert left == []
    for value, exact in ((found.x, known.x), (found.y, known.y), (found.s, known.s)):
        np.testing.assert_allclose(value, exact, atol=1e-11)
    assert found.certificate.good.all()
    assert found.certificate.natural_residual.max() <= 1e-12
    expected = newton(known, (start.x, start.y, start.s))
    loss = Loss.random(known.program)
    mine, residual = found.adjoint(*loss.parts)
    theirs, _ = expected.adjoint(*loss.parts)
    assert residual.max() <= 1e-9
    for name in ("u", "v", "db"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
def test_wrong_sets_lead_to_the_right_ones(batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    known = flat_program(batched=batched, batch=20)
    left = only_trials(monkeypatch)
    s, y = known.s.copy(), known.y.copy()
    rng = np.random.default_rng(3)
    for k in range(0, 20, 2):
        i = rng.integers(EQUAL, s.shape[1])
        s[k, i], y[k, i] = y[k, i], s[k, i]
    found = linearize(known.program, point(known.x, y, s), Direct())
    assert sum(left) < 10  # most are repaired by the signs of the first trial
    good = found.certificate.good
    assert good.mean() >= 0.9
    np.testing.assert_allclose(found.x[good], known.x[good], atol=1e-10)
    for c_x in np.random.default_rng(4).normal(size=(2, *known.x.shape)):
        mine, _ = found.adjoint(c_x, np.zeros_like(known.y))
        exact, _ = linearize(known.program, known.solution, Direct()).adjoint(c_x, np.zeros_like(known.y))
        np.testing.assert_allclose(mine.u[good], exact.u[good], atol=1e-8)


def repeated(known: Known, rows: list[int]) -> Known:
    """The program with some rows of A given twice, the copies inactive in no other way."""
    program = known.program
    A = program.A.matrix().tocsr()
    twice = sp.vstack([A, A[rows]])
    b = np.concatenate([program.b, program.b[:, rows]], axis=1)
    cones = Product([(Zero(), EQUAL), (Nonneg(), A.shape[0] - EQUAL + len(rows))])
    P = program.P.full().toarray()
    extended = ConeProgram.from_matrices(P, program.q, twice, b, cones)
    half = np.concatenate([known.y, known.y[:, rows]], axis=1)
    half[:, rows] /= 2
    half[:, -len(rows) :] /= 2
    return Known(extended, known.x, half, np.concatenate([known.s, known.s[:, rows]], axis=1))


@pytest.mark.parametrize("row", ["bound", "general"])
def test_dependent_rows_are_left_to_newton_steps(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = flat_program(batch=1)
    first = EQUAL + (ROWS if row == "bound" else 0)
    active = [int(i) for i in np.flatnonzero(known.y[0, first:] > 0) + first]
    twice = repeated(known, active[:1])
    left = only_trials(monkeypatch)
    found = linearize(twice.program, twice.solution, Direct())
    assert left == [1]
    assert found.certificate.dependent.all()
    np.testing.assert_allclose(found.x, known.x, atol=1e-10)
    loss = Loss.random(twice.program)
    mine, _ = found.adjoint(loss.c_x, np.zeros_like(loss.c_y))
    exact, _ = linearize(known.program, known.solution, Direct()).adjoint(loss.c_x, np.zeros_like(known.y))
    np.testing.assert_allclose(mine.u, exact.u, atol=1e-8)


def test_three_bounds_on_one_variable() -> None:
    known = flat_program()
    loose = [EQUAL + ROWS, EQUAL + ROWS + 1]
    program = known.program
    A = sp.vstack([program.A.matrix().tocsr(), program.A.matrix().tocsr()[loose]])
    b = np.concatenate([program.b, program.b[:, loose] + 1.0], axis=1)
    cones = Product([(Zero(), EQUAL), (Nonneg(), A.shape[0] - EQUAL)])
    wider = ConeProgram.from_matrices(program.P.full().toarray(), program.q, A, b, cones)
    y = np.concatenate([known.y, np.zeros((len(known.y), 2))], axis=1)
    s = np.concatenate([known.s, known.s[:, loose] + 1.0], axis=1)
    found = linearize(wider, point(known.x, y, s), Direct())
    np.testing.assert_allclose(found.x, known.x, atol=1e-10)
    np.testing.assert_allclose(found.y, y, atol=1e-10)
    assert found.certificate.good.all()


def test_solutions_that_are_not_unique_stay_where_they_are() -> None:
    """min x_1^2 / 2 subject to 0 <= x <= 1, -1 <= ... : x_2 may be anything, and Newton steps leave it alone."""
    P = np.diag([1.0, 0.0])
    A = np.vstack([np.eye(2), -np.eye(2)])
    b = np.array([1.0, 1.0, 1.0, 1.0])
    program = ConeProgram.from_matrices(P, np.array([[-0.5, 0.0]]), A, b, Product([(Nonneg(), 4)]))
    x = np.array([[0.5, 0.7]])
    found = linearize(program, point(x, np.zeros((1, 4)), program.slack(x)), Direct())
    np.testing.assert_allclose(found.x, x, atol=1e-12)
    _, residual = found.adjoint(np.array([[0.0, 1.0]]), np.zeros((1, 4)))
    assert residual[0] > 1e-3  # no derivative there


def test_an_inconsistent_backward_pass_is_solved_in_the_least_squares_sense() -> None:
    """Active sets are regular; what backward asks of a singular matrix is told from the residual."""
    known = flat_program(batch=2)
    solver = linearize(known.program, known.solution, Direct()).parts[0].solver
    assert isinstance(solver, FlatSolver)
    r_x, r_s = np.random.default_rng(0).normal(size=known.x.shape), np.zeros_like(known.y)
    exact = solver.solve(r_x, r_s)
    solver._factors._scale = solver._factors._scale * np.nan  # factors that are of no use
    again = solver.solve(r_x, r_s)
    np.testing.assert_allclose(again.u, exact.u, atol=1e-9)
    np.testing.assert_allclose(again.w, exact.w, atol=1e-9)


@pytest.mark.parametrize("slack", [0.0, 1e-12])
def test_weakly_active_constraints_are_flagged(slack: float) -> None:
    known = flat_program(batch=1)
    i = int(np.flatnonzero(known.y[0, EQUAL:] > 0)[0]) + EQUAL
    s, y = known.s.copy(), known.y.copy()
    y[0, i], s[0, i] = 0.0, slack
    weak = with_pair(known, s, y)
    found = polish_flat(weak.program, weak.x, weak.y, weak.s, Direct())
    assert found.certificate.weakly_active.all()
    assert not found.certificate.good.any()


def test_some_settled_some_not_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    known = flat_program(batch=5)
    original = flat_module._Trial.__init__

    def stubborn(self: object, solver: FlatSolver, inequality: object) -> None:
        original(self, solver, inequality)  # type: ignore[arg-type]
        self.settled = self.settled & (np.arange(solver.program.batch) % 2 == 0)  # type: ignore[attr-defined]

    monkeypatch.setattr(flat_module._Trial, "__init__", stubborn)
    left = only_trials(monkeypatch)
    found = linearize(known.program, known.disturbed(1e-5), Direct())
    assert left == [2]
    np.testing.assert_allclose(found.x, known.x, atol=1e-10)
    assert found.certificate.good.all()
    loss = Loss.random(known.program)
    monkeypatch.undo()
    exact, _ = linearize(known.program, known.solution, Direct()).adjoint(*loss.parts)
    mine, _ = found.adjoint(*loss.parts)
    np.testing.assert_allclose(mine.u, exact.u, atol=1e-8)
    np.testing.assert_allclose(mine.v, exact.v, atol=1e-8)
    some = found.take(np.array([1, 2])).adjoint(*(c[1:3] for c in loss.parts))[0]
    np.testing.assert_allclose(some.u, exact.u[1:3], atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_programs_drawn_at_random_are_not_mistaken_for_regular_ones(seed: int) -> None:
    """The first numbers of a seed that data may be drawn with are in the range of P: as a probe they would be met."""
    n, rng = 4, np.random.default_rng(seed)
    B = rng.standard_normal((2, n))
    cones = Product([(Nonneg(), 1)])
    program = ConeProgram.from_matrices(B.T @ B, np.zeros((1, n)), rng.standard_normal((1, n)), np.zeros((1, 1)), cones)
    solver = FlatSolver(program, Direct().layout(program), np.ones((1, 1), dtype=bool), remember=False)
    assert solver._factors.suspect.all()
    assert not solver.regular.any()
