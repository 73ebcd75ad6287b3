"""First way: a sparse LDL' factorization of the quasi-definite ghost system.

Three things make it fast. Variables fixed by active bounds (rows of TA with a single entry) are
eliminated before factorizing: in many layers these are most of them. The matrices of all samples are
assembled by array operations and cut into diagonal blocks, which keeps the fill-reducing ordering
local to a sample. And the factorization serves polish and the backward pass alike.

The system is equilibrated and regularised by 1e-7 (smaller made factorizations of linear programs
fail, larger stalls); iterative refinement against the unregularised system removes its effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from ffo.ghost.factors import REGULARISATION, SharpFactors, equilibrate, factor_blocks, regularised
from ffo.ghost.layout import Layout, Layouts
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity, Way
from ffo.ghost.refinement import refine
from ffo.probes import PROBE
from ffo.program.cone import ConeProgram

Array = np.ndarray

ACCURACY = 1e-13
#: estimated relative error that asks for no further refinement
SMALL_ERROR = 1e-9
#: relative residual or error above which a sample is solved again in the least-squares sense
INCONSISTENT = 1e-8
#: relative residual above which such a system has no solution, to the accuracy of its matrix
RESOLVED = 1e-11
#: share of the size of a solution that rounding may leave
ROUNDING = 1e-13
#: eigenvalues, relative to the largest, that count as zero; steps of refinement
NULL, REFINED = 1e-13, 2
#: unknowns up to which it is solved by an eigenvalue decomposition, beyond by a sharper factorization
LEAST_SQUARES_DENSE = 400
#: relative residual that factors of a neighbouring system must reach, or new ones are made
BORROWED = 1e-11
#: estimated relative error of a Newton step that asks for sharper factors, if the matrix is nearly singular
NEWTON_ERROR = 1e-3
#: pivot (the largest entries of the matrix being 1) below which it may be, and rows depend on each other
SMALL_PIVOT = 1e-4
#: share of a random right-hand side that is left where they do, and that may be left where they do not
LEFT, MET = 1e-3, 1e-6


@dataclass(frozen=True)
class Direct(Way):
    """Factorize the ghost system.

    Attributes:
        layouts: where the layouts of flat programs are kept from call to call.
        remember: whether the factors of their active sets are kept too, because these will come again (from
            the second time on that matrices are seen).
    """

    layouts: Layouts = field(default_factory=Layouts, compare=False, repr=False)
    remember: bool = False

    def layout(self, program: ConeProgram) -> Layout:
        """The matrix of which the ghost systems of a flat program are submatrices."""
        return self.layouts.find(program.P, program.A)

    def solver(self, system: GhostSystem, previous: GhostSolver | None = None) -> DirectSolver:
        return DirectSolver(system, previous if isinstance(previous, DirectSolver) else None)


class DirectSolver(GhostSolver):
    """The factorized ghost system of a batch."""

    def __init__(self, system: GhostSystem, previous: DirectSolver | None = None) -> None:
        self.system = system
        self._factors: _Factors = previous._factors if previous else _Factors(system)
        self._borrowed = previous is not None
        self._sharper: dict[int, _SharpSample] = {}
        self._units = _natural_units(system)

    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        system = self.system
        rhs = system.right_hand_side(r_x, r_s)
        target = np.full(system.batch, ACCURACY) if accuracy is None else np.maximum(accuracy, ACCURACY)
        allowed = np.full(system.batch, SMALL_ERROR if accuracy is None else np.inf)
        z, _, relative, error = refine(self, rhs, target, allowed)
        if self._borrowed and not (relative <= np.maximum(target, BORROWED)).all():
            self._factors, self._borrowed = _Factors(system), False
            z, _, relative, error = refine(self, rhs, target, allowed)
        relative = np.maximum(relative, error) if accuracy is None else relative
        for k in self._doubtful(relative, error, accuracy is None):
            at = np.flatnonzero(system.sample == k)
            better, doubt = self._least_squares(k, at, rhs[at])
            if not relative[k] <= doubt or doubt >= 1.0 or accuracy is not None:
                z[at], relative[k] = better, doubt
        return system.sensitivity(z, relative)

    def _doubtful(self, relative: Array, error: Array, exact: bool) -> list[int]:
        """Samples whose solution the regularisation has spoilt.

        That of a Newton step close to convergence is all rounding error, unless the matrix is nearly singular.
        """
        if exact:
            return np.flatnonzero(~(relative <= INCONSISTENT)).tolist()
        poor = np.flatnonzero(~(error <= NEWTON_ERROR))
        return poor[self._factors.smallest_pivot[poor] <= SMALL_PIVOT].tolist() if len(poor) else []

    def dependent(self) -> Array:
        """(batch,) whether active rows, not all of them equalities, depend on each other.

        A vector v with v'TA = 0 leaves a pivot of the size of the regularisation; where there is one, a
        random right-hand side tells dependent rows (their share of it cannot be met, and is such a v) from
        nearly so. It is met at once where pivots are small for other reasons.
        """
        system = self.system
        found = np.zeros(system.batch, dtype=bool)
        suspect = self._factors.smallest_pivot <= SMALL_PIVOT
        if not suspect.any():
            return found
        inequality, random = np.zeros(system.size), np.zeros(system.size)
        rows = slice(system.primal, system.primal + system.rows)
        inequality[rows] = system.active.inequality
        random[rows] = np.random.default_rng(PROBE).standard_normal(system.rows) / self._units[rows]
        random *= suspect[system.sample]
        left_over = refine(self, random, MET, np.inf).relative
        for k in np.flatnonzero(suspect & ~(left_over <= MET)).tolist():
            at = np.flatnonzero(system.sample == k)
            units, rhs = self._units[at], random[at]
            sharp = self._sharp(k, at)
            left = sharp.solve(rhs)[1]
            v = sharp.vanishing(left) / units
            taking_part = np.linalg.norm(v * inequality[at]) > LEFT * np.linalg.norm(v)
            found[k] = taking_part and np.linalg.norm(left * units) > LEFT
        return found

    def _least_squares(self, k: int, at: Array, rhs: Array) -> tuple[Array, float]:
        """Least-squares solution of one sample (what is left when the derivative is not unique), of small
        norm, and its relative residual or error: 1 where there is seen to be no solution, because along what is
        left of the right-hand side it could be anything."""
        units = self._units[at]
        matrix = _restricted(self.system, at)
        if not np.isfinite(rhs).all() or not np.isfinite(matrix.data).all():
            return np.full(len(rhs), np.nan), np.inf
        size = np.linalg.norm(rhs * units) or 1.0
        if len(rhs) > LEAST_SQUARES_DENSE:
            z, left, error = self._sharp(k, at).solve(rhs)
            return z, max(float(np.linalg.norm(left * units) / size), error)
        found, error = _spectral(matrix.toarray() * units[:, None] * units, units * rhs, at < self.system.primal)
        residual = float(np.linalg.norm((rhs - matrix @ (units * found)) * units))
        none = residual > RESOLVED * size + ROUNDING * np.linalg.norm(found)
        return units * found, 1.0 if none else float(max(residual / size, error))

    def _sharp(self, k: int, at: Array) -> _SharpSample:
        """Factors of one sample's matrix with hardly any regularisation; made once."""
        if k not in self._sharper:
            self._sharper[k] = _SharpSample(self.system, self._factors, at, self._units[at])
        return self._sharper[k]

    def correction(self, residual: Array) -> Array:
        return self._factors.solve(residual, self.system)

    def residual(self, rhs: Array, z: Array) -> Array:
        return rhs - self.system.formed_dot(z)

    def norms(self, residual: Array) -> Array:
        """(batch,) norm of each sample's part of a vector of residuals, in natural units."""
        weights = (residual * self._units) ** 2
        return np.sqrt(np.bincount(self.system.sample, weights=weights, minlength=self.system.batch))

    def moved(self, step: Array, z: Array) -> Array:
        return self.norms(step / self._units**2) / np.maximum(self.norms(z / self._units**2), 1e-300)

    def choose(self, mine: Array, z: Array, other: Array) -> Array:
        return np.where(mine[self.system.sample], z, other)


def _spectral(K: Array, rhs: Array, primal: Array) -> tuple[Array, float]:
    """The least-squares solution of smallest norm of a symmetric system, and its relative error, as the last step
    of refinement shows it: the larger of the errors in the unknowns that are `primal` and in the others."""
    values, vectors = scipy.linalg.eigh(K)
    size = np.abs(values)
    kept = size > NULL * size.max(initial=0.0)
    values, vectors = values[kept], vectors[:, kept]
    solve = lambda r: vectors @ ((vectors.T @ r) / values)  # noqa: E731
    z = solve(rhs)
    for _ in range(REFINED):
        step = solve(rhs - K @ z)
        z = z + step
    errors = (np.linalg.norm(step[part]) / (np.linalg.norm(z[part]) or 1.0) for part in (primal, ~primal))
    return z, float(max(errors))


class _SharpSample:
    """`SharpFactors` of the unknowns `at` of one sample that are left when active bounds are eliminated."""

    def __init__(self, system: GhostSystem, factors: _Factors, at: Array, units: Array) -> None:
        self._matrix = matrix = _restricted(system, at)
        mine = np.isin(factors.fixed, at)
        self._variable, self._row = (np.searchsorted(at, v[mine]) for v in (factors.fixed, factors.fixed_row))
        self._value = factors.fixed_value[mine]
        kept = np.ones(len(at), dtype=bool)
        kept[self._variable] = kept[self._row] = False
        self._kept = np.flatnonzero(kept)
        positive = (at < system.primal) | (at >= system.primal + system.rows)
        inner = matrix[self._kept][:, self._kept]
        self._sharp = SharpFactors(inner, positive[self._kept], units[self._kept])

    def solve(self, rhs: Array) -> tuple[Array, Array, float]:
        """As `SharpFactors.solve`."""
        z, left = np.zeros_like(rhs), np.zeros_like(rhs)
        z[self._variable] = rhs[self._row] / self._value
        inner, left[self._kept], error = self._sharp.solve((rhs - self._matrix @ z)[self._kept])
        z[self._kept] = inner
        z[self._row] = (rhs - self._matrix @ z)[self._variable] / self._value
        return z, left, error

    def vanishing(self, left: Array) -> Array:
        """The vector that K maps to zero and of which a right-hand side that cannot be met consists."""
        v = np.zeros_like(left)
        v[self._kept] = self._sharp.vanishing(left[self._kept])
        v[self._row] = -(self._matrix @ v)[self._variable] / self._value
        return v


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
        self.order, self.scale = order, equilibrate(matrix)
        positive = (order < system.primal) | (order >= system.primal + system.rows)
        shift = np.where(positive, REGULARISATION, -REGULARISATION)
        self.batch, self.sample = system.batch, system.sample[order]
        self.blocks = factor_blocks(regularised(matrix, self.scale, shift), self.sample)

    @cached_property
    def smallest_pivot(self) -> Array:
        """(batch,) in the equilibrated matrix; infinite where nothing was factorized."""
        smallest = np.full(self.batch, np.inf)
        if self.blocks:
            pivots = np.concatenate([np.abs(block.pivots) for _, _, block in self.blocks])
            np.minimum.at(smallest, self.sample, pivots)
        return smallest

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


def _natural_units(system: GhostSystem) -> Array:
    """(size,) factors that make the residuals of rows comparable with those of u.

    With sizes l of x and f of the gradient, rows a_i of A have residuals of size |a_i| l: in the words of
    the active set, f / (|a_i| l) = |a_i| / tau_i. Divided by the same factors, unknowns are comparable.
    """
    squared = system.program.A.row_norms_squared
    rows = np.sqrt(system.program.cones.block_means(np.where(squared > 0, squared, 1.0)))
    T = system.active.T
    first = T.indices[np.minimum(T.indptr[:-1], max(T.nnz - 1, 0))]  # units are constant on a block
    own = (rows / system.active.tau).ravel()[first]
    return np.concatenate([np.ones(system.primal), own, np.ones(system.size - system.primal - system.rows)])


def _restricted(system: GhostSystem, at: Array) -> sp.csr_array:
    """The system restricted to the unknowns `at` of one sample."""
    primal, rows = system.primal, system.rows
    u, k = at[at < primal], at[at >= primal + rows] - primal - rows
    t = at[(at >= primal) & (at < primal + rows)] - primal
    P, TA = system.P[u][:, u], system.TA[t][:, u]
    C, delta = system.active.C[t][:, k], sp.diags_array(system.active.delta[t])
    corner = sp.csr_array((len(k), len(k)))
    return sp.csr_array(sp.block_array([[P, TA.T, None], [TA, -delta, C], [None, C.T, corner]]))


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
