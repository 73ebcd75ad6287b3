"""Another try for samples that failed, or whose answers are coarse: without inequalities that they can hardly reach.

A right-hand side of 1e12 that means infinity misleads solvers: relative to it, any violation of other rows is small.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffo.engine.batch import ACCEPT, Batch
from ffo.engine.stages import REPAIRABLE
from ffo.engine.units import check_in_given_units
from ffo.errors import SOLVED, Status
from ffo.program.cone import ConeProgram
from ffo.program.presolve import NEVER, REMOTE, Presolve, distant_rows
from ffo.program.scaling import MODERATE, ROUNDING, scaling
from ffo.program.substitution import Substitution

Array = np.ndarray


def solve_without_distant_rows(batch: Batch, first: Substitution | None, stages: Callable[[Batch], None]) -> None:
    """Solve samples that failed, or whose answers are coarse, again without distant rows. Solutions that satisfy these
    and are better are kept, and proofs that the other rows contradict each other; `first`: the presolve of all samples.
    """
    done = batch.proven.copy()
    for factor in (REMOTE, NEVER):
        _solve_without(batch, first, stages, factor, done)


def _solve_without(
    batch: Batch, first: Substitution | None, stages: Callable[[Batch], None], factor: float, done: Array
) -> None:
    """One try; `done` (batch,): samples that need none, to which it adds those with a good answer."""
    solved = batch.status == SOLVED
    coarse = solved & (batch.residual > ACCEPT)
    lost = solved & units_are_lost(batch.program, *batch.point)
    tried = np.flatnonzero((REPAIRABLE[batch.status] | coarse | lost) & ~done)
    if not len(tried):
        return
    origin, before = batch.part(tried), Presolve.of(first and first.take(tried))
    for some, rows in distant_rows(before.apply(origin), factor):
        samples, reduced = tried[some], rows.apply(rows.program)
        units = Presolve.of(scaling(reduced))
        again = Batch.of(units.apply(reduced))
        stages(again)
        again.undo(before.take(some).then(Presolve.of(rows)).then(units), origin.take(some))
        check_in_given_units(again, None)
        removed = ~rows.present
        kept = (before.take(some).inward(*again.point)[2][:, removed] >= 0).all(axis=1)
        kept &= ~coarse[samples] | (again.residual < batch.residual[samples])
        kept &= ~lost[samples] | (again.residual <= ACCEPT)
        for k in [k for k, proof in again.proofs.items() if proof.status is not Status.INFEASIBLE]:
            del again.proofs[k]
        batch.put(samples, again.only(kept | again.proven), final_only=True)
        done[samples] = batch.proven[samples] | (kept & (batch.residual[samples] <= ACCEPT))


def units_are_lost(program: ConeProgram, x: Array, y: Array, s: Array) -> Array:
    """(batch,) whether the solution of a linear program is rounding beside its distant rows, whose units derivatives
    would have: errors of 1e-16 times 1e12, where they are zero."""
    with np.errstate(all="ignore"):
        far = np.where(np.isfinite(program.b), np.abs(s), 0.0) / program.A.row_sizes
    length, slack = (np.abs(v).max(axis=1, initial=0.0) for v in (x, far))
    return np.asarray((program.P.largest == 0.0) & (slack > MODERATE) & (length <= ROUNDING * slack))
