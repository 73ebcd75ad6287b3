"""Another try for samples that failed, or whose answers are coarse: in other coordinates of their curved cones.

In these, the slack of every block of the best point so far has unit size (`program.balance`). What is small there is
small in each coordinate: an answer that does not hold in them is not one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.engine.batch import Batch, are_finite
from ffo.engine.face import fine
from ffo.engine.stages import REPAIRABLE
from ffo.engine.units import HELD, check_in_given_units
from ffo.errors import SOLVED, Status
from ffo.kernels.deadline import expired
from ffo.program.balance import balance, units_of_blocks
from ffo.program.plan import plan_of, values_of
from ffo.program.presolve import Presolve
from ffo.program.scaling import scaling
from ffo.program.substitution import Substitution

Array = np.ndarray

#: how often coordinates are chosen: those of a poor point are poor
TRIES = 3


def solve_balanced(batch: Batch, first: Substitution | None, stages: Callable[[Batch], None]) -> None:
    """Solve such samples again where coordinates, or blocks, differ much in size; `first`: the presolve of all samples.

    A sample is tried again while its answer gets better."""
    if batch.program.cones.kinds <= {Zero, Nonneg}:
        return
    tried = np.arange(batch.program.batch)
    for _ in range(TRIES):
        coarse = (batch.status == SOLVED) & (batch.residual > fine(batch.program))
        poor = (coarse | REPAIRABLE[batch.status]) & ~batch.proven
        tried = tried[poor[tried] & are_finite(*(v[tried] for v in batch.point))]
        if not len(tried) or expired():
            return
        before = Presolve.of(first and first.take(tried))
        _, y, s = before.inward(*(v[tried] for v in batch.point))
        found = balance(before.apply(batch.part(tried)), y, s)
        some = found.uneven.nonzero()[0]
        if not len(some):
            return
        presolve = before.take(some).then(Presolve.of(found.step.take(some)))
        tried = _solve_again(batch, tried[some], presolve, found.skewed[some], stages)


def _solve_again(
    batch: Batch, samples: Array, presolve: Presolve, skewed: Array, stages: Callable[[Batch], None]
) -> Array:
    """Solve some samples after this presolve; returns those whose answer is better. Where coordinates of a block are
    `skewed`, answers so far are judged in the new ones, too: another coordinate's size excuses no error."""
    origin = batch.part(samples)
    program = presolve.apply(origin)
    for units in (units_of_blocks, scaling):
        step = Presolve.of(units(program))
        presolve, program = presolve.then(step), step.apply(program)
    solved, residual = batch.status[samples] == SOLVED, batch.residual[samples]
    there = plan_of(program).judge(values_of(program), *presolve.inward(*(v[samples] for v in batch.point)))
    residual = np.where(skewed, np.fmax(residual, there), residual)
    wanted = (~solved | ~(residual <= fine(program))).nonzero()[0]
    samples, solved, residual = samples[wanted], solved[wanted], residual[wanted]
    presolve, origin, again = presolve.take(wanted), origin.take(wanted), Batch.of(program.take(wanted))
    if not len(samples):
        return samples
    stages(again)
    again.undo(presolve, origin)
    check_in_given_units(again, None)
    better = (again.status == SOLVED) & (~solved | (again.residual < residual))
    again.proofs.clear()  # a proof is one in the given coordinates
    batch.put(samples, again.only(better), final_only=True)
    kept = solved & ~better
    batch.residual[samples[kept]] = residual[kept]
    wrong = samples[kept & skewed[wanted] & ~(residual <= HELD)]
    if len(wrong):
        batch.withdraw(wrong)
        batch.status[wrong] = Status.INACCURATE
    return samples[better]
