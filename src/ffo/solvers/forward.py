"""The forward solve, with its answers checked.

`verdict.judge` measures every answer, whatever status the solver reports. The caller (`ffo.engine`) decides which
solver to try next on failed samples.
"""

from __future__ import annotations

import numpy as np

from ffo.errors import FFOError, Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.workspace import failed, gather

Array = np.ndarray


def default_tolerance(solver: Solver) -> float:
    """The residual up to which an answer of this solver counts as solved: max(1e-5, 100 eps).

    Solvers stop on their own norms of scaled data, so a good answer at eps may measure several times eps here
    (and more on curved cones); a wrong one is off by orders of magnitude. Polishing repairs what lies in between, so
    failing such a sample would waste training steps.
    """
    return max(solver.residual_floor, 100 * solver.eps)


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
