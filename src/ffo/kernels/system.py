"""Solving one sample's ghost system K z = r with regularised factors and refinement.

K is quasi-definite up to its null space. With K + eJ factorized (J: the signs of the pivots; e = 1e-7 in equilibrated
units), refinement replaces a residual r by eJ (K + eJ)^-1 r. On the null space of K, which J leaves alone, that is
the identity; elsewhere it contracts. So refinement reaches the unregularised solution where there is one, dependent
rows included, and what it cannot remove is the part of r along the null space: without that part the system
is consistent, and its solution is the least-squares one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels import ldl
from ffo.kernels.jit import kernel
from ffo.kernels.kkt import INV, KI, KIND, KP, LI, LP, OWNER, RI, RP, ZERO, Face, Structure, narrow, part

Array = np.ndarray

#: regularisation; ten times smaller makes factorizations of linear programs fail, ten times larger stalls refinement
SHIFT = 1e-7
#: regularisations for systems that are singular, or nearly so, one after the other
SHARP = (1e-7, 1e-11, 1e-14)
REFINEMENTS, PASSES = 12, 3
#: a residual that does not shrink to this share of the one before has stalled; where all of it should go
STALLED, STUCK = 0.3, 0.9
#: relative residual and error of an exact solve; beyond DOUBTFUL the system is solved again with sharper factors
EXACT, SMALL_ERROR, DOUBTFUL = 1e-13, 1e-9, 1e-8
#: share of a right-hand side along the null space from which the system has no solution
UNSOLVABLE = 1e-9
#: pivot below which rows may depend on each other; share of a random right-hand side that is left where they do, and
#: that may be left where they do not
SMALL_PIVOT, LEFT, MET = 1e-4, 1e-3, 1e-6


class Factors(NamedTuple):
    """K of one sample (Kx), its equilibration, its factor, and the natural units of its rows (all in K's order).

    With sizes l of x and f of the gradient, rows a_i of A have residuals of size |a_i| l: times unit_i = f / (|a_i| l)
    they compare with those of the objective's gradient.
    """

    Kx: Array
    scale: Array
    Lx: Array
    Dinv: Array
    unit: Array


@kernel
def factor(S: Structure, F: Factors, shift: float) -> float:
    """Factor K, equilibrated and regularised; returns the smallest pivot."""
    Kp, Lp, Rp = part(S, KP), part(S, LP), part(S, RP)
    Ki, Li, Ri = narrow(S, KI), narrow(S, LI), narrow(S, RI)
    return ldl.factor(Kp, Ki, Lp, Li, Rp, Ri, S.sign, F.Kx, F.scale, shift, F.Lx, F.Dinv)


@kernel
def factorize(S: Structure, F: Factors) -> float:
    """Equilibrate K, and factor it."""
    ldl.equilibrate(part(S, KP), narrow(S, KI), F.Kx, F.scale)
    return factor(S, F, SHIFT)


@kernel
def _norm(v: Array, unit: Array) -> float:
    total = 0.0
    for i in range(v.size):
        total += (v[i] * unit[i]) ** 2
    return np.sqrt(total)


@kernel
def _size(z: Array, unit: Array) -> float:
    """Norm of a vector of unknowns: dual to that of residuals."""
    total = 0.0
    for i in range(z.size):
        total += (z[i] / unit[i]) ** 2
    return np.sqrt(total)


@kernel
def refine(
    S: Structure, F: Factors, rhs: Array, z: Array, residual: Array, target: float, allowed: float, stalled: float
) -> tuple[float, float]:
    """Refine until the relative residual reaches `target` and the relative error `allowed`; both are returned.

    Keeps the best iterate and its residual. The last step of refinement is as large as the error before it; after it
    the error is smaller, by the ratio by which the residual fell.
    """
    Kp, Lp, Ki, Li = part(S, KP), part(S, LP), narrow(S, KI), narrow(S, LI)
    size = _norm(rhs, F.unit)
    z[:] = 0.0
    residual[:] = rhs
    if size == 0.0:
        return 0.0, 0.0
    at, r, step = np.zeros(rhs.size), rhs.copy(), np.empty(rhs.size)
    best, error = 1.0, 1.0
    for turn in range(REFINEMENTS):
        for i in range(r.size):
            step[i] = r[i] * F.scale[i]
        ldl.solve(Lp, Li, F.Lx, F.Dinv, step)
        for i in range(r.size):
            step[i] *= F.scale[i]
            at[i] += step[i]
        ldl.multiply(Kp, Ki, F.Kx, at, r)
        for i in range(r.size):
            r[i] = rhs[i] - r[i]
        now = _norm(r, F.unit) / size
        if not now < best:
            break
        shrunk = now / best
        error = shrunk if turn == 0 else shrunk * _size(step, F.unit) / max(_size(at, F.unit), 1e-300)
        best = now
        z[:] = at
        residual[:] = r
        if (best <= target and error <= allowed) or shrunk > stalled:
            break
    return best, error


@kernel
def _least_squares(S: Structure, F: Factors, rhs: Array, z: Array, left: Array) -> tuple[float, float]:
    """z without the part `left` of the right-hand side that refinement cannot remove; its share and the error of z."""
    size = max(_norm(rhs, F.unit), 1e-300)
    rest, residual = rhs.copy(), np.empty(rhs.size)
    left[:] = 0.0
    error = 1.0
    for _ in range(PASSES):
        _, error = refine(S, F, rest, z, residual, 0.0, 0.0, STUCK)
        for i in range(rhs.size):
            left[i] += residual[i]
            rest[i] = rhs[i] - left[i]
        if _norm(residual, F.unit) <= UNSOLVABLE * size:
            break
    return _norm(left, F.unit) / size, error


@kernel
def sharpen(S: Structure, F: Factors, rhs: Array, z: Array, left: Array) -> tuple[float, float]:
    """Least-squares solution with fresh factors, less and less regularised: the share of rhs that is left, and the
    relative error of z."""
    share = error = doubt = np.inf
    other, remaining = np.empty(z.size), np.empty(z.size)
    sharp = Factors(F.Kx, F.scale, np.empty(F.Lx.size), np.empty(F.Dinv.size), F.unit)
    for shift in SHARP:
        factor(S, sharp, shift)
        new_share, new_error = _least_squares(S, sharp, rhs, other, remaining)
        if max(new_share, new_error) < 0.1 * doubt:  # where K is singular, less regularisation is more noise
            share, error = new_share, new_error
            doubt = max(share, error)
            z[:] = other
            left[:] = remaining
        if doubt <= UNSOLVABLE:
            break
    return share, error


@kernel
def solve(S: Structure, F: Factors, rhs: Array, z: Array) -> float:
    """z = K^-1 rhs as exactly as can be; returns the relative residual or error, whichever is larger, and 1 where
    there is no solution (z is then a least-squares one)."""
    residual = np.empty(rhs.size)
    relative, error = refine(S, F, rhs, z, residual, EXACT, SMALL_ERROR, STALLED)
    if max(relative, error) <= DOUBTFUL:
        return max(relative, error)
    other = np.empty(rhs.size)
    share, sharp_error = sharpen(S, F, rhs, other, residual)
    if not np.isfinite(share):
        return np.inf
    z[:] = other
    if share > UNSOLVABLE:
        return 1.0
    return max(share, sharp_error)


@kernel
def dependent(S: Structure, F: Factors, face: Face) -> bool:
    """Whether rows of the face, not all of them equalities, depend on each other.

    A vector v with v'TA = 0 leaves a pivot of the size of the regularisation; a random right-hand side then tells
    dependent rows (its share along such a v cannot be met) from nearly dependent ones.
    """
    kinds, owner, inv = part(S, KIND), part(S, OWNER), part(S, INV)
    size, n = S.sign.size, S.n
    rhs, z, left = np.zeros(size), np.empty(size), np.empty(size)
    state = np.uint64(0x9E3779B97F4A7C15)  # a sequence that no data is drawn with
    for i in range(S.m):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        if face.on[i]:
            rhs[inv[n + i]] = (np.float64(state >> np.uint64(11)) / 2.0**52 - 1.0) / F.unit[inv[n + i]]
    relative, _ = refine(S, F, rhs, z, left, MET, np.inf, STALLED)
    if relative <= MET:
        return False
    sharpen(S, F, rhs, z, left)
    total, unequal = 0.0, 0.0
    for i in range(S.m):
        place = inv[n + i]
        v = (F.scale[place] ** 2 * left[place] / F.unit[place]) ** 2
        total += v
        if kinds[owner[i]] != ZERO:
            unequal += v
    return unequal > LEFT**2 * total and _norm(left, F.unit) > LEFT
