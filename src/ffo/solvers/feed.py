"""Passing the matrices of one sample after another to a solver, without building new objects."""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.sparse as sp

from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray


class SparseFeed:
    """One SciPy matrix whose values are replaced; safe because compiled solvers copy their input."""

    def __init__(self, batch: SparseBatch) -> None:
        self.batch = batch
        self.shared = batch.shared
        indptr, indices = batch.indptr.astype(np.int32), batch.indices.astype(np.int32)
        # csc_matrix, not csc_array: bindings that know only the former would convert on every call
        self._matrix = sp.csc_matrix((np.zeros(batch.nnz), indices, indptr), shape=batch.shape)

    def __call__(self, sample: int) -> sp.csc_matrix:
        self._matrix.data = self.values(sample)
        return self._matrix

    def values(self, sample: int) -> Array:
        return np.ascontiguousarray(self.batch.of(sample))


class DenseFeed:
    """One array, Fortran-ordered by default, into which the values of a sample are scattered."""

    def __init__(self, batch: SparseBatch, order: Literal["F", "C"] = "F") -> None:
        self.batch = batch
        self.shared = batch.shared
        self._array = np.zeros(batch.shape, order=order)
        self._flat = self._array.reshape(-1, order=order)  # a view
        rows, cols = batch.shape
        where = batch.columns * rows + batch.indices if order == "F" else batch.indices * cols + batch.columns
        self._where = where.astype(np.intp)

    def __call__(self, sample: int) -> Array:
        self._flat[self._where] = self.batch.of(sample)
        return self._array


def mirrored(P: SymmetricBatch) -> SparseBatch:
    """Both triangles of a symmetric batch."""
    off = np.flatnonzero(P.indices != P.columns)
    rows = np.concatenate([P.indices, P.columns[off]])
    cols = np.concatenate([P.columns, P.indices[off]])
    return _compressed(rows, cols, np.concatenate([np.arange(P.nnz), off]), P)


def transposed(M: SparseBatch) -> SparseBatch:
    """M' for every sample: the CSC arrays of M' are the CSR arrays of M."""
    return _compressed(M.columns, M.indices, np.arange(M.nnz), M)


def _compressed(rows: Array, cols: Array, entry: Array, M: SparseBatch) -> SparseBatch:
    shape = M.shape if M.shape[0] == M.shape[1] else M.shape[::-1]
    order = np.lexsort((rows, cols))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(cols, minlength=shape[1]))]).astype(np.int32)
    return SparseBatch(indptr, rows[order].astype(np.int32), M.values[..., entry[order]], shape)
