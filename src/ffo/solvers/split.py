"""A cone program of zero and nonnegative rows in the form of QP solvers: equalities, inequalities, bounds.

    min 1/2 x'Px + q'x   s.t.  Ex = e,  Gx <= h,  lb <= x <= ub

A nonnegative row with a single nonzero, a x_j <= b, is a bound: x_j <= b/a for a > 0, x_j >= b/a for
a < 0. Solvers are far faster on bounds than on rows. If several rows bound a variable from the same
side, the tightest one is passed on and receives the multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ffo.cones import Nonneg, Product, Zero
from ffo.kernels.sides import CROSSING, SideRows
from ffo.program.cone import ConeProgram
from ffo.program.pattern import Pattern
from ffo.program.plan import KEPT
from ffo.program.sparse import SparseBatch

Array = np.ndarray


@dataclass(frozen=True)
class Rows:
    """The rows of a program by kind, as far as the sparsity pattern determines it.

    Attributes:
        equal, unequal: row numbers of the equalities, and of the inequalities.
        entry: position in A of one entry of each inequality; alone: whether it is the row's only entry.
    """

    equal: Array
    unequal: Array
    entry: Array
    alone: Array

    @cached_property
    def bounds(self) -> bool:
        """Whether all inequalities have one entry."""
        return bool(self.alone.all())


def rows_by_kind(program: ConeProgram) -> Rows:
    """The rows of a program, cached per sparsity pattern."""
    return find_rows(program.cones, program.A.pattern)


@lru_cache(maxsize=KEPT)
def find_rows(cones: Product, A: Pattern) -> Rows:
    rows = np.arange(A.shape[0])
    equal, unequal = (np.zeros(len(rows), dtype=bool) for _ in range(2))
    for group in cones.groups:
        if isinstance(group.cone, (Zero, Nonneg)):
            (equal if isinstance(group.cone, Zero) else unequal)[group.index.ravel()] = True
    entry = np.zeros(len(rows), dtype=np.intp)
    entry[A.indices] = np.arange(A.nnz)
    return Rows(rows[equal], rows[unequal], entry[unequal], (A.row_counts == 1)[unequal])


def pick_rows(A: SparseBatch, rows: Array) -> SparseBatch:
    """The given rows of A, in the given order, for every sample."""
    place = np.full(A.shape[0], -1)
    place[rows] = np.arange(len(rows))
    new = place[A.indices]
    keep = np.flatnonzero(new >= 0)
    if np.any(np.diff(rows) < 0):
        keep = keep[np.lexsort((new[keep], A.columns[keep]))]
    counts = np.bincount(A.columns[keep], minlength=A.shape[1])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return SparseBatch(indptr, new[keep].astype(np.int32), A.values[..., keep], (len(rows), A.shape[1]))


class Sides:
    """The rows of a matrix by kind.

    Args:
        bounds: whether to pass singleton rows as bounds (else as inequalities).

    Attributes:
        equal, unequal: row numbers of the equalities and of the inequalities that are not bounds.
        single: (k,) rows that are bounds; column: (k,) the variables they bound.
    """

    def __init__(self, cones: Product, A: SparseBatch, bounds: bool = True) -> None:
        self.A, rows = A, find_rows(cones, A.pattern)
        self.equal = rows.equal
        if not bounds or not rows.alone.any():
            nothing = np.zeros(0, dtype=np.intp)
            self.single, self.column, self._entry, self.unequal = nothing, nothing, nothing, rows.unequal
            return
        # A stored entry that is zero in some sample is not a bound there: keep such a row general.
        values = A.values[..., rows.entry]
        alone = rows.alone & (values != 0 if A.shared else (values != 0).all(axis=0))
        self.single, self.unequal = rows.unequal[alone], rows.unequal[~alone]
        self._entry = rows.entry[alone]
        self.column = A.columns[self._entry]

    @classmethod
    def of(cls, program: ConeProgram) -> Sides:
        """Those of a program, cached with its matrix."""
        return program.A.kept(("sides", program.cones), lambda: cls(program.cones, program.A))

    @cached_property
    def rows(self) -> Array:
        """Numbers of the equalities, then of the inequalities that are not bounds."""
        return np.concatenate([self.equal, self.unequal])

    @cached_property
    def places(self) -> Array:
        """(nnz,) the position in `rows` of each entry of A; -1 in bounds."""
        place = np.full(self.A.shape[0], -1)
        place[self.rows] = np.arange(len(self.rows))
        return place[self.A.pattern.rows]

    @cached_property
    def for_kernels(self) -> SideRows:
        """Row numbers and coefficients in the form the kernels take."""
        return SideRows(self.rows, self.single, self.column, np.atleast_2d(self.coefficient))

    @cached_property
    def E(self) -> SparseBatch:
        return pick_rows(self.A, self.equal)

    @cached_property
    def G(self) -> SparseBatch:
        return pick_rows(self.A, self.unequal)

    @cached_property
    def coefficient(self) -> Array:
        """(k,) or (batch, k) coefficients of the bound rows."""
        return self.A.values[..., self._entry]

    @cached_property
    def size(self) -> Array:
        """(k,) or (batch, k) their magnitudes."""
        return np.abs(self.coefficient)

    @cached_property
    def upper(self) -> Array:
        """(k,) or (batch, k) whether the row bounds its variable from above."""
        return self.coefficient > 0

    @cached_property
    def slot(self) -> Array:
        """(k,) or (batch, k) position of the row's bound in the vector (lb, ub) of length 2n; (k,) if it is the same
        in all samples."""
        slot = self.column + self.A.shape[1] * self.upper
        return slot[0] if slot.ndim == 2 and len(slot) and (slot == slot[0]).all() else slot

    @cached_property
    def unique(self) -> bool:
        """True when every slot has at most one row, the same for all samples: nothing to compare."""
        return self.slot.ndim == 1 and len(np.unique(self.slot)) == len(self.slot)


class Split:
    """The rows of a program by kind, and its right-hand sides.

    Args:
        bounds: as in `Sides`, whose attributes it has.
    """

    def __init__(self, program: ConeProgram, bounds: bool = True) -> None:
        self.program = program
        self.sides = sides = Sides.of(program) if bounds else Sides(program.cones, program.A, bounds)
        self.equal, self.unequal, self.single, self.column = sides.equal, sides.unequal, sides.single, sides.column

    @property
    def E(self) -> SparseBatch:
        return self.sides.E

    @property
    def G(self) -> SparseBatch:
        return self.sides.G

    @property
    def unique(self) -> bool:
        return self.sides.unique

    def matrices(self, names: tuple[str, str, str], P: SparseBatch) -> list[tuple[str, SparseBatch]]:
        """P, E and G, those of them that have rows, under a solver's names."""
        found = [(names[0], P)]
        found += [(names[1], self.E)] if len(self.equal) else []
        return found + ([(names[2], self.G)] if len(self.unequal) else [])

    @cached_property
    def e(self) -> Array:
        return self.program.b[:, self.equal]

    @cached_property
    def h(self) -> Array:
        return self.program.b[:, self.unequal]

    @cached_property
    def _bounds(self) -> tuple[Array, Array | None]:
        """(batch, 2n) lower then upper bounds, and (batch, k) whether a row is the tightest of its slot; None: all."""
        program, n = self.program, self.program.n
        size = (program.batch, 2 * n)
        value = program.b[:, self.single] / self.sides.coefficient  # (batch, k)
        bounds = np.empty(size)
        bounds[:, :n], bounds[:, n:] = -np.inf, np.inf
        if self.unique:
            bounds[:, self.sides.slot] = value
            return bounds, None
        slot = np.broadcast_to(self.sides.slot, value.shape) + 2 * n * np.arange(program.batch)[:, None]
        looseness = np.where(np.broadcast_to(self.sides.upper, value.shape), value, -value)
        order = np.lexsort((looseness.ravel(), slot.ravel()))  # by slot, the tightest first
        sorted_slot = slot.ravel()[order]
        first = order[np.concatenate([[True], sorted_slot[1:] != sorted_slot[:-1]])]
        bounds.ravel()[slot.ravel()[first]] = value.ravel()[first]
        tight = np.zeros(value.size, dtype=bool)
        tight[first] = True
        return bounds, tight.reshape(value.shape)

    @cached_property
    def crossed(self) -> Array:
        """(batch,) whether some lower bound lies above its upper bound."""
        n = self.program.n
        lb, ub = self._bounds[0][:, :n], self._bounds[0][:, n:]
        if not (lb > ub).any():
            return np.zeros(len(lb), dtype=bool)
        with np.errstate(invalid="ignore"):
            gap = CROSSING * np.maximum(1.0, np.minimum(np.abs(lb), np.abs(ub)))
            return np.any(lb > ub + gap, axis=1)

    @cached_property
    def lb(self) -> Array:
        """(batch, n) lower bounds, -inf where there is none."""
        lb = self._bounds[0][:, : self.program.n]
        return np.minimum(lb, self.ub)  # differs by rounding only, unless crossed

    @cached_property
    def ub(self) -> Array:
        """(batch, n) upper bounds, inf where there is none."""
        return np.ascontiguousarray(self._bounds[0][:, self.program.n :])

    def duals(self, sample: int, equal: Array, unequal: Array, bound: Array | None) -> Array:
        """(m,) y from the multipliers of Ex = e, of Gx <= h and (2n,) of the bounds (lower, upper), all >= 0."""
        y = np.zeros(self.program.m)
        y[self.equal] = equal
        y[self.unequal] = unequal
        if len(self.single):
            assert bound is not None
            y[self.single] = bound[_of(self.sides.slot, sample)] * self._tight(sample) / _of(self.sides.size, sample)
        return y

    def _tight(self, sample: int) -> Array | bool:
        """(k,) whether a row is the tightest of its slot."""
        tight = self._bounds[1]
        return True if tight is None else tight[sample]

    def slacks(self, sample: int, x: Array, unequal: Array | None = None, bound: Array | None = None) -> Array:
        """(m,) s from the solver's slacks of Gx <= h and (2n,) of the bounds, else from max(b - Ax, 0)."""
        s = np.zeros(self.program.m)
        if unequal is None:
            unequal = np.maximum(self.h[sample] - _dot(self.G, sample, x), 0.0)
        s[self.unequal] = unequal
        if len(self.single):
            if bound is None or not self.unique:
                a = _of(self.sides.coefficient, sample)
                s[self.single] = np.maximum(self.program.b[sample, self.single] - a * x[self.column], 0.0)
            if bound is not None:
                value = bound[_of(self.sides.slot, sample)] * _of(self.sides.size, sample)
                s[self.single] = np.where(self._tight(sample), value, s[self.single])
        return s


def _of(v: Array, sample: int) -> Array:
    """(k,) of a sample, from (k,) or (batch, k)."""
    return v if v.ndim == 1 else v[sample]


def _dot(M: SparseBatch, sample: int, x: Array) -> Array:
    """M x for one sample, without building a SciPy matrix."""
    return np.bincount(M.indices, weights=M.of(sample) * x[M.columns], minlength=M.shape[0])
