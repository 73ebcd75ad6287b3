"""Another try for samples that failed, or whose answers are coarse: in other coordinates of their curved cones.

In these, the slack of every block of the best point so far has unit size (`program.balance`). What is small there is
small in each coordinate: an answer that does not hold in them is not one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.engine.batch import ACCEPT, Batch, are_finite
from ffo.engine.face import fine
from ffo.engine.stages import REPAIRABLE
from ffo.engine.units import HELD, check_in_given_units
from ffo.errors import SOLVED, Status
from ffo.kernels.deadline import expired
from ffo.program.balance import along_same_axes, balance, units_of_blocks
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of, values_of
from ffo.program.presolve import Presolve, Triple
from ffo.program.scaling import scaling
from ffo.program.substitution import Substitution

Array = np.ndarray

#: how often coordinates are chosen: those of a poor point are poor
TRIES = 4
#: natural residual up to which a failed sample is solved in other coordinates
CLOSE = 1e-8
#: ratio of coordinates, in those where they had unit size, relative to the one that counts as skewed, below which the
#: smaller one is zero
GONE = 1e-9


def solve_balanced(batch: Batch, first: Substitution | None, stages: Callable[..., None]) -> None:
    """Solve samples again that failed, or whose answers are coarse, or have coordinates that differ much in size;
    `first`: the presolve of all samples, `stages`: solve a batch. A sample is tried again while its answer gets better.
    """
    if batch.program.cones.kinds <= {Zero, Nonneg}:
        return
    run = _Run(batch, Presolve.of(first), stages)
    tried = np.arange(batch.program.batch)
    for _ in range(TRIES):
        tried = tried[run.is_poor(tried)]
        if not len(tried) or expired():
            break
        tried = run.solve(tried)
    refused = run.failed & (batch.status == SOLVED) & ~(batch.residual <= CLOSE)
    batch.withdraw(np.flatnonzero(refused), Status.INACCURATE)


class _Run:
    """The tries of one batch.

    Attributes:
        vanishing: (batch, m) rows of blocks, after `before`, with coordinates that are zero: they vanish beside the
            others in any units. These blocks keep their coordinates.
        failed: (batch,) samples that were not solved, and are not settled in any coordinates.
    """

    def __init__(self, batch: Batch, before: Presolve, stages: Callable[..., None]) -> None:
        self.batch, self.before, self.stages = batch, before, stages
        self.vanishing = np.zeros(self.reduced(np.arange(batch.program.batch))[2].shape, dtype=bool)
        self.fine, self.failed = fine(batch.program), batch.status != SOLVED

    def reduced(self, samples: Array) -> Triple:
        """The points of some samples after the presolve."""
        return self.before.take(samples).inward(*(v[samples] for v in self.batch.point))

    def skewed(self, program: ConeProgram, samples: Array) -> Array:
        """(samples, m) rows of blocks whose coordinates differ much in size."""
        _, y, s = self.reduced(samples)
        return plan_of(program).skewed(y, s) & ~self.vanishing[samples]

    def is_poor(self, samples: Array) -> Array:
        """Whether some samples are worth another try."""
        batch = self.batch
        solved = batch.status[samples] == SOLVED
        program = self.before.take(samples).apply(batch.part(samples))
        coarse = ~(batch.residual[samples] <= self.fine) | self.skewed(program, samples).any(axis=1)
        poor = (solved & coarse) | REPAIRABLE[batch.status[samples]]
        return poor & ~batch.proven[samples] & are_finite(*(v[samples] for v in batch.point))

    def solve(self, samples: Array) -> Array:
        """One try; returns the samples that have a better answer, but one that is not settled in its coordinates."""
        before = self.before.take(samples)
        program, point = before.apply(self.batch.part(samples)), self.reduced(samples)
        found = balance(program, *point, self.vanishing[samples])
        some = found.uneven.nonzero()[0]
        if not len(some):
            return samples[some]
        steps, program = found.steps.take(some), program.take(some)
        program = steps.apply(program)
        for units in (units_of_blocks, scaling):
            step = Presolve.of(units(program))
            steps, program = steps.then(step), step.apply(program)
        point = steps.inward(*(v[some] for v in point))
        return self._solve_there(samples[some], before.take(some).then(steps), program, point, found.skewed[some])

    def _solve_there(
        self, samples: Array, presolve: Presolve, program: ConeProgram, point: Triple, skewed: Array
    ) -> Array:
        """Solve some samples in other coordinates. Where those of a block are `skewed`, answers so far are judged in
        the new ones, too: another coordinate's size excuses no error."""
        batch, solved = self.batch, self.batch.status[samples] == SOLVED
        given = residual = batch.residual[samples]
        residual = np.where(skewed, np.fmax(given, plan_of(program).judge(values_of(program), *point)), given)
        wanted = (~solved | ~(residual <= self.fine)).nonzero()[0]
        if not len(wanted):
            return wanted
        samples, solved, given, residual, skewed = (v[wanted] for v in (samples, solved, given, residual, skewed))
        presolve, again, coarse = presolve.take(wanted), Batch.of(program.take(wanted)), ~(given <= self.fine)
        close = (solved & ~coarse).nonzero()[0]  # from there, Newton's method may need no solver
        self.stages(again, recalled=(close, *(v[wanted[close]] for v in point)))
        there, left = again.program, again.residual.copy()
        vanishing = plan_of(there).skewed(*again.point[1:], GONE) & (again.status == SOLVED)[:, None]
        vanishing &= along_same_axes(there.cones, point[2][wanted], again.point[2])
        settled = (left <= self.fine) & ~balance(there, *again.point, self.vanishing[samples]).skewed
        zero = vanishing.any(axis=1) & solved & ~coarse  # the given answer says so, too
        again.hits, again.rescued[:], again.retried[:] = 0, True, True
        warm = again.solver == ""
        again.solver[warm], again.iterations[warm] = batch.solver[samples[warm]], batch.iterations[samples[warm]]
        again.undo(presolve, batch.part(samples))
        check_in_given_units(again, None, rotated=True)
        again.proofs.clear()  # a proof is one in the given coordinates
        # another answer that is coarse there is not better than one that is not coarse here
        better = ~solved | ((again.residual < residual) & (coarse | (again.residual <= ACCEPT)))
        better |= (left < residual) & (left <= self.fine)
        better &= (again.status == SOLVED) & ~zero
        batch.put(samples, again.only(better), final_only=True)
        nearer = ~solved & ~better & are_finite(*again.point)  # a failure may be closer to the solution
        batch.put_point(samples[nearer], tuple(v[nearer] for v in again.point))
        self.vanishing[samples] |= vanishing
        self.failed[samples[better & settled]] = False
        kept = solved & ~better & coarse  # to fail there proves nothing
        batch.residual[samples[kept]] = residual[kept]
        batch.withdraw(samples[kept & skewed & ~(residual <= HELD)], Status.INACCURATE)
        return samples[(better & ~settled) | zero | nearer]
