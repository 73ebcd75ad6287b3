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
    """Solve such samples again where coordinates of a block differ much in size; `first`: the presolve of all
    samples."""
    if batch.program.cones.kinds <= {Zero, Nonneg}:
        return
    for _ in range(TRIES):
        coarse = (batch.status == SOLVED) & (batch.residual > fine(batch.program))
        tried = np.flatnonzero((coarse | REPAIRABLE[batch.status]) & ~batch.proven)
        tried = tried[are_finite(*(v[tried] for v in batch.point))]
        if not len(tried) or expired():
            return
        before = Presolve.of(first and first.take(tried))
        _, y, s = before.inward(*(v[tried] for v in batch.point))
        step, skewed, uneven = balance(before.apply(batch.part(tried)), y, s)
        some = (skewed | uneven).nonzero()[0]
        if not len(some):
            return
        presolve = before.take(some).then(Presolve.of(step.take(some)))
        _solve_again(batch, tried[some], presolve, skewed[some], stages)


def _solve_again(
    batch: Batch, samples: Array, presolve: Presolve, skewed: Array, stages: Callable[[Batch], None]
) -> None:
    """Solve some samples after this presolve. Better answers replace those so far, which are judged there, too, where
    coordinates of a block are `skewed`: another block's size excuses no error."""
    origin, point = batch.part(samples), tuple(v[samples] for v in batch.point)
    program = presolve.apply(origin)
    for units in (units_of_blocks, scaling):
        step = Presolve.of(units(program))
        presolve, program = presolve.then(step), step.apply(program)
    again = Batch.of(program)
    there = np.where(skewed, plan_of(program).judge(values_of(program), *presolve.inward(*point)), 0.0)
    stages(again)
    again.undo(presolve, origin)
    check_in_given_units(again, None)
    solved = batch.status[samples] == SOLVED
    better = (again.status == SOLVED) & (~solved | (again.residual < np.fmax(batch.residual[samples], there)))
    batch.put(samples, again.only(better | again.proven), final_only=True)
    kept = solved & ~better & ~again.proven
    batch.residual[samples[kept]] = np.fmax(batch.residual[samples[kept]], there[kept])
    wrong = samples[kept & ~(there <= HELD)]
    if len(wrong):
        batch.withdraw(wrong)
        batch.status[wrong] = Status.INACCURATE
