"""First way: a sparse LDL' factorization of the quasi-definite ghost system.

Three things make it fast. Variables fixed by active bounds (rows of TA with a single entry) are
eliminated before factorizing: in many layers these are most of them. The matrices of all samples are
assembled by array operations and cut into diagonal blocks, which keeps the fill-reducing ordering
local to a sample. And the factorization serves polish and the backward pass alike.

The system is equilibrated and regularised by 1e-7 (smaller made factorizations of linear programs
fail, larger stalls); iterative refinement against the unregularised system removes its effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import qdldl
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity, Way

Array = np.ndarray

REGULARISATION = 1e-7
#: unknowns per factorized block: small samples are gathered, so that calls do not dominate
BLOCK = 400
#: share of stored entries above which a block is factorized as a dense matrix
DENSE = 0.3
REFINEMENTS = 12
ACCURACY = 1e-13
#: relative residual above which a sample is solved again in the least-squares sense
INCONSISTENT = 1e-8
LEAST_SQUARES_DENSE = 1500


@dataclass(frozen=True)
class Direct(Way):
    """Factorize the ghost system."""

    def solver(self, system: GhostSystem) -> DirectSolver:
        return DirectSolver(system)


class DirectSolver(GhostSolver):
    """The factorized ghost system of a batch."""

    def __init__(self, system: GhostSystem) -> None:
        self.system = system
        TA = system.TA
        self._P = _symmetric(system)
        self._row = np.repeat(np.arange(system.rows), np.diff(TA.indptr))
        self._find_fixed(TA)
        self._factorize(TA)

    def solve(self, r_x: Array, r_s: Array) -> Sensitivity:
        system = self.system
        rhs = system.right_hand_side(r_x, r_s)
        z, residual = self._refine(rhs)
        relative = system.relative_residual(rhs, residual)
        bad = np.flatnonzero(~(relative <= INCONSISTENT))
        for k in bad:
            at = np.flatnonzero(system.sample == k)
            better = self._least_squares(at, rhs[at])
            error = np.linalg.norm(rhs[at] - self._matrix(at) @ better) / max(np.linalg.norm(rhs[at]), 1e-300)
            if not relative[k] <= error:
                z[at], relative[k] = better, error
        return system.sensitivity(z, relative)

    def _refine(self, rhs: Array) -> tuple[Array, Array]:
        """Iterative refinement; keeps each sample's best iterate."""
        system = self.system
        size = np.maximum(system.norms(rhs), 1e-300)
        best, best_residual = np.zeros_like(rhs), rhs
        best_norm = np.ones(system.batch)
        z, residual = best, rhs
        for _ in range(REFINEMENTS):
            z = z + self._approximate(residual)
            residual = rhs - self._product(z)
            norm = system.norms(residual) / size
            better = norm < best_norm
            if better.all():
                best, best_residual = z, residual
            else:
                mine = better[system.sample]
                best, best_residual = np.where(mine, z, best), np.where(mine, residual, best_residual)
            stalled = norm > 0.3 * best_norm
            best_norm = np.minimum(norm, best_norm)
            if ((best_norm <= ACCURACY) | stalled).all():
                break
        return best, best_residual

    def _product(self, z: Array) -> Array:
        system, TA = self.system, self.system.TA
        u, t, k = system.split(z)
        C = system.active.C
        top = self._P @ u + TA.T @ t
        return np.concatenate([top, TA @ u - system.active.delta * t + C @ k, C.T @ t])

    def _find_fixed(self, TA: sp.csr_array) -> None:
        """Rows a u_j = r: pivots (row, variable, a), one per variable."""
        system = self.system
        count = np.diff(TA.indptr)
        normal = (system.active.delta == 0) & (count == 1)
        rows = np.flatnonzero(normal)
        entry = TA.indptr[rows]
        rows, entry = rows[TA.data[entry] != 0], entry[TA.data[entry] != 0]
        variables, first = np.unique(TA.indices[entry], return_index=True)
        self._fixed_row, self._fixed_variable = rows[first], variables
        self._fixed_value = TA.data[entry[first]]
        self._keep = np.ones(system.size, dtype=bool)
        self._keep[variables] = False
        self._keep[system.primal + self._fixed_row] = False

    def _factorize(self, TA: sp.csr_array) -> None:
        system, keep = self.system, self._keep
        kept = np.flatnonzero(keep)
        order = kept[np.argsort(system.sample[kept], kind="stable")]  # sample by sample, (u, t, k) within
        rank = np.full(system.size, -1)
        rank[order] = np.arange(len(order))
        upper = _upper_entries(system, TA, self._row, self._P)
        inside = keep[upper[0]] & keep[upper[1]]
        row, col, value = (v[inside] for v in upper)
        matrix = sp.csc_array((value, (rank[row], rank[col])), shape=(len(order), len(order)))
        self._order = order
        self._scale = _equilibrate(matrix)
        scaled = _scaled(matrix, self._scale)
        positive = (order < system.primal) | (order >= system.primal + system.rows)
        scaled = sp.csc_array(scaled + sp.diags_array(np.where(positive, REGULARISATION, -REGULARISATION)))
        self._blocks = _factor_blocks(scaled, system.sample[order])

    def _approximate(self, residual: Array) -> Array:
        """K^{-1} times a vector, up to the regularisation."""
        system = self.system
        z = np.zeros(system.size)
        if len(self._fixed_variable):
            fixed_rows = system.primal + self._fixed_row
            z[self._fixed_variable] = residual[fixed_rows] / self._fixed_value
            residual = residual - self._product(z)
        rhs = residual[self._order] * self._scale
        inner = np.concatenate([block.solve(rhs[start:stop]) for start, stop, block in self._blocks] or [rhs])
        z[self._order] += inner * self._scale
        if len(self._fixed_variable):
            partial = np.zeros(system.size)
            partial[self._order] = z[self._order]
            left = residual - self._product(partial)
            z[fixed_rows] = left[self._fixed_variable] / self._fixed_value
        return z

    def _matrix(self, at: Array) -> sp.csr_array:
        """The system restricted to the unknowns `at` of one sample."""
        system = self.system
        u, t, k = (
            at[at < system.primal],
            at[(at >= system.primal) & (at < system.primal + system.rows)] - system.primal,
            at[at >= system.primal + system.rows] - system.primal - system.rows,
        )
        P, TA = self._P[u][:, u], system.TA[t][:, u]
        C, delta = system.active.C[t][:, k], sp.diags_array(system.active.delta[t])
        return sp.csr_array(sp.block_array([[P, TA.T, None], [TA, -delta, C], [None, C.T, sp.csr_array((len(k),) * 2)]]))

    def _least_squares(self, at: Array, rhs: Array) -> Array:
        """Least-norm least-squares solution: what is left when the derivative is not unique."""
        matrix = self._matrix(at)
        if not np.isfinite(rhs).all() or not np.isfinite(matrix.data).all():
            return np.full(len(at), np.nan)
        if len(at) <= LEAST_SQUARES_DENSE:
            return scipy.linalg.lstsq(matrix.toarray(), rhs, cond=1e-11)[0]
        return spl.lsmr(matrix, rhs, atol=1e-13, btol=1e-13, conlim=1e13, maxiter=20 * len(at))[0]


def _symmetric(system: GhostSystem) -> sp.csr_array:
    """The quadratic terms of all samples, both triangles."""
    upper = system.program.P.block_diagonal(system.batch)
    strict = upper - sp.diags_array(upper.diagonal()) if upper.nnz else upper
    return sp.csr_array(upper + strict.T)


def _upper_entries(
    system: GhostSystem, TA: sp.csr_array, TA_row: Array, P: sp.csr_array
) -> tuple[Array, Array, Array]:
    """Triplets of the upper triangle, in the numbering (u, t, k)."""
    upper = sp.coo_array(sp.triu(P))
    C = sp.coo_array(system.active.C)
    t = system.primal + np.arange(system.rows)
    row = np.concatenate([upper.coords[0], TA.indices, t, system.primal + C.coords[0]])
    col = np.concatenate(
        [upper.coords[1], system.primal + TA_row, t, system.primal + system.rows + C.coords[1]]
    )
    return row, col, np.concatenate([upper.data, TA.data, -system.active.delta, C.data])


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


def _scaled(upper: sp.csc_array, scale: Array) -> sp.csc_array:
    col = np.repeat(scale, np.diff(upper.indptr))
    return sp.csc_array((upper.data * scale[upper.indices] * col, upper.indices, upper.indptr), shape=upper.shape)


class _DenseBlock:
    """LU factors of a block too full for sparse elimination."""

    def __init__(self, upper: sp.csc_array) -> None:
        full = upper.toarray()
        full += np.triu(full, 1).T
        self._factors = scipy.linalg.lu_factor(full, overwrite_a=True, check_finite=False)

    def solve(self, rhs: Array) -> Array:
        return scipy.linalg.lu_solve(self._factors, rhs, check_finite=False)


def _factor_blocks(upper: sp.csc_array, sample: Array) -> list[tuple[int, int, qdldl.Solver | _DenseBlock]]:
    """Cut a block-diagonal matrix between samples and factorize the pieces."""
    size = len(sample)
    if not size:
        return []
    starts = np.flatnonzero(np.concatenate([[True], sample[1:] != sample[:-1]]))
    ends = np.append(starts[1:], size)
    blocks, start = [], 0
    for end in ends:
        if end - start < BLOCK and end != size:
            continue
        lo, hi = upper.indptr[start], upper.indptr[end]
        piece = sp.csc_array(
            (upper.data[lo:hi], upper.indices[lo:hi] - start, upper.indptr[start : end + 1] - lo),
            shape=(end - start, end - start),
        )
        full = piece.nnz > DENSE * (end - start) ** 2 / 2 and end - start > 50
        blocks.append((start, int(end), _DenseBlock(piece) if full else qdldl.Solver(piece, upper=True)))
        start = int(end)
    return blocks
