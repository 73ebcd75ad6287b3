"""The ghost system of one sample by MINRES: only products with K, memory of a few vectors, no factors.

K is formed (it has as many entries as the data, times the rows of a block where T is a rotation), and equilibrated,
which is the diagonal preconditioner. Where K is singular, MINRES minimizes the residual, and where a solution exists it
finds the one of smallest norm in the equilibrated unknowns.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import ldl
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import KI, KP, Full, Structure, part
from ffo.kernels.system import Factors, norm, small_in_parts
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: |Kr| relative to |K||r| at which r is taken to be the smallest residual; a residual that shrinks less has stalled
STATIONARY, STALLED = 1e-14, 0.5


@inner_kernel
def equilibrate(S: Structure, F: Factors) -> None:
    ldl.equilibrate(part(S.wide, KP), part(S.slim, KI), F.Kx, F.scale)


@inner_kernel
def _multiply(S: Structure, F: Factors, v: Array, held: Array, out: Array) -> None:
    """out := the equilibrated K times v; `held` is memory."""
    for i in range(v.size):
        held[i] = F.scale[i] * v[i]
    ldl.multiply(part(S.wide, KP), part(S.slim, KI), F.Kx, held, out)
    for i in range(v.size):
        out[i] *= F.scale[i]


@inner_kernel
def _minimize(S: Structure, F: Factors, rhs: Array, target: float, limit: int, x: Array) -> None:
    """x := argmin |rhs - Kx| over the Krylov space that reaches |rhs - Kx| <= target (Paige and Saunders 1975)."""
    size = rhs.size
    r1, r2, y, v, held = rhs.copy(), rhs.copy(), rhs.copy(), np.empty(size), np.empty(size)
    w, w1, w2 = np.zeros(size), np.zeros(size), np.zeros(size)
    fill(x, 0.0)
    beta = 0.0
    for i in range(size):
        beta += rhs[i] ** 2
    beta = np.sqrt(beta)
    phibar, old_beta, dbar, epsilon, cosine, sine, total = beta, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0
    for iteration in range(limit):
        if not (phibar > target and beta > 0.0):
            break
        for i in range(size):
            v[i] = y[i] / beta
        _multiply(S, F, v, held, y)
        alpha = 0.0
        for i in range(size):
            if iteration:
                y[i] -= beta / old_beta * r1[i]
            alpha += v[i] * y[i]
        norm2 = 0.0
        for i in range(size):
            y[i] -= alpha / beta * r2[i]
            r1[i], r2[i] = r2[i], y[i]
            norm2 += y[i] ** 2
        old_beta, beta = beta, np.sqrt(norm2)
        total += alpha**2 + old_beta**2 + norm2
        old_epsilon, delta = epsilon, cosine * dbar + sine * alpha  # the next plane rotation
        gbar, epsilon, dbar = sine * dbar - cosine * alpha, sine * beta, -cosine * beta
        if np.sqrt(gbar**2 + dbar**2) <= STATIONARY * np.sqrt(total):
            break
        gamma = np.sqrt(gbar**2 + beta**2)
        cosine, sine = gbar / gamma, beta / gamma
        phi, phibar = cosine * phibar, sine * phibar
        for i in range(size):
            w1[i], w2[i] = w2[i], w[i]
            w[i] = (v[i] - old_epsilon * w1[i] - delta * w2[i]) / gamma
            x[i] += phi * w[i]


@inner_kernel
def solve(S: Structure, F: Factors, rhs: Array, z: Array, target: float, full: Full) -> float:
    """z = K^-1 rhs, in the least-squares sense where there is no solution; returns the relative residual.

    Restarts from the true residual: that of the recurrence departs from it, and is measured in other units.
    """
    Kp, Ki = part(S.wide, KP), part(S.slim, KI)
    size = norm(rhs, F.unit)
    fill(z, 0.0)
    if size == 0.0:
        return 0.0
    left, scaled, step, candidate = rhs.copy(), np.empty(z.size), np.empty(z.size), np.empty(z.size)
    relative = 1.0
    for _ in range(full.restarts):
        total = 0.0
        for i in range(z.size):
            scaled[i] = F.scale[i] * left[i]
            total += scaled[i] ** 2
        _minimize(S, F, scaled, target / relative * np.sqrt(total), full.iterations, step)
        for i in range(z.size):
            candidate[i] = z[i] + F.scale[i] * step[i]
        ldl.multiply(Kp, Ki, F.Kx, candidate, scaled)
        for i in range(z.size):
            scaled[i] = rhs[i] - scaled[i]
        before, now = relative, norm(scaled, F.unit) / size
        if now < relative:
            relative = now
            copy(z, candidate)
            copy(left, scaled)
        if relative <= target or not now <= STALLED * before:
            break
    return relative


@inner_kernel
def solve_in_parts(S: Structure, F: Factors, rhs: Array, z: Array, full: Full) -> float:
    """`solve`, and once more for what is left, unless that is small beside variables and multipliers by themselves."""
    relative, left, step = solve(S, F, rhs, z, full.rtol, full), np.empty(z.size), np.empty(z.size)
    ldl.multiply(part(S.wide, KP), part(S.slim, KI), F.Kx, z, left)
    for i in range(z.size):
        left[i] = rhs[i] - left[i]
    if relative <= full.rtol and not small_in_parts(S, F, z, left):
        solve(S, F, left, step, full.rtol, full)
        for i in range(z.size):
            z[i] += step[i]
    return relative
