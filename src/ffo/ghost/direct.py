"""First way: a sparse LDL' factorization of the quasi-definite ghost system.

Three things make it fast. Variables fixed by active bounds (rows of TA with a single entry) are
eliminated before factorizing: in many layers these are most of them. The matrices of all samples are
assembled by array operations and cut into diagonal blocks, which keeps the fill-reducing ordering
local to a sample. And the factorization serves polish and the backward pass alike.

The system is equilibrated and regularised by 1e-7 (smaller made factorizations of linear programs
fail, larger stalls); iterative refinement against the unregularised system removes its effect.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import qdldl
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity, Way
from ffo.threads import one_blas_thread

Array = np.ndarray

REGULARISATION = 1e-7
#: unknowns per factorized block: small samples are gathered, so that calls do not dominate
BLOCK = 400
#: share of stored entries above which a block is factorized as a dense matrix
DENSE = 0.3
#: rows from which a dense factorization is left to as many threads as the library likes
THREADED = 1500
REFINEMENTS = 12
ACCURACY = 1e-13
#: relative residual above which a sample is solved again in the least-squares sense
INCONSISTENT = 1e-8
#: unknowns up to which that is done by a singular value decomposition, beyond by LSMR
LEAST_SQUARES_DENSE = 400
#: relative residual that factors of a neighbouring system must reach, or new ones are made
BORROWED = 1e-11


@dataclass(frozen=True)
class Direct(Way):
    """Factorize the ghost system."""

    def solver(self, system: GhostSystem, previous: GhostSolver | None = None) -> DirectSolver:
        return DirectSolver(system, previous if isinstance(previous, DirectSolver) else None)


class DirectSolver(GhostSolver):
    """The factorized ghost system of a batch."""

    def __init__(self, system: GhostSystem, previous: DirectSolver | None = None) -> None:
        self.system = system
        self._factors: _Factors = previous._factors if previous else _Factors(system)
        self._borrowed = previous is not None

    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        system = self.system
        rhs = system.right_hand_side(r_x, r_s)
        target = np.full(system.batch, ACCURACY) if accuracy is None else np.maximum(accuracy, ACCURACY)
        z, relative = self._refine(rhs, target)
        if self._borrowed and not (relative <= np.maximum(target, BORROWED)).all():
            self._factors, self._borrowed = _Factors(system), False
            z, relative = self._refine(rhs, target)
        if accuracy is None:
            for k in np.flatnonzero(~(relative <= INCONSISTENT)):
                at = np.flatnonzero(system.sample == k)
                better, error = _least_squares(_restricted(system, at), rhs[at])
                if not relative[k] <= error:
                    z[at], relative[k] = better, error
        return system.sensitivity(z, relative)

    def _refine(self, rhs: Array, target: Array) -> tuple[Array, Array]:
        """Iterative refinement to relative residuals (batch,); keeps each sample's best iterate."""
        system = self.system
        size = system.norms(rhs)
        size = np.where(size > 0, size, 1.0)
        best, best_norm = np.zeros_like(rhs), system.norms(rhs) / size
        z, residual = best, rhs
        for _ in range(REFINEMENTS):
            z = z + self._factors.solve(residual, system)
            residual = rhs - system.formed_dot(z)
            norm = system.norms(residual) / size
            better = norm < best_norm
            best = z if better.all() else np.where(better[system.sample], z, best)
            stalled = ~(norm <= 0.3 * best_norm)
            best_norm = np.where(better, norm, best_norm)
            if ((best_norm <= target) | stalled).all():
                break
        return best, best_norm


class _Factors:
    """An approximate inverse of a ghost system: active bounds eliminated, the rest factorized."""

    def __init__(self, system: GhostSystem) -> None:
        self._find_fixed(system)
        self._factorize(system)

    def _find_fixed(self, system: GhostSystem) -> None:
        """Rows a u_j = r: pivots (row, variable, a), one per variable."""
        TA = system.TA
        rows = np.flatnonzero((system.active.delta == 0) & (np.diff(TA.indptr) == 1))
        entry = TA.indptr[rows]
        rows, entry = rows[TA.data[entry] != 0], entry[TA.data[entry] != 0]
        variables, first = np.unique(TA.indices[entry], return_index=True)
        self.fixed_row, self.fixed = system.primal + rows[first], variables
        self.fixed_value = TA.data[entry[first]]

    def _factorize(self, system: GhostSystem) -> None:
        keep = np.ones(system.size, dtype=bool)
        keep[self.fixed] = keep[self.fixed_row] = False
        kept = np.flatnonzero(keep)
        order = kept[np.argsort(system.sample[kept], kind="stable")]  # sample by sample, (u, t, k) within
        rank = np.full(system.size, -1)
        rank[order] = np.arange(len(order))
        row, col, value = _upper_entries(system)
        row, col = rank[row], rank[col]
        inside = (row >= 0) & (col >= 0)
        matrix = sp.csc_array((value[inside], (row[inside], col[inside])), shape=(len(order), len(order)))
        self.order, self.scale = order, _equilibrate(matrix)
        positive = (order < system.primal) | (order >= system.primal + system.rows)
        shift = np.where(positive, REGULARISATION, -REGULARISATION)
        self.blocks = _factor_blocks(_regularised(matrix, self.scale, shift), system.sample[order])

    def solve(self, residual: Array, system: GhostSystem) -> Array:
        """K^{-1} times a vector, up to the regularisation; `system` may differ slightly from the
        factorized one."""
        z = np.zeros(system.size)
        if len(self.fixed):
            z[self.fixed] = residual[self.fixed_row] / self.fixed_value
            residual = residual - system.formed_dot(z)
        rhs = residual[self.order] * self.scale
        inner = np.concatenate([block.solve(rhs[start:stop]) for start, stop, block in self.blocks] or [rhs])
        if not len(self.fixed):
            z[self.order] = inner * self.scale
            return z
        rest = np.zeros(system.size)
        rest[self.order] = inner * self.scale
        left = (residual - system.formed_dot(rest))[self.fixed]
        z += rest
        z[self.fixed_row] = left / self.fixed_value
        return z


def _restricted(system: GhostSystem, at: Array) -> sp.csr_array:
    """The system restricted to the unknowns `at` of one sample."""
    primal, rows = system.primal, system.rows
    u, k = at[at < primal], at[at >= primal + rows] - primal - rows
    t = at[(at >= primal) & (at < primal + rows)] - primal
    P, TA = system.P[u][:, u], system.TA[t][:, u]
    C, delta = system.active.C[t][:, k], sp.diags_array(system.active.delta[t])
    corner = sp.csr_array((len(k), len(k)))
    return sp.csr_array(sp.block_array([[P, TA.T, None], [TA, -delta, C], [None, C.T, corner]]))


def _least_squares(matrix: sp.csr_array, rhs: Array) -> tuple[Array, float]:
    """Least-norm least-squares solution (what is left when the derivative is not unique) and its
    relative residual."""
    if not np.isfinite(rhs).all() or not np.isfinite(matrix.data).all():
        return np.full(len(rhs), np.nan), np.inf
    if len(rhs) <= LEAST_SQUARES_DENSE:
        z = scipy.linalg.lstsq(matrix.toarray(), rhs, cond=1e-11)[0]
    else:
        z = spl.lsmr(matrix, rhs, atol=1e-13, btol=1e-13, conlim=1e13, maxiter=20 * len(rhs))[0]
    size = float(np.linalg.norm(rhs))
    return z, float(np.linalg.norm(rhs - matrix @ z)) / (size or 1.0)


def _upper_entries(system: GhostSystem) -> tuple[Array, Array, Array]:
    """Triplets of the upper triangle, in the numbering (u, t, k), every diagonal entry among them."""
    upper, C, TA = system.program.P.block_diagonal(system.batch), sp.coo_array(system.active.C), system.TA
    t0, k0 = system.primal, system.primal + system.rows
    every = np.arange(system.size)
    diagonal = np.zeros(system.size)
    diagonal[t0:k0] = -system.active.delta
    P_col = np.repeat(np.arange(upper.shape[1]), np.diff(upper.indptr))
    TA_row = np.repeat(np.arange(system.rows), np.diff(TA.indptr))
    row = np.concatenate([upper.indices, TA.indices, t0 + C.coords[0], every])
    col = np.concatenate([P_col, t0 + TA_row, k0 + C.coords[1], every])
    return row, col, np.concatenate([upper.data, TA.data, C.data, diagonal])


def _equilibrate(upper: sp.csc_array) -> Array:
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


def _regularised(upper: sp.csc_array, scale: Array, shift: Array) -> sp.csc_array:
    """The scaled matrix with its diagonal, the last entry of each column, shifted."""
    upper.sort_indices()
    data = upper.data * scale[upper.indices] * np.repeat(scale, np.diff(upper.indptr))
    data[upper.indptr[1:] - 1] += shift
    return sp.csc_array((data, upper.indices, upper.indptr), shape=upper.shape)


class _DenseBlock:
    """LU factors of a block too full for sparse elimination."""

    def __init__(self, upper: sp.csc_array) -> None:
        full = upper.toarray()
        full += np.triu(full, 1).T
        self._factors = scipy.linalg.lu_factor(full, overwrite_a=True, check_finite=False)

    def solve(self, rhs: Array) -> Array:
        return scipy.linalg.lu_solve(self._factors, rhs, check_finite=False)


def _factor_blocks(upper: sp.csc_array, sample: Array) -> list[tuple[int, int, qdldl.Solver | _DenseBlock]]:
    """Cut a block-diagonal matrix between samples and factorize the pieces.

    Small samples are gathered, full ones are factorized one by one as dense matrices.
    """
    size = len(sample)
    if not size:
        return []
    starts = np.flatnonzero(np.concatenate([[True], sample[1:] != sample[:-1]]))
    ends = np.append(starts[1:], size)
    width, stored = ends - starts, upper.indptr[ends] - upper.indptr[starts]
    full = (stored > DENSE * width**2 / 2) & (width > 50)
    blocks: list[tuple[int, int, qdldl.Solver | _DenseBlock]] = []
    first = 0
    with one_blas_thread() if full.any() and width.max() < THREADED else nullcontext():
        for k, end in enumerate(ends.tolist()):
            last = k + 1 == len(ends)
            if not (full[k] or last or full[k + 1] or end - first >= BLOCK):
                continue
            piece = _piece(upper, first, end)
            blocks.append((first, end, _DenseBlock(piece) if full[k] else qdldl.Solver(piece, upper=True)))
            first = end
    return blocks


def _piece(upper: sp.csc_array, start: int, end: int) -> sp.csc_array:
    lo, hi = upper.indptr[start], upper.indptr[end]
    return sp.csc_array(
        (upper.data[lo:hi], upper.indices[lo:hi] - start, upper.indptr[start : end + 1] - lo),
        shape=(end - start, end - start),
    )
