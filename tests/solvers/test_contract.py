"""Tests that every solver adapter in `SOLVERS` must pass."""

from __future__ import annotations

import copy
import importlib
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from checked import solve_checked
from residuals import residuals
from solver_problems import KINDS, crossed_bounds, crossed_rows, infeasible, known_program, unbounded

from ffo.cones import Nonneg, Product, Zero
from ffo.errors import Status, UnsupportedProblemError
from ffo.program.cone import ConeProgram
from ffo.solvers import get_solver
from ffo.solvers.base import Solver

CONVERGED = 2e-7  # worst relative residual expected at the default eps of 1e-8


@dataclass(frozen=True)
class Entry:
    """A solver under test.

    residual: the residual it reaches at its default accuracy; iterates: whether one iteration is too
    few for it; curved_duals: whether its duals of second-order cones can be relied on; explains: whether
    it tells infeasible from unbounded problems; linear: whether it takes linear programs; separable: whether it
    takes nothing but separable quadratic programs.
    """

    name: str
    residual: float = CONVERGED
    iterates: bool = True
    curved_duals: bool = True
    explains: bool = True
    linear: bool = True
    separable: bool = False

    @property
    def qp(self) -> str:
        """The kind of quadratic program to use where the kind does not matter."""
        return "separable" if self.separable else "qp"

    @property
    def qp_bounds(self) -> str:
        return "separable" if self.separable else "qp_bounds"

    @property
    def infeasible(self) -> ConeProgram:
        return crossed_rows() if self.separable else infeasible()


SOLVERS = [
    Entry("CLARABEL"),
    Entry("SCS"),
    Entry("OSQP"),
    Entry("PIQP"),
    Entry("PROXQP"),
    Entry("QOCO"),
    Entry("HIGHS", iterates=False),
    Entry("DAQP", iterates=False),
    Entry("MOREAU"),
    Entry("INTERIOR", explains=False),
    Entry("DENSE"),
    Entry("SEPARABLE", linear=False, separable=True),
    Entry("ECOS", residual=1e-4),
    Entry("GUROBI", residual=1e-6, iterates=False, curved_duals=False),
    Entry("MOSEK"),
    Entry("qpsolvers:clarabel"),
    Entry("qpsolvers:daqp", iterates=False, explains=False),
    Entry("qpsolvers:ecos", residual=1e-4, linear=False),
    Entry("qpsolvers:gurobi", residual=1e-6, iterates=False),
    Entry("qpsolvers:highs", iterates=False, explains=False),
    Entry("qpsolvers:osqp"),
    Entry("qpsolvers:piqp"),
    Entry("qpsolvers:proxqp", linear=False),
    Entry("qpsolvers:quadprog", iterates=False, explains=False, linear=False),
    Entry("qpsolvers:scs"),
]


@pytest.fixture(params=SOLVERS, ids=lambda e: e.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    return request.param


def make(entry: Entry, **settings: object) -> Solver:
    return get_solver(entry.name, settings)


def supported(solver: Solver, kind: str) -> None:
    _, _, blocks = KINDS[kind]
    missing = Product(blocks).kinds - solver.capabilities.cones
    if missing:
        pytest.skip(f"{solver.name} does not treat {', '.join(sorted(c.name for c in missing))}")


@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
@pytest.mark.parametrize("kind", KINDS)
def test_solves_known_programs(entry: Entry, kind: str, batched: bool) -> None:
    solver = make(entry)
    supported(solver, kind)
    if entry.separable and kind != "separable":
        with pytest.raises(UnsupportedProblemError, match="P is diagonal"):
            solver.solve(known_program(kind).program)
        return
    if kind in ("lp", "socp") and not entry.linear:
        with pytest.raises(UnsupportedProblemError, match="does not solve linear programs"):
            solver.solve(known_program(kind).program)
        return
    known = known_program(kind, batch=3, batched=batched)
    solution = solver.solve(known.program)
    assert solution.status.tolist() == [Status.SOLVED] * 3, solution.detail
    found = residuals(solution, known.program)
    assert found.primal.max() < entry.residual
    if entry.curved_duals or known.program.cones.kinds <= {Zero, Nonneg}:
        assert found.worst.max() < entry.residual, found
    if known.unique:
        np.testing.assert_allclose(solution.x, known.x, atol=1e-3)


def test_a_batch_of_one_is_the_first_of_many(entry: Entry) -> None:
    solver = make(entry)
    program = known_program(entry.qp, batch=3).program
    alone = solver.solve(program.take(np.array([0])))
    assert alone.x.shape == (1, program.n)
    assert alone.y.shape == alone.s.shape == (1, program.m)
    np.testing.assert_allclose(alone.x[0], solver.solve(program).x[0], atol=1e-4)


def test_a_solver_serves_again_copied_and_pickled(entry: Entry) -> None:
    solver = make(entry)
    first, second = known_program(entry.qp).program, known_program(entry.qp_bounds).program
    before = solver.solve(first).x
    solver.solve(second)
    for again in (solver, copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))):
        np.testing.assert_allclose(again.solve(first).x, before, atol=1e-6)


def test_set_up_reuse_gives_the_fresh_answer(entry: Entry) -> None:
    solver = make(entry)
    program = known_program(entry.qp_bounds, batch=4).program
    together = solver.solve(program)
    for k in range(4):
        fresh = solver.solve(program.take(np.array([k])))
        np.testing.assert_allclose(together.x[k], fresh.x[0], atol=2e-4)
    found = residuals(together, program)  # the duals of duplicate bounds are not unique
    assert found.worst.max() < entry.residual, found


def test_names_what_cannot_be_solved(entry: Entry) -> None:
    solver = make(entry)
    programs = [entry.infeasible, crossed_bounds()] + ([unbounded()] if entry.linear else [])
    statuses = [int(solve_checked(solver, p)[0].status[0]) for p in programs]
    if not entry.explains:
        assert not {Status.SOLVED, Status.INACCURATE} & set(statuses)
        return
    assert statuses == [Status.INFEASIBLE, Status.INFEASIBLE, Status.UNBOUNDED][: len(statuses)]


def test_eps_is_heard(entry: Entry) -> None:
    program = known_program(entry.qp, batch=2).program
    loose, tight = make(entry, eps=1e-3), make(entry, eps=1e-9)
    assert loose.eps == 1e-3
    assert tight.eps <= 1e-9
    residual = [residuals(s.solve(program), program).worst.max() for s in (loose, tight)]
    assert residual[1] <= max(entry.residual, 1e-8)
    assert residual[0] <= 1e-2


def test_max_iters_is_heard(entry: Entry) -> None:
    if not entry.iterates:
        pytest.skip(f"{entry.name} may solve a small problem in one iteration, or counts otherwise")
    solution = make(entry, max_iters=1).solve(known_program(entry.qp, batch=2).program)
    assert (solution.status == Status.ITERATION_LIMIT).all()
    assert (solution.iterations <= 2).all()  # ProxQP counts one more


def test_bad_numbers_do_not_take_the_batch_down(entry: Entry) -> None:
    """The engine keeps NaN from solvers; even without it, the other samples must come out right."""
    solver = make(entry)
    program = known_program(entry.qp, batch=3).program
    q = np.array(program.q)
    q[1, 0] = np.nan
    solution = solver.solve(program.with_vectors(q=q))
    np.testing.assert_array_equal(solution.status[[0, 2]], Status.SOLVED)
    assert solution.x.shape == (3, program.n)


def test_says_nothing(entry: Entry, capfd: pytest.CaptureFixture) -> None:
    solver = make(entry)
    if entry.name == "qpsolvers:gurobi":  # its default environment prints the licence, once per process
        importlib.import_module("gurobipy").Model().dispose()
    capfd.readouterr()
    solver.solve(known_program(entry.qp, batch=2).program)
    solver.solve(entry.infeasible)
    assert capfd.readouterr() == ("", "")


def test_refuses_cones_it_does_not_know() -> None:
    with pytest.raises(UnsupportedProblemError, match=r"OSQP.*psd"):
        get_solver("OSQP").solve(known_program("sdp").program)
