"""Batches of sparse matrices over one sparsity pattern."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
import scipy.sparse as sp

from ffo.program.pattern import Pattern

Array = np.ndarray
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class SparseBatch:
    """Matrices of one CSC pattern: `values` is (nnz,) when shared by the batch, else (batch, nnz).

    `own`: whether the arrays are not shared with other code, so that they cannot change.
    """

    indptr: Array
    indices: Array
    values: Array
    shape: tuple[int, int]
    own: bool = field(default=False, kw_only=True)

    @classmethod
    def from_matrix(cls, matrix: sp.spmatrix | sp.sparray | Array) -> SparseBatch:
        csc = sp.csc_array(matrix)
        csc.sum_duplicates()
        return cls(csc.indptr, csc.indices, np.asarray(csc.data, dtype=float), csc.shape)

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @classmethod
    def on(cls, pattern: Pattern, values: Array, own: bool = False) -> Self:
        """Matrices of a pattern."""
        made = cls(pattern.indptr, pattern.indices, values, pattern.shape, own=own)
        made.__dict__["pattern"] = pattern
        return made

    @cached_property
    def pattern(self) -> Pattern:
        """The unique object of this pattern."""
        return Pattern.of(self.indptr, self.indices, self.shape)

    def with_values(self, values: Array) -> Self:
        """Other matrices of the same pattern."""
        return self.on(self.pattern, values)

    def same(self, other: SparseBatch) -> bool:
        """Whether pattern and values are equal."""
        if self is other:
            return True
        return self.pattern is other.pattern and np.array_equal(self.values, other.values)

    def kept(self, name: Hashable, make: Callable[[], Kept], other: SparseBatch | None = None) -> Kept:
        """The result of `make`, which depends only on these matrices, or on these and `other`: cached if they cannot
        change; only the last `other` is remembered."""
        if not self.own or (other is not None and not other.own):
            return make()
        known: dict[Hashable, tuple[SparseBatch | None, Kept]] = vars(self).setdefault("_kept", {})
        found = known.get(name)
        if found is None or found[0] is not other:
            found = known[name] = other, make()
        return found[1]

    def owned(self) -> Self:
        """The same matrices in arrays that are not shared; copied only if needed."""
        return self if self.own else self.on(self.pattern, self.values.copy(), own=True)

    @cached_property
    def magnitudes(self) -> Self:
        """The matrices of the magnitudes of all entries."""
        return self.with_values(np.abs(self.values))

    def dense_rows(self, rows: Array, sample: int = 0) -> Array:
        """(rows, cols) some rows of one sample."""
        place = np.full(self.shape[0], -1)
        place[rows] = np.arange(len(rows))
        at = place[self.indices]
        held, out = at >= 0, np.zeros((len(rows), self.shape[1]))
        out[at[held], self.columns[held]] = self.of(sample)[held]
        return out

    @property
    def shared(self) -> bool:
        """True when all samples have the same values."""
        return self.values.ndim == 1

    @property
    def columns(self) -> Array:
        """(nnz,) column of each stored entry."""
        return self.pattern.columns

    def of(self, sample: int) -> Array:
        """(nnz,) values of one sample."""
        return self.values if self.shared else self.values[sample]

    def matrix(self, sample: int = 0) -> sp.csc_array:
        """One sample as a SciPy matrix (the index arrays are shared, not copied)."""
        return sp.csc_array((self.of(sample), self.indices, self.indptr), shape=self.shape)

    def take(self, samples: Array) -> Self:
        """The sub-batch of the given samples."""
        if self.shared or (len(samples) == len(self.values) and (samples == np.arange(len(samples))).all()):
            return self
        return self.with_values(self.values[samples])

    def restrict(self, keep: Array) -> Self:
        """Only the stored entries where the (nnz,) mask `keep` is true."""
        return self.on(self.pattern.part(keep), self.values[..., keep], own=True)

    def pruned(self) -> Self:
        """Without the entries that are zero in every sample."""
        return self._pruned or self

    @cached_property
    def _pruned(self) -> Self | None:
        keep = self.values != 0
        keep = keep if self.shared else keep.any(axis=0)
        return None if keep.all() else self.restrict(keep)

    def block_diagonal(self, batch: int) -> sp.csc_array:
        """diag(M_1, ..., M_batch) as one sparse matrix."""
        rows, cols = self.shape
        step = np.arange(batch)[:, None]
        indices = (self.indices + step * rows).ravel()
        indptr = np.concatenate([[0], (self.indptr[1:] + step * self.nnz).ravel()])
        data = np.tile(self.values, batch) if self.shared else self.values.ravel()
        return sp.csc_array((data, indices, indptr), shape=(rows * batch, cols * batch))

    @cached_property
    def _stacked(self) -> tuple[sp.csc_array, sp.csr_array]:
        """One sample if all are equal, else the block diagonal of all; and its transpose."""
        stacked = self.matrix() if self.shared else self.block_diagonal(len(self.values))
        return stacked, stacked.T

    def dot(self, x: Array) -> Array:
        """(batch, cols) -> (batch, rows): M_k x_k for every sample."""
        return self._times(self._stacked[0], x, self.shape[0])

    def tdot(self, y: Array) -> Array:
        """(batch, rows) -> (batch, cols): M_k' y_k for every sample."""
        return self._times(self._stacked[1], y, self.shape[1])

    def _times(self, stacked: sp.csc_array, x: Array, size: int) -> Array:
        if self.shared:
            return np.ascontiguousarray((stacked @ x.T).T)
        return (stacked @ x.ravel()).reshape(len(x), size)

    @cached_property
    def largest_of_rows(self) -> Array:
        """(batch or 1, rows) largest magnitude in each row, 0 in empty rows."""
        values = np.abs(self.values)[..., self.pattern.by_rows[2]]
        return _segment_max(values, self.pattern.row_starts, self.shape[0])

    @cached_property
    def empty_rows(self) -> Array | None:
        """(batch or 1, rows) whether all entries of a row are zero; None if no row is."""
        if np.count_nonzero(self.values) == self.values.size:
            return self.pattern.empty_rows
        empty = self.largest_of_rows == 0.0
        return empty if np.count_nonzero(empty) else None

    @cached_property
    def largest_of_columns(self) -> Array:
        """(batch or 1, cols) largest magnitude in each column, 0 in empty columns."""
        return _segment_max(np.abs(self.values), self.pattern.column_starts, self.shape[1])

    @cached_property
    def largest_of_coupled_columns(self) -> Array:
        """The same without rows of a single entry, whose units can be chosen freely."""
        coupling = self.pattern.coupling
        if coupling.all():
            return self.largest_of_columns
        return _segment_max(np.where(coupling, np.abs(self.values), 0.0), self.pattern.column_starts, self.shape[1])

    @cached_property
    def finite(self) -> Array:
        """(batch or 1,) whether all entries are finite."""
        values = np.atleast_2d(self.values)
        with np.errstate(all="ignore"):
            finite = np.isfinite(values.sum(axis=1))  # a finite sum has finite terms
        return finite if finite.all() else np.isfinite(values).all(axis=1)

    @cached_property
    def all_finite(self) -> bool:
        return all_finite(self.values) if self.shared else bool(self.finite.all())

    @cached_property
    def largest(self) -> Array:
        """(batch or 1,) largest magnitude of all entries."""
        return np.abs(np.atleast_2d(self.values)).max(axis=1, initial=0.0)

    @cached_property
    def row_norms_squared(self) -> Array:
        """(batch or 1, rows) squared Euclidean norms of the rows."""
        values = np.atleast_2d(self.values) ** 2
        base = np.arange(len(values))[:, None] * self.shape[0]
        where = (self.indices[None, :] + base).ravel()
        norms = np.bincount(where, weights=values.ravel(), minlength=len(values) * self.shape[0])
        return norms.reshape(len(values), self.shape[0])

    @cached_property
    def row_sizes_squared(self) -> Array:
        """The same, with zero rows replaced by the mean of the others, or 1 if there are none."""
        squared = self.row_norms_squared
        count = (squared > 0).sum(axis=1, keepdims=True)
        typical = np.where(count > 0, squared.sum(axis=1, keepdims=True) / np.maximum(count, 1), 1.0)
        return np.where(squared > 0, squared, typical)

    @cached_property
    def row_sizes(self) -> Array:
        """(batch or 1, rows) Euclidean norms of the rows, none of them zero."""
        return np.sqrt(self.row_sizes_squared)


@dataclass(frozen=True)
class SymmetricBatch(SparseBatch):
    """Symmetric matrices, of which only the upper triangle is stored."""

    def dot(self, x: Array) -> Array:
        if self.pattern.diagonal:
            return self.diagonal * x
        if self.shared:
            return self._times(self._both, x, self.shape[0])
        return SparseBatch.dot(self, x) + SparseBatch.tdot(self, x) - self.diagonal * x

    @cached_property
    def _both(self) -> sp.csc_array:
        return self.full()

    def tdot(self, y: Array) -> Array:
        return self.dot(y)

    @cached_property
    def sizes(self) -> Array:
        """(batch or 1, n) largest magnitude in each column of the full matrix."""
        return np.maximum(self.largest_of_columns, self.largest_of_rows)

    @cached_property
    def diagonal(self) -> Array:
        """(batch or 1, n) diagonals."""
        diagonal = np.zeros((1 if self.shared else len(self.values), self.shape[0]))
        on = self.pattern.on_diagonal
        diagonal[:, self.indices[on]] = self.values[..., on]
        return diagonal

    def full(self, sample: int = 0) -> sp.csc_array:
        """One sample with both triangles."""
        off, values = ~self.pattern.on_diagonal, self.of(sample)
        rows = np.concatenate([self.indices, self.columns[off]])
        cols = np.concatenate([self.columns, self.indices[off]])
        return sp.csc_array((np.concatenate([values, values[off]]), (rows, cols)), shape=self.shape)


def plain(v: Array) -> Array:
    """The same numbers as contiguous, writable floats: for other layouts the kernels would be compiled again."""
    return v if v.dtype == np.float64 and v.flags.carray else np.array(v, dtype=float, order="C")


def all_finite(v: Array) -> bool:
    """Whether all entries are finite."""
    return bool(np.count_nonzero(np.isfinite(v)) == v.size)


def distinct(v: Array) -> Array:
    """(batch, ·) rows without repetition: (1, ·) if one row was broadcast to the batch."""
    return v[:1] if v.strides[0] == 0 and v.size else v  # empty arrays have no strides


def repeated(row: Array, batch: int) -> Array:
    """(·) -> (batch, ·), stored once."""
    return row[None] if batch == 1 else np.broadcast_to(row, (batch, len(row)))


def negated(v: Array) -> Array:
    """-v; stored once, if v (batch, ·) is."""
    once = distinct(v)
    return -v if once is v or len(v) == 1 else np.broadcast_to(-once, v.shape)


def equal_rows(v: Array) -> Array:
    """(batch, ·) -> (·) if all rows are equal, else v."""
    if len(v) == 1 or distinct(v) is not v:
        return v[0]
    # Rows that differ usually differ in the last one already; then the others are not read.
    return v[0] if len(v) and (v[-1] == v[0]).all() and (v == v[0]).all() else v


def take_rows(v: Array, samples: Array) -> Array:
    """(batch, ·) -> (samples, ·); a row that was broadcast to the batch is broadcast again."""
    return np.broadcast_to(v[:1], (len(samples), v.shape[1])) if v.strides[0] == 0 else v[samples]


def is_identity(M: sp.csc_array | sp.csr_array) -> bool:
    """Whether a compressed matrix is the identity."""
    size = M.shape[0]
    if M.shape != (size, size) or M.nnz != size or not (M.data == 1).all():
        return False
    each = np.arange(size)
    return np.array_equal(M.indices, each) and np.array_equal(M.indptr[:-1], each)


def _segment_max(values: Array, starts: tuple[Array, Array], count: int) -> Array:
    """(nnz,) or (batch, nnz) -> (batch or 1, count) maxima of segments, 0 for empty ones."""
    values, (filled, begin) = values if values.ndim == 2 else values[None], starts
    if len(filled) == count > 0:
        return np.maximum.reduceat(values, begin, axis=1)
    out = np.zeros((len(values), count))
    if len(filled):
        out[:, filled] = np.maximum.reduceat(values, begin, axis=1)
    return out
