"""The forward solve with its answer checked.

A solver's claim is not taken on trust: `verdict.judge` measures every answer. Whom to ask next about samples
that failed is decided by the caller (`ffo.engine`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ffo.errors import FFOError, Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.pool import NOT_FINITE
from ffo.solvers.verdict import judge
from ffo.solvers.workspace import failed, gather

Array = np.ndarray


def default_tolerance(solver: Solver) -> float:
    """The residual up to which an answer of this solver counts as solved: max(1e-5, 100 eps).

    Solvers stop on their own norms of scaled data, so an honest answer at eps may measure several
    times eps here (and more on curved cones); a wrong one is off by orders of magnitude. Polishing
    repairs what lies between, so failing such a sample would cost training steps for nothing.
    """
    return max(solver.residual_floor, 100 * solver.eps)


def solve_checked(
    solver: Solver, program: ConeProgram, tolerance: float | None = None, claims: bool = True
) -> tuple[Solution, Array]:
    """Solve a batch and check every answer.

    Args:
        tolerance: see `default_tolerance`.
        claims: whether to check claims of success too; False for a caller that verifies them anyway.

    Returns:
        The solution, whose status and detail have been checked, and natural residuals (batch,), NaN without a point
        or unchecked. Samples with non-finite data are INVALID_INPUT and never reach the solver.
    """
    if program.all_finite:
        return _checked(solver, program, default_tolerance(solver) if tolerance is None else tolerance, claims)
    solver.check(program)
    finite, batch, n, m = np.flatnonzero(program.finite), program.batch, program.n, program.m
    x, y, s = (np.full((batch, k), np.nan) for k in (n, m, m))
    status, iterations, residual = np.full(batch, int(Status.INVALID_INPUT)), np.full(batch, -1), np.full(batch, np.nan)
    detail = {int(k): NOT_FINITE for k in np.flatnonzero(~program.finite)}
    found = Solution(x, y, s, status, iterations, detail=detail)
    if len(finite):
        part, residual[finite] = solve_checked(solver, program.take(finite), tolerance, claims)
        for name in ("x", "y", "s", "status", "iterations"):
            getattr(found, name)[finite] = getattr(part, name)
        detail.update({int(finite[k]): text for k, text in (part.detail or {}).items()})
        found = replace(found, setup_time=part.setup_time, solve_time=part.solve_time)
    return found, residual


def _checked(solver: Solver, program: ConeProgram, tolerance: float, claims: bool) -> tuple[Solution, Array]:
    answer = _solved(solver, program)
    residual = np.full(program.batch, np.nan, dtype=float)
    if not claims and not answer.status.any() and np.isfinite(answer.x).all():
        return answer, residual
    todo = np.flatnonzero(claims | ~(answer.solved & np.isfinite(answer.x).all(axis=1)))
    status = np.array(answer.status)
    residual[todo], status[todo] = judge(answer.take(todo), program.take(todo), tolerance)
    failed = np.flatnonzero(status != Status.SOLVED).tolist()
    detail = {k: describe(answer, k, status, residual) for k in failed}
    return replace(answer, status=status, detail={k: text for k, text in detail.items() if text}), residual


def _solved(solver: Solver, program: ConeProgram) -> Solution:
    """The solver's answer. An exception costs the samples that raise it when they are alone (halves are tried)."""
    try:
        return solver.solve(program)
    except FFOError:
        raise
    except Exception as error:
        if program.batch == 1:
            return gather([failed(program, Status.NUMERICAL, f"{type(error).__name__}: {error}")], program)
    halves = np.array_split(np.arange(program.batch), 2)
    return Solution.joined([_solved(solver, program.take(half)) for half in halves])


def describe(answer: Solution, k: int, status: Array, residual: Array) -> str:
    """Why sample k counts as failed, beside its status."""
    said = (answer.detail or {}).get(k, "")
    if answer.status[k] == Status.SOLVED:
        said = "the solver claimed success"
    if np.isfinite(residual[k]) and status[k] not in (Status.INFEASIBLE, Status.UNBOUNDED):
        said += f"{', ' if said else ''}natural residual {residual[k]:.1e}, row by row"
    return said
