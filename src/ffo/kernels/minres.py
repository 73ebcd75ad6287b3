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
from ffo.kernels.system import SMALL_ERROR, UNSOLVABLE, Factors, norm, small_in_parts
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: |Kr| relative to |K||r| at which r is taken to be the smallest residual; a residual that shrinks less has stalled
STATIONARY, STALLED = 1e-14, 0.5
#: how often to solve for what is left; relative residual from which there is no solution
AGAIN, UNSOLVED = 3, 1e-6
#: variables and multipliers, beside the right-hand side, that are none
LEAST = 1e-3
#: |Kz| relative to |z|, equilibrated, of a null vector; and of what may become one if the rest of it is solved for
VANISHED, SUSPECT = 1e-6, 0.1


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
def _minimize(S: Structure, F: Factors, rhs: Array, target: float, limit: int, x: Array) -> float:
    """x := argmin |rhs - Kx| over the Krylov space that reaches |rhs - Kx| <= target (Paige and Saunders 1975); about
    the smallest singular value of K there."""
    size = rhs.size
    r1, r2, y, v, held = rhs.copy(), rhs.copy(), rhs.copy(), np.empty(size), np.empty(size)
    w, w1, w2 = np.zeros(size), np.zeros(size), np.zeros(size)
    fill(x, 0.0)
    beta = 0.0
    for i in range(size):
        beta += rhs[i] ** 2
    beta = np.sqrt(beta)
    phibar, old_beta, dbar, epsilon, cosine, sine, total = beta, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0
    smallest = np.inf
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
        smallest = min(smallest, gamma)
        cosine, sine = gbar / gamma, beta / gamma
        phi, phibar = cosine * phibar, sine * phibar
        for i in range(size):
            w1[i], w2[i] = w2[i], w[i]
            w[i] = (v[i] - old_epsilon * w1[i] - delta * w2[i]) / gamma
            x[i] += phi * w[i]
    return smallest


@inner_kernel
def solve(S: Structure, F: Factors, rhs: Array, z: Array, target: float, full: Full) -> tuple[float, float]:
    """z = K^-1 rhs, in the least-squares sense where there is no solution; the relative residual, and about the
    smallest singular value of the equilibrated K that mattered.

    Restarts from the true residual: that of the recurrence departs from it, and is measured in other units.
    """
    Kp, Ki = part(S.wide, KP), part(S.slim, KI)
    size = norm(rhs, F.unit)
    fill(z, 0.0)
    if size == 0.0:
        return 0.0, 1.0
    left, scaled, step, candidate = rhs.copy(), np.empty(z.size), np.empty(z.size), np.empty(z.size)
    relative, smallest = 1.0, np.inf
    for _ in range(full.restarts):
        total = 0.0
        for i in range(z.size):
            scaled[i] = F.scale[i] * left[i]
            total += scaled[i] ** 2
        value = _minimize(S, F, scaled, target / relative * np.sqrt(total), full.iterations, step)
        for i in range(z.size):
            candidate[i] = z[i] + F.scale[i] * step[i]
        ldl.multiply(Kp, Ki, F.Kx, candidate, scaled)
        for i in range(z.size):
            scaled[i] = rhs[i] - scaled[i]
        before, now = relative, norm(scaled, F.unit) / size
        if now < relative:
            relative, smallest = now, min(smallest, value)
            copy(z, candidate)
            copy(left, scaled)
        if relative <= target or not now <= STALLED * before:
            break
    return relative, smallest


@inner_kernel
def solve_in_parts(S: Structure, F: Factors, rhs: Array, z: Array, full: Full) -> float:
    """`solve`, and again for what is left, unless that is small beside variables and multipliers by themselves, and so
    is the error; returns the relative residual, or the error if the residual is small and the error is larger.

    Along the eigenvector of a small eigenvalue a residual of rounding is a large error. How large, the next solution
    shows: two rows at an angle of 3e-7 leave 1e-9 of the right-hand side, and all of what their vertex does not move.
    A null vector that is left shows that there is no solution, however small it is beside entries in other units: then
    1 is returned.
    """
    left, step = np.empty(z.size), np.empty(z.size)
    relative, smallest = solve(S, F, rhs, z, full.rtol, full)
    least, error = LEAST * norm(rhs, F.scale), 0.0
    for turn in range(AGAIN + 1):
        ldl.multiply(part(S.wide, KP), part(S.slim, KI), F.Kx, z, left)
        for i in range(z.size):
            left[i] = rhs[i] - left[i]
        if turn == 0:
            bound = norm(left, F.scale) / max(smallest, 1e-300)
            error = _error(S, F, z, bound, bound, least)
        done = error <= SMALL_ERROR and small_in_parts(S, F, z, left) and _image_of_rest(S, F, left) > SUSPECT
        if relative > UNSOLVED or turn == AGAIN or done:
            break
        solve(S, F, left, step, full.rtol, full)
        for i in range(z.size):
            z[i] += step[i]
        error = _error(S, F, z, _unknowns(S, F, step, 1.0), _unknowns(S, F, step, -1.0), least)
    if relative > UNSOLVED:
        return relative
    return 1.0 if _contradicted(S, F, rhs, left) else max(relative, error)


@inner_kernel
def _contradicted(S: Structure, F: Factors, rhs: Array, left: Array) -> bool:
    """Whether the rest of a right-hand side is a null vector v of K, and v'rhs more than rounding: v'Kz is zero."""
    work = terms = 0.0
    for i in range(rhs.size):
        work += F.scale[i] ** 2 * left[i] * rhs[i]
        terms += F.scale[i] ** 2 * abs(left[i] * rhs[i])
    return bool(abs(work) > UNSOLVABLE * terms and _image_of_rest(S, F, left) <= VANISHED)


@inner_kernel
def _image_of_rest(S: Structure, F: Factors, left: Array) -> float:
    """`image` of the vector that the rest of a right-hand side is, if it is a null vector."""
    z = np.empty(left.size)
    along_null(F, left, z)
    return image(S, F, z)


@inner_kernel
def along_null(F: Factors, left: Array, z: Array) -> None:
    """z := the null vector that the rest of a right-hand side is."""
    for i in range(z.size):
        z[i] = F.scale[i] ** 2 * left[i]


@inner_kernel
def image(S: Structure, F: Factors, z: Array) -> float:
    """|Kz| relative to |z|, equilibrated."""
    Kz, rest, total = np.empty(z.size), 0.0, 0.0
    ldl.multiply(part(S.wide, KP), part(S.slim, KI), F.Kx, z, Kz)
    for i in range(z.size):
        rest += (F.scale[i] * Kz[i]) ** 2
        total += (z[i] / F.scale[i]) ** 2
    return np.sqrt(rest / total) if total > 0.0 else np.inf


@inner_kernel
def _error(S: Structure, F: Factors, z: Array, primal: float, dual: float, least: float) -> float:
    """Errors of variables and of multipliers relative to these, or to `least`: what is smaller counts as none."""
    least = max(least, 1e-300)
    return max(primal / max(_unknowns(S, F, z, 1.0), least), dual / max(_unknowns(S, F, z, -1.0), least))


@inner_kernel
def _unknowns(S: Structure, F: Factors, z: Array, sign: float) -> float:
    """The norm of variables (sign 1) or of multipliers (-1), equilibrated."""
    total = 0.0
    for i in range(z.size):
        if sign * S.sign[i] > 0.0:
            total += (z[i] / F.scale[i]) ** 2
    return np.sqrt(total)
