"""Whether the objective is convex: not all solvers notice if it is not."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import qdldl
import scipy.linalg
import scipy.sparse as sp

from ffo.kernels.pool import one_blas_thread, run_chunks
from ffo.program.pattern import Pattern
from ffo.program.plan import KEPT
from ffo.program.sparse import SymmetricBatch

Array = np.ndarray

#: text for a failed sample
NOT_CONVEX = "the quadratic term is not positive semidefinite: smallest eigenvalue {:.3g}"
#: negative eigenvalues up to this share of the largest entry count as rounding
TOLERANCE = 1e-9
#: largest order at which matrices are always factorized as dense, and the density above which larger ones are
SMALL, DENSE = 100, 0.2
#: most numbers in a stack of dense matrices
STACK = 2**18
#: order up to which the smallest eigenvalue is computed
EXACT = 3000


def indefinite(P: SymmetricBatch) -> dict[int, float]:
    """Samples whose P is not positive semidefinite, with the smallest eigenvalue (NaN: unknown, P is large).

    A matrix shared by the batch is reported only as sample 0. P must be finite.
    """
    if not P.nnz:
        return {}
    values, largest = np.atleast_2d(P.values), P.largest
    if P.pattern.diagonal:  # no factorization
        smallest = values.min(axis=1)
        return {int(k): float(smallest[k]) for k in np.flatnonzero(smallest < -TOLERANCE * largest)}
    size, row, column = _used(P.pattern)
    shift = TOLERANCE * np.where(largest > 0, largest, 1.0)
    definite = _dense if size <= SMALL or P.nnz > DENSE * size * size / 2 else _sparse
    found = {}
    for k in np.flatnonzero(~definite(values, row, column, size, shift)).tolist():
        smallest = _smallest(values[k], row, column, size)
        if not smallest >= -shift[k] * np.sqrt(size):
            found[k] = smallest
    return found


@lru_cache(maxsize=KEPT)
def _used(P: Pattern) -> tuple[int, Array, Array]:
    """The number of rows with entries, and the rows and columns of the entries among these."""
    used, place = np.unique(np.concatenate([P.indices, P.columns]), return_inverse=True)
    row, column = np.split(place, 2)
    return len(used), row, column


def _dense(values: Array, row: Array, column: Array, size: int, shift: Array) -> Array:
    """(batch,) whether P + shift has a Cholesky factor; done in stacks of matrices, on threads."""
    count, diagonal = len(values), np.arange(size)
    definite, stack = np.ones(count, dtype=bool), max(1, STACK // size**2)

    def check(start: int, stop: int) -> None:
        for first in range(start, stop, stack):
            some = slice(first, min(stop, first + stack))
            full = np.zeros((some.stop - some.start, size, size))
            full[:, column, row] = values[some]  # only the lower triangle is read
            full[:, diagonal, diagonal] += shift[some, None]
            try:
                np.linalg.cholesky(full)
            except np.linalg.LinAlgError:
                definite[some] = [has_factor(M) for M in full]

    with one_blas_thread():
        run_chunks(check, count, 1e-10 * count * size**3)
    return definite


def has_factor(M: Array) -> bool:
    """Whether all matrices (..., k, k) have a Cholesky factor."""
    try:
        np.linalg.cholesky(M)
    except np.linalg.LinAlgError:
        return False
    return True


def _sparse(values: Array, row: Array, column: Array, size: int, shift: Array) -> Array:
    """(batch,) whether P + shift has positive pivots."""
    definite = np.ones(len(values), dtype=bool)
    for k, entries in enumerate(values):
        upper = sp.csc_array((entries, (row, column)), shape=(size, size))
        try:
            pivots = qdldl.Solver(sp.csc_array(upper + shift[k] * sp.eye_array(size)), upper=True).factors()[1]
            definite[k] = bool((pivots > 0).all())
        except RuntimeError:
            definite[k] = False
    return definite


def _smallest(entries: Array, row: Array, column: Array, size: int) -> float:
    """The smallest eigenvalue; NaN if that would take too long."""
    if size > EXACT:
        return float("nan")
    full = np.zeros((size, size))
    full[column, row] = entries
    return float(scipy.linalg.eigvalsh(full, lower=True, subset_by_index=[0, 0])[0])
