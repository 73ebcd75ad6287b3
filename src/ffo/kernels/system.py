"""Solving one sample's ghost system K z = r with regularised factors and refinement.

K is quasi-definite up to its null space. With K + eJ factorized (J: the signs of the pivots; e = 1e-7 in equilibrated
units), refinement replaces a residual r by eJ (K + eJ)^-1 r. On the null space of K, which is invariant under J, that
is the identity; elsewhere it contracts. So refinement reaches the unregularised solution if there is one, even with
dependent rows. It cannot remove the part of r along the null space: without that part the system is consistent, and its
solution is the least-squares one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels import ldl
from ffo.kernels.bundle import refer
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel
from ffo.kernels.kkt import KI, KP, LI, LP, RI, RP, Full, Structure, part
from ffo.kernels.vectors import copy, fill, positions

Array = np.ndarray

#: regularisation; ten times smaller makes factorizations of linear programs fail, ten times larger stalls refinement
SHIFT = 1e-7
#: regularisations tried in turn for singular or nearly singular systems
SHARP = (1e-7, 1e-11, 1e-14)
REFINEMENTS, PASSES = 12, 3
#: refinement has stalled if the residual does not shrink to this fraction; the same where it should vanish
STALLED, STUCK = 0.3, 0.9
#: the second step is fast if the residual shrinks to this fraction
FAST = 1e-3
#: relative residual and error of an exact solve; above the next two the system is solved again as a singular one: the
#: remaining residual may be along a direction in which K nearly vanishes
EXACT, SMALL_ERROR, DOUBTFUL, DOUBTFUL_ERROR = 1e-13, 1e-9, 1e-10, 1e-8
#: equilibrated residual relative to the variables, and to the multipliers, of a solution separately: one large entry of
#: a right-hand side (a variable in other units) would excuse errors in all small entries
PART = 1e-11
#: fraction of a right-hand side along the null space above which the system has no solution
UNSOLVABLE = 1e-9
#: most unknowns for which a doubtful system is solved by eigenvalues; larger ones by sharper factors
SPECTRAL = 400
#: eigenvalues, relative to the largest, that count as zero; residual, relative to the right-hand side and to the
#: solution, and in excess of rounding errors, above which the system has no solution
NULL, RESOLVED, ROUNDING = 1e-13, 1e-11, 1e-13
EPS = 2.2e-16
#: rounding errors of an equation relative to those of its terms
TERMS = 4.0
#: eigenvalues, relative to the largest, that are lost in rounding unless they are zero
LOST = 1e-12
#: pivot below which K may be singular
SMALL_PIVOT = 1e-4
#: answer of a kernel that was compiled without the code for singular systems
UNKNOWN = -1.0


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


@inner_kernel
def factor(S: Structure, F: Factors, shift: float) -> float:
    """Factor K, equilibrated and regularised; returns the smallest pivot."""
    Kp, Lp, Rp = part(S.wide, KP), part(S.wide, LP), part(S.wide, RP)
    Ki, Li, Ri = part(S.slim, KI), part(S.slim, LI), part(S.slim, RI)
    return ldl.factor(S.head, Kp, Ki, Lp, Li, Rp, Ri, S.sign, F.Kx, F.scale, shift, F.Lx, F.Dinv)


@inner_kernel
def factorize(S: Structure, F: Factors) -> float:
    """Equilibrate K, and factor it."""
    ldl.equilibrate(part(S.wide, KP), part(S.slim, KI), F.Kx, F.scale)
    return factor(S, F, SHIFT)


@inner_reducing_kernel
def norm(v: Array, unit: Array) -> float:
    """Norm of a residual, its rows in natural units."""
    total = 0.0
    for i in range(v.size):
        total += (v[i] * unit[i]) ** 2
    return np.sqrt(total)


@inner_reducing_kernel
def _size(z: Array, unit: Array) -> float:
    """Norm of a vector of unknowns: dual to that of residuals."""
    total = 0.0
    for i in range(z.size):
        total += (z[i] / unit[i]) ** 2
    return np.sqrt(total)


@inner_kernel
def refine(
    S: Structure, F: Factors, rhs: Array, z: Array, residual: Array, target: float, allowed: float, stalled: float
) -> tuple[float, float]:
    """Refine until the relative residual reaches `target` and the relative error `allowed` (unless that is infinite, in
    variables and in multipliers); returns both.

    Keeps the best iterate and its residual. The last step of refinement is as large as the error before it; after it
    the error is smaller, by the ratio by which the residual fell. If an error is allowed, the first step always counts:
    where rows have large natural units, regularisation leaves a large residual, which the next one removes. If that is
    slow too, the system may be nearly singular, and the error counts as one.
    """
    Kp, Lp, Ki, Li = part(S.wide, KP), part(S.wide, LP), part(S.slim, KI), part(S.slim, LI)
    scale, size = F.scale, norm(rhs, F.unit)
    fill(z, 0.0)
    copy(residual, rhs)
    if size == 0.0:
        return 0.0, 0.0
    n, v = rhs.size, np.zeros(3 * rhs.size)
    at, r, step = v[:n], v[n : 2 * n], v[2 * n :]
    copy(r, rhs)
    best, error, slow, patient = 1.0, 1.0, False, 0.0 < allowed < np.inf
    for turn in range(REFINEMENTS):
        for i in range(r.size):
            step[i] = r[i] * scale[i]
        ldl.solve(S.head, Lp, Li, F.Lx, F.Dinv, step)
        for i in range(r.size):
            step[i] *= scale[i]
            at[i] += step[i]
        ldl.multiply(Kp, Ki, F.Kx, at, r)
        for i in range(r.size):
            r[i] = rhs[i] - r[i]
        now = norm(r, F.unit) / size
        if not now < (np.inf if patient and turn == 0 else best):
            break
        shrunk = now / best
        if turn < 2:
            slow = shrunk > (FAST if turn else stalled) and (slow or turn == 0)
        error = shrunk if turn == 0 else shrunk * _size(step, F.unit) / max(_size(at, F.unit), 1e-300)
        best = now
        copy(z, at)
        copy(residual, r)
        done = best <= target and error <= allowed and (allowed == np.inf or small_in_parts(S, F, at, r))
        if done or (shrunk > stalled and (turn or not patient)):
            break
    return best, 1.0 if slow and patient else error


@inner_kernel
def small_in_parts(S: Structure, F: Factors, z: Array, r: Array) -> bool:
    """Whether a residual is small relative to the variables, and relative to the multipliers."""
    left = primal = dual = 0.0
    for i in range(z.size):
        left = max(left, abs(r[i] * F.scale[i]))
        if S.sign[i] > 0.0:
            primal = max(primal, abs(z[i] / F.scale[i]))
        else:
            dual = max(dual, abs(z[i] / F.scale[i]))
    return bool((primal == 0.0 or left <= PART * primal) and (dual == 0.0 or left <= PART * dual))


@inner_kernel
def without_null(S: Structure, F: Factors, rhs: Array, z: Array, left: Array) -> tuple[float, float]:
    """z without the part `left` of the right-hand side that refinement cannot remove; its fraction, and z's error."""
    size = max(norm(rhs, F.unit), 1e-300)
    rest, residual = rhs.copy(), np.empty(rhs.size)
    fill(left, 0.0)
    error = 1.0
    for _ in range(PASSES):
        _, error = refine(S, F, rest, z, residual, 0.0, 0.0, STUCK)
        for i in range(rhs.size):
            left[i] += residual[i]
            rest[i] = rhs[i] - left[i]
        if norm(residual, F.unit) <= UNSOLVABLE * size:
            break
    return norm(left, F.unit) / size, error


@inner_kernel
def _unfilled(F: Factors) -> Factors:
    """Workspace for other factors of the same K."""
    return Factors(F.Kx, F.scale, np.empty(F.Lx.size), np.empty(F.Dinv.size), F.unit)


@inner_kernel
def _refine_anew(S: Structure, F: Factors, rhs: Array, z: Array, residual: Array) -> tuple[float, float]:
    """`refine` with fresh factors."""
    F = refer(F)
    factor(S, F, SHIFT)
    return refine(S, F, rhs, z, residual, EXACT, SMALL_ERROR, STALLED)


@inner_kernel
def _without_null_anew(
    S: Structure, F: Factors, shift: float, rhs: Array, z: Array, left: Array
) -> tuple[float, float]:
    """`without_null` with fresh factors."""
    F = refer(F)
    factor(S, F, shift)
    return without_null(S, F, rhs, z, left)


@inner_kernel
def sharpen(S: Structure, F: Factors, rhs: Array, z: Array, left: Array) -> tuple[float, float]:
    """Least-squares solution with fresh factors of decreasing regularisation: the remaining fraction of rhs, and the
    relative error of z."""
    share = error = doubt = np.inf
    other, remaining = np.empty(z.size), np.empty(z.size)
    sharp = _unfilled(F)
    for shift in SHARP:
        new_share, new_error = _without_null_anew(S, sharp, shift, rhs, other, remaining)
        if max(new_share, new_error) < 0.1 * doubt:  # if K is singular, less regularisation means more noise
            share, error = new_share, new_error
            doubt = max(share, error)
            copy(z, other)
            copy(left, remaining)
        if doubt <= UNSOLVABLE:
            break
    return share, error


@inner_kernel
def in_use(S: Structure, F: Factors) -> Array:
    """Positions of the active unknowns: rows that are off have only a diagonal entry."""
    Kp, Ki = part(S.wide, KP), part(S.slim, KI)
    used = np.zeros(S.sign.size)
    for j in range(S.sign.size):
        for p in range(Kp[j], Kp[j + 1]):
            i = np.int64(Ki[p])
            if i != j and F.Kx[p] != 0.0:
                used[i] = used[j] = 1.0
            elif i == j and S.sign[j] > 0.0 and F.Kx[p] != 0.0:
                used[j] = 1.0
    return positions(used)


@inner_kernel
def _dense(S: Structure, F: Factors, at: Array) -> Array:
    """K on the unknowns `at`, equilibrated."""
    Kp, Ki = part(S.wide, KP), part(S.slim, KI)
    place = np.full(S.sign.size, -1)
    for k in range(at.size):
        place[at[k]] = k
    K = np.zeros((at.size, at.size))
    for j in range(S.sign.size):
        for p in range(Kp[j], Kp[j + 1]):
            i = np.int64(Ki[p])
            if place[i] >= 0 and place[j] >= 0:
                K[place[i], place[j]] = K[place[j], place[i]] = F.Kx[p] * F.scale[i] * F.scale[j]
    return K


@inner_kernel
def _along(values: Array, vectors: Array, r: Array) -> Array:
    """The least-squares solution of smallest norm, eigenvalue by eigenvalue."""
    size = max(abs(values[0]), abs(values[-1]))
    step = np.zeros(r.size)
    for k in range(values.size):
        if abs(values[k]) > NULL * size:
            dot = 0.0
            for i in range(r.size):
                dot += vectors[i, k] * r[i]
            dot /= values[k]
            for i in range(r.size):
                step[i] += vectors[i, k] * dot
    return step


@inner_kernel
def _noise(K: Array, found: Array) -> Array:
    """Rounding errors of a residual: eps |K||z|."""
    noise = np.zeros(found.size)
    for i in range(found.size):
        for j in range(found.size):
            noise[i] += EPS * abs(K[i, j] * found[j])
    return noise


@inner_kernel
def _without_rounding(S: Structure, F: Factors, at: Array, K: Array, rhs: Array, found: Array) -> Array:
    """(at.size,) 0 for entries of a solution that are zero, else 1: next to nothing in natural units, and without them,
    what is left of every equation are rounding errors of its terms.

    Constraints alone may determine what a loss sees. The variables are then zero, and a relative error of theirs would
    be one of rounding errors.
    """
    largest, kept = 0.0, np.ones(at.size)
    for i in range(at.size):
        largest = max(largest, abs(found[i] * F.scale[at[i]] / F.unit[at[i]]))
    for i in range(at.size):
        kept[i] = 1.0 if abs(found[i] * F.scale[at[i]] / F.unit[at[i]]) > EPS * largest else 0.0
    for i in range(at.size):
        left = rhs[at[i]] * F.scale[at[i]]
        terms = abs(left)
        for j in range(at.size):
            left -= K[i, j] * kept[j] * found[j]
            terms += abs(K[i, j] * kept[j] * found[j])
        if not abs(left) <= TERMS * EPS * terms:
            fill(kept, 1.0)
            break
    return kept


@inner_kernel
def _uncertain(S: Structure, at: Array, K: Array, values: Array, vectors: Array, found: Array, noise: Array) -> float:
    """The relative error that rounding leaves in a refined solution z, of variables and multipliers by themselves:
    along an eigenvector v of value k it is |v|'noise / |k|.

    The null space of K is one of variables and one of multipliers (see above), so both parts of a null vector are null
    vectors. Where one is not, rows are nearly dependent: the eigenvalue, the square of their distance, is lost in
    rounding, and along that vector nothing is known.
    """
    size, worst = max(abs(values[0]), abs(values[-1])), 0.0
    primal = dual = 0.0
    for i in range(found.size):
        if S.sign[at[i]] > 0.0:
            primal += found[i] ** 2
        else:
            dual += found[i] ** 2
    for k in range(values.size):
        error = share = 0.0
        for i in range(found.size):
            error += abs(vectors[i, k]) * noise[i]
            if S.sign[at[i]] > 0.0:
                share += vectors[i, k] ** 2
        if abs(values[k]) > LOST * size:
            error /= abs(values[k])
            if primal > 0.0:
                worst = max(worst, error * np.sqrt(share / primal))
            if dual > 0.0:
                worst = max(worst, error * np.sqrt(max(1.0 - share, 0.0) / dual))
            continue
        for i in range(found.size):
            image = 0.0
            for j in range(found.size):
                if S.sign[at[j]] > 0.0:
                    image += K[i, j] * vectors[j, k]
            if abs(image) > NULL * size:
                return 1.0
    return worst


@inner_kernel
def spectral(S: Structure, F: Factors, at: Array, rhs: Array, z: Array, left: Array) -> tuple[float, float]:
    """The least-squares solution of smallest norm by eigenvalues, refined twice: the remaining fraction of rhs (0 if
    that is rounding), and the relative error of z."""
    Kp, Ki = part(S.wide, KP), part(S.slim, KI)
    K = _dense(S, F, at)
    values, vectors = np.linalg.eigh(K)
    r, found, step = np.empty(at.size), np.zeros(at.size), np.zeros(at.size)
    fill(z, 0.0)
    copy(left, rhs)
    for _ in range(3):
        for k in range(at.size):
            r[k] = left[at[k]] * F.scale[at[k]]
        step = _along(values, vectors, r)
        for k in range(at.size):
            found[k] += step[k]
            z[at[k]] = found[k] * F.scale[at[k]]
        ldl.multiply(Kp, Ki, F.Kx, z, left)
        for i in range(rhs.size):
            left[i] = rhs[i] - left[i]
    kept, error = _without_rounding(S, F, at, K, rhs, found), 0.0
    for k in range(at.size):
        step[k], found[k] = kept[k] * step[k], kept[k] * found[k]
        z[at[k]] = found[k] * F.scale[at[k]]
    for sign in (1.0, -1.0):  # primal unknowns and multipliers separately
        moved, whole = 0.0, 1e-300
        for k in range(at.size):
            if S.sign[at[k]] == sign:
                moved += step[k] ** 2
                whole += found[k] ** 2
        error = max(error, np.sqrt(moved / whole))
    size, rest = norm(rhs, F.unit), norm(left, F.unit)
    noise, lost = _noise(K, found), 0.0
    for k in range(at.size):
        lost += (noise[k] / F.scale[at[k]] * F.unit[at[k]]) ** 2
    error = max(error, _uncertain(S, at, K, values, vectors, found, noise))
    unsolved = rest > RESOLVED * size + ROUNDING * _size(z, F.unit) + np.sqrt(lost)
    return rest / max(size, 1e-300) if unsolved else 0.0, error


@inner_kernel
def least_squares(S: Structure, F: Factors, rhs: Array, z: Array, left: Array) -> tuple[float, float]:
    """A singular or nearly singular system, in the least-squares sense (of the equilibrated one): the remaining
    fraction of rhs, and the relative error of z."""
    total = 0.0
    for i in range(rhs.size):
        total += rhs[i]
    for p in range(F.Kx.size):
        total += F.Kx[p]
    if not np.isfinite(total):
        fill(z, np.nan)
        return np.inf, np.inf
    at = in_use(S, F)
    if 0 < at.size <= SPECTRAL:
        return spectral(S, F, at, rhs, z, left)
    share, error = sharpen(S, F, rhs, z, left)
    return share if share > UNSOLVABLE else 0.0, error


@inner_kernel
def solve(S: Structure, F: Factors, rhs: Array, z: Array, full: Full | None) -> float:
    """z = K^-1 rhs as exactly as possible; returns the relative residual or error, whichever is larger, and 1 if there
    is no solution (z is then a least-squares one). UNKNOWN: repeat with `full`."""
    residual = np.empty(rhs.size)
    relative, error = refine(S, F, rhs, z, residual, EXACT, SMALL_ERROR, STALLED)
    if relative <= DOUBTFUL and error <= DOUBTFUL_ERROR:
        return max(relative, error)
    if full is None:
        return UNKNOWN
    # the factors may be those of a nearby point
    relative, error = _refine_anew(S, _unfilled(F), rhs, z, residual)
    if relative <= DOUBTFUL and error <= DOUBTFUL_ERROR:
        return max(relative, error)
    other = np.empty(rhs.size)
    share, sharp_error = least_squares(S, F, rhs, other, residual)
    if not np.isfinite(share):
        return np.inf
    copy(z, other)
    return 1.0 if share > 0.0 else sharp_error
