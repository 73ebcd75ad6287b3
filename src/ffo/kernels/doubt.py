"""Rows of one sample that could as well belong to another face.

Such a row is close to it: its multiplier and its slack are both rounding. Where rows are nearly parallel, or the
curvature is small, rounding errors of the optimality conditions move a multiplier by many times as much: with rows at
an angle of 1e-4, 1e-16 becomes 1e-8. One solve bounds the error of a row. K is symmetric, so its solution z for a unit
force on the row (for an inactive row: for its gradient) says by how much every residual moves the row: in total by
|z|'|r|.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import minres, system
from ffo.kernels.evidence import RESIDUAL, SINGULAR
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import ACOL, AROW, DIM, INV, KIND, NONNEG, START, ZERO, Face, Full, Structure, part
from ffo.kernels.null import VANISHED, correct
from ffo.kernels.point import MARGIN_RATIO, WEAK, Data, residuals, sizes
from ffo.kernels.system import EPS, Factors
from ffo.kernels.vectors import fill

Array = np.ndarray

#: most by which the error of a row exceeds the residual, or rounding, relative to its size: if ghost systems are
#: regular, and if they may be singular (rows at an angle of 1e-7)
REGULAR, AMPLIFIED = 1e10, 1e14
#: relative residual of a solve that tells how much a row moves; share of the distance to another face that its
#: estimated error may be
ROUGHLY, SHARE = 1e-6, 0.1


def closeness(evidence: Array, factorized: bool) -> Array:
    """(batch,) relative distance to another face up to which rows of samples with this evidence may be doubtful; not
    `factorized`: by MINRES, to which nearly singular systems are regular."""
    amplified = np.where(factorized & (evidence[:, SINGULAR] == 0.0), REGULAR, AMPLIFIED)
    return np.asarray(amplified * np.maximum(evidence[:, RESIDUAL], EPS))


@inner_kernel
def weak_rows(
    S: Structure, D: Data, x: Array, y: Array, s: Array, face: Face, F: Factors, residual: float, near: float,
    out: Array, full: Full | None,
) -> None:  # fmt: skip
    """(m,) 1 for rows that errors of the point could move to another face, else 0: scalar rows up to a distance `near`
    from it, and curved blocks, as a whole, if they are closer than the residual."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    z, noise, weak = sizes(S, D, x, y, s), np.empty(0), max(WEAK, residual / MARGIN_RATIO)
    fill(out, 0.0)
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k] if kinds[k] != ZERO else starts[k]):
            unit = z.row[i] * z.primal
            distance = face.margin[k] if kinds[k] > NONNEG else abs(s[i] - z.tau[i] * y[i]) / unit
            if distance <= weak:
                out[i] = 1.0
            elif kinds[k] == NONNEG and distance <= near and D.b[i] < np.inf:
                if not noise.size:
                    noise = _noise(S, D, x, y, s, face)
                error = _error(S, D, F, face, i, noise, full) * (z.tau[i] if face.on[i] else 1.0)
                out[i] = 1.0 if error >= SHARE * distance * unit else 0.0


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
def _error(S: Structure, D: Data, F: Factors, face: Face, row: int, noise: Array, full: Full | None) -> float:
    """The error that noise leaves in the multiplier of an active row, or in the slack of an inactive one.

    What refining leaves of a right-hand side lies along directions in which K nearly vanishes, or does: along the
    latter, multipliers are not determined, which is another question (see `null`).
    """
    Arow, Acol, inv = part(S.wide, AROW), part(S.wide, ACOL), part(S.wide, INV)
    rhs, z, left, error = np.zeros(noise.size), np.empty(noise.size), np.empty(noise.size), 0.0
    if face.on[row]:
        rhs[inv[S.n + row]] = 1.0
    else:
        for t in range(D.Av.size):
            if Arow[t] == row:
                rhs[inv[Acol[t]]] = D.Av[t]
    if full is not None and full.iterations > 0:
        at = system.in_use(S, F)
        if 0 < at.size <= system.SPECTRAL:  # MINRES does not see eigenvalues of 1e-10
            system.spectral(S, F, at, rhs, z, left)
        else:
            minres.solve(S, F, rhs, z, full.rtol, full)
    else:
        relative, _ = system.refine(S, F, rhs, z, left, ROUGHLY, np.inf, system.STALLED)
        if not relative <= ROUGHLY:
            along = rhs
            minres.along_null(F, left, along)
            correct(S, F, along, None)
            correct(S, F, along, None)
            value = minres.image(S, F, along)
            for j in range(along.size if value > VANISHED else 0):
                z[j] += along[j] / value
    for j in range(noise.size):
        error += abs(z[j]) * noise[j]
    return error
