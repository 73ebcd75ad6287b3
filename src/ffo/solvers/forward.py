"""The forward solve, with its answers checked.

`verdict.judge` measures every answer, whatever status the solver reports. The caller (`ffo.engine`) decides which
solver to try next on failed samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ffo.errors import SOLVED, FFOError, Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.pool import NOT_FINITE
from ffo.solvers.verdict import judge
from ffo.solvers.workspace import failed, gather

Array = np.ndarray


def default_tolerance(solver: Solver) -> float:
    """The residual up to which an answer of this solver counts as solved: max(1e-5, 100 eps).

    Solvers stop on their own norms of scaled data, so a good answer at eps may measure several times eps here
    (and more on curved cones); a wrong one is off by orders of magnitude. Polishing repairs what lies in between, so
    failing such a sample would waste training steps.
    """
    return max(solver.residual_floor, 100 * solver.eps)


def solve_checked(solver: Solver, program: ConeProgram, tolerance: float | None = None) -> tuple[Solution, Array]:
    """Solve a batch and check every answer.

    Args:
        tolerance: see `default_tolerance`.

    Returns:
        The solution, whose status and detail have been checked, and natural residuals (batch,), NaN without a point.
        Samples with non-finite data are INVALID_INPUT and never reach the solver.
    """
    tolerance = default_tolerance(solver) if tolerance is None else tolerance
    if program.all_finite:
        answer = solve_guarded(solver, program)
        residual, status = judge(answer, program, tolerance)
        detail = {k: describe(answer, k, status, residual) for k in np.flatnonzero(status != SOLVED).tolist()}
        return replace(answer, status=status, detail={k: text for k, text in detail.items() if text}), residual
    solver.check(program)
    finite, batch, n, m = np.flatnonzero(program.finite), program.batch, program.n, program.m
    x, y, s = (np.full((batch, k), np.nan) for k in (n, m, m))
    status, iterations, residual = np.full(batch, int(Status.INVALID_INPUT)), np.full(batch, -1), np.full(batch, np.nan)
    detail = {int(k): NOT_FINITE for k in np.flatnonzero(~program.finite)}
    found = Solution(x, y, s, status, iterations, detail=detail)
    if len(finite):
        part, residual[finite] = solve_checked(solver, program.take(finite), tolerance)
        for name in ("x", "y", "s", "status", "iterations"):
            getattr(found, name)[finite] = getattr(part, name)
        detail.update({int(finite[k]): text for k, text in (part.detail or {}).items()})
        found = replace(found, setup_time=part.setup_time, solve_time=part.solve_time)
    return found, residual


def solve_guarded(solver: Solver, program: ConeProgram) -> Solution:
    """The solver's answer. An exception fails only the samples that raise it alone, found by halving the batch."""
    try:
        return solver.solve(program)
    except FFOError:
        raise
    except Exception as error:
        if program.batch == 1:
            return gather([failed(program, Status.NUMERICAL, f"{type(error).__name__}: {error}")], program)
    halves = np.array_split(np.arange(program.batch), 2)
    return Solution.joined([solve_guarded(solver, program.take(half)) for half in halves])


def describe(answer: Solution, k: int, status: Array, residual: Array) -> str:
    """Why sample k counts as failed, in addition to its status."""
    said = (answer.detail or {}).get(k, "")
    if answer.status[k] == Status.SOLVED:
        said = "the solver claimed success"
    if np.isfinite(residual[k]) and status[k] not in (Status.INFEASIBLE, Status.UNBOUNDED):
        said += f"{', ' if said else ''}natural residual {residual[k]:.1e}, row by row"
    return said
