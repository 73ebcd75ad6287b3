"""Factors of the matrices that a `BallLayout` describes.

Where most variables meet each other in constraints only (a diagonal P), the matrix is a diagonal with a border
of few rows, and a batch of them is solved by array operations:

    [ D  F' ]      S = E - F D^-1 F',   of the size of the border.
    [ F  E  ]

Others, if they have few entries, are eliminated as sparse matrices, sample by sample.
"""

from __future__ import annotations

from functools import cached_property
from threading import Lock

import numpy as np
import qdldl
import scipy.sparse as sp

from ffo.program.sparse import SymmetricBatch

Array = np.ndarray

#: rows and numbers that a border may have, and entries per unknown that a sparse matrix may have
BORDER, NUMBERS, ENTRIES = 40, 50_000, 8
#: regularisation of the scaled complement of a border: refinement hardly notices
SLIGHT = 1e-13
#: regularisation of scaled sparse matrices
REGULARISATION = 1e-8


class Pattern:
    """The upper triangle of a symmetric matrix by columns, every diagonal entry stored.

    Args:
        size: its order; row, column: (nnz,) coordinates, sorted by column, then by row.
        core: (size,) unknowns that meet no other of their kind, and whose diagonal is positive.
        positive: (size,) unknowns whose diagonal is not negative.
    """

    def __init__(self, size: int, row: Array, column: Array, core: Array, positive: Array) -> None:
        self.size, self.row, self.column = size, row, column
        self.sign = np.where(positive, 1.0, -1.0)
        self.core, self.border = np.flatnonzero(core), np.flatnonzero(~core)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=size))])
        self.diagonal = self.indptr[1:] - 1
        self._numbers = sp.csc_array((np.zeros(len(row)), row, self.indptr), shape=(size, size))
        self._elimination: qdldl.Solver | None = None
        self._lock = Lock()

    @property
    def is_bordered(self) -> bool:
        rows, width = len(self.border), len(self.core)
        return rows <= min(BORDER, width) and rows * width <= NUMBERS

    @property
    def is_sparse(self) -> bool:
        return len(self.row) <= ENTRIES * self.size

    def solve(self, values: Array, rhs: Array) -> Array:
        """The matrix of these values (nnz,), by LDL'; NaN where that fails."""
        with self._lock:
            self._numbers.data = values
            try:
                if self._elimination is None:
                    self._elimination = qdldl.Solver(self._numbers, upper=True)
                else:
                    self._elimination.update(self._numbers, upper=True)
            except RuntimeError:
                self._elimination = None
                return np.full(self.size, np.nan)
            return self._elimination.solve(rhs)

    @cached_property
    def corners(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Places of the entries of F in F (flat) and in the pattern; those of E, both triangles."""
        place = np.empty(self.size, dtype=np.intp)
        place[self.core], place[self.border] = np.arange(len(self.core)), np.arange(len(self.border))
        inside = np.zeros(self.size, dtype=bool)
        inside[self.core] = True
        row, column = inside[self.row], inside[self.column]
        mixed, outer = np.flatnonzero(row != column), np.flatnonzero(~row & ~column)
        swap = row[mixed]
        border = np.where(swap, self.column[mixed], self.row[mixed])
        core = np.where(swap, self.row[mixed], self.column[mixed])
        i, j, width = place[self.row[outer]], place[self.column[outer]], len(self.border)
        E = np.concatenate([i * width + j, j * width + i]), np.concatenate([outer, outer])
        return (place[border] * len(self.core) + place[core], mixed), E


def factorized(pattern: Pattern, values: Array, keep: Array) -> BorderedFactors | SparseFactors:
    """The whole matrices of values (batch, nnz), and approximate inverses of those of the unknowns in use
    (batch, size). `scale` (batch, size) is the symmetric scaling that brings the rows of the latter to unit size."""
    return BorderedFactors(pattern, values, keep) if pattern.is_bordered else SparseFactors(pattern, values, keep)


class BorderedFactors:
    """A diagonal with a border."""

    def __init__(self, pattern: Pattern, values: Array, keep: Array) -> None:
        batch, core, border = len(values), len(pattern.core), len(pattern.border)
        self.pattern = pattern
        (to_F, from_F), (to_E, from_E) = pattern.corners
        self._D = values[:, pattern.diagonal[pattern.core]]
        F, E = np.zeros((batch, border * core)), np.zeros((batch, border * border))
        F[:, to_F], E[:, to_E] = values[:, from_F], values[:, from_E]
        self._F, self._E = F.reshape(batch, border, core), E.reshape(batch, border, border)
        inner, outer = keep[:, pattern.core], keep[:, pattern.border]
        self._root = inner / np.sqrt(np.where(inner, self._D, 1.0))
        self._G = self._F * self._root[:, None, :]
        self._G *= outer[:, :, None]
        E = self._E * (outer[:, :, None] & outer[:, None, :])
        lengths = np.abs(np.diagonal(E, axis1=1, axis2=2)) + np.einsum("bij,bij->bi", self._G, self._G)
        self._outer = outer / np.sqrt(np.where(lengths > 0, lengths, 1.0))
        S = (E - self._G @ self._G.transpose(0, 2, 1)) * self._outer[:, :, None] * self._outer[:, None, :]
        sign = pattern.sign[pattern.border]
        each = np.arange(border)
        S[:, each, each] += np.where(outer, SLIGHT * sign, sign)
        self._inverse = _inverse(np.where(np.isfinite(S).all(axis=(1, 2))[:, None, None], S, np.eye(border)))

    @cached_property
    def scale(self) -> Array:
        scale = np.empty((len(self._D), self.pattern.size))
        scale[:, self.pattern.core], scale[:, self.pattern.border] = self._root, self._outer
        return np.where(scale > 0, scale, 1.0)

    def dot(self, z: Array) -> Array:
        """(batch, size): the whole matrices times vectors."""
        core, border = z[:, self.pattern.core], z[:, self.pattern.border]
        out = np.empty_like(z)
        out[:, self.pattern.core] = self._D * core + _times(border[:, None, :], self._F)
        out[:, self.pattern.border] = _times(self._F, core[:, :, None]) + _times(self._E, border[:, :, None])
        return out

    def solve(self, residual: Array) -> Array:
        """(batch, size); both the residual and what is returned are zero outside the unknowns in use."""
        inner = residual[:, self.pattern.core] * self._root
        outer = (residual[:, self.pattern.border] - _times(self._G, inner[:, :, None])) * self._outer
        outer = _times(self._inverse, outer[:, :, None]) * self._outer
        z = np.empty_like(residual)
        z[:, self.pattern.core] = (inner - _times(outer[:, None, :], self._G)) * self._root
        z[:, self.pattern.border] = outer
        return z


def _inverse(S: Array) -> Array:
    """(batch, size, size); large where a matrix is nearly singular, whatever serves where it is exactly so."""
    try:
        return np.linalg.inv(S)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(S, hermitian=True)


def _times(left: Array, right: Array) -> Array:
    """Products of matrices and vectors, (batch, ·)."""
    return (left @ right).reshape(len(left), -1)


class SparseFactors:
    """Sparse matrices of one pattern: unknowns that are not in use stay in it, with a row of the identity.

    So the elimination is analysed once for all samples and all active sets, and numbers are eliminated anew
    whenever a solution is asked for: that takes hardly longer than to substitute.
    """

    def __init__(self, pattern: Pattern, values: Array, keep: Array) -> None:
        self.pattern, self._values = pattern, values
        used = keep[:, pattern.row]
        used &= keep[:, pattern.column]
        matrix = values * used
        matrix[:, pattern.diagonal] += ~keep * pattern.sign
        self.scale = _equilibration(pattern, matrix)
        matrix *= self.scale[:, pattern.row]
        matrix *= self.scale[:, pattern.column]
        matrix[:, pattern.diagonal] += REGULARISATION * pattern.sign
        self._matrix = matrix

    @cached_property
    def _whole(self) -> sp.csc_array:
        """All samples along the diagonal."""
        p, batch = self.pattern, len(self._values)
        step = np.arange(batch)[:, None]
        indptr = np.concatenate([[0], (p.indptr[1:] + step * len(p.row)).ravel()])
        rows, order = (p.row + step * p.size).ravel(), batch * p.size
        return sp.csc_array((self._values.ravel(), rows, indptr), shape=(order, order))

    def dot(self, z: Array) -> Array:
        """As of `BorderedFactors`."""
        flat = z.ravel()
        both = self._whole @ flat + self._whole.T @ flat
        return both.reshape(z.shape) - self._values[:, self.pattern.diagonal] * z

    def solve(self, residual: Array) -> Array:
        """As of `BorderedFactors`; NaN where elimination fails."""
        rhs = residual * self.scale
        z = np.empty_like(rhs)
        for k, values in enumerate(self._matrix):
            z[k] = self.pattern.solve(values, rhs[k])
        return z * self.scale


def _equilibration(pattern: Pattern, values: Array) -> Array:
    """(batch, size) symmetric scaling towards rows of unit largest entry (Ruiz)."""
    scale = np.ones((len(values), pattern.size))
    for _ in range(2):
        scaled = values * scale[:, pattern.row] * scale[:, pattern.column]
        batch = SymmetricBatch(pattern.indptr, pattern.row, scaled, (pattern.size, pattern.size))
        largest = np.maximum(batch.largest_of_rows, batch.largest_of_columns)
        scale /= np.sqrt(np.where(largest > 0, largest, 1.0))
    return scale
