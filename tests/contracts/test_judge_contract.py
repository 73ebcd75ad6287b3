"""Tests for everything that judges a point.

A judge says of each sample of a batch of points whether it is a solution. Some judge the point they are given
(`JUDGES`); others improve it first, and vouch for the point they return (`IMPROVERS`). To test a new
one, add a line to its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from contracts.programs import (
    PROGRAMS,
    Known,
    Suits,
    anything,
    build,
    dense_constraints,
    dense_form,
    linear_constraints,
    rows_of,
)
from problems import point, with_pair
from solvers.solver_problems import crossed_bounds, infeasible

from ffo.cones import Nonneg
from ffo.engine import Engine, Options
from ffo.engine.outcome import Outcome
from ffo.errors import Status
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Way, linearize
from ffo.ghost.resolve import Resolve
from ffo.program.cone import ConeProgram, Solution
from ffo.program.sparse import SparseBatch, SymmetricBatch
from ffo.solvers.clarabel import ClarabelSolver
from ffo.solvers.verdict import judge as measured
from ffo.torch.dense import verify

Array = np.ndarray
#: residual up to which a point counts as a solution
TOLERANCE = 1e-6
#: relative size of an error that no judge may overlook
WRONG = 1e-3


class Answering(ClarabelSolver):
    """A solver that claims that a given point is the solution, and cannot be asked for a more accurate one."""

    answer: Solution
    tolerances = ()

    def solve(self, program: ConeProgram, warm: Solution | None = None) -> Solution:
        if program.batch == len(self.answer.x):
            return self.answer
        nothing = np.full(program.batch, int(Status.NUMERICAL))  # some samples, in other coordinates
        empty = (np.full((program.batch, k), np.nan) for k in (program.n, program.m, program.m))
        return Solution(*empty, nothing, nothing)


def by_measurement(program: ConeProgram, given: Solution) -> Array:
    residual, status = measured(given, program, TOLERANCE)
    np.testing.assert_array_equal(status == Status.SOLVED, residual <= TOLERANCE)
    return status == Status.SOLVED


def by_certificate(program: ConeProgram, given: Solution) -> Array:
    """The natural residual that a derivative without polish reports."""

    def nothing(_: ConeProgram) -> Solution:
        raise AssertionError("no derivative was asked for")

    with np.errstate(all="ignore"):
        found = linearize(program, given, Resolve(nothing, target="original"))
    return found.certificate.natural_residual <= TOLERANCE


def by_dense(program: ConeProgram, given: Solution) -> Array:
    natural = verify.judge(*dense_form(program, given)).natural
    return (natural <= TOLERANCE).numpy()


def by_engine(program: ConeProgram, given: Solution) -> Array:
    """The verdict on a solver's answer without any repair."""
    return np.asarray(engine_outcome(program, given, Resolve(ClarabelSolver().solve, target="original")).info.ok)


def engine_outcome(program: ConeProgram, given: Solution, way: Way) -> Outcome:
    solver = Answering()
    solver.answer = given
    return Engine(Options(solver=solver, on_fail="nan", backward=way)).run(program)


@dataclass(frozen=True)
class Judge:
    """accept: (program, point) -> (batch,) booleans; suits: the programs it is made for; parts: what of a point it
    looks at."""

    accept: Callable[[ConeProgram, Solution], Array]
    suits: Suits = anything
    parts: str = "xys"


JUDGES: dict[str, Judge] = {
    "measured residuals": Judge(by_measurement),
    "natural residual": Judge(by_certificate),
    "dense": Judge(by_dense, dense_constraints, parts="xy"),
    "engine": Judge(by_engine),
}

#: every judge with the programs it is made for, and the parts of a point that it sees
SUBJECTS = [(judge, name) for judge, its in JUDGES.items() for name in PROGRAMS if its.suits(name)]
PARTS = [(judge, name, part) for judge, name in SUBJECTS for part in JUDGES[judge].parts]

subjects = pytest.mark.parametrize(("judge", "name"), SUBJECTS)
parts = pytest.mark.parametrize(("judge", "name", "part"), PARTS)


def perturbed(known: Known, part: str, seed: int = 0) -> Solution:
    """The solution with an error of relative size `WRONG` in one part of the middle sample."""
    values = {name: getattr(known, name).copy() for name in "xys"}
    rng = np.random.default_rng([seed, ord(part)])
    v = values[part]
    size = np.abs(v[1]).max() or 1.0
    v[1] += WRONG * size * rng.choice([-1.0, 1.0], size=v.shape[1])
    return point(**values)


def rescaled(known: Known, rows: list[float], costs: float, seed: int = 1) -> Known:
    """The same problem with its rows (one unit for a block, drawn from `rows`) and its objective in other units."""
    p, rng, factor = known.program, np.random.default_rng(seed), np.empty(known.program.m)
    for g in p.cones.groups:
        factor[g.index] = rng.choice(rows, size=(len(g.index), 1))
    P = SymmetricBatch(p.P.indptr, p.P.indices, costs * p.P.values, p.P.shape)
    A = SparseBatch(p.A.indptr, p.A.indices, p.A.values * factor[p.A.indices], p.A.shape)
    program = replace(p, P=P, q=costs * p.q, A=A, b=factor * p.b)
    return Known(program, known.x, costs * known.y / factor, factor * known.s)


#: units of rows, one of these for each block, and of costs
SCALES: dict[str, tuple[list[float], float]] = {
    "rows tenfold or a tenth": ([10.0, 0.1], 1.0),
    "costs tenfold": ([1.0], 10.0),
    "costs a tenth": ([1.0], 0.1),
}


@subjects
def test_a_solution_is_accepted(judge: str, name: str) -> None:
    chosen, known = JUDGES[judge], build(name, batched=True)
    assert chosen.accept(known.program, known.solution).tolist() == [True] * known.program.batch


@parts
def test_a_point_beside_it_is_refused_alone(judge: str, name: str, part: str) -> None:
    chosen, known = JUDGES[judge], build(name, batched=True)
    assert chosen.accept(known.program, perturbed(known, part)).tolist() == [True, False, True]


def stationarity(known: Known, size: float) -> Known:
    """Other costs with the same objective value at the same point: the duality gap does not show it."""
    q, x = known.program.q.copy(), known.x[1]
    change = np.random.default_rng(2).normal(size=known.program.n)
    change -= x * (x @ change) / (x @ x)
    q[1] += size * change / np.abs(change).max()
    return replace(known, program=known.program.with_vectors(q=q))


def feasibility(known: Known, size: float) -> Known:
    """Another right-hand side of an active row, the same point."""
    b = known.program.b.copy()
    b[1, _row(known, active=True)] -= size
    return replace(known, program=known.program.with_vectors(b=b))


def slack_of_its_own(known: Known, size: float) -> Known:
    """Ax + s = b violated such that neither a sign nor the duality gap shows it."""
    b = known.program.b.copy()
    b[1, _row(known, active=False)] += size
    return replace(known, program=known.program.with_vectors(b=b))


def complementarity(known: Known, size: float) -> Known:
    """A slack and a multiplier that are both positive; feasible and stationary as before."""
    return _moved(known, _row(known, active=True), slack=size, multiplier=0.0)


def sign_of_a_slack(known: Known, size: float) -> Known:
    i = _row(known, active=False)
    return _moved(known, i, slack=-size - known.s[1, i], multiplier=0.0)


def sign_of_a_multiplier(known: Known, size: float) -> Known:
    i = _row(known, active=True)
    return _moved(known, i, slack=0.0, multiplier=-size - known.y[1, i])


def _row(known: Known, active: bool) -> int:
    """An inequality of the middle sample."""
    rows = rows_of(known.program, Nonneg)
    return int(rows[(known.y[1, rows] > 0) == active][0])


def _moved(known: Known, row: int, slack: float, multiplier: float) -> Known:
    """Another slack and multiplier of a row in the middle sample, with b and q such that Ax + s = b and
    Px + q + A'y = 0 as before."""
    s, y = known.s.copy(), known.y.copy()
    s[1, row] += slack
    y[1, row] += multiplier
    return with_pair(known, s, y)


#: condition -> the part of a point that a judge must see to check it
CONDITIONS: dict[Callable[[Known, float], Known], str] = {
    stationarity: "x",
    feasibility: "x",
    slack_of_its_own: "s",
    complementarity: "y",
    sign_of_a_slack: "x",
    sign_of_a_multiplier: "y",
}
VIOLATIONS = [
    pytest.param(judge, name, spoil, id=f"{judge}-{name}-{spoil.__name__}")
    for judge, name in SUBJECTS
    for spoil, part in CONDITIONS.items()
    if linear_constraints(name) and part in JUDGES[judge].parts
]


@pytest.mark.parametrize(("judge", "name", "spoil"), VIOLATIONS)
def test_every_condition_counts(judge: str, name: str, spoil: Callable[[Known, float], Known]) -> None:
    """One optimality condition violated by `WRONG`, the others satisfied."""
    wrong = spoil(build(name, batched=True), WRONG)
    assert JUDGES[judge].accept(wrong.program, wrong.solution).tolist() == [True, False, True]


@pytest.mark.parametrize(("judge", "name"), [pair for pair in SUBJECTS if not linear_constraints(pair[1])])
def test_stationarity_counts(judge: str, name: str) -> None:
    wrong = stationarity(build(name, batched=True), WRONG)
    assert JUDGES[judge].accept(wrong.program, wrong.solution).tolist() == [True, False, True]


@parts
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_point_that_is_not_finite_is_refused_alone(judge: str, name: str, part: str) -> None:
    chosen, known = JUDGES[judge], build(name, batched=True)
    values = {field: getattr(known, field).copy() for field in "xys"}
    values[part][1, 0], values[part][2, -1] = np.nan, np.inf
    assert chosen.accept(known.program, point(**values)).tolist() == [True, False, False]


@pytest.mark.parametrize("scale", SCALES)
@subjects
def test_units_do_not_change_the_verdict(judge: str, name: str, scale: str) -> None:
    chosen, known = JUDGES[judge], build(name, batched=True)
    units, costs = SCALES[scale]
    other = rescaled(known, units, costs)
    points = [other.solution, *(perturbed(other, part) for part in chosen.parts)]
    together = point(*(np.stack([getattr(each, field)[1] for each in points]) for field in "xys"))
    program = other.program.take(np.ones(len(points), dtype=int))
    assert chosen.accept(program, together).tolist() == [True, *[False] * len(chosen.parts)]


@pytest.mark.parametrize("make", [infeasible, crossed_bounds], ids=lambda f: f.__name__)
@pytest.mark.parametrize("judge", JUDGES)
def test_no_point_solves_an_infeasible_program(judge: str, make: Callable[[], ConeProgram]) -> None:
    program = make().repeat(20)
    rng = np.random.default_rng(0)
    x, w = 10.0 ** rng.uniform(-2, 2, (20, 1)) * rng.normal(size=(20, program.n)), rng.normal(size=(20, program.m))
    s = program.cones.project(w)
    assert not JUDGES[judge].accept(program, point(x, s - w, s)).any()
    diverged = np.abs(w) * 10.0 ** rng.uniform(0, 17, (20, 1))  # like the multipliers of interior-point methods
    assert not JUDGES[judge].accept(program, point(x, diverged, np.zeros_like(s))).any()


# Judges that improve a point first


@dataclass(frozen=True)
class Improver:
    """improve: (program, point) -> the points it returns, and the samples it vouches for.

    `repairs`: whether errors of 1e-6 must not stop it.
    """

    improve: Callable[[ConeProgram, Solution], tuple[Solution, Array]]
    suits: Suits = anything
    repairs: bool = True


def by_newton(program: ConeProgram, given: Solution, way: Way) -> tuple[Solution, Array]:
    with np.errstate(all="ignore"):
        found = linearize(program, given, way)
    return point(found.x, found.y, found.s), found.certificate.natural_residual <= 1e-10


def by_rescue(program: ConeProgram, given: Solution, way: Way) -> tuple[Solution, Array]:
    """The engine, after a solver that gave up at this point."""
    stopped = replace(given, status=np.full(program.batch, int(Status.ITERATION_LIMIT)))
    found = engine_outcome(program, stopped, way)
    return point(found.x, found.y, found.s), found.info.ok


IMPROVERS: dict[str, Improver] = {
    "newton, direct": Improver(partial(by_newton, way=Direct())),
    "newton, iterative": Improver(partial(by_newton, way=Iterative())),
    "rescue, direct": Improver(partial(by_rescue, way=Direct())),
}
improved = pytest.mark.parametrize(
    ("improver", "name"), [(key, name) for key, its in IMPROVERS.items() for name in PROGRAMS if its.suits(name)]
)


@pytest.mark.parametrize("noise", [1e-6, 1e-2])
@improved
def test_what_an_improver_vouches_for_is_the_solution(improver: str, name: str, noise: float) -> None:
    known, chosen = build(name, batched=True), IMPROVERS[improver]
    found, good = chosen.improve(known.program, known.disturbed(noise))
    if noise == 1e-6 and chosen.repairs:
        assert good.all()
    error = np.abs(found.x - known.x).max(axis=1) / np.abs(known.x).max(axis=1)
    assert error[good].max(initial=0.0) <= 1e-6


@improved
def test_an_improver_refuses_a_point_that_is_not_finite_alone(improver: str, name: str) -> None:
    known = build(name, batched=True)
    start = known.disturbed(1e-6)
    start.x[1, 0] = np.nan
    found, good = IMPROVERS[improver].improve(known.program, start)
    if good[1]:  # unless it needs no starting point
        np.testing.assert_allclose(found.x[1], known.x[1], atol=1e-6 * np.abs(known.x).max())
    assert good[[0, 2]].all()


@pytest.mark.parametrize("make", [infeasible, crossed_bounds], ids=lambda f: f.__name__)
@pytest.mark.parametrize("improver", IMPROVERS)
def test_no_improver_vouches_for_an_infeasible_program(improver: str, make: Callable[[], ConeProgram]) -> None:
    program = make().repeat(3)
    x, y = np.random.default_rng(0).normal(size=(2, 3, program.m))
    _, good = IMPROVERS[improver].improve(program, point(x[:, : program.n], np.abs(y), np.zeros_like(y)))
    assert not good.any()
