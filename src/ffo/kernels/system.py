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
from ffo.kernels.kkt import KI, KP, LI, LP, RI, RP, Structure, part
from ffo.kernels.vectors import copy, fill

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
EPS = 2.2e-16
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
def size_of(z: Array, unit: Array) -> float:
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
        error = shrunk if turn == 0 else shrunk * size_of(step, F.unit) / max(size_of(at, F.unit), 1e-300)
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
def unfilled(F: Factors) -> Factors:
    """Workspace for other factors of the same K."""
    return Factors(F.Kx, F.scale, np.empty(F.Lx.size), np.empty(F.Dinv.size), F.unit)


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
    sharp = unfilled(F)
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
