"""Another try for coarse answers of linear and quadratic programs: on the face that their large multipliers determine.

Costs that are almost parallel to the rows of a face leave 1e-8 of their size to choose a point on it: less than the
tolerance of solvers. The rows with large multipliers are held as equalities, what is left of the costs is scaled to
unit size, and the step to the best point of the face is solved for. Its multipliers, scaled back, are added to those of
the answer. This is iterative refinement of a linear program, restricted to a face.
"""

from __future__ import annotations

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.engine.batch import ACCEPT, Batch
from ffo.engine.stages import REPAIRABLE, accept, by_own_choice, unsolved
from ffo.errors import SOLVED
from ffo.ghost.oracle import Way
from ffo.kernels.deadline import expired
from ffo.program.cone import ConeProgram
from ffo.program.epigraph import Epigraphs
from ffo.program.presolve import Presolve, Triple
from ffo.program.scaling import scaling

Array = np.ndarray

#: multipliers above this share of the largest, in the units of their rows, determine the face; what they leave of the
#: costs must be below it
CLEAR = 1e-2


def refine_on_faces(batch: Batch, way: Way) -> None:
    """Replace coarse and failed answers by better ones on their faces, where there are any."""
    if not way.polishes or not batch.program.cones.kinds <= {Zero, Nonneg}:
        return
    coarse = (batch.status == SOLVED) & (batch.residual > ACCEPT)
    for k in np.flatnonzero((coarse | REPAIRABLE[batch.status]) & ~batch.proven).tolist():
        if expired():
            return
        samples = np.array([k])
        program = batch.part(samples)
        with np.errstate(all="ignore"):
            point = _best_of_face(program, *(v[samples] for v in batch.point))
            if point is None:
                continue
            again = Batch.of(program)
            found = again.linearized(np.arange(1), unsolved(*point), way)
            accept(again, np.arange(1), found, found.certificate.natural_residual <= ACCEPT)
        again.answered_by(str(batch.solver[k]), np.arange(1), batch.iterations[samples])
        again.retried[:], again.rescued[:] = batch.retried[k], True
        batch.put(samples, again, final_only=True)


def _best_of_face(program: ConeProgram, x: Array, y: Array, s: Array) -> Triple | None:
    """The best point of the face that the large multipliers of a point of one sample determine; None if these do not
    determine one, or it is not found."""
    force, bent = np.abs(y) * program.A.row_sizes, program.P.dot(x)
    large = CLEAR * max(float(np.abs(v).max(initial=0.0)) for v in (force, bent, program.q))
    held = (force > large) | program.cones.equalities
    y = np.where(held, y, 0.0)
    left = program.q + bent + program.A.tdot(y)
    size = float(np.abs(left).max(initial=0.0))
    if not 0.0 < size <= large:
        return None
    P, inequalities = program.P, np.flatnonzero(held[0] & ~program.cones.equalities)
    costs = ConeProgram(P.with_values(P.values / size), left / size, program.A, program.slack(x), program.cones)
    face = Epigraphs(inequalities).apply(costs)
    units = Presolve.of(scaling(face))
    step = by_own_choice(units.apply(face))
    step.undo(units, face)
    if step.status[0] != SOLVED:
        return None
    dx, dy, s = step.point
    return x + dx, y + size * dy, s
