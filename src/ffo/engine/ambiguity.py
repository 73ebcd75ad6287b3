"""Singular ghost systems: whether null vectors make a gradient ambiguous.

Solution and multipliers (x, y) are not determined along the null vectors of K, and neither is the solution (u, w) of
the ghost system. A gradient in the data is bilinear in the two (`ghost.oracle`). It is unique if no parameter is
affected by what a null vector adds to it, in place of (u, w) or of (x, y).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import nnls

from ffo.ghost.oracle import LARGE_U, LARGE_W, MEETS_U, MEETS_W, NullVectors
from ffo.program.affine import DataGradient
from ffo.program.components import Components
from ffo.program.cone import ConeProgram
from ffo.program.magnitudes import inner, largest
from ffo.program.sparse import SparseBatch

Array = np.ndarray
#: whether (samples,) a gradient in the data of some samples affects any requested parameter, and whether a change
#: (u, w) of some samples' solutions and multipliers affects an output
Felt = Callable[[DataGradient], Array]
Seen = Callable[[Array, Array], Array]

#: size of a product, relative to its terms, that counts as rounding
ROUNDING = 1e-10
#: inconsistency of rows, relative to their terms, that counts as rounding
MET = 1e-14


def all_data(gradient: DataGradient) -> Array:
    """`Felt` if all data are parameters."""
    x, y, u, v = gradient.x, gradient.y, gradient.u, gradient.v
    products = [_nonzero(a) & _nonzero(b) for a, b in ((u, x), (y, u), (v, x))]
    return _nonzero(gradient.dq) | _nonzero(gradient.db) | np.any(products, axis=0)


def all_outputs(u: Array, w: Array) -> Array:
    """`Seen` if all variables and multipliers are outputs."""
    return _nonzero(u, w)


def open_gradients(
    null: NullVectors, program: ConeProgram, gradient: DataGradient, sees: Array, felt: Felt
) -> tuple[Array, Array]:
    """(count,) for each null vector: whether the gradient is ambiguous because the solution is not unique, and because
    active rows depend on each other; `sees` as in `Sensitivity`."""
    k = null.samples
    x, y, u, w = (v[k] for v in (gradient.x, gradient.y, gradient.u, gradient.v))
    large_u, large_w, meets_u, meets_w = (sees[k, column, None] for column in (LARGE_U, LARGE_W, MEETS_U, MEETS_W))
    u, w, no_x, no_y = u * large_u, w * large_w, np.zeros(x.shape), np.zeros(y.shape)
    ambiguous = dependent = np.zeros(len(k), dtype=bool)
    if null.u.any():
        ambiguous = felt(DataGradient(x, y, null.u * meets_u, no_y, no_y))
        # a cost along a null vector chooses among solutions, where other rows may hold what the loss sees
        ambiguous |= felt(DataGradient(no_x, no_y, null.u * _coupled(program, null.u, u), no_y, no_y))
        ambiguous |= felt(DataGradient(null.u, no_y, u, w, no_y, no_x))
    if null.w.any():
        relaxable = null.w[:, ~program.cones.equalities].any(axis=1, keepdims=True)
        sides = np.where(relaxable, -null.w, 0.0)  # equalities stay consistent
        # other coefficients of dependent equalities leave no solution, whatever the loss sees
        coefficients = np.where(relaxable, meets_w, 1.0)
        dependent = felt(DataGradient(x, y, no_x, null.w * coefficients, sides * meets_w))
        dependent |= felt(DataGradient(no_x, null.w, u, no_y, no_y, no_x))
        unmet = (relaxable & ~meets_w)[:, 0] & ~dependent
        if unmet.any():  # nor do those of inequalities that are equalities in disguise
            unmet &= felt(DataGradient(x, y, no_x, null.w, no_y)) & felt(DataGradient(x, y, no_x, null.w, -null.w))
            dependent |= unmet & [
                bool(here) and _tied(program, j, v) for here, j, v in zip(unmet, k, null.w, strict=True)
            ]
    return ambiguous, dependent


def _tied(program: ConeProgram, sample: int, w: Array) -> bool:
    """Whether the rows of a null vector hold some of their inequalities together as equalities: a combination of them
    with positive factors, and of equalities with any, is zero."""
    rows = np.flatnonzero(w)
    if not program.cones.scalar_rows[rows].all():
        return False
    equal, A = program.cones.equalities[rows], program.A.matrix(sample)[rows].toarray()
    A = A / np.where((size := largest(A)) > 0, size, 1.0)
    columns = np.vstack([A[~equal], A[equal], -A[equal]]).T
    total = np.append(np.ones(int((~equal).sum())), np.zeros(2 * int(equal.sum())))
    try:
        _, left = nnls(np.vstack([columns, total]), np.append(np.zeros(program.n), 1.0))
    except RuntimeError:  # no end in sight: doubt
        return True
    return bool(left <= ROUNDING)


def _coupled(program: ConeProgram, null: Array, u: Array) -> Array:
    """(count, 1) whether a chain of rows, active or not, or of terms of P leads from the variables of a null vector to
    those that u moves."""
    part, moved = Components(program).variables, np.abs(u) > ROUNDING * largest(u)
    met = [np.isin(part[v != 0], part[at]).any() for v, at in zip(null, moved, strict=True)]
    return np.array(met, dtype=bool)[:, None]


def open_tangents(null: NullVectors, change: ConeProgram, unsolved: Array, seen: Seen) -> tuple[Array, Array]:
    """The same for derivatives along a change of the data; `unsolved`: (batch,) samples whose rows cannot follow it, or
    whose costs choose among solutions."""
    change = change.take(null.samples)
    none_u, none_w = np.zeros_like(null.u), np.zeros_like(null.w)
    lost = unsolved[null.samples]
    ambiguous = seen(null.u, none_w) | _moves(change.P, null.u) | _moves(change.A, null.u) | (lost & _nonzero(null.u))
    dependent = seen(none_u, null.w) | _moves(change.A, null.w, transposed=True) | (lost & _nonzero(null.w))
    return ambiguous, dependent


def clashing(null: NullVectors, program: ConeProgram, x: Array, s: Array) -> Array:
    """(count,) for each null vector: whether its rows, some of them inequalities, are inconsistent, by however little:
    w'(b - s) = w'(b - Ax - s) is not zero. Which of them are active is then below the accuracy of a solution."""
    k, w = null.samples, null.w
    used = w != 0
    relaxable = used[:, ~program.cones.equalities].any(axis=1)
    if not relaxable.any():
        return np.asarray(relaxable)
    program, x, s = program.take(k), x[k], s[k]
    left = np.where(used, program.slack(x) - s, 0.0)
    size = program.cones.block_means(np.abs(program.b) + np.abs(s) + program.A.magnitudes.dot(np.abs(x)))
    inconsistent = np.abs(inner(w, left)) > MET * inner(np.abs(w), size)
    return np.asarray(inconsistent & relaxable)


def _moves(M: SparseBatch, v: Array, transposed: bool = False) -> Array:
    """(samples,) whether a product is more than rounding."""
    image = M.tdot(v) if transposed else M.dot(v)
    return (np.abs(image) > ROUNDING * M.largest[:, None] * largest(v)).any(axis=1)


def _nonzero(*parts: Array) -> Array:
    return np.any([v.any(axis=1) for v in parts], axis=0)
