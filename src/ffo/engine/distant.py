"""Another try for samples that failed: without inequalities that they can hardly reach.

A right-hand side of 1e12 that means infinity misleads solvers: relative to it, any violation of other rows is small.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffo.engine.batch import Batch
from ffo.engine.stages import REPAIRABLE
from ffo.engine.units import check_in_given_units
from ffo.errors import Status
from ffo.program.presolve import Presolve, distant_rows
from ffo.program.scaling import scaling
from ffo.program.substitution import Substitution


def solve_without_distant_rows(batch: Batch, first: Substitution | None, stages: Callable[[Batch], None]) -> None:
    """Solve failed samples again without distant rows, and keep solutions that satisfy these, and proofs that the other
    rows contradict each other; `first`: the presolve of all samples."""
    failed = np.flatnonzero(REPAIRABLE[batch.status] & ~batch.proven)
    if not len(failed):
        return
    origin, before = batch.part(failed), Presolve.of(first and first.take(failed))
    for samples, rows in distant_rows(before.apply(origin)):
        reduced = rows.apply(rows.program)
        units = Presolve.of(scaling(reduced))
        again = Batch.of(units.apply(reduced))
        stages(again)
        given = origin.take(samples)
        again.undo(before.take(samples).then(Presolve.of(rows)).then(units), given)
        check_in_given_units(again, None)
        removed = ~rows.present
        kept = (before.take(samples).inward(*again.point)[2][:, removed] >= 0).all(axis=1)
        for k in [k for k, proof in again.proofs.items() if proof.status is not Status.INFEASIBLE]:
            del again.proofs[k]
        batch.put(failed[samples], again.only(kept | again.proven), final_only=True)
