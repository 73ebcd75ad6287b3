"""Singular and nearly singular ghost systems: least-squares solutions, by eigenvalues if they are small."""

from __future__ import annotations

import numpy as np

from ffo.kernels import ldl
from ffo.kernels.bundle import refer
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import KI, KP, Full, Structure, part
from ffo.kernels.system import (
    DOUBTFUL,
    DOUBTFUL_ERROR,
    EPS,
    EXACT,
    SHIFT,
    SMALL_ERROR,
    STALLED,
    UNKNOWN,
    UNSOLVABLE,
    Factors,
    factor,
    norm,
    refine,
    sharpen,
    size_of,
    unfilled,
)
from ffo.kernels.vectors import copy, fill, positions

Array = np.ndarray

#: most unknowns for which a doubtful system is solved by eigenvalues; larger ones by sharper factors
SPECTRAL = 400
#: eigenvalues, relative to the largest, that count as zero; residual, relative to the right-hand side and to the
#: solution, and in excess of rounding errors, above which the system has no solution
NULL, RESOLVED, ROUNDING = 1e-13, 1e-11, 1e-13
#: rounding errors of an equation relative to those of its terms
TERMS = 4.0
#: eigenvalues, relative to the largest, that are lost in rounding unless they are zero
LOST = 1e-12


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

    The null space of K is one of variables and one of multipliers (see `system`), so both parts of a null vector are
    null vectors. Where one is not, rows are nearly dependent: the eigenvalue, the square of their distance, is lost in
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
    unsolved = rest > RESOLVED * size + ROUNDING * size_of(z, F.unit) + np.sqrt(lost)
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
def _refine_anew(S: Structure, F: Factors, rhs: Array, z: Array, residual: Array) -> tuple[float, float]:
    """`refine` with fresh factors."""
    F = refer(F)
    factor(S, F, SHIFT)
    return refine(S, F, rhs, z, residual, EXACT, SMALL_ERROR, STALLED)


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
    relative, error = _refine_anew(S, unfilled(F), rhs, z, residual)
    if relative <= DOUBTFUL and error <= DOUBTFUL_ERROR:
        return max(relative, error)
    other = np.empty(rhs.size)
    share, sharp_error = least_squares(S, F, rhs, other, residual)
    if not np.isfinite(share):
        return np.inf
    copy(z, other)
    return 1.0 if share > 0.0 else sharp_error
