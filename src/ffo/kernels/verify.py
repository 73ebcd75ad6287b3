"""Polish and verify the solution of a dense quadratic program, or prove that there is none.

Everything is measured on the data, in the natural units of `dual.py`.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.blas import multiply
from ffo.kernels.dual import DualFace, DualMatrices, add_row, newton_step, slacks
from ffo.kernels.jit import inner_reducing_kernel

Array = np.ndarray

#: Polishing stops at this residual, or if a step reduces it by less than this factor.
EXACT, GAIN = 1e-15, 0.7
#: A proof that there is no solution counts if it excludes all points closer than this many times the data.
FAR = 1e6
#: A sum that should be zero counts as negative above this fraction of its terms.
CANCELLED = 1e-10
#: Against division by zero.
TINY = 1e-300


@inner_reducing_kernel
def proves_infeasible(m: DualMatrices, f: DualFace, k: int, h: Array, me: int, new: int, size: float) -> bool:
    """Whether the row `new` less its combination of the rows held (f.room) proves that no x is feasible:
    y >= 0 on inequalities, h'y < 0, and R'y so small that every feasible x has |x| >= -h'y / |R'y|_1 >> the data.
    Such a y becomes the multipliers in f."""
    sum_of_rows = np.zeros(m.L.shape[0])
    sign = 1.0 if f.s[new] < 0.0 else -1.0
    add_row(m, new, sign, sum_of_rows)
    value, terms, scale = sign * h[new], abs(h[new]), max(size, abs(h[new]))
    for a in range(k):
        i, y = f.rows[a], -sign * f.room[a]
        if i >= me:
            y = max(y, 0.0)
        add_row(m, i, y, sum_of_rows)
        value += y * h[i]
        terms += abs(y * h[i])
        scale = max(scale, abs(h[i]))
    left = 0.0
    for v in sum_of_rows:
        left += abs(v)
    if not (value < -CANCELLED * terms and FAR * scale * left < -value):
        return False
    for a in range(k):
        y = -sign * f.room[a]
        f.y[a] = max(y, 0.0) if f.rows[a] >= me else y
    f.rows[k], f.y[k] = new, sign
    return True


@inner_reducing_kernel
def proves_unbounded(m: DualMatrices, p: Array, h: Array, me: int, v: Array) -> bool:
    """Whether the ray v proves unboundedness: p'v < 0, while Qv and what leaves the feasible set vanish."""
    n = p.size
    change, Qv, none = np.empty(h.size), np.empty(n), np.zeros(h.size)
    size = slacks(m, none, v, change)
    multiply(m.Q, n, n, v, Qv, 1.0, 0.0)
    decrease, top, error = 0.0, 0.0, 0.0
    for j in range(n):
        decrease -= p[j] * v[j]
        top = max(top, abs(p[j]))
        error += abs(Qv[j])
    for i in range(h.size):
        if i < me:
            error += abs(change[i])
        elif h[i] < np.inf:
            error += max(-change[i], 0.0)
    return 0.0 < size < np.inf and decrease > FAR * top * error


@inner_reducing_kernel
def _residual(m: DualMatrices, p: Array, h: Array, f: DualFace, k: int, gradient: Array) -> tuple[float, float, float]:
    """gradient := Qx + p + R'y, f.s := slacks. Returns the largest residual of stationarity and of the rows held, each
    relative to its natural size, then max |x| and the size of the forces."""
    n = p.size
    size = slacks(m, h, f.x, f.s)
    multiply(m.Q, n, n, f.x, gradient, 1.0, 0.0)
    force, left = TINY, 0.0
    for j in range(n):
        force = max(force, abs(gradient[j]), abs(p[j]))
        gradient[j] += p[j]
    for a in range(k):
        i = f.rows[a]
        force = max(force, abs(f.y[a]))
        add_row(m, i, f.y[a], gradient)
        left = max(left, abs(f.s[i]) / (size + abs(h[i]) + TINY))
    for j in range(n):
        left = max(left, abs(gradient[j]) / force)
    return left, size, force


@inner_reducing_kernel
def polish(m: DualMatrices, p: Array, h: Array, me: int, f: DualFace, k: int, turns: int) -> float:
    """Newton's steps on the rows held; the largest residual of the optimality conditions, signs included."""
    gradient = np.empty(p.size)
    last = np.inf
    for turn in range(turns + 1):
        left, size, force = _residual(m, p, h, f, k, gradient)
        if turn == turns or left < EXACT or not left < GAIN * last:
            break
        last = left
        newton_step(m, f, k, gradient)
    for i in range(h.size):
        broken = abs(f.s[i]) if i < me else -f.s[i]
        if broken > 0.0:
            left = max(left, broken / (size + abs(h[i]) + TINY))
    for a in range(k):
        if f.rows[a] >= me:
            left = max(left, -f.y[a] / force)
    return left if np.isfinite(left) and np.isfinite(size) else np.inf
