"""Array numerics the curved cones share: exact scaling, a safeguarded root, a lower bound on distances."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffo.cones.base import Array

#: (x, data) -> (f, f'), arrays (N,); data is (N, p).
Function = Callable[[Array, Array], tuple[Array, Array]]

_EPS = float(np.finfo(float).eps)


def unit_scaled(w: Array) -> tuple[Array, Array]:
    """Powers of two that bring the blocks of w (N, dim) to largest entry in [1/2, 1): (w / 2^e, 2^e).

    Cones are positively homogeneous and a power of two divides without rounding, so what follows may
    square and exponentiate freely.
    """
    exponent = np.frexp(np.abs(w).max(axis=1, initial=0.0))[1]
    exponent = np.clip(exponent, -1000, 1000)  # 2^-e and 2^e both representable
    return np.ldexp(w, -exponent[:, None]), np.ldexp(1.0, exponent)


def increasing_root(f: Function, start: Array, lower: Array, upper: Array, data: Array) -> Array:
    """Roots of N increasing functions, each between its `lower` and `upper`, to machine precision.

    The bracket is found by doubling steps away from `start` (so that far limits cost nothing), then
    Newton's method runs inside it; a Newton step that leaves the bracket, or is longer than half the
    step before it, is replaced by bisection. Where f keeps its sign up to a limit, that limit is returned.
    """
    lo, hi = _bracket(f, start, lower, upper, data)
    out = 0.5 * (lo + hi)
    live = np.arange(len(start))
    x, last = out.copy(), hi - lo
    for _ in range(300):
        if not len(live):
            break
        fx, slope = f(x, data)
        lo, hi = np.where(fx <= 0, x, lo), np.where(fx >= 0, x, hi)
        resolution = _EPS * np.maximum(1.0, np.abs(x))
        newton = np.divide(-fx, slope, out=np.full_like(fx, np.inf), where=np.abs(fx) < 1e30 * slope)
        good = (x + newton > lo) & (x + newton < hi) & (np.abs(newton) <= 0.5 * np.abs(last))
        last = np.where(good, newton, 0.5 * (lo + hi) - x)
        going = (np.abs(newton) > resolution) & (hi - lo > resolution)  # False for NaN too
        out[live] = np.where(going, x + last, x)
        live, x, last, lo, hi, data = (v[going] for v in (live, x + last, last, lo, hi, data))
    return out


def _bracket(f: Function, start: Array, lower: Array, upper: Array, data: Array) -> tuple[Array, Array]:
    """lo <= hi with f(lo) <= 0 <= f(hi), or an end at its limit."""
    near, far = start.copy(), start.copy()
    rising = f(start, data)[0] < 0
    live, step = np.arange(len(start)), 1.0
    while len(live) and step < 2.0**64:
        up = rising[live]
        near[live] = far[live]
        edge = np.where(up, np.minimum(start[live] + step, upper[live]), np.maximum(start[live] - step, lower[live]))
        far[live] = edge
        value = f(edge, data[live])[0]
        going = np.where(up, (value < 0) & (edge < upper[live]), (value > 0) & (edge > lower[live]))
        live, step = live[going], 2.0 * step
    return np.where(rising, near, far), np.where(rising, far, near)


def dikin_radius(hessian: Array) -> Array:
    """(N, d, d) Hessians of a self-concordant barrier -> (N,) lower bounds on the distance to the boundary.

    The ellipsoid {v : v'F''v < 1} around a point of the interior lies in the cone (Dikin), hence so
    does the ball of radius 1/sqrt(lambda_max). Near a smooth boundary g = 0 it tends to g/|grad g|.
    """
    return 1.0 / np.sqrt(np.linalg.eigvalsh(hessian)[:, -1])
