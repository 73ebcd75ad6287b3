"""Sparsity patterns: one object per distinct pattern, with everything derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np

Array = np.ndarray

_lock = Lock()


@dataclass(frozen=True, eq=False)
class Pattern:
    """A CSC sparsity pattern and everything derived from it. `Pattern.of` returns the same object for equal patterns,
    so that what depends on a pattern is computed once."""

    indptr: Array
    indices: Array
    shape: tuple[int, int]

    @staticmethod
    def of(indptr: Array, indices: Array, shape: tuple[int, int]) -> Pattern:
        """The unique pattern of these arrays, which are copied if it is new."""
        digest = blake2b(np.ascontiguousarray(indptr).data, digest_size=16)
        digest.update(np.ascontiguousarray(indices).data)
        key = (shape, indptr.dtype.char, indices.dtype.char, digest.digest())
        with _lock:
            found = _patterns.get(key)
            if found is None:
                found = _patterns[key] = Pattern(indptr.copy(), indices.copy(), shape)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Pattern.of, (self.indptr, self.indices, self.shape)

    @classmethod
    def of_positions(cls, flat: Array, shape: tuple[int, int]) -> tuple[Pattern, Array]:
        """The pattern of Fortran-order positions (repeats allowed), and the index of each in it."""
        pattern, places = cls.covering([flat], shape)
        return pattern, np.searchsorted(places, flat)

    @classmethod
    def covering(cls, flat: Sequence[Array], shape: tuple[int, int]) -> tuple[Pattern, Array]:
        """The pattern of all Fortran-order positions in some arrays, and its positions in ascending order."""
        places = np.concatenate([np.zeros(0, dtype=np.int32), *flat])
        places.sort()
        places = places[np.concatenate([np.ones(min(len(places), 1), dtype=bool), places[1:] != places[:-1]])]
        cols, rows = np.divmod(places, max(shape[0], 1))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(cols, minlength=shape[1]))])
        return cls.of(indptr.astype(np.int32), rows.astype(np.int32, copy=False), shape), places

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @cached_property
    def rows(self) -> Array:
        """(nnz,) row of each entry, in the integer type that is fastest for indexing."""
        return self.indices.astype(np.int64)

    @cached_property
    def columns(self) -> Array:
        """(nnz,) column of each entry."""
        return np.repeat(np.arange(self.shape[1]), np.diff(self.indptr))

    @cached_property
    def by_rows(self) -> tuple[Array, Array, Array]:
        """CSR (indptr, indices) of the pattern and the position of each CSR entry in CSC order."""
        order = np.argsort(self.indices, kind="stable")
        return np.concatenate([[0], np.cumsum(self.row_counts)]), self.columns[order], order

    @cached_property
    def row_counts(self) -> Array:
        """(rows,) entries in each row."""
        return np.bincount(self.indices, minlength=self.shape[0])

    @cached_property
    def coupling(self) -> Array:
        """(nnz,) whether an entry is in a row with other entries."""
        return (self.row_counts > 1)[self.indices]

    @cached_property
    def coupled(self) -> Array:
        """(cols,) whether a column has such an entry."""
        return np.bincount(self.columns[self.coupling], minlength=self.shape[1]) > 0

    @cached_property
    def empty_rows(self) -> Array | None:
        """(1, rows) whether a row has no entries; None if no row lacks them."""
        empty = self.row_counts[None] == 0
        return empty if empty.any() else None

    @cached_property
    def row_starts(self) -> tuple[Array, Array]:
        """Rows that have entries, and where each begins in CSR order."""
        return _starts(self.by_rows[0])

    @cached_property
    def column_starts(self) -> tuple[Array, Array]:
        """Columns that have entries, and where each begins."""
        return _starts(self.indptr)

    @cached_property
    def on_diagonal(self) -> Array:
        """(nnz,) whether an entry is on the diagonal."""
        return self.indices == self.columns

    @cached_property
    def diagonal(self) -> bool:
        """Whether all entries are on the diagonal."""
        return bool(self.on_diagonal.all())

    def part(self, keep: Array) -> Pattern:
        """Only the entries where the (nnz,) mask `keep` is true."""
        counts = np.concatenate([[0], np.cumsum(keep)])
        return Pattern.of(counts[self.indptr].astype(self.indptr.dtype), self.indices[keep], self.shape)


#: all patterns in use, by digests of their arrays
_patterns: WeakValueDictionary[tuple[object, ...], Pattern] = WeakValueDictionary()


def span(index: Array) -> Array | slice:
    """The index as a slice if it is consecutive, which is much faster to read and write; else unchanged."""
    if not len(index) or (np.diff(index) != 1).any():
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


def _starts(indptr: Array) -> tuple[Array, Array]:
    """Segments that are not empty, and where they begin."""
    filled = np.flatnonzero(np.diff(indptr))
    return filled, indptr[filled]
