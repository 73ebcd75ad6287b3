"""Rows of one sample that could as well belong to another face.

Such a row is close to it: its multiplier and its slack are both rounding. Where rows are nearly parallel, or the
curvature is small, rounding errors of the optimality conditions move a multiplier by many times as much: with rows at
an angle of 1e-4, 1e-16 becomes 1e-8. Solving the ghost system for random errors of their size shows by how much.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import minres, singular, system
from ffo.kernels.bundle import refer
from ffo.kernels.evidence import AMPLIFIED, NEAREST, RESIDUAL, SINGULAR, WEAKLY_ACTIVE
from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.kkt import ACOL, AROW, DIM, INV, KIND, NONNEG, START, ZERO, Face, Full, Structure, part
from ffo.kernels.null import VANISHED, correct
from ffo.kernels.point import MARGIN_RATIO, WEAK, row_norms, sizes
from ffo.kernels.residuals import Data, residuals
from ffo.kernels.system import EPS, Factors
from ffo.kernels.vectors import fill

Array = np.ndarray

#: most by which the error of a row exceeds the residual, or rounding, relative to its size: rows at an angle of 1e-7;
#: and if the ghost system is regular, relative to its amplification of a random right-hand side
MOST, MORE = 1e14, 1e8
#: random errors for which the system is solved, and the multiple of the largest effect that counts: an effect is a
#: hundred times smaller than usual by chance once in a million
DRAWS, GRANTED = 3, 100.0
#: relative residual of these solutions; most unknowns for which eigenvalues are used instead of MINRES, which does not
#: see those of 1e-10
ROUGHLY, SPECTRAL = 1e-6, 100


def closeness(evidence: Array, spectral: bool) -> Array:
    """(batch,) relative distance to another face up to which rows of samples with this evidence may be doubtful;
    `spectral`: systems that look regular to MINRES are not trusted."""
    amplified = MOST if spectral else np.fmin(evidence[:, AMPLIFIED], MOST)  # NaN: unknown
    return np.asarray(np.minimum(MOST, MORE * amplified) * np.maximum(evidence[:, RESIDUAL], EPS))


@kernel
def none_close(evidence: Array, flags: Array, spectral: bool) -> bool:
    """Whether no sample with this evidence has rows that may be doubtful (`closeness`), nor a ghost system that may be
    singular."""
    for k in range(evidence.shape[0]):
        e = evidence[k]
        amplified = e[AMPLIFIED] if e[AMPLIFIED] < MOST and not spectral else MOST
        distance = min(MOST, MORE * amplified) * (e[RESIDUAL] if e[RESIDUAL] > EPS else EPS)
        if flags[k, WEAKLY_ACTIVE] or e[NEAREST] <= distance or e[SINGULAR] != 0.0:
            return False
    return True


@inner_kernel
def weak_rows(
    S: Structure, D: Data, x: Array, y: Array, s: Array, face: Face, F: Factors, residual: float, near: float,
    out: Array, full: Full | None,
) -> None:  # fmt: skip
    """(m,) 1 for rows that errors of the point could move to another face, else 0: scalar rows up to a distance `near`
    from it, and curved blocks, as a whole, if they are closer than the residual."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    z, weak, some = sizes(S, D, row_norms(S, D.Av), x, y, s), max(WEAK, residual / MARGIN_RATIO), False
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k] if kinds[k] == NONNEG else starts[k]):
            some |= weak < abs(s[i] - z.tau[i] * y[i]) / (z.row[i] * z.primal) <= near and D.b[i] < np.inf
    fill(out, 0.0)
    if some:
        _moves(S, D, x, y, s, face, F, out, full)
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            unit = z.row[i] * z.primal
            distance = face.margin[k] if kinds[k] > NONNEG else abs(s[i] - z.tau[i] * y[i]) / unit
            close = kinds[k] == NONNEG and distance <= near and D.b[i] < np.inf
            moved = out[i] * (z.tau[i] if face.on[i] else 1.0)
            doubtful = distance <= weak or (close and GRANTED * moved >= distance * unit)
            out[i] = 1.0 if doubtful and kinds[k] != ZERO else 0.0


@inner_kernel
def _moves(
    S: Structure, D: Data, x: Array, y: Array, s: Array, face: Face, F: Factors, error: Array, full: Full | None
) -> None:  # fmt: skip
    """(m,) the largest effect of random errors on multipliers of active rows, and on slacks of inactive ones."""
    Arow, Acol, inv, size = part(S.wide, AROW), part(S.wide, ACOL), part(S.wide, INV), S.sign.size
    noise, rhs, z, moved = _noise(S, D, x, y, s, face), np.empty(size), np.empty(size), np.empty(S.m)
    left = np.empty(0 if full is not None and full.iterations > 0 and size > SPECTRAL else size)
    for draw in range(DRAWS):
        for j in range(size):
            v = 0.6180339887498949 * (j + 1.0 + 7919.0 * draw) ** 2
            rhs[j] = (2.0 * (v - np.floor(v)) - 1.0) * noise[j]
        _respond(S, F, rhs, z, left, full)
        for i in range(S.m):
            moved[i] = z[inv[S.n + i]] if face.on[i] else 0.0
        for t in range(D.Av.size):
            if not face.on[Arow[t]]:
                moved[Arow[t]] += D.Av[t] * z[inv[Acol[t]]]
        for i in range(S.m):
            error[i] = max(error[i], abs(moved[i]))


@inner_kernel
def _noise(S: Structure, D: Data, x: Array, y: Array, s: Array, face: Face) -> Array:
    """The residuals of the conditions of the face, and their rounding errors, in K's order; rows of a curved block
    share theirs."""
    kinds, starts, dims, inv = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, INV)
    r_x, r_s, noise = np.empty(S.n), np.empty(S.m), np.zeros(S.sign.size)
    a_x, a_s = residuals(S, D, x, y, s, r_x, r_s)
    for j in range(S.n):
        noise[inv[j]] = abs(r_x[j]) + EPS * a_x[j]
    for k in range(S.blocks):
        shared = 0.0
        for i in range(starts[k], starts[k] + dims[k]):
            own = abs(r_s[i]) + EPS * a_s[i]
            shared += own
            noise[inv[S.n + i]] = own if face.on[i] else 0.0
        if kinds[k] > NONNEG:
            for i in range(starts[k], starts[k] + dims[k]):
                noise[inv[S.n + i]] = shared
    return noise


@inner_kernel
def _respond(S: Structure, F: Factors, rhs: Array, z: Array, left: Array, full: Full | None) -> None:
    """z = K^-1 rhs, roughly.

    What refining leaves of a right-hand side lies along directions in which K nearly vanishes, or does: along the
    latter, multipliers are not determined, which is another question (see `null`). Residuals are measured in
    equilibrated units: small eigenvalues count.
    """
    F = refer(Factors(F.Kx, F.scale, F.Lx, F.Dinv, F.scale))
    if full is not None and full.iterations > 0:
        at = singular.in_use(S, F) if rhs.size <= SPECTRAL else np.empty(0, np.int64)
        if at.size > 0:
            singular.spectral(S, F, at, rhs, z, left)
        else:
            minres.solve(S, F, rhs, z, ROUGHLY, full)
        return
    relative, _ = system.refine(S, F, rhs, z, left, ROUGHLY, np.inf, system.STALLED)
    if not relative <= ROUGHLY:
        along = rhs
        minres.along_null(F, left, along)
        correct(S, F, along)
        value = minres.image(S, F, along)
        for j in range(along.size if value > VANISHED else 0):
            z[j] += along[j] / value
