"""The last word on answers that were found in other units: whether they hold in those of the given program.

Units are estimated from the data, which may mislead (right-hand sides of 1e-12 that mean zero), and the share of a row
in the largest terms depends on them: costs that balance each other in the given units may be rounding in others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ffo.engine.batch import ACCEPT, Batch
from ffo.engine.face import costs_drown, is_rounding
from ffo.engine.stages import REPAIRABLE, reject_indefinite
from ffo.errors import SOLVED, Status
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of, values_of
from ffo.program.presolve import Presolve, PresolveStep, Triple
from ffo.program.sparse import SymmetricBatch

Array = np.ndarray

#: natural residual in the given units above which an answer that holds in others is not one; below, it is reported (if
#: ten times smaller, right answers of solvers are refused where nothing is polished)
HELD = 1e-5
#: rounding errors of a sum relative to its terms, at a point that has digits in other coordinates only
ROUNDING = 1e-12


def holds(given: ConeProgram, point: Triple) -> bool:
    """Whether all points are solutions in the given units, to the accuracy of a polished one, with moderate
    multipliers."""
    if costs_drown(given, *point[:2]).any():
        return False
    return bool((plan_of(given).judge(values_of(given), *point) <= ACCEPT).all())


def check_in_given_units(
    batch: Batch, indefinite: Callable[[SymmetricBatch], dict[int, float]] | None, rotated: bool = False
) -> None:
    """Withdraw answers that do not hold in the given units, and reject what is not convex in them; `indefinite`: None
    if all samples are known to be convex. If coordinates of cones were `rotated`, the given ones may have no digits for
    an answer: rounding errors of its terms do not count."""
    if indefinite is not None:
        reject_indefinite(batch, indefinite, np.flatnonzero(batch.program.finite & ~batch.proven))
    solved = np.flatnonzero(batch.status == SOLVED)
    if not len(solved):
        return
    program, point = batch.part(solved), tuple(v[solved] for v in batch.point)
    residual = plan_of(program).judge(values_of(program), *point)
    if rotated:
        residual[is_rounding(program, *point, errors=ROUNDING, forces=np.abs(point[1]))] = 0.0
    batch.residual[solved] = np.fmax(batch.residual[solved], residual)
    batch.withdraw(solved[~(residual <= HELD)], Status.INACCURATE)


def solve_in_given_units(
    batch: Batch, samples: Array, steps: Sequence[PresolveStep | None], stages: Callable[[Batch], None]
) -> None:
    """Solve those of some samples that failed in other units again, without these; `steps`: the rest of the presolve,
    of which the first is for the whole batch."""
    failed = samples[REPAIRABLE[batch.status[samples]] & ~batch.proven[samples]]
    if len(failed):
        first, *rest = steps
        presolve, origin = Presolve.of(first and first.take(failed), *rest), batch.part(failed)
        again = Batch.of(presolve.apply(origin))
        stages(again)
        batch.put(failed, again.undo(presolve, origin), final_only=True)
