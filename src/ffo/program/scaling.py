"""Scaling of badly scaled data to unit size.

Tolerances of solvers, checks of residuals and regularised factorizations are meaningful only at unit size.
With sizes f of the objective's gradient and l of the right-hand sides, and diagonal D and E, the program in
x = l D x', s = l E^-1 s', y = f E y' has the data

    P' = (l/f) D P D,   q' = D q / f,   A' = E A D,   b' = E b / l,

and E is constant on the blocks of curved cones, and therefore preserves them. Data of moderate size is left
unchanged, so that the common case costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ffo.cones import Product
from ffo.program.cone import ConeProgram
from ffo.program.plan import values_of
from ffo.program.presolve import NEVER, PresolveStep, Triple
from ffo.program.sparse import SparseBatch, SymmetricBatch, distinct, plain

Array = np.ndarray

#: sizes within [1 / MODERATE, MODERATE] are left unchanged
MODERATE = 1e3
PASSES = 8
#: right-hand sides that count as infinite, and sizes relative to the largest that count as zero
INFINITE, ROUNDING = 1e12, 1e-13


@dataclass(frozen=True)
class Scaling(PresolveStep):
    """D (batch or 1, n), E (batch or 1, m), l and f (batch, 1)."""

    D: Array
    E: Array
    length: Array
    force: Array

    def take(self, samples: Array) -> Scaling:
        D = self.D if len(self.D) == 1 else self.D[samples]
        E = self.E if len(self.E) == 1 else self.E[samples]
        return Scaling(D, E, self.length[samples], self.force[samples])

    def apply(self, program: ConeProgram) -> ConeProgram:
        """The data in the new units; linear in the data."""
        P, A = program.P, program.A
        ratio = self.length / self.force  # (batch, 1)
        if len(self.D) == 1 and P.shared and (ratio == ratio[0]).all():
            P_values = P.values * ratio[0, 0] * self.D[0, P.indices] * self.D[0, P.columns]
        else:
            P_values = P.values * ratio * self.D[:, P.indices] * self.D[:, P.columns]
        A_values = A.values * (self.E[:, A.indices] * self.D[:, A.columns])
        if len(self.D) == 1 and A.shared:
            A_values = A_values[0]
        return replace(
            program,
            P=P.with_values(P_values),
            q=self.D * program.q / self.force,
            A=A.with_values(A_values),
            b=self.E * program.b / self.length,
        )

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        return x / (self.length * self.D), y / (self.force * self.E), s * self.E / self.length

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        return x * self.length * self.D, y * self.force * self.E, s * self.length / self.E

    def reduce(self, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return r_x * self.D / self.force, r_s * self.E / self.length

    def restore(self, u: Array, w: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return u * self.length * self.D, w * self.force * self.E


def is_moderate(program: ConeProgram) -> bool:
    """Whether a program is known to need no scaling. Sizes of shared matrices are kept with them."""
    from ffo.kernels.extent import moderate_samples, moderate_vectors  # loads compiled code

    if not program.n:
        return False
    P, A, (Pv, q, Av, b) = program.P, program.A, values_of(program).arrays
    if program.shared_matrices:
        size = A.kept("size", lambda: _MatrixSize.of(P, A), P)
        found = size.fit and moderate_vectors(size.most, size.least, size.alone, q, b, MODERATE, ROUNDING, NEVER)
    else:
        p, a = P.pattern, A.pattern
        entries = p.rows, p.columns, Pv, a.rows, a.columns, Av, a.coupling, a.coupled
        found = moderate_samples(*entries, q, b, MODERATE, ROUNDING, NEVER)
    if found:
        program.note_finite(True)
    return bool(found)


class _MatrixSize(NamedTuple):
    """Sizes of the entries of shared matrices (`kernels.extent.matrix_extent`)."""

    most: float
    least: float
    fit: bool
    alone: Array

    @classmethod
    def of(cls, P: SymmetricBatch, A: SparseBatch) -> _MatrixSize:
        from ffo.kernels.extent import matrix_extent

        p, a, alone = P.pattern, A.pattern, np.empty(P.shape[0], dtype=bool)
        entries = p.rows, p.columns, plain(P.values), a.rows, a.columns, plain(A.values), a.coupling, a.coupled
        return cls(*matrix_extent(*entries, A.shape[0], MODERATE, alone), alone)


def scaling(program: ConeProgram) -> Scaling | None:
    """How to scale a program to unit size; None if it is close enough."""
    if not program.n:
        return None
    length, force = _sizes(program)
    P, A, ratio = program.P, program.A, length / force
    if program.shared_matrices:
        ratio = np.array([ratio.min(axis=0), ratio.max(axis=0)])  # columns grow with it: the extremes suffice
    rows = np.concatenate([v.ravel() for v in (length, force, A.largest_of_rows)])
    alone, ignored = np.flatnonzero(_only_bounded(P, A)), _never_active(program.cones, program.b, length[:, 0])
    near = A if ignored is None else _without_rows(A, ignored)
    if _moderate(rows) and _moderate_columns(P, near, ratio) and _moderate(np.abs(program.q[:, alone]) / force):
        return None
    plain = Scaling(np.ones((1, program.n)), np.ones((1, program.m)), length, force)
    return _equilibrated(program, _with_shared_P(program, plain))


def _with_shared_P(program: ConeProgram, found: Scaling) -> Scaling:
    """Lengths are adapted so that a P shared by the batch stays shared, unless that would move one far from its own."""
    ratio = found.length / found.force
    typical = np.median(ratio)
    return replace(found, length=found.force * typical) if program.P.shared and _moderate(ratio / typical) else found


def _sizes(program: ConeProgram) -> tuple[Array, Array]:
    """(batch, 1) each: a typical right-hand side (the median, because large ones may mean infinity and tiny ones zero)
    and the size of the gradient of the objective."""
    length = np.broadcast_to(_median(np.abs(distinct(program.b))), program.batch)
    force = np.abs(program.q).max(axis=1)
    curvature = program.P.largest
    with np.errstate(all="ignore"):
        length = np.where(np.isnan(length), force / curvature, length)
        length = np.where(np.isfinite(length) & (length > 0), length, 1.0)
        force = np.where(force > 0, force, curvature * length)
    force = np.where(np.isfinite(force) & (force > 0), force, 1.0)
    return length[:, None], force[:, None]


def _median(b: Array) -> Array:
    """(batch,) medians of the finite entries beyond rounding error; NaN if there are none. Faster than nanmedian."""
    largest = np.where(b < INFINITE, b, 0.0).max(axis=1, keepdims=True, initial=0.0)
    known = (b < np.inf) & (b > ROUNDING * largest)
    count, each = known.sum(axis=1), np.arange(len(b))
    if not count.any():
        return np.full(len(b), np.nan)
    ordered = np.sort(np.where(known, b, np.inf), axis=1)
    middle = (ordered[each, np.maximum(count - 1, 0) // 2] + ordered[each, count // 2]) / 2
    return np.where(count > 0, middle, np.nan)


def _moderate(v: Array) -> bool:
    """Whether all sizes other than zero and infinity are moderate."""
    fits = _within(v)
    return bool(fits.all() or (fits | (v == 0) | ~np.isfinite(v)).all())


def _within(v: Array) -> Array:
    return (v <= MODERATE) & (v >= 1 / MODERATE)


def _moderate_columns(P: SymmetricBatch, A: SparseBatch, ratio: Array) -> bool:
    """Whether columns of A, and of P times `ratio` (batch or 2, 1), have moderate sizes."""
    return _moderate(np.maximum(A.largest_of_coupled_columns, ratio * P.sizes))


def _only_bounded(P: SymmetricBatch, A: SparseBatch) -> Array:
    """(n,) variables with only bounds and linear costs: their units follow from the costs."""
    return ~A.pattern.coupled & ~P.sizes.any(axis=0)


def _never_active(cones: Product, b: Array, length: Array) -> Array | None:
    """(m,) inequalities that no sample can reach, because right-hand sides (batch, m) are so large beside typical ones
    (batch,) that they mean infinity; None if there are none. They have no say in the units of variables."""
    distant = np.all(b >= NEVER * length[:, None], axis=0)
    if distant.any():
        distant &= cones.scalar_rows & ~cones.equalities
    return distant if distant.any() else None


def _without_rows(A: SparseBatch, ignored: Array) -> SparseBatch:
    return A.with_values(np.where(ignored[A.indices], 0.0, A.values))


def _largest(program: ConeProgram, alone: Array, ignored: Array | None) -> tuple[Array, Array]:
    """Largest entries of the rows of A (batch or 1, m), and of the columns of P and A (batch or 1, n) without ignored
    rows."""
    A = program.A if ignored is None else _without_rows(program.A, ignored)
    columns = np.maximum(A.largest_of_coupled_columns, program.P.sizes)
    if alone.any():
        costs = np.abs(program.q[:, alone])
        costs[~np.isfinite(costs)] = 0.0  # of a sample that is refused: its column has no size that others could share
        columns[:, alone] = costs if len(columns) > 1 else costs.max(axis=0)
    return program.A.largest_of_rows, columns


def _equilibrated(program: ConeProgram, start: Scaling) -> Scaling:
    """Scale rows and columns towards a largest entry of one (Ruiz); blocks of curved cones have one factor."""
    found, alone = start, _only_bounded(program.P, program.A)
    ignored: Array | None = None
    for turn in range(2 * PASSES):
        if turn == PASSES:  # in the new units, typical right-hand sides and costs are different
            one = np.ones_like(found.length)
            fresh = replace(found, length=one, force=one).apply(program)
            length, force = _sizes(fresh)
            ignored = _never_active(program.cones, fresh.b, length[:, 0])
            length, force = length / found.length, force / found.force
            fits = _within(length) & _within(force)
            if fits.all() and ignored is None:
                break
            # a sample whose sizes are moderate keeps its units, whatever those of the others are
            length, force = np.where(fits, 1.0, length), np.where(fits, 1.0, force)
            found = replace(found, length=found.length * length, force=found.force * force)
            found = _with_shared_P(program, found)
        scaled = found.apply(program)
        rows, columns = _largest(scaled, alone, ignored)
        rows = program.cones.block_means(rows)
        E = found.E / np.sqrt(np.where(rows > 0, rows, 1.0))
        D = found.D / np.sqrt(np.where(columns > 0, columns, 1.0))
        found = replace(found, D=D, E=E)
    return found
