"""Newton's direction: the ghost system with the residuals of a point."""

from __future__ import annotations

import numpy as np

from ffo.kernels import minres, singular, system
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import INV, Face, Full, Structure, from_face, onto_face, part
from ffo.kernels.system import UNKNOWN, Factors

Array = np.ndarray

#: natural residual below which rounding decides whether a step was an improvement
ROUNDING = 1e-13
#: relative residual that the previous point's factors must reach; else new ones are made
BORROWED = 1e-6
#: estimated relative error of a step above which sharper factors are used if a pivot is small
ROUGH = 1e-3
#: relative residual that a damped direction leaves at most, unless refinement stalls
ROUGHLY = 1e-3


@inner_kernel
def gather(S: Structure, face: Face, r_x: Array, r_s: Array, rhs: Array) -> None:
    """rhs := [r_x; T r_s] in K's order; entries of auxiliary unknowns are unchanged."""
    inv, t = part(S.wide, INV), np.empty(S.m)
    onto_face(S, face, r_s, t)
    for j in range(S.n):
        rhs[inv[j]] = r_x[j]
    for i in range(S.m):
        rhs[inv[S.n + i]] = t[i]


@inner_kernel
def scatter(S: Structure, face: Face, z: Array, u: Array, w: Array) -> None:
    """u and w = T't of unknowns z in K's order."""
    inv, t = part(S.wide, INV), np.empty(S.m)
    for j in range(S.n):
        u[j] = z[inv[j]]
    for i in range(S.m):
        t[i] = z[inv[S.n + i]]
    from_face(S, face, t, w)


@inner_kernel
def direction(
    S: Structure,
    F: Factors,
    face: Face,
    r_x: Array,
    r_s: Array,
    old: float,
    borrowed: bool,
    dx: Array,
    dy: Array,
    full: Full | None,
) -> tuple[float, float, bool]:
    """Newton's direction; returns the relative residual of its system, the smallest pivot if it was factorized
    (else inf), and whether it was. The residual is UNKNOWN where the system is singular, and `full` None.

    `old` is the natural residual here: the system's own residual need not be smaller than rounding."""
    size, rounding = S.sign.size, ROUNDING / max(old, ROUNDING)
    target = min(max(rounding, system.EXACT), 1e-3)
    v = np.zeros(3 * size)
    rhs, z, left = v[:size], v[size : 2 * size], v[2 * size :]
    gather(S, face, r_x, r_s, rhs)
    if full is not None and full.iterations > 0:
        minres.equilibrate(S, F)
        relative, _ = minres.solve(S, F, rhs, z, max(target, full.rtol), full)
        scatter(S, face, z, dx, dy)
        return relative, 0.0, True
    pivot, fresh = np.inf, not borrowed
    if fresh:
        pivot = system.factorize(S, F)
    relative, error = system.refine(S, F, rhs, z, left, target, np.inf, system.STALLED)
    if borrowed and not relative <= max(target, BORROWED):
        pivot, fresh = system.factorize(S, F), True
        relative, error = system.refine(S, F, rhs, z, left, target, np.inf, system.STALLED)
    if fresh and pivot <= system.SMALL_PIVOT and not error <= ROUGH:
        relative, error = system.without_null(S, F, rhs, z, left)
        if not (error <= ROUGH and relative <= rounding):
            if full is None:
                return UNKNOWN, pivot, fresh
            relative, _ = singular.least_squares(S, F, rhs, z, left)
    scatter(S, face, z, dx, dy)
    return relative, pivot, fresh


@inner_kernel
def damped(
    S: Structure, F: Factors, face: Face, r_x: Array, r_s: Array, dx: Array, dy: Array
) -> None:  # fmt: skip
    """Newton's direction as far as refinement with regularised factors comes fast: along eigenvectors of K whose values
    are far below the regularisation, it hardly moves."""
    rhs, z, left = np.zeros(S.sign.size), np.empty(S.sign.size), np.empty(S.sign.size)
    gather(S, face, r_x, r_s, rhs)
    system.refine(S, F, rhs, z, left, ROUGHLY, np.inf, system.STALLED)
    scatter(S, face, z, dx, dy)
