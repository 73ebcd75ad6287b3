"""The forward solve with its answer checked.

A solver's claim is not taken on trust: `verdict.judge` measures every answer. What the solver claimed
and what was measured is kept in the `Report`; a retry with another solver is something the user asks
for, and the report names who answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffo.errors import Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.pool import NOT_FINITE
from ffo.solvers.registry import get_solver
from ffo.solvers.verdict import judge

Array = np.ndarray


@dataclass(frozen=True)
class Report:
    """Who answered, what was claimed and what was measured; one entry per sample.

    Attributes:
        solver: name of the solver whose answer was kept ("" where the data was not fit to be solved).
        claimed: the `Status` that this solver claimed.
        residual: the worst relative residual of the optimality conditions (NaN without a point).
        retried: whether the first solver failed, so that others were asked.
        tolerance: the residual up to which an answer of this solver counts as solved.
    """

    solver: tuple[str, ...]
    claimed: Array
    residual: Array
    retried: Array
    tolerance: Array

    @property
    def overruled(self) -> Array:
        """(batch,) where a solver claimed a solution that the residuals deny."""
        return (self.claimed == Status.SOLVED) & ~(self.residual <= self.tolerance)


def default_tolerance(solver: Solver) -> float:
    """The residual up to which an answer of this solver counts as solved: max(1e-5, 100 eps).

    Solvers stop on their own norms of scaled data, so an honest answer at eps may measure several
    times eps here (and more on curved cones); a wrong one is off by orders of magnitude. Polishing
    repairs what lies between, so failing such a sample would cost training steps for nothing.
    """
    return max(solver.residual_floor, 100 * solver.eps)


def solve_checked(
    solver: Solver,
    program: ConeProgram,
    warm: Solution | None = None,
    retry: Sequence[str | Solver] = (),
    tolerance: float | None = None,
) -> tuple[Solution, Report]:
    """Solve a batch, check every answer, and ask the `retry` solvers about the samples that failed.

    Args:
        retry: solvers to ask in order; names are configured with the accuracy of `solver`. An answer
            replaces the first one only if it is a solution.
        tolerance: see `default_tolerance`.

    Returns:
        The solution, whose status has been checked, and the report. Samples with non-finite data are
        INVALID_INPUT and never reach a solver.
    """
    others = [get_solver(r, None if isinstance(r, Solver) else {"eps": solver.eps}) for r in retry]
    for each in (solver, *others):
        each.check(program)
    record = _Record(program, tolerance)
    record.ask(solver, np.flatnonzero(program.finite), warm)
    failed = np.flatnonzero(program.finite & (record.status != Status.SOLVED))
    retried = np.zeros(program.batch, dtype=bool)
    retried[failed] = bool(others)
    for other in others:
        if len(failed):
            record.ask(other, failed, None)
            failed = failed[record.status[failed] != Status.SOLVED]
    return record.close(retried)


class _Record:
    """The best answer so far for every sample."""

    def __init__(self, program: ConeProgram, tolerance: float | None) -> None:
        batch, n, m = program.batch, program.n, program.m
        self.program, self.tolerance = program, tolerance
        self.limits = np.full(batch, np.nan)
        self.x, self.y, self.s = np.full((batch, n), np.nan), np.full((batch, m), np.nan), np.full((batch, m), np.nan)
        self.status = np.full(batch, int(Status.INVALID_INPUT))
        self.claimed, self.residual = self.status.copy(), np.full(batch, np.nan)
        self.iterations = np.full(batch, -1)
        self.answered = [""] * batch
        self.detail = {int(k): NOT_FINITE for k in np.flatnonzero(~program.finite)}
        self.setup = self.time = 0.0

    def ask(self, solver: Solver, samples: Array, warm: Solution | None) -> None:
        """Have `samples` solved; keep what is a first answer, or a solution where there was none."""
        if not len(samples):
            return
        whole = len(samples) == self.program.batch
        program = self.program if whole else self.program.take(samples)
        answer = solver.solve(program, warm if whole or warm is None else warm.take(samples))
        limit = default_tolerance(solver) if self.tolerance is None else self.tolerance
        residual, status = judge(answer, program, limit)
        first = np.array([not self.answered[k] for k in samples])
        keep = first | (status == Status.SOLVED)
        rows = samples[keep]
        self.x[rows], self.y[rows], self.s[rows] = answer.x[keep], answer.y[keep], answer.s[keep]
        self.status[rows], self.claimed[rows] = status[keep], answer.status[keep]
        self.residual[rows], self.iterations[rows] = residual[keep], answer.iterations[keep]
        self.limits[rows] = limit
        self.setup, self.time = self.setup + answer.setup_time, self.time + answer.solve_time
        for k in rows.tolist():
            self.answered[k] = solver.name
            self.detail.pop(k, None)
        details = answer.detail or {}
        for place in np.flatnonzero(keep & (status != Status.SOLVED)).tolist():
            text = _detail(answer, place, status, residual, details)
            if text:
                self.detail[int(samples[place])] = text

    def close(self, retried: Array) -> tuple[Solution, Report]:
        solution = Solution(
            self.x, self.y, self.s, self.status, self.iterations, self.setup, self.time, dict(self.detail)
        )
        return solution, Report(tuple(self.answered), self.claimed, self.residual, retried, self.limits)


def _detail(answer: Solution, k: int, status: Array, residual: Array, details: dict[int, str]) -> str:
    said = details.get(k, "")
    if answer.status[k] == Status.SOLVED:
        said = "the solver claimed success"
    if np.isfinite(residual[k]) and status[k] not in (Status.INFEASIBLE, Status.UNBOUNDED):
        said += f"{', ' if said else ''}measured residual {residual[k]:.1e}"
    return said
