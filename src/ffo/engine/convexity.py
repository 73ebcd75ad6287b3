"""Is the objective convex? Solvers do not all notice when it is not."""

from __future__ import annotations

import numpy as np
import qdldl
import scipy.linalg
import scipy.sparse as sp

from ffo.program.sparse import SymmetricBatch

Array = np.ndarray

#: negative eigenvalues up to this share of the largest entry count as rounding
TOLERANCE = 1e-9
DENSE = 0.2
EXACT = 3000
#: order up to which a batch is factorized as one stack of dense matrices
STACKED = 100


def indefinite(P: SymmetricBatch) -> dict[int, float]:
    """Samples whose P is not positive semidefinite, with (an estimate of) the smallest eigenvalue.

    A matrix shared by the batch is reported as sample 0 alone. P must be finite.
    """
    if not P.nnz:
        return {}
    if np.array_equal(P.indices, P.columns):  # diagonal: no factorization
        smallest = np.atleast_2d(P.values).min(axis=1)
        largest = np.abs(np.atleast_2d(P.values)).max(axis=1)
        return {int(k): float(smallest[k]) for k in np.flatnonzero(smallest < -TOLERANCE * largest)}
    count = 1 if P.shared else len(P.values)
    if count > 1 and P.shape[0] <= STACKED and _all_definite(P):
        return {}
    found = {k: _negative(P.matrix(k)) for k in range(count)}
    return {k: v for k, v in found.items() if v is not None}


def _all_definite(P: SymmetricBatch) -> bool:
    """Whether every sample passes, found out for all of them at once."""
    n = P.shape[0]
    largest = np.abs(P.values).max(axis=1)
    full = np.zeros((len(P.values), n, n))
    full[:, P.indices, P.columns] = full[:, P.columns, P.indices] = P.values
    shift = TOLERANCE * np.where(largest > 0, largest, 1.0)
    full[:, np.arange(n), np.arange(n)] += shift[:, None]
    try:
        np.linalg.cholesky(full)
    except np.linalg.LinAlgError:
        return False
    return True


def _negative(upper: sp.csc_array) -> float | None:
    """The smallest eigenvalue if it is negative beyond rounding, else None."""
    used = np.unique(np.concatenate([upper.indices, np.flatnonzero(np.diff(upper.indptr))]))
    sub = sp.csc_array(upper[used][:, used])
    size, largest = len(used), np.abs(sub.data).max(initial=0.0)
    if largest == 0:
        return None
    shift = TOLERANCE * largest * max(np.sqrt(size), 1.0)
    if _definite(sub, shift):
        return None
    if size > EXACT:
        return float("nan")
    full = sub.toarray()
    smallest = float(scipy.linalg.eigvalsh(full + np.triu(full, 1).T, subset_by_index=[0, 0])[0])
    return smallest if smallest < -shift else None


def _definite(upper: sp.csc_array, shift: float) -> bool:
    size = upper.shape[0]
    if upper.nnz > DENSE * size * size / 2:
        full = upper.toarray()
        np.fill_diagonal(full, full.diagonal() + shift)
        try:
            scipy.linalg.cholesky(full, lower=False, overwrite_a=True, check_finite=False)
        except scipy.linalg.LinAlgError:
            return False
        return True
    try:
        D = qdldl.Solver(sp.csc_array(upper + shift * sp.eye_array(size)), upper=True).factors()[1]
    except RuntimeError:
        return False
    return bool((D > 0).all())
