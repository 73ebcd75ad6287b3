"""A safeguarded root in one dimension, and a lower bound on the distance to the boundary of a cone in three."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel

#: More than any root takes: doubling reaches 2^64 in 64 steps, and halving a bracket of that length takes 120.
MAX_STEPS = 300
#: The first step of a root is at most half of this.
FIRST_STEP = 2.0

_EPS = float(np.finfo(float).eps)


@inner_kernel
def root_step(
    x: float, f: float, slope: float, last: float, lo: float, hi: float, lower: float, upper: float
) -> tuple[float, float, float]:
    """One step towards the root of an increasing function between its limits: (next x, lo, hi); x itself at the end.

    The caller evaluates f and its slope, and starts with lo, hi = -inf, inf (no sign seen yet) and last = FIRST_STEP:

        for _ in range(MAX_STEPS):
            f, slope = ...
            new, lo, hi = root_step(x, f, slope, last, lo, hi, lower, upper)
            if new == x:
                break
            last, x = new - x, new

    A Newton step that stays in the bracket and is at most half as long as the step before it is taken. Otherwise
    the bracket is halved, or, where f has not changed its sign yet, the step before is doubled, so that far limits
    cost nothing. If f keeps its sign up to a limit, that limit is returned.
    """
    if f <= 0.0:
        lo = x
    if f >= 0.0:
        hi = x
    resolution = _EPS * max(1.0, abs(x))
    newton = np.inf
    if abs(f) < 1e30 * slope:
        newton = -f / slope
    if not (abs(newton) > resolution and hi - lo > resolution):
        return x, lo, hi
    if max(lo, lower) < x + newton < min(hi, upper) and abs(newton) <= 0.5 * abs(last):
        return x + newton, lo, hi
    if hi == np.inf:
        return min(x + 2.0 * abs(last), upper), lo, hi
    if lo == -np.inf:
        return max(x - 2.0 * abs(last), lower), lo, hi
    return 0.5 * (lo + hi), lo, hi


@inner_kernel
def dikin_radius(h11: float, h12: float, h13: float, h22: float, h23: float, h33: float) -> float:
    """Lower bound on the distance to the boundary, from the Hessian of a self-concordant barrier.

    The ellipsoid {v : v'F''v < 1} around a point of the interior lies in the cone (Dikin), hence so
    does the ball of radius 1/sqrt(lambda_max). Near a smooth boundary g = 0 it tends to g/|grad g|.

    lambda_max of a symmetric 3 x 3 matrix H = q I + p B, with tr B = 0 and tr B^2 = 6, is q + 2 p cos(phi),
    cos(3 phi) = det(B)/2. Its error is of the order eps |H|, and |H| = lambda_max.
    """
    top = max(h11, h22, h33)  # no entry of a semidefinite matrix is larger
    a, b, c, d, e, f = h11 / top, h12 / top, h13 / top, h22 / top, h23 / top, h33 / top
    q = (a + d + f) / 3.0
    a, d, f = a - q, d - q, f - q
    p = np.sqrt((a * a + d * d + f * f + 2.0 * (b * b + c * c + e * e)) / 6.0)
    largest = q
    if p > _EPS:  # otherwise the three eigenvalues agree to rounding
        det = (a * (d * f - e * e) - b * (b * f - e * c) + c * (b * e - d * c)) / p**3
        largest = q + 2.0 * p * np.cos(np.arccos(min(max(0.5 * det, -1.0), 1.0)) / 3.0)
    return 1.0 / np.sqrt(top * largest)
