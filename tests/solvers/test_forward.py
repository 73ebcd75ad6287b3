"""The checked solve: wrong answers are found, right ones accepted."""

from __future__ import annotations

import numpy as np
import pytest
from checked import solve_checked
from solver_problems import infeasible, known_program, unbounded

from ffo.cones import Nonneg, Product, Zero
from ffo.errors import Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import get_solver
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.verdict import judge
from ffo.solvers.workspace import Workspace


class Scripted(Solver):
    """Returns Clarabel's answer, moved by `shift`, with given statuses."""

    name = "SCRIPTED"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), True, "numpy", "numpy")

    def __init__(self, claim: list[Status], shift: list[float]) -> None:
        super().__init__()
        self.claim, self.shift = claim, shift

    def workspace(self, program: ConeProgram) -> Workspace:
        raise NotImplementedError

    def solve(self, program: ConeProgram) -> Solution:
        right = get_solver("CLARABEL").solve(program)
        x = right.x + np.array(self.shift[: program.batch])[:, None]
        status = np.array(self.claim[: program.batch], dtype=int)
        return Solution(x, right.y, right.s, status, right.iterations, detail={})


def test_right_answers_pass_and_are_reported() -> None:
    program = known_program("qp").program
    solution, residual = solve_checked(get_solver("PIQP"), program)
    assert solution.solved.all()
    assert not solution.detail
    assert (residual < 1e-6).all()


def test_a_wrong_answer_is_found_whatever_the_solver_claims() -> None:
    program = known_program("qp").program
    liar = Scripted([Status.SOLVED] * 3, [0.0, 0.3, 0.0])
    solution, residual = solve_checked(liar, program)
    assert solution.status.tolist() == [Status.SOLVED, Status.INACCURATE, Status.SOLVED]
    assert residual[1] > 1e-2 > residual[[0, 2]].max()
    assert "claimed success" in solution.detail[1]
    assert "residual" in solution.detail[1]


def test_a_right_answer_is_accepted_though_the_solver_doubts_it() -> None:
    program = known_program("qp").program
    modest = Scripted([Status.ITERATION_LIMIT, Status.INACCURATE, Status.ITERATION_LIMIT], [0.0, 0.0, 0.3])
    solution, _ = solve_checked(modest, program)
    assert solution.status.tolist() == [Status.SOLVED, Status.SOLVED, Status.ITERATION_LIMIT]


def test_the_tolerance_is_the_users() -> None:
    program = known_program("qp").program
    shifted = Scripted([Status.SOLVED] * 3, [1e-3] * 3)
    assert solve_checked(shifted, program, tolerance=0.1)[0].solved.all()
    assert not solve_checked(shifted, program, tolerance=1e-6)[0].solved.any()


@pytest.mark.parametrize(("build", "verdict"), [(infeasible, Status.INFEASIBLE), (unbounded, Status.UNBOUNDED)])
def test_diverging_iterates_are_recognised_as_certificates(build, verdict: Status) -> None:
    """QOCO has no such status: it breaks down, or claims a solution of the unbounded problem."""
    solver = get_solver("QOCO")
    program = build()
    assert solver.solve(program).status[0] not in (Status.INFEASIBLE, Status.UNBOUNDED)
    assert solve_checked(solver, program)[0].status[0] == verdict


def test_a_program_without_rows() -> None:
    program = ConeProgram.from_matrices(np.eye(2), np.ones(2), np.zeros((0, 2)), np.zeros(0), Product([(Nonneg(), 0)]))
    nothing, claim = np.zeros((1, 0)), np.array([int(Status.ITERATION_LIMIT)])
    for x, residual, status in ((-1.0, 0.0, Status.SOLVED), (-1.1, 1e-2, Status.ITERATION_LIMIT)):
        found = judge(Solution(np.full((1, 2), x), nothing, nothing, claim, np.zeros(1)), program, 1e-6)
        assert found[1].tolist() == [status]
        assert residual <= found[0][0] <= 10 * residual
