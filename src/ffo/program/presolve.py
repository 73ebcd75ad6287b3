"""Presolve: reductions of a program that are undone exactly afterwards.

A step maps the data of a program to that of a reduced one, and points of the reduced program back to points of
the program. Derivatives in both directions are solutions of the program's ghost system K [u; t] = [r_x; T r_s], w = T't
(`ffo.ghost.oracle`): a step maps its right-hand sides to those of the reduced program's ghost system, and
the solutions of that one back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from ffo.cones import Nonneg
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch, distinct, equal_rows

Array = np.ndarray
#: x (batch, n), y and s (batch, m)
Triple = tuple[Array, Array, Array]
Matrix = TypeVar("Matrix", bound=SparseBatch)
#: right-hand sides r_x (batch, n), r_s (batch, m) -> u, w, and evidence about them
GhostSolve = Callable[[Array, Array], tuple[Array, ...]]

#: factor between right-hand sides of rows of unit size beyond which the larger ones mean infinity
NEVER = 1e8
#: the same for rows that another try leaves out: what it finds must satisfy them
REMOTE = 1e2


class PresolveStep(ABC):
    """One reduction; "inward" is towards the reduced program. The default methods leave points unchanged."""

    @abstractmethod
    def apply(self, program: ConeProgram) -> ConeProgram:
        """The reduced data."""

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        """The point of the reduced program that a point of the program corresponds to."""
        return x, y, s

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        """The point of the program that a point of the reduced one corresponds to."""
        return x, y, s

    def reduce(self, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        """The right-hand side of the reduced ghost system, from that of the program's."""
        return r_x, r_s

    def restore(self, u: Array, w: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        """The solution (u, w) of the ghost system with this right-hand side, from that of the reduced one."""
        return u, w

    def take(self, samples: Array) -> PresolveStep:
        """The same step for some samples."""
        return self


@dataclass(frozen=True)
class Presolve:
    """Steps, one after the other; without any, the identity."""

    steps: tuple[PresolveStep, ...] = ()

    @classmethod
    def of(cls, *steps: PresolveStep | None) -> Presolve:
        return cls(tuple([step for step in steps if step is not None]))

    def apply(self, program: ConeProgram) -> ConeProgram:
        for step in self.steps:
            program = step.apply(program)
        return program

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        for step in self.steps:
            x, y, s = step.inward(x, y, s)
        return x, y, s

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        for step in reversed(self.steps):
            x, y, s = step.outward(x, y, s)
        return x, y, s

    def solve(self, ghost: GhostSolve, r_x: Array, r_s: Array) -> tuple[Array, ...]:
        """u, w and the evidence for the program's ghost system, by a function that solves the reduced one."""
        right = [(r_x, r_s)]
        for step in self.steps:
            right.append(step.reduce(*right[-1]))
        u, w, *more = ghost(*right.pop())
        for step in reversed(self.steps):
            u, w = step.restore(u, w, *right.pop())
        return u, w, *more

    def then(self, other: Presolve) -> Presolve:
        """These steps and those of another presolve after them."""
        return Presolve(self.steps + other.steps) if self.steps and other.steps else other if other.steps else self

    def take(self, samples: Array) -> Presolve:
        return Presolve(tuple(step.take(samples) for step in self.steps)) if self.steps else self


class SharedMatrices(PresolveStep):
    """Stores matrices that are equal in all samples once.

    Products, norms and factorizations are then computed once for the batch. Only the storage
    changes; gradients are still one per sample, and a change of the data may differ between samples.
    """

    def apply(self, program: ConeProgram) -> ConeProgram:
        return program.with_matrices(_shared(program.P), _shared(program.A))


def _shared(M: Matrix) -> Matrix:
    values = M.values if M.shared else equal_rows(M.values)
    return M if values is M.values else M.with_values(values)


@dataclass(frozen=True)
class MissingRows(PresolveStep):
    """Removes inequalities whose right-hand side is +inf in all samples.

    Removed rows have no multiplier (y = 0) and infinite slack (s = inf), and nothing depends on their data.

    Attributes:
        present: (m,) true for the remaining rows.
    """

    present: Array

    @cached_property
    def rows(self) -> Array:
        """The numbers of the remaining rows."""
        return np.flatnonzero(self.present)

    def apply(self, program: ConeProgram) -> ConeProgram:
        kept = program.A.restrict(self.present[program.A.indices])
        place = (np.cumsum(self.present) - 1).astype(kept.indices.dtype)
        A = SparseBatch(kept.indptr, place[kept.indices], kept.values, (len(self.rows), program.n))
        return ConeProgram(program.P, program.q, A, program.b[:, self.rows], program.cones.only(self.present))

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        s = s[:, self.rows]
        return x, y[:, self.rows], np.where(np.isinf(s), 1.0, s)  # a previously missing row is inactive

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        return x, self._on_all_rows(y), self._on_all_rows(s, np.inf)

    def reduce(self, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return r_x, r_s[:, self.rows]

    def restore(self, u: Array, w: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return u, self._on_all_rows(w)

    def _on_all_rows(self, v: Array, missing: float = 0.0) -> Array:
        """(batch, rows) -> (batch, m)."""
        full = np.full((len(v), len(self.present)), missing)
        full[:, self.rows] = v
        return full


def missing_rows(program: ConeProgram) -> list[tuple[Array, MissingRows]] | None:
    """The samples by the rows they lack, and the step that removes these; None where no sample lacks any."""
    if program.all_finite or not np.count_nonzero(distinct(program.b) == np.inf):
        return None
    missing = np.isposinf(program.b)
    for group in program.cones.groups:
        if not isinstance(group.cone, Nonneg):
            missing[:, group.index.ravel()] = False  # invalid data, detected later
    return [(samples, MissingRows(~lacking)) for samples, lacking in _by_pattern(missing)]


def _by_pattern(rows: Array) -> list[tuple[Array, Array]]:
    """Samples with the same entries in a mask (batch, m), and this row (m,) of it."""
    patterns, which = np.unique(rows, axis=0, return_inverse=True)
    return [(np.flatnonzero(which.ravel() == k), pattern) for k, pattern in enumerate(patterns)]


@dataclass(frozen=True)
class DistantRows(MissingRows):
    """Removes inequalities that are never active; their slack is that of the point.

    Attributes:
        program: with these rows.
    """

    program: ConeProgram

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        x, y, s = super().outward(x, y, s)
        return x, y, np.where(self.present, s, self.program.slack(x))

    def take(self, samples: Array) -> DistantRows:
        return DistantRows(self.present, self.program.take(samples))


def distant_rows(program: ConeProgram, factor: float) -> list[tuple[Array, DistantRows]]:
    """The samples by inequalities that look as if they were never active, and the step that removes these.

    They are those beyond the first gap, by a factor, in the distances |b_i| / |a_i| of all rows from the origin and of
    the minimum of the costs, |q| / |P|; other rows are not beyond it, since x is as large as these. Beside rows
    whose side is zero, the gap begins at one.
    """
    with np.errstate(all="ignore"):
        distance = np.abs(program.b) / program.cones.block_means(program.A.largest_of_rows)
        wanted = np.broadcast_to(np.abs(program.q).max(axis=1, initial=0.0) / program.P.largest, program.batch)
    removable = program.cones.scalar_rows & ~program.cones.equalities & (program.b > 0)
    beyond = np.zeros(program.b.shape, dtype=bool)
    for k, d in enumerate(distance):
        known = np.append(d, wanted[k])
        known = np.sort(known[(known > 0) & (known < np.inf)])
        gaps = np.flatnonzero(known[1:] >= factor * known[:-1])
        for nearest in [*known[gaps], *([0.0] if len(known) and known[0] >= factor else [])]:
            if removable[k][d > nearest].all():
                beyond[k] = d > nearest
                break
    found = _by_pattern(beyond)
    return [(samples, DistantRows(~rows, program.take(samples))) for samples, rows in found if rows.any()]
