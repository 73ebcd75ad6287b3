"""Ambiguity of one sample's derivative: null vectors of its ghost system, and of that on another face.

K is quasi-definite up to its null space. A null vector therefore splits into one of variables (the solution is not
unique) and one of multipliers (rows of the face depend on each other).
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import ldl, minres, system
from ffo.kernels.bundle import refer
from ffo.kernels.direction import scatter
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import DIM, INV, KI, KIND, KP, LI, LP, NONNEG, START, Face, Full, Structure, assemble, part
from ffo.kernels.newton import sensitivity
from ffo.kernels.residuals import Data
from ffo.kernels.system import UNKNOWN, Factors, norm
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: relative residual that a random right-hand side reaches unless K is singular; if it is, the share of a random vector
#: that remains by factors, and its norm by MINRES (with 1e-3 by factors, one in a thousand null vectors is missed:
#: those at right angles to the random one)
MET, LEFT, LEFT_ROUGHLY = 1e-6, 1e-6, 1e-3
#: |Kz| relative to |z|, equilibrated, of a null vector by factors (by MINRES: `minres.VANISHED`), and that of rounding
VANISHED, ROUNDING = 1e-13, 1e-15
#: entries of a null vector, relative to its largest, that count as rounding; and if it does not vanish without them
DUST, FINE_DUST = 1e-9, 1e-15
#: how often entries that count as rounding are removed, and the errors that they leave in the others
CORRECTIONS = 3
#: relative residual without the part along null vectors, of which factors of linear programs leave up to 1e-5
ROUGHLY = 1e-3
#: random vectors that are combined to a null vector: it is found beside at most five directions in which K nearly
#: vanishes
DRAWS = 6


@inner_kernel
def null(S: Structure, F: Factors, face: Face, u: Array, w: Array, full: Full | None) -> float:
    """A null vector of K at random, written to u and w = T't, which are zero where there is none; returns whether
    there is one, or UNKNOWN: ask with `full`.

    The factors may be those of a point nearby, where curvatures were different: they do not show null vectors of K."""
    if full is None or full.iterations > 0:
        return _null(S, F, face, u, w, full)
    fresh = Factors(F.Kx, F.scale, np.empty(F.Lx.size), np.empty(F.Dinv.size), F.unit)
    return _null_by_fresh(S, fresh, face, u, w, full)


@inner_kernel
def _null_by_fresh(S: Structure, F: Factors, face: Face, u: Array, w: Array, full: Full | None) -> float:
    """`null` with factors that are made here."""
    F = refer(F)
    system.factor(S, F, system.SHIFT)
    return _null(S, F, face, u, w, full)


@inner_kernel
def _null(S: Structure, F: Factors, face: Face, u: Array, w: Array, full: Full | None) -> float:
    """`null` with factors of K."""
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
    return sensitivity(S, F, face, r_x, r_s, u, w, full) if r_x.size else _null(S, F, face, u, w, full)


@inner_kernel
def amplification(S: Structure, F: Factors, face: Face, full: Full | None) -> tuple[float, float]:
    """The largest entry of the solution for a random right-hand side of unit size, equilibrated, and whether K may have
    a null vector: `null` tells. If it has, the part along it is left out; infinite if K nearly vanishes elsewhere."""
    rhs, z, left, singular = np.empty(S.sign.size), np.empty(S.sign.size), np.empty(S.sign.size), 0.0
    F = refer(Factors(F.Kx, F.scale, F.Lx, F.Dinv, F.scale))
    _draw(S, F, face, 0, rhs)
    if full is not None and full.iterations > 0:
        relative, _ = minres.solve(S, F, rhs, z, MET, full)
    else:
        relative, _ = system.refine(S, F, rhs, z, left, MET, np.inf, system.STALLED)
        if relative > MET and _drop_null(S, F, left, rhs):
            relative, _ = system.refine(S, F, rhs, z, left, ROUGHLY, np.inf, system.STALLED)
            singular = 1.0
    if not relative <= (MET if singular == 0.0 else ROUGHLY):
        return np.inf, 1.0
    largest = 0.0
    for i in range(z.size):
        largest = max(largest, abs(z[i] / F.scale[i]))
    return largest, singular


@inner_kernel
def _drop_null(S: Structure, F: Factors, left: Array, rhs: Array) -> bool:
    """If what is left of a right-hand side is a null vector, remove it from there. Its variables and its multipliers
    must both be one: rows that depend on each other up to 1e-7 have an eigenvalue of 1e-14, but their combination is
    1e-7."""
    z, own = np.empty(rhs.size), np.empty(rhs.size)
    minres.along_null(F, left, z)
    correct(S, F, z)
    for sign in (1.0, -1.0):
        _part(S, sign, z, own)
        if _size(F, own) > LEFT * _size(F, z) and not minres.image(S, F, own) <= VANISHED:
            return False
    for i in range(z.size):
        rhs[i] -= z[i] / F.scale[i] ** 2
    return True


@inner_kernel
def _draw(S: Structure, F: Factors, face: Face, draw: int, rhs: Array) -> None:
    """A right-hand side at random, equilibrated."""
    inv, n = part(S.wide, INV), S.n
    fill(rhs, 0.0)
    for i in range(n + S.m):
        if i < n or face.on[i - n]:  # fractions of a sequence that no data is drawn with: a tenth of a cosine's time
            v = 0.6180339887498949 * (i + 1.0 + 7919.0 * draw) ** 2
            rhs[inv[i]] = (2.0 * (v - np.floor(v)) - 1.0) / F.scale[inv[i]]


@inner_kernel
def _find(S: Structure, F: Factors, face: Face, z: Array, full: Full | None) -> float:
    """What remains of a random vector is its part along the null space; all that is measured here is in equilibrated
    units."""
    F = refer(Factors(F.Kx, F.scale, F.Lx, F.Dinv, F.scale))
    if full is not None and full.iterations > 0:
        return _find_by_minres(S, F, face, z, full)
    if _remainder(S, F, face, 0, z) <= LEFT:
        return 0.0
    if _vanishes_corrected(S, F, z, VANISHED):
        return 1.0
    if full is None:
        return UNKNOWN
    own, found = np.empty(z.size), 0.0
    fill(z, 0.0)
    for sign in (1.0, -1.0):
        if _combine(S, F, face, sign, own):
            found = 1.0
            for i in range(z.size):
                z[i] += own[i]
    return found


@inner_kernel
def _remainder(S: Structure, F: Factors, face: Face, draw: int, z: Array) -> float:
    """What remains of a random vector z, of norm 1, without the components along which K does not vanish: its norm."""
    _draw(S, F, face, draw, z)
    size = norm(z, F.scale)
    for i in range(z.size):
        z[i] *= F.scale[i] ** 2 / size
    return correct(S, F, z)


@inner_kernel
def _combine(S: Structure, F: Factors, face: Face, sign: float, z: Array) -> bool:
    """A null vector of variables (sign 1) or multipliers (-1) beside directions in which K nearly vanishes: the
    combination of what remains of several random vectors that does vanish.

    Each image is made orthogonal to those before it (Gram-Schmidt, twice). With both kinds of unknowns in one vector,
    small images would be lost in rounding: see `_drop_null`.
    """
    Z, KZ, image = np.empty((DRAWS, z.size)), np.empty((DRAWS, z.size)), np.empty(z.size)
    for draw in range(DRAWS):
        _remainder(S, F, face, draw, image)
        _part(S, sign, image, z)
        for _ in range(2):
            _multiply(S, F, z, image)
            for j in range(draw):
                dot = 0.0
                for i in range(z.size):
                    dot += KZ[j, i] * F.scale[i] ** 2 * image[i]
                for i in range(z.size):
                    z[i] -= dot * Z[j, i]
                    image[i] -= dot * KZ[j, i]
        if not _size(F, z) > LEFT:
            return False
        if _vanishes_corrected(S, F, z, VANISHED):
            return True
        _multiply(S, F, z, image)
        size = norm(image, F.scale)
        for i in range(z.size):
            Z[draw, i], KZ[draw, i] = z[i] / size, image[i] / size
    return False


@inner_kernel
def _find_by_minres(S: Structure, F: Factors, face: Face, z: Array, full: Full) -> float:
    """What a solve leaves of a random right-hand side is its part along the null space."""
    rhs, left, step = np.empty(z.size), np.empty(z.size), np.empty(z.size)
    _draw(S, F, face, 0, rhs)
    relative, _ = minres.solve(S, F, rhs, z, MET, full)
    if relative <= MET:
        return 0.0
    _multiply(S, F, z, left)
    for i in range(left.size):
        left[i] = rhs[i] - left[i]
    minres.along_null(F, left, z)
    for _ in range(3):  # each leaves a share MET of the other components
        _multiply(S, F, z, rhs)
        minres.solve(S, F, rhs, step, MET, full)
        for i in range(z.size):
            z[i] -= step[i]
    return 1.0 if norm(left, F.unit) > LEFT_ROUGHLY and _vanishes(S, F, z, minres.VANISHED) else 0.0


@inner_kernel
def _multiply(S: Structure, F: Factors, z: Array, out: Array) -> None:
    """out := Kz."""
    ldl.multiply(part(S.wide, KP), part(S.slim, KI), F.Kx, z, out)


@inner_kernel
def _part(S: Structure, sign: float, z: Array, out: Array) -> None:
    """out := the variables (sign 1) or the multipliers (-1) of z."""
    for i in range(z.size):
        out[i] = z[i] if S.sign[i] == sign else 0.0


@inner_kernel
def _size(F: Factors, z: Array) -> float:
    """|z|, equilibrated."""
    total = 0.0
    for i in range(z.size):
        total += (z[i] / F.scale[i]) ** 2
    return np.sqrt(total)


@inner_kernel
def correct(S: Structure, F: Factors, z: Array) -> float:
    """Remove the other components from an approximate null vector: z - (K + eJ)^-1 Kz, with K + eJ factorized, leaves
    e/k of that along an eigenvector of value k. Returns |z|, equilibrated."""
    Lp, Li, image = part(S.wide, LP), part(S.slim, LI), np.empty(z.size)
    first = size = _size(F, z)
    before = np.inf
    for _ in range(system.REFINEMENTS):
        _multiply(S, F, z, image)
        rest = norm(image, F.scale)
        if not rest <= system.STUCK * before or rest <= ROUNDING * size:
            break
        before = rest
        for i in range(z.size):
            image[i] *= F.scale[i]
        ldl.solve(S.head, Lp, Li, F.Lx, F.Dinv, image)
        for i in range(z.size):
            z[i] -= F.scale[i] * image[i]
        size = _size(F, z)
        if size <= LEFT * first:
            break
    return size


@inner_kernel
def _vanishes(S: Structure, F: Factors, z: Array, tolerance: float) -> bool:
    """Whether z is a null vector. Its entries that count as rounding are removed, unless it vanishes only with those of
    variables, or of multipliers: rows at an angle of 1e-9 depend on others by coefficients of 1e-9."""
    clean = np.empty(z.size)
    for own, other in ((DUST, DUST), (DUST, FINE_DUST), (FINE_DUST, DUST), (FINE_DUST, FINE_DUST)):
        copy(clean, z)
        _cut(S, F, clean, own, other)
        if minres.image(S, F, clean) <= tolerance:
            copy(z, clean)
            return True
    return False


@inner_kernel
def _vanishes_corrected(S: Structure, F: Factors, z: Array, tolerance: float) -> bool:
    """The same with factors of K. The errors that the removed entries have left in the others are removed, too: where
    blocks are strongly curved, there are more of these."""
    clean = z.copy()
    for _ in range(CORRECTIONS):
        _cut(S, F, clean, DUST, DUST)
        if minres.image(S, F, clean) <= tolerance:
            copy(z, clean)
            return True
        correct(S, F, clean)
    return _vanishes(S, F, z, tolerance)


@inner_kernel
def _cut(S: Structure, F: Factors, z: Array, own: float, other: float) -> None:
    """Remove entries up to these fractions of the largest one, equilibrated, of variables and of multipliers."""
    largest = 0.0
    for i in range(z.size):
        largest = max(largest, abs(z[i] / F.scale[i]))
    for i in range(z.size):
        if abs(z[i] / F.scale[i]) <= (own if S.sign[i] > 0.0 else other) * largest:
            z[i] = 0.0
