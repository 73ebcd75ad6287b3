"""Ambiguity of one sample's derivative: null vectors of its ghost system, and of that on another face.

K is quasi-definite up to its null space. A null vector therefore splits into one of variables (the solution is not
unique) and one of multipliers (rows of the face depend on each other).
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import ldl, minres, system
from ffo.kernels.bundle import refer
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import DIM, INV, KI, KIND, KP, NONNEG, START, Face, Full, Structure, assemble, part
from ffo.kernels.newton import scatter, sensitivity
from ffo.kernels.point import Data
from ffo.kernels.system import UNKNOWN, Factors, norm
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: relative residual that a random right-hand side reaches unless K is singular; the norm that remains if it is, by
#: factors and by MINRES (with 1e-3 by factors, one in a thousand null vectors is missed: those at right angles to the
#: right-hand side)
MET, LEFT, LEFT_ROUGHLY = 1e-6, 1e-6, 1e-3
#: |Kz| relative to |z|, equilibrated, of a null vector by factors or eigenvalues (`minres.VANISHED`: by MINRES)
VANISHED = 1e-13
#: entries of a null vector, relative to its largest, that count as rounding; and if it does not vanish without them
DUST, FINE_DUST = 1e-9, 1e-15


@inner_kernel
def null(S: Structure, F: Factors, face: Face, u: Array, w: Array, full: Full | None) -> float:
    """A null vector of K at random, written to u and w = T't, which are zero where there is none; returns whether
    there is one, or UNKNOWN: ask with `full`."""
    z = np.empty(S.sign.size)
    found = _find(S, F, face, z, full)
    if found != 1.0:
        fill(z, 0.0)
    scatter(S, face, z, u, w)
    return found


@inner_kernel
def on_other_face(
    S: Structure, D: Data, F: Factors, face: Face, more: Array, r_x: Array, r_s: Array, u: Array, w: Array,
    full: Full | None,
) -> float:  # fmt: skip
    """`null`, or with right-hand sides `sensitivity`, on the face with some inequalities more, those where `more` (m,)
    is positive, and without those where it is negative."""
    kinds, starts, dims, on = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), face.on.copy()
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            if kinds[k] == NONNEG and more[i] != 0.0:
                on[i] = more[i] > 0.0
    another = Face(on, face.delta, face.u, face.R, face.case, face.margin)
    other = Factors(np.empty(F.Kx.size), np.empty(F.scale.size), np.empty(F.Lx.size), np.empty(F.Dinv.size), F.unit)
    return _anew(S, D, other, another, r_x, r_s, u, w, full)


@inner_kernel
def _anew(
    S: Structure, D: Data, F: Factors, face: Face, r_x: Array, r_s: Array, u: Array, w: Array, full: Full | None
) -> float:
    """The same on a face that has not been factorized."""
    F, face = refer(F), refer(face)
    assemble(S, D.Pv, D.Av, face, face.u, np.zeros(S.aux), F.Kx)
    if full is not None and full.iterations > 0:
        minres.equilibrate(S, F)
    else:
        system.factorize(S, F)
    return sensitivity(S, F, face, r_x, r_s, u, w, full) if r_x.size else null(S, F, face, u, w, full)


@inner_kernel
def amplification(S: Structure, F: Factors, face: Face, full: Full | None) -> float:
    """The largest entry of the solution for a random right-hand side of unit size, equilibrated; infinite if K may have
    a null vector: `null` tells."""
    rhs, z, left = np.empty(S.sign.size), np.empty(S.sign.size), np.empty(S.sign.size)
    if _solve_random(S, refer(Factors(F.Kx, F.scale, F.Lx, F.Dinv, F.scale)), face, rhs, z, left, full) > MET:
        return np.inf
    largest = 0.0
    for i in range(z.size):
        largest = max(largest, abs(z[i] / F.scale[i]))
    return largest


@inner_kernel
def _solve_random(S: Structure, F: Factors, face: Face, rhs: Array, z: Array, left: Array, full: Full | None) -> float:
    """Solve with a right-hand side at random, which is written to `rhs`; z, what is left, and its relative size."""
    inv, n = part(S.wide, INV), S.n
    fill(rhs, 0.0)
    for i in range(n + S.m):
        if i < n or face.on[i - n]:  # fractions of a sequence that no data is drawn with: a tenth of a cosine's time
            v = 0.6180339887498949 * (i + 1.0) ** 2
            rhs[inv[i]] = (2.0 * (v - np.floor(v)) - 1.0) / F.scale[inv[i]]
    if full is None or full.iterations == 0:
        relative, _ = system.refine(S, F, rhs, z, left, MET, np.inf, system.STALLED)
        return relative
    relative, _ = minres.solve(S, F, rhs, z, MET, full)
    _multiply(S, F, z, left)
    for i in range(left.size):
        left[i] = rhs[i] - left[i]
    return relative


@inner_kernel
def _find(S: Structure, F: Factors, face: Face, z: Array, full: Full | None) -> float:
    """What a solve leaves of a random right-hand side is its part along the null space; all that is measured here is
    in equilibrated units."""
    rhs, left = np.empty(z.size), np.empty(z.size)
    F = refer(Factors(F.Kx, F.scale, F.Lx, F.Dinv, F.scale))
    if _solve_random(S, F, face, rhs, z, left, full) <= MET:
        return 0.0
    if full is not None and full.iterations > 0:
        minres.along_null(F, left, z)
        for _ in range(3):  # each leaves a share MET
            correct(S, F, z, full)
        return 1.0 if _vanishes(S, F, left, z, minres.VANISHED, LEFT_ROUGHLY) else 0.0
    minres.along_null(F, left, z)
    correct(S, F, z, None)
    correct(S, F, z, None)
    if _vanishes(S, F, left, z, VANISHED, LEFT):
        return 1.0
    if full is None:
        return UNKNOWN
    share, _ = system.least_squares(S, F, rhs, z, left)
    minres.along_null(F, left, z)
    correct(S, F, z, None)  # where K is nearly singular too, rounding in a large solution is left
    return 1.0 if share > 0.0 and _vanishes(S, F, left, z, VANISHED, LEFT) else 0.0


@inner_kernel
def _multiply(S: Structure, F: Factors, z: Array, out: Array) -> None:
    """out := Kz."""
    ldl.multiply(part(S.wide, KP), part(S.slim, KI), F.Kx, z, out)


@inner_kernel
def correct(S: Structure, F: Factors, z: Array, full: Full | None) -> None:
    """Remove the other components from an approximate null vector (quadratic transport 10 x 10: |Kz| 3e-8 becomes
    1e-14; eigenvalues take 70 times as long)."""
    image, step, rest = np.empty(z.size), np.empty(z.size), np.empty(z.size)
    _multiply(S, F, z, image)
    if full is None:
        system.refine(S, F, image, step, rest, MET, np.inf, system.STALLED)
    else:
        minres.solve(S, F, image, step, MET, full)
    for i in range(z.size):
        z[i] -= step[i]


@inner_kernel
def _vanishes(S: Structure, F: Factors, left: Array, z: Array, tolerance: float, least: float) -> bool:
    """Whether z, which was `left`, of at least some norm, is a null vector. Its entries that count as rounding are
    removed, unless it vanishes only with them: rows at an angle of 1e-9 depend on others by coefficients of 1e-9."""
    if norm(left, F.unit) <= least:
        return False
    largest, clean = 0.0, np.empty(z.size)
    for i in range(z.size):
        largest = max(largest, abs(z[i] / F.scale[i]))
    for dust in (DUST, FINE_DUST):
        for i in range(z.size):
            clean[i] = z[i] if abs(z[i] / F.scale[i]) > dust * largest else 0.0
        if minres.image(S, F, clean) <= tolerance:
            copy(z, clean)
            return True
    return False
