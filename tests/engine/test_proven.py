"""That there is no solution is an answer: proven by the multipliers of a solver, it needs no second opinion."""

from __future__ import annotations

import numpy as np
import pytest

from ffo.cones import Nonneg, Product
from ffo.engine import Engine, Options
from ffo.errors import Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import get_solver
from ffo.solvers.base import Solver
from ffo.solvers.verdict import proven
from ffo.solvers.workspace import Point, Workspace


def strips(n: int, width: float) -> ConeProgram:
    """|x|^2 / 2 + q'x within -width <= Gx <= width: empty for negative widths."""
    rng = np.random.default_rng(n)
    G = rng.normal(size=(n // 2, n))
    rows = np.concatenate([G, -G])
    return ConeProgram.from_matrices(
        np.eye(n), rng.normal(size=(3, n)), rows, np.full((3, len(rows)), width), Product([(Nonneg(), len(rows))])
    )


@pytest.mark.parametrize("n", [6, 40, 160])
def test_multipliers_prove_that_nothing_is_feasible(n: int) -> None:
    program, other = strips(n, -1.0), strips(n, 1.0)
    answer = get_solver("DENSE").solve(program)
    assert (answer.status == Status.INFEASIBLE).all()
    assert proven(answer, program).all()
    assert not proven(get_solver("DENSE").solve(other), other).any()
    assert not proven(answer, other).any()  # another program's proof proves nothing
    answer.y[:] += 1e-6 * np.random.default_rng(0).normal(size=answer.y.shape)
    assert not proven(answer, program).any()


def test_verdicts_without_a_point_are_not_proven() -> None:
    program = strips(6, 1.0)
    nothing = np.full((3, 6), np.nan)
    for status in (Status.INFEASIBLE, Status.UNBOUNDED):
        answer = Solution(nothing, nothing, nothing, np.full(3, int(status)), np.zeros(3, int))
        assert not proven(answer, program).any()


def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for kind in {type(get_solver(name)) for name in ("DENSE", "INTERIOR", "CLARABEL", "PIQP", "HIGHS")}:
        solve = kind.solve
        monkeypatch.setattr(kind, "solve", lambda self, p, solve=solve: asked.append(self.name) or solve(self, p))
    outcome = Engine(Options(on_fail="nan")).run(strips(40, -1.0))
    assert outcome.info.status == [Status.INFEASIBLE] * 3
    assert asked == ["DENSE"]


class _Lying(Workspace):
    def start(self, sample: int) -> None:
        pass

    def run(self, sample: int) -> Point:
        nothing = np.zeros(self.program.m)
        return Point(np.zeros(self.program.n), nothing, nothing, Status.INFEASIBLE, 1)


class Liar(Solver):
    """Calls everything infeasible, without a proof."""

    name = "LIAR"
    capabilities = get_solver("CLARABEL").capabilities

    def workspace(self, program: ConeProgram) -> Workspace:
        return _Lying(program)


def test_claims_without_a_proof_are_looked_into() -> None:
    outcome = Engine(Options(solver=Liar(), retry=["CLARABEL"])).run(strips(6, 1.0))
    assert outcome.info.status == [Status.SOLVED] * 3
    assert outcome.info.solver == ("CLARABEL",) * 3
