"""Factorizations of symmetric quasi-definite matrices, upper triangles stored by columns."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import Protocol

import numpy as np
import qdldl
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from ffo.threads import one_blas_thread

Array = np.ndarray

#: of an equilibrated matrix: smaller made factorizations of linear programs fail, larger stalls
REGULARISATION = 1e-7
#: unknowns per factorized block: small samples are gathered, so that calls do not dominate
BLOCK = 400
#: share of stored entries above which a block is factorized as a dense matrix
DENSE = 0.3
#: rows from which a dense factorization is left to as many threads as the library likes
THREADED = 1500
#: regularisations where the usual one hides small singular values, tried in turn
SHARP = (1e-11, 1e-14)
#: steps of refinement with such factors, and how often what cannot be met is taken out
REFINEMENTS, PASSES = 10, 3
#: relative residual and error that are enough
ENOUGH = 1e-9


class Factors(Protocol):
    """A factorized symmetric matrix."""

    def solve(self, rhs: Array) -> Array: ...

    @property
    def pivots(self) -> Array:
        """(size,) pivots, in the order of the unknowns."""

    @property
    def bytes(self) -> int:
        """Memory held, about."""


def equilibrate(upper: sp.csc_array) -> Array:
    """Symmetric scaling towards rows of unit largest entry (Ruiz)."""
    size = upper.shape[0]
    row, col = upper.indices, np.repeat(np.arange(size), np.diff(upper.indptr))
    scale, magnitude = np.ones(size), np.abs(upper.data)
    for _ in range(3):
        entries = magnitude * scale[row] * scale[col]
        largest = np.zeros(size)
        np.maximum.at(largest, row, entries)
        np.maximum.at(largest, col, entries)
        scale /= np.sqrt(np.where(largest > 0, largest, 1.0))
    return scale


def regularised(upper: sp.csc_array, scale: Array, shift: Array) -> sp.csc_array:
    """The scaled matrix with its diagonal, the last entry of each column, shifted."""
    upper.sort_indices()
    data = upper.data * scale[upper.indices] * np.repeat(scale, np.diff(upper.indptr))
    data[upper.indptr[1:] - 1] += shift
    return sp.csc_array((data, upper.indices, upper.indptr), shape=upper.shape)


def factor_blocks(upper: sp.csc_array, sample: Array, gather: bool = True) -> list[tuple[int, int, Factors]]:
    """Cut a block-diagonal matrix between samples and factorize the pieces.

    Small samples are gathered (unless told otherwise), full ones are factorized one by one as dense matrices.
    """
    size = len(sample)
    if not size:
        return []
    starts = np.flatnonzero(np.concatenate([[True], sample[1:] != sample[:-1]]))
    ends = np.append(starts[1:], size)
    width, stored = ends - starts, upper.indptr[ends] - upper.indptr[starts]
    full = (stored > DENSE * width**2 / 2) & (width > 50)
    blocks: list[tuple[int, int, Factors]] = []
    first = 0
    with one_blas_thread() if full.any() and width.max() < THREADED else nullcontext():
        for k, end in enumerate(ends.tolist()):
            last = k + 1 == len(ends)
            if gather and not (full[k] or last or full[k + 1] or end - first >= BLOCK):
                continue
            piece = _piece(upper, first, end)
            blocks.append((first, end, _DenseFactors(piece) if full[k] else factorize(piece)))
            first = end
    return blocks


def _piece(upper: sp.csc_array, start: int, end: int) -> sp.csc_array:
    lo, hi = upper.indptr[start], upper.indptr[end]
    return sp.csc_array(
        (upper.data[lo:hi], upper.indices[lo:hi] - start, upper.indptr[start : end + 1] - lo),
        shape=(end - start, end - start),
    )


def factorize(upper: sp.csc_array) -> Factors:
    """Sparse LDL'; LU with pivoting where rounding made the matrix indefinite."""
    try:
        return _SparseFactors(upper)
    except RuntimeError:
        return _PivotedFactors(upper)


class _SparseFactors:
    """LDL'."""

    def __init__(self, upper: sp.csc_array) -> None:
        self._factors = qdldl.Solver(upper, upper=True)
        self.solve = self._factors.solve
        self._entries = upper.nnz

    @cached_property
    def _parts(self) -> tuple[Array, int]:
        """Pivots, and entries of L."""
        L, D, order = self._factors.factors()
        pivots = np.empty(len(D))
        pivots[order] = D
        return pivots, L.nnz

    @property
    def pivots(self) -> Array:
        return self._parts[0]

    @property
    def bytes(self) -> int:
        pivots, entries = self._parts
        return 16 * (entries + 2 * self._entries + 8 * len(pivots))  # indices of 8 bytes, and work space


class _PivotedFactors:
    """Sparse LU with pivoting."""

    def __init__(self, upper: sp.csc_array) -> None:
        full = sp.csc_array(upper + sp.triu(upper, 1).T)
        self._factors = spl.splu(full, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.1)

    def solve(self, rhs: Array) -> Array:
        return self._factors.solve(rhs)

    @cached_property
    def pivots(self) -> Array:
        return self._factors.U.diagonal()[self._factors.perm_c]

    @property
    def bytes(self) -> int:
        return 16 * self._factors.nnz


class _DenseFactors:
    """LU factors of a block too full for sparse elimination."""

    def __init__(self, upper: sp.csc_array) -> None:
        full = upper.toarray()
        full += np.triu(full, 1).T
        self._factors = scipy.linalg.lu_factor(full, overwrite_a=True, check_finite=False)

    def solve(self, rhs: Array) -> Array:
        return scipy.linalg.lu_solve(self._factors, rhs, check_finite=False)

    @property
    def pivots(self) -> Array:
        return self._factors[0].diagonal()

    @property
    def bytes(self) -> int:
        return self._factors[0].nbytes


class SharpFactors:
    """Least-squares solutions of a singular or nearly singular symmetric system K z = r.

    With K + eJ factorized, J = diag(+1, -1), refinement replaces a residual r by eJ (K + eJ)^{-1} r. On the
    null space of K, which J leaves alone, that is the identity; elsewhere it contracts, and stays in the
    range of K. So what refinement cannot remove is the part of r in the null space (in the scaled
    metric), and without it the system is consistent.

    Args:
        matrix: K, both triangles; positive: (size,) where J is +1; units: (size,) of the residuals.
    """

    def __init__(self, matrix: sp.csr_array, positive: Array, units: Array) -> None:
        self._matrix, self._units, self._sign = matrix, units, np.where(positive, 1.0, -1.0)
        self._upper = _with_diagonal(sp.triu(matrix, format="coo"))
        self._scale = equilibrate(self._upper)
        self._factors: list[Factors] = []

    def solve(self, rhs: Array) -> tuple[Array, Array, float]:
        """z, the part of the right-hand side that cannot be met, and the relative error of z."""
        found = None
        for k in range(len(SHARP)):
            if k == len(self._factors):
                self._factors.append(factorize(regularised(self._upper, self._scale, SHARP[k] * self._sign)))
            z, left, error = self._solve(self._factors[k], rhs)
            doubt = max(error, self._norm(left) / (self._norm(rhs) or 1.0))
            if found is None or doubt < 0.1 * found[0]:  # where K is singular, less regularisation is more noise
                found = doubt, z, left, error
            if doubt <= ENOUGH:
                break
        assert found is not None
        return found[1:]

    def vanishing(self, left: Array) -> Array:
        """The vector of the null space of K that a part of a right-hand side which cannot be met stands for."""
        return self._scale**2 * left

    def _solve(self, factors: Factors, rhs: Array) -> tuple[Array, Array, float]:
        left = np.zeros_like(rhs)
        for _ in range(PASSES):
            z, residual, error = self._refine(factors, rhs - left)
            left = left + residual
            if self._norm(residual) <= ENOUGH * self._norm(rhs):
                break
        return z, left, error

    def _refine(self, factors: Factors, rhs: Array) -> tuple[Array, Array, float]:
        best, best_residual, error = np.zeros_like(rhs), rhs, float(np.any(rhs))
        z, residual = best, rhs
        for _ in range(REFINEMENTS):
            step = self._scale * factors.solve(self._scale * residual)
            z = z + step
            residual = rhs - self._matrix @ z
            shrunk = self._norm(residual) / (self._norm(best_residual) or 1.0)
            if not shrunk < 1.0:
                break
            error = shrunk * float(np.linalg.norm(step / self._units) / (np.linalg.norm(z / self._units) or 1.0))
            best, best_residual = z, residual
            if shrunk > 0.9:  # most of it is in the null space, but what else there was is gone
                break
        return best, best_residual, error

    def _norm(self, residual: Array) -> float:
        return float(np.linalg.norm(residual * self._units))


def _with_diagonal(upper: sp.coo_array) -> sp.csc_array:
    """The matrix with every diagonal entry stored."""
    every = np.arange(upper.shape[0])
    row, col = (np.concatenate([places, every]) for places in upper.coords)
    return sp.csc_array((np.concatenate([upper.data, np.zeros(len(every))]), (row, col)), shape=upper.shape)
