"""The status of a solver's answer, from measurements.

One rule in both directions: a point whose natural residual (`ffo.kernels.point`) is within the tolerance is SOLVED,
even if the solver stopped at a limit or called it inaccurate; any other point is not, even if the solver called it
solved. A point that is not a solution, or only a rough one, may still prove that there is none, because the iterates
of most algorithms then diverge along a certificate:

    y in K*, b'y < 0:             every feasible x has |x| >= -b'y / |A'y|_1        (Farkas)
    q'x < 0, r = dist(-Ax, K):    every dual feasible pair has norm >= -q'x / (|Px|_1 + |r|_1)

(norms of the left sides are largest components). When that distance is huge, the problem is called
infeasible or unbounded. A solver's own verdict that its point does not prove is kept too, unless another solver finds
a solution. Proofs to rounding, after which no other solver is called, are in `ffo.engine.proof`.
"""

from __future__ import annotations

import numpy as np

from ffo.errors import SOLVED, Status
from ffo.program.cone import ConeProgram, Solution
from ffo.program.magnitudes import inner, unit
from ffo.program.plan import plan_of, values_of

Array = np.ndarray


def one_of(*statuses: int) -> Array:
    """Table: whether a status, by number, is one of these; the last entry, -1, is for no answer."""
    table = np.zeros(len(Status) + 1, dtype=bool)
    table[list(statuses)] = True
    return table


#: Reported statuses that measurements overrule.
_JUDGED = one_of(Status.SOLVED, Status.INACCURATE, Status.ITERATION_LIMIT, Status.TIME_LIMIT, Status.NUMERICAL)

#: If every feasible point is farther away than this, in units of the data, there is none.
FAR = 1e6
#: Natural residual above which a point that proves that there is no solution is not accepted as one, even within the
#: tolerance: as it diverges, the terms of the conditions grow with it, and any error becomes relatively small.
ROUGH = 1e-13


def judge(
    answer: Solution, program: ConeProgram, tolerance: float, residual: Array | None = None
) -> tuple[Array, Array]:
    """(batch,) natural residuals (NaN without a point; measured unless given) and the resulting statuses."""
    finite = np.isfinite(np.concatenate([answer.x, answer.y, answer.s], axis=1)).all(axis=1)
    if residual is None:
        residual = plan_of(program).judge(values_of(program), answer.x, answer.y, answer.s)
    residual = np.where(finite, residual, np.nan)
    status = np.array(answer.status)
    judged = _JUDGED[status]
    good = residual <= tolerance
    status[judged & good] = Status.SOLVED
    status[judged & ~good & (status == Status.SOLVED)] = Status.INACCURATE
    doubtful = np.flatnonzero(judged & ~(residual <= ROUGH) & finite)
    if len(doubtful):
        status[doubtful] = _certified(answer.x[doubtful], answer.y[doubtful], program.take(doubtful), status[doubtful])
    return residual, status


def refuted(x: Array, y: Array, program: ConeProgram) -> Array:
    """(batch,) whether points prove that there is no solution."""
    return np.asarray(_certified(x, y, program, np.full(len(x), SOLVED)) != SOLVED)


def _certified(x: Array, y: Array, program: ConeProgram, status: Array) -> Array:
    """The statuses, replaced where the point proves that there is no solution."""
    with np.errstate(all="ignore"):
        y = unit(program.cones.project_dual(y))
        far = FAR * np.maximum(np.abs(program.b).max(axis=1, initial=1.0), 1.0)
        infeasible = -inner(program.b, y) > far * np.abs(program.A.tdot(y)).sum(axis=1)
        x = unit(x)
        move = -program.A.dot(x)
        error = np.abs(move - program.cones.project(move)).sum(axis=1) + np.abs(program.P.dot(x)).sum(axis=1)
        far = FAR * np.maximum(np.abs(program.q).max(axis=1, initial=1.0), 1.0)
        unbounded = -inner(program.q, x) > far * error
    return np.where(infeasible, int(Status.INFEASIBLE), np.where(unbounded, int(Status.UNBOUNDED), status))
