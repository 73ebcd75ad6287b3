"""Other tries for coarse and failed answers: on the face that their large multipliers determine, and with smaller ones.

Costs that are almost parallel to the rows of a face leave 1e-8 of their size to choose a point on it: less than the
tolerance of solvers. The rows with large multipliers are held as equalities, what is left of the costs is scaled to
unit size, and the step to the best point of the face is solved for. Its multipliers, scaled back, are added to those of
the answer. This is iterative refinement of a linear program, restricted to a face. If the costs decrease along the face
without bound, they do so in the whole program.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.engine.batch import ACCEPT, Batch
from ffo.engine.stages import REPAIRABLE, accept, by_own_choice, proofs_at, unsolved
from ffo.errors import SOLVED, Status
from ffo.ghost.direct import Direct
from ffo.ghost.oracle import Linearization, Way
from ffo.kernels.deadline import expired
from ffo.kernels.evidence import DROWNING
from ffo.kernels.point import VANISHING
from ffo.program.cone import ConeProgram
from ffo.program.epigraph import Epigraphs
from ffo.program.magnitudes import largest
from ffo.program.presolve import Presolve
from ffo.program.scaling import scaling

Array = np.ndarray

#: multipliers above this share of the largest, in the units of their rows, determine the face; what they leave of the
#: costs must be below it
CLEAR = 1e-2
#: natural residual above which an answer is refined: ten times what rounding leaves in ordinary programs, without and
#: with curved cones. If it is larger, costs of 1e-8 of the others are not seen
FINE, CURVED = 1e-13, 1e-12
#: rounding errors of a sum relative to its terms
ROUNDING = 1e-15
#: natural residual of a step along a face up to which no other solver is asked for a better one: it is refined in turn
ROUGH = 1e-5
#: faces of faces that are looked at: multipliers of three sizes
DEPTH = 1
#: forces relative to the costs to which those above DROWNING are reduced; if ten times smaller, Newton's method may
#: leave the face
MODERATE = 1e2
#: how often Newton's method is tried with smaller multipliers; two are not enough where many rows cancel each other
TRIES = 3


class Held(NamedTuple):
    """The faces that the large multipliers of points determine, where they determine any.

    Attributes:
        held: (batch, m) rows that are held as equalities; y: (batch, m) their multipliers.
        left: (batch, n) what these leave of the costs; size: (batch,) its largest entry.
        clear: (batch,) whether there is a face: what is left is small, and no curved cone has a large multiplier.
    """

    held: Array
    y: Array
    left: Array
    size: Array
    clear: Array

    @classmethod
    def of(cls, program: ConeProgram, x: Array, y: Array) -> Held:
        """Multipliers are compared with the gradient of the objective or, if that leaves too much, with its terms:
        either q and Px cancel each other in other variables, or along directions without curvature."""
        force, bent, q = np.abs(y) * program.A.row_sizes, program.P.dot(x), program.q
        most, *others = (np.abs(v).max(axis=1, initial=0.0) for v in (force, q + bent, q, bent))
        large = [CLEAR * np.maximum.reduce([most, *some]) for some in (others[:1], others[1:])]
        length, natural = np.abs(x).max(axis=1, initial=0.0)[:, None], np.maximum.reduce([most, *others])[:, None]
        # rows that are far from active are on no face, even if there are no larger forces than theirs
        near = program.slack(x) * natural <= length * program.A.row_sizes * force
        force = np.where(near | (length == 0.0), force, 0.0)
        first, second = (cls._above(program, y, q + bent, force, each) for each in large)
        better = [first.clear.reshape(-1, *[1] * (v.ndim - 1)) for v in first]
        return cls(*(np.where(*chosen) for chosen in zip(better, first, second, strict=True)))

    @classmethod
    def _above(cls, program: ConeProgram, y: Array, gradient: Array, force: Array, large: Array) -> Held:
        """With the multipliers whose forces (batch, m) are large (batch,)."""
        cones = program.cones
        held = (force > large[:, None]) | cones.equalities
        y = np.where(held, y, 0.0)
        left = gradient + program.A.tdot(y)
        size = np.abs(left).max(axis=1, initial=0.0)
        clear = (size > 0.0) & (size <= large) & ~(held & ~cones.scalar_rows).any(axis=1)
        return cls(held, y, left, size, clear)


def fine(program: ConeProgram) -> float:
    """The natural residual above which answers are refined."""
    return FINE if program.cones.kinds <= {Zero, Nonneg} else CURVED


def refine_on_faces(batch: Batch, way: Way, depth: int = DEPTH) -> None:
    """Replace coarse and failed answers by better ones on their faces, or by proofs that there are none; `depth`: how
    often steps along a face are refined in turn."""
    most = fine(batch.program)
    if not way.polishes or batch.finished(most):
        return
    coarse = (batch.status == SOLVED) & (batch.residual > most)
    samples = np.flatnonzero((coarse | REPAIRABLE[batch.status]) & ~batch.proven)
    if not len(samples):
        return
    with np.errstate(all="ignore"):
        samples = samples[~_nothing_left(batch.part(samples), *(v[samples] for v in batch.point))]
        x, y, _ = (v[samples] for v in batch.point)
        faces = Held.of(batch.part(samples), x, y)
        for k in np.flatnonzero(faces.clear).tolist():
            if expired():
                return
            _refine(batch, samples[[k]], Held(*(v[[k]] for v in faces)), way, depth)


def _nothing_left(program: ConeProgram, x: Array, y: Array, s: Array) -> Array:
    """(batch,) whether what conditions leave is rounding errors of moderate terms: there is nothing to refine, although
    it may be much beside small terms of its own row (y = 0 has errors of the largest multipliers)."""
    sizes = program.A.row_sizes
    forces = np.abs(y) + largest(y * sizes) / sizes
    return is_rounding(program, x, y, s, errors=ROUNDING, forces=forces) & ~costs_drown(program, x, y)


def is_rounding(program: ConeProgram, x: Array, y: Array, s: Array, *, errors: float, forces: Array) -> Array:
    """(batch,) whether all that is left of Px + q + A'y and b - Ax - s is errors of their terms, of this relative size;
    forces (batch, m): sizes of the multipliers."""
    P, A = program.P.magnitudes, program.A.magnitudes
    terms = P.dot(np.abs(x)) + np.abs(program.q) + A.tdot(forces)
    slacks = A.dot(np.abs(x)) + np.abs(program.b) + np.abs(s)
    held = (np.abs(program.stationarity(x, y)) <= errors * terms).all(axis=1)
    return np.asarray(held & (np.abs(program.slack(x) - s) <= errors * slacks).all(axis=1))


def reduce_forces(batch: Batch, way: Way) -> None:
    """Look for smaller multipliers where the costs drown in the rounding errors of forces that cancel each other.

    Where constraints leave no interior (opposite rows), multipliers are not bounded, and those of an interior-point
    method grow with the largest right-hand side. Divided by a large number, they are still almost a null vector, and
    Newton's method adds what the costs need. If they are unique, it finds the same ones again.
    """
    if not way.polishes or expired():
        return
    program, (x, y, s) = batch.program, batch.point
    with np.errstate(all="ignore"):
        force, cost = _forces(program, y), _costs(program, x)
        samples = np.flatnonzero((batch.status == SOLVED) & (force > DROWNING * cost))
        if not len(samples):
            return
        again, everyone = Batch.of(batch.part(samples)), np.arange(len(samples))
        smaller, tries = y[samples] * (MODERATE * cost / force)[samples, None], []
        for _ in range(TRIES):  # from the given x each time: a long step moves it by rounding errors of distant rows
            tries.append(again.linearized(everyone, unsolved(x[samples], smaller, s[samples]), way))
            smaller = tries[-1].y
        left = np.stack([found.certificate.natural_residual for found in tries])
        best = np.where(np.isnan(left), np.inf, left).argmin(axis=0)
        most = np.maximum(batch.residual[samples], fine(program))
        for k, found in enumerate(tries):
            fewer = (best == k) & (left[k] <= most) & (_forces(again.program, found.y) < 0.1 * force[samples])
            _replace(batch, samples, again, found, fewer)


def costs_drown(program: ConeProgram, x: Array, y: Array) -> Array:
    """(batch,) whether costs are rounding beside multipliers."""
    return np.asarray(_forces(program, y) > DROWNING * _costs(program, x))


def _forces(program: ConeProgram, y: Array) -> Array:
    """(batch,) the largest multiplier in the units of its row."""
    return np.asarray((np.abs(y) * program.A.row_sizes).max(axis=1, initial=0.0))


def _costs(program: ConeProgram, x: Array) -> Array:
    """(batch,) sizes of the terms of the objective's gradient; if q is zero, at least those of an x of VANISHING size:
    rounding errors are left of a solution of zero."""
    q, bent = (np.abs(v).max(axis=1, initial=0.0) for v in (program.q, program.P.dot(x)))
    curvature = program.P.sizes.max(axis=1, initial=0.0)
    return np.maximum(bent, np.where(q > 0.0, q, VANISHING * np.where(curvature > 0.0, curvature, 1.0)))


def _replace(batch: Batch, samples: Array, again: Batch, found: Linearization, better: Array) -> None:
    """Replace the answers of some samples by those of `again` that are better, and accepted."""
    everyone = np.arange(len(samples))
    accept(again, everyone, found, better)
    again.solver[:], again.iterations[:] = batch.solver[samples], batch.iterations[samples]
    again.retried[:], again.rescued[:] = batch.retried[samples], True
    batch.put(samples, again, final_only=True)


def _refine(batch: Batch, sample: Array, face: Held, way: Way, depth: int) -> None:
    """Refine the answer of one sample (1,): with a step along its face, whose costs are scaled to unit size."""
    program, x = batch.part(sample), batch.point[0][sample]
    P, size, rows = program.P, float(face.size[0]), np.flatnonzero(face.held[0] & ~program.cones.equalities)
    costs = ConeProgram(P.with_values(P.values / size), face.left / size, program.A, program.slack(x), program.cones)
    along = Epigraphs(rows).apply(costs)
    units = Presolve.of(scaling(along))
    step = by_own_choice(units.apply(along), ROUGH)
    if depth:
        refine_on_faces(step, Direct(), depth - 1)
    step.undo(units, along)
    if step.status[0] == Status.UNBOUNDED:
        ray = step.proofs[0].vector[None] if step.proofs else step.point[0]
        proofs, nearly = proofs_at(program, ray, np.zeros_like(face.y))
        batch.prove(sample, proofs)
        if nearly[0] and not proofs and batch.status[sample[0]] == SOLVED:  # a proof is looked for in other ways, too
            batch.withdraw(sample, Status.UNBOUNDED)
            batch.residual[sample] = np.nan
    elif step.status[0] == SOLVED:
        dx, dy, s = step.point
        again = Batch.of(program)
        found = again.linearized(np.arange(1), unsolved(x + dx, face.y + size * dy, s), way)
        residual, before = found.certificate.natural_residual, batch.residual[sample]
        better = (residual <= ACCEPT) & ((residual < before) | (batch.status[sample] != SOLVED))
        _replace(batch, sample, again, found, better)
