"""An interior point for linear and quadratic programs on the KKT pattern of the ghost system.

Mehrotra's predictor-corrector method: every inequality row takes part, with the weight delta_i = s_i / y_i, so that

    [ P  A'     ] [dx]   [ -(Px + q + A'y)      ]
    [ A  -s / y ] [dy] = [ b - Ax - s - rc / y  ]        ds = b - Ax - s - A dx,

where rc is what complementarity lacks: sigma mu - s y - ds dy. Near the solution the weights tend to 0 or infinity,
which is the ghost system of the face: what follows is one Newton step.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import ldl, system
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import ACOL, AROW, INV, KI, KIND, KP, OWNER, ZERO, Face, Structure, assemble, part
from ffo.kernels.point import FLOOR, Data, larger, residuals, row_norms
from ffo.kernels.system import Factors
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: regularisation: less than a face's, since the weights span many orders of magnitude anyway
SHIFT = 1e-9
#: relative residual of a step's system
ACCURATE = 1e-5
#: share of the way to the boundary that a step takes
BACK_OFF = 0.995
#: share of the first complementarity that is nothing, where the terms of the gap vanish too (x = 0)
VANISHED = 1e-13
#: steps shorter than this share, in a row, mean that the method is stuck (infeasible problems end so)
SHORT, STUCK = 1e-3, 5


@inner_kernel
def _system(S: Structure, D: Data, weights: Face, F: Factors) -> None:
    assemble(S, D.Pv, D.Av, weights, weights.u, np.zeros(S.aux), F.Kx)
    system.factor(S, F, SHIFT)


@inner_kernel
def _solve(S: Structure, F: Factors, top: Array, bottom: Array, dx: Array, dy: Array) -> None:
    inv = part(S.wide, INV)
    size = S.sign.size
    rhs, z, left = np.empty(size), np.empty(size), np.empty(size)
    for j in range(S.n):
        rhs[inv[j]] = top[j]
    for i in range(S.m):
        rhs[inv[S.n + i]] = bottom[i]
    system.refine(S, F, rhs, z, left, ACCURATE, np.inf, system.STALLED)
    for j in range(S.n):
        dx[j] = z[inv[j]]
    for i in range(S.m):
        dy[i] = z[inv[S.n + i]]


@inner_kernel
def _start(S: Structure, D: Data, x: Array, y: Array, s: Array, weights: Face, F: Factors) -> None:
    """The point of least squares, with slacks and multipliers moved into the interior."""
    kinds, owner = part(S.wide, KIND), part(S.wide, OWNER)
    top, bottom = np.empty(S.n), np.empty(S.m)
    for j in range(S.n):
        top[j] = -D.q[j]
    for i in range(S.m):
        equal = kinds[owner[i]] == ZERO
        weights.on[i] = equal or D.b[i] < np.inf
        weights.delta[i] = 0.0 if equal else 1.0
        bottom[i] = D.b[i] if weights.on[i] else 0.0
    assemble(S, D.Pv, D.Av, weights, weights.u, np.zeros(S.aux), F.Kx)
    ldl.equilibrate(part(S.wide, KP), part(S.slim, KI), F.Kx, F.scale)
    copy(F.unit, F.scale)
    _system(S, D, weights, F)
    _solve(S, F, top, bottom, x, y)
    low = high = -np.inf
    for i in range(S.m):
        if kinds[owner[i]] != ZERO and weights.on[i]:
            low, high = max(low, -y[i]), max(high, y[i])
    for i in range(S.m):
        s[i] = 0.0
        if kinds[owner[i]] != ZERO:
            size = max(1e-3, low, high)
            v = y[i]
            s[i] = -v if high < -1e-8 * size else -v + high + size
            y[i] = v if low < -1e-8 * size else v + low + size
            if not weights.on[i]:
                s[i], y[i] = np.inf, 0.0


@inner_kernel
def _error(
    S: Structure, D: Data, row: Array, x: Array, y: Array, s: Array, r_x: Array, r_s: Array
) -> tuple[float, float, int]:
    """Largest residual in units of its row, complementarity s'y, and how many inequalities there are."""
    kinds, owner = part(S.wide, KIND), part(S.wide, OWNER)
    a_x, a_s = residuals(S, D, x, y, s, r_x, r_s)
    force = length = worst = dot = 0.0
    for j in range(S.n):
        force, length = max(force, a_x[j]), max(length, abs(x[j]))
    for j in range(S.n):
        worst = larger(worst, r_x[j], a_x[j] + FLOOR * force)
    count = 0
    for i in range(S.m):
        worst = larger(worst, r_s[i], a_s[i] + FLOOR * row[i] * length)
        if kinds[owner[i]] != ZERO and D.b[i] < np.inf:
            dot += s[i] * y[i]
            count += 1
    return worst, dot, count


@inner_kernel
def _gap_unit(S: Structure, D: Data, x: Array, y: Array) -> float:
    """Size of the terms of the duality gap."""
    qx = by = 0.0
    for j in range(S.n):
        qx += abs(D.q[j] * x[j])
    for i in range(S.m):
        if D.b[i] < np.inf:
            by += abs(D.b[i] * y[i])
    return max(qx, by)


@inner_kernel
def _step_length(S: Structure, s: Array, y: Array, ds: Array, dy: Array, on: Array) -> float:
    kinds, owner = part(S.wide, KIND), part(S.wide, OWNER)
    alpha = 1.0
    for i in range(S.m):
        if kinds[owner[i]] != ZERO and on[i]:
            if ds[i] < 0.0:
                alpha = min(alpha, -s[i] / ds[i])
            if dy[i] < 0.0:
                alpha = min(alpha, -y[i] / dy[i])
    return alpha


@inner_kernel
def _directions(
    S: Structure, D: Data, y: Array, s: Array, r_x: Array, r_s: Array, mu: float, weights: Face, F: Factors,
    dx: Array, dy: Array, ds: Array,
) -> float:  # fmt: skip
    """Predictor and corrector; writes the direction, returns its step length."""
    kinds, owner, Arow, Acol = part(S.wide, KIND), part(S.wide, OWNER), part(S.wide, AROW), part(S.wide, ACOL)
    m = S.m
    bottom = np.empty(m)
    sigma, alpha, count = 0.0, 1.0, 0
    for phase in range(2):
        for i in range(m):
            bottom[i] = 0.0
            if weights.on[i]:
                bottom[i] = r_s[i]
                if kinds[owner[i]] != ZERO:
                    lack = -s[i] if phase == 0 else (sigma * mu - ds[i] * dy[i]) / y[i] - s[i]
                    bottom[i] -= lack
        _solve(S, F, r_x, bottom, dx, dy)
        for i in range(m):
            ds[i] = r_s[i]
        for t in range(D.Av.size):
            ds[Arow[t]] -= D.Av[t] * dx[Acol[t]]
        for i in range(m):
            if kinds[owner[i]] == ZERO or not weights.on[i]:
                ds[i] = 0.0
        alpha = _step_length(S, s, y, ds, dy, weights.on)
        if phase == 0:
            after = 0.0
            for i in range(m):
                if kinds[owner[i]] != ZERO and weights.on[i]:
                    after += (s[i] + alpha * ds[i]) * (y[i] + alpha * dy[i])
                    count += 1
            if count == 0:
                return alpha
            sigma = min(max(after / (count * mu), 0.0), 1.0) ** 3
    return min(1.0, BACK_OFF * alpha)


@inner_kernel
def interior(
    S: Structure, D: Data, x: Array, y: Array, s: Array, weights: Face, F: Factors, eps: float, limit: int
) -> int:
    """Solve one sample from nothing; writes x, y, s. Returns the iterations, negative where it failed."""
    kinds, owner = part(S.wide, KIND), part(S.wide, OWNER)
    n, m = S.n, S.m
    r_x, r_s, dx, dy, ds = np.empty(n), np.empty(m), np.empty(n), np.empty(m), np.empty(m)
    row = np.empty(m)
    row_norms(S, D.Av, row)
    fill(weights.u, 0.0)
    _start(S, D, x, y, s, weights, F)
    stuck, first = 0, 0.0
    for turn in range(limit):
        worst, dot, count = _error(S, D, row, x, y, s, r_x, r_s)
        if not np.isfinite(worst) or not np.isfinite(dot):
            return -turn - 1
        first = max(first, dot)
        if worst <= eps and (dot <= eps * _gap_unit(S, D, x, y) or dot <= VANISHED * first):
            return turn
        for i in range(m):
            if kinds[owner[i]] != ZERO and weights.on[i]:
                weights.delta[i] = s[i] / y[i]
        _system(S, D, weights, F)
        alpha = _directions(S, D, y, s, r_x, r_s, dot / max(count, 1), weights, F, dx, dy, ds)
        stuck = stuck + 1 if alpha < SHORT else 0
        if stuck >= STUCK:
            return -turn - 1
        for j in range(n):
            x[j] += alpha * dx[j]
        for i in range(m):
            y[i] += alpha * dy[i]
            if weights.on[i]:
                s[i] += alpha * ds[i]
    return -limit
