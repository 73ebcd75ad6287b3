"""The forward solve with its answer checked.

A solver's claim is not taken on trust: `verdict.judge` measures every answer. Whom to ask next about samples
that failed is decided by the caller (`ffo.engine`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ffo.errors import Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.pool import NOT_FINITE
from ffo.solvers.verdict import judge

Array = np.ndarray


def default_tolerance(solver: Solver) -> float:
    """The residual up to which an answer of this solver counts as solved: max(1e-5, 100 eps).

    Solvers stop on their own norms of scaled data, so an honest answer at eps may measure several
    times eps here (and more on curved cones); a wrong one is off by orders of magnitude. Polishing
    repairs what lies between, so failing such a sample would cost training steps for nothing.
    """
    return max(solver.residual_floor, 100 * solver.eps)


def solve_checked(solver: Solver, program: ConeProgram, tolerance: float | None = None) -> tuple[Solution, Array]:
    """Solve a batch and check every answer.

    Args:
        tolerance: see `default_tolerance`.

    Returns:
        The solution, whose status and detail have been checked, and the worst relative residuals (batch,) of
        the optimality conditions, NaN without a point. Samples with non-finite data are INVALID_INPUT and never
        reach the solver.
    """
    solver.check(program)
    finite = np.flatnonzero(program.finite)
    if len(finite) == program.batch:
        return _checked(solver, program, tolerance)
    batch, n, m = program.batch, program.n, program.m
    x, y, s = (np.full((batch, k), np.nan) for k in (n, m, m))
    status, iterations, residual = np.full(batch, int(Status.INVALID_INPUT)), np.full(batch, -1), np.full(batch, np.nan)
    detail = {int(k): NOT_FINITE for k in np.flatnonzero(~program.finite)}
    found = Solution(x, y, s, status, iterations, detail=detail)
    if len(finite):
        part, residual[finite] = _checked(solver, program.take(finite), tolerance)
        for name in ("x", "y", "s", "status", "iterations"):
            getattr(found, name)[finite] = getattr(part, name)
        detail.update({int(finite[k]): text for k, text in (part.detail or {}).items()})
        found = replace(found, setup_time=part.setup_time, solve_time=part.solve_time)
    return found, residual


def solve_claimed(solver: Solver, program: ConeProgram) -> tuple[Solution, Array]:
    """The same for a caller that verifies what is claimed to be solved: claims of solvers that judge their answers row
    by row are not looked at (a tenth of a small step)."""
    answer = solver.solve(program)
    if solver.judges_rows and answer.solved.all() and np.isfinite(answer.x).all():
        return answer, np.full(program.batch, np.nan)
    return _judged(answer, solver, program, None)


def _checked(solver: Solver, program: ConeProgram, tolerance: float | None) -> tuple[Solution, Array]:
    return _judged(solver.solve(program), solver, program, tolerance)


def _judged(answer: Solution, solver: Solver, program: ConeProgram, tolerance: float | None) -> tuple[Solution, Array]:
    residual, status = judge(answer, program, default_tolerance(solver) if tolerance is None else tolerance)
    failed = np.flatnonzero(status != Status.SOLVED).tolist()
    detail = {k: _detail(answer, k, status, residual) for k in failed}
    return replace(answer, status=status, detail={k: text for k, text in detail.items() if text}), residual


def _detail(answer: Solution, k: int, status: Array, residual: Array) -> str:
    said = (answer.detail or {}).get(k, "")
    if answer.status[k] == Status.SOLVED:
        said = "the solver claimed success"
    if np.isfinite(residual[k]) and status[k] not in (Status.INFEASIBLE, Status.UNBOUNDED):
        said += f"{', ' if said else ''}measured residual {residual[k]:.1e}"
    return said
