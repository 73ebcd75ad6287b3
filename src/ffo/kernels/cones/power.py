"""The three-dimensional power cone.

    K  = {(x, y, z) : x, y >= 0, x^alpha y^beta >= |z|},   beta = 1 - alpha
    K* = {(u, v, w) : u, v >= 0, (u/alpha)^alpha (v/beta)^beta >= |w|}

Projection of a w in neither K nor -K* (Hien 2015). With r = |z| and theta = r (|w3| - r),

    x (x - w1) = alpha theta,   y (y - w2) = beta theta,   x^alpha y^beta = r,

so tau y_dual = (alpha theta/x, beta theta/y, -sign(w3) (|w3| - r)). One unknown is left. It is written
r = |w3|/(1 + e^-xi), |w3| - r = |w3|/(1 + e^xi), so that r and |w3| - r both keep relative accuracy
however small they are, and solved in logarithms, f(xi) = log r - alpha log x - beta log y = 0:

    f' = 1/(1 + e^xi) + tanh(xi/2) (alpha p1 + beta p2) > 0,     p = (x - w1)/(2x - w1) in (0, 1),

(for xi < 0 because the bracket is < 1 and -tanh(xi/2) = 1/(1+e^xi) - 1/(1+e^-xi) < 1/(1+e^xi)): one root.

Surface rows. Normal n ~ (alpha r/x, beta r/y, -sign w3), tangent t = s x n/|s x n| with
h = |y3| alpha beta |z| |s|^2/(x^2 y^2 + z^2 (alpha^2 y^2 + beta^2 x^2)); by r = x^alpha y^beta and
r/(|w3| - r) = e^xi,

    1/(tau h) = e^xi (x^(2 beta) y^(2 alpha) + alpha^2 y^2 + beta^2 x^2)/(alpha beta |s|^2).

Rays. If w1 < 0 < w2 and w3 = 0, s = (0, w2, 0), y = (v, 0, 0): normal e1. Next to the ray the surface is
x = |z|^(1/alpha) y^(-beta/alpha), so its curvature in z behaves as |z|^(1/alpha - 2): z is free for
alpha < 1/2, fixed for alpha > 1/2, and for alpha = 1/2 the surface formulas have the limit h = 2v/y. (x, 0, 0) is
the same with alpha and beta exchanged. For small w3 the equations above become

    alpha > 1/2:   r/w2 = (alpha |w3|/|w1|)^(alpha/beta),
    alpha < 1/2:   (|w3| - r)/|w1| = (|w3|/w2)^(beta/alpha)/alpha.

If the left-hand side is rounding, w counts as on the ray (never for alpha = 1/2, where the ray is a surface point like
any other), with s = (0, w2, 0) or (0, w2, w3). Derivatives of the projection are continuous there: the step from the
ray to the surface is a change of case, but no kink.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.cones.roots import FIRST_STEP, MAX_STEPS, dikin_radius, root_step
from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX, clear, hold, is_finite, unit_scale, weight
from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.vectors import fill

Array = np.ndarray

#: the rays (0, y, 0) and (x, 0, 0)
Y_RAY, X_RAY = BOUNDARY + 1, BOUNDARY + 2

#: what of z or of its dual may be neglected on a ray, relative to the ray or the dual one. If ten times larger, more
#: than the last digit is lost; if ten times smaller, rounding errors of w3 put a point of a ray on the surface.
ROUNDING = 1e-15
#: ratios of x to y, and of their duals, below which a surface point may belong to the ray; if ten times larger, points
#: with an ordinary curvature are included, for which `secant` converges slowly; if ten times smaller, first-order
#: answers at a ray are missed.
NEAR_RAY = 1e-2
_HALF = 1e-12  # alpha this close to 1/2 is 1/2
#: below this (w has unit scale) a number counts as zero, else the Hessian of the barrier would overflow.
_TINY = 1e-60
#: limit of |xi|: e^-|xi| vanishes from 745 on.
_FAR = 2.0**20


@inner_kernel
def _softplus(x: float) -> float:
    """log(1 + e^x)."""
    return max(x, 0.0) + np.log1p(np.exp(-abs(x)))


@inner_kernel
def _inside(x: float, y: float, z: float, alpha: float) -> bool:
    return x >= 0.0 and y >= 0.0 and x**alpha * y ** (1.0 - alpha) >= abs(z)


@inner_kernel
def _ray(w1: float, w2: float, alpha: float) -> tuple[float, float]:
    """Up to which |w3| a w with w1 w2 < 0 counts as on the ray, and how far the derivative of z is from 0 or 1 there;
    see the module's docstring."""
    ray, zero = max(w1, w2), max(-w1, -w2)
    own = alpha if w1 < 0.0 else 1.0 - alpha  # exponent of the vanishing coordinate
    power = max(own, 1.0 - own) / min(own, 1.0 - own)
    reach, left = (zero / own, ray) if own > 0.5 else (ray, zero / own)
    limit = max(reach * ROUNDING ** (1.0 / power), _TINY)
    return limit, power * ROUNDING * left / limit


@inner_kernel
def classify(w1: float, w2: float, w3: float, alpha: float) -> int:
    """The case of a finite w."""
    if _inside(w1, w2, w3, alpha):
        return INTERIOR
    if _inside(-w1 / alpha, -w2 / (1.0 - alpha), -w3, alpha):
        return VERTEX
    if w1 * w2 < 0.0 and abs(alpha - 0.5) > _HALF and abs(w3) <= _ray(w1, w2, alpha)[0]:
        return Y_RAY if w1 < 0.0 else X_RAY
    return BOUNDARY


@inner_kernel
def _factor(w: float, exponent: float, log_theta: float) -> tuple[float, float, float, float]:
    """x, x - w, log x and p = (x-w)/(2x-w) for x (x - w) = exponent * theta, x > 0, without cancellation."""
    product = exponent * np.exp(log_theta)
    root = max(np.sqrt(w * w + 4.0 * product), 1e-160)  # = 2x - w
    big = 0.5 * (abs(w) + root)
    small = product / big
    if w >= 0.0:
        return big, small, np.log(big), small / root
    return small, big, np.log(exponent) + log_theta - np.log(big), big / root


@inner_kernel
def _root(w1: float, w2: float, log_z: float, alpha: float) -> float:
    """xi of the surface, where f and f' of the module's docstring are; log_z = log|w3|."""
    beta = 1.0 - alpha
    xi, last, lo, hi = 0.0, FIRST_STEP, -np.inf, np.inf
    for _ in range(MAX_STEPS):
        up, down = _softplus(xi), _softplus(-xi)
        log_theta = 2.0 * log_z - up - down
        _, _, log_x, p1 = _factor(w1, alpha, log_theta)
        _, _, log_y, p2 = _factor(w2, beta, log_theta)
        f = log_z - down - alpha * log_x - beta * log_y
        slope = np.exp(-up) + np.tanh(0.5 * xi) * (alpha * p1 + beta * p2)
        new, lo, hi = root_step(xi, f, slope, last, lo, hi, -_FAR, _FAR)
        if new == xi:
            break
        last, xi = new - xi, new
    return xi


@inner_kernel
def split(w1: float, w2: float, w3: float, alpha: float, s: Array, v: Array) -> tuple[int, float, float]:
    """Moreau: w = s - v with s in K, v in K*, for w of unit scale; returns the case, and outside of K and -K* also xi
    and log(y/x)."""
    case = classify(w1, w2, w3, alpha)
    fill(s, 0.0)
    fill(v, 0.0)
    if case == INTERIOR:
        s[0], s[1], s[2] = w1, w2, w3
        return case, 0.0, 0.0
    if case == VERTEX:
        v[0], v[1], v[2] = -w1, -w2, -w3
        return case, 0.0, 0.0
    if case != BOUNDARY:
        s[0], s[1], v[0], v[1] = max(w1, 0.0), max(w2, 0.0), max(-w1, 0.0), max(-w2, 0.0)
        if (alpha if case == Y_RAY else 1.0 - alpha) > 0.5:
            v[2] = -w3
        else:
            s[2] = w3
        return case, 0.0, 0.0
    z = max(abs(w3), _TINY)  # w3 = 0: a limit, reached long before
    log_z = np.log(z)
    xi = _root(w1, w2, log_z, alpha)
    up, down = _softplus(xi), _softplus(-xi)
    log_theta = 2.0 * log_z - up - down
    s[0], v[0], log_x, _ = _factor(w1, alpha, log_theta)
    s[1], v[1], log_y, _ = _factor(w2, 1.0 - alpha, log_theta)
    s[2], v[2] = np.sign(w3) * z * np.exp(-down), -np.sign(w3) * z * np.exp(-up)
    return case, xi, log_y - log_x


@inner_kernel
def project(w: Array, alpha: float, s: Array) -> None:
    """s = Pi_K(w), (3,)."""
    if not is_finite(w):
        fill(s, np.nan)
        return
    scale = unit_scale(w)
    split(w[0] / scale, w[1] / scale, w[2] / scale, alpha, s, np.empty(3))
    for i in range(3):
        s[i] *= scale


@inner_kernel
def face(
    w: Array, tau: float, alpha: float, s: Array, v: Array, on: Array, delta: Array, R: Array
) -> tuple[int, float]:
    """The face at w (3,) = s - tau*y, see the package; returns (case, margin).

    On the surface row 0 is the normal, row 1 the tangent s x y.
    """
    clear(on, delta, R)
    if not is_finite(w):
        fill(s, np.nan)
        fill(v, np.nan)
        return INTERIOR, 0.0
    scale = unit_scale(w)
    w1, w2, w3 = w[0] / scale, w[1] / scale, w[2] / scale
    case, xi, ratio = split(w1, w2, w3, alpha, s, v)
    if case == BOUNDARY:
        _surface_rows(s, xi, ratio, tau, alpha, on, delta, R)
    elif case != INTERIOR:
        # on a ray the vanishing coordinate is held, and z where that coordinate's exponent exceeds 1/2
        if case != X_RAY:
            hold(0, on, R)
        if case != Y_RAY:
            hold(1, on, R)
        if case == VERTEX or (alpha if case == Y_RAY else 1.0 - alpha) > 0.5:
            hold(2, on, R)
    margin = scale * _margin(case, w1, w2, w3, alpha, s, v, delta[1] / tau)
    for i in range(3):
        s[i] *= scale
        v[i] *= scale
    return case, margin


@inner_kernel
def _surface_rows(
    s: Array, xi: float, ratio: float, tau: float, alpha: float, on: Array, delta: Array, R: Array
) -> None:
    """The unit normal and the unit tangent s x y, with its weight; ratio = log(y/x)."""
    beta = 1.0 - alpha
    log1, log2 = np.log(alpha) + beta * ratio, np.log(beta) - alpha * ratio
    top = max(log1, log2, 0.0)
    n1, n2, n3 = np.exp(log1 - top), np.exp(log2 - top), np.exp(-top)
    size = np.sqrt(n1 * n1 + n2 * n2 + n3 * n3)
    n1, n2, n3 = n1 / size, n2 / size, -np.copysign(n3 / size, s[2])
    # every term of the weight is homogeneous in s: divide by |s| first
    size = max(np.sqrt(s[0] * s[0] + s[1] * s[1] + s[2] * s[2]), 1e-300)
    x, y, z = s[0] / size, s[1] / size, s[2] / size
    R[0], R[1], R[2] = n1, n2, n3
    R[3], R[4], R[5] = y * n3 - z * n2, z * n1 - x * n3, x * n2 - y * n1
    bend = x ** (2.0 * beta) * y ** (2.0 * alpha) + (alpha * y) ** 2 + (beta * x) ** 2
    delta[1] = weight(np.exp(min(xi, 300.0)) * bend, alpha * beta, tau)
    on[0] = on[1] = 1


@inner_kernel
def _margin(case: int, w1: float, w2: float, w3: float, alpha: float, s: Array, v: Array, bend: float) -> float:
    """Distance to the nearest kink, from below in the interior and at the vertex; bend = 1/(tau h) of the surface.

    Between the surface and a ray there is none, but the derivative may change fast: by its distance to 0 or 1, where it
    ends, over that of w3 to 0.
    """
    if case == INTERIOR:
        return _radius(w1, w2, w3, 1.0, 1.0, alpha)
    if case == VERTEX:
        return _radius(-w1, -w2, -w3, 1.0 / alpha, 1.0 / (1.0 - alpha), alpha)
    if case != BOUNDARY:
        limit, change = _ray(w1, w2, alpha)
        return min(abs(w1), abs(w2), 0.5 * limit / max(change, 1e-300))
    # |s| and |v| are the distances to -K* and K; rays are reached through |w3| or a change of sign
    size_s = np.sqrt(s[0] * s[0] + s[1] * s[1] + s[2] * s[2])
    size_v = np.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])
    if abs(alpha - 0.5) <= _HALF:
        return min(size_s, size_v)
    turn = min(max(w1, -w2, 0.0), max(w2, -w1, 0.0))
    change = max(min(bend, 1.0) / (1.0 + bend), 1e-300)
    return min(size_s, size_v, max(0.5 * abs(w3) / change, turn))


@inner_kernel
def secant(s: Array, y: Array, alpha: float) -> float:
    """Factor of the tangent's weight for a step that may end on the ray next to a surface point; else 1.

    There z (or its dual) is a power k > 1 of |w3|. If other constraints say that it is zero, Newton's method looks for
    a root of order k, and each step leaves the fraction 1 - 1/k of w3. On the chord between the point and the ray,
    whose slope is 1/k of the tangent's, one step arrives.
    """
    own = 0.5
    if s[0] <= NEAR_RAY * s[1] and y[1] <= NEAR_RAY * y[0]:
        own = alpha
    elif s[1] <= NEAR_RAY * s[0] and y[0] <= NEAR_RAY * y[1]:
        own = 1.0 - alpha
    return (1.0 - own) / own


@inner_kernel
def _radius(d1: float, d2: float, d3: float, stretch1: float, stretch2: float, alpha: float) -> float:
    """Dikin radius at d of {d : (stretch1 d1, stretch2 d2, d3) in K}; barrier -log psi - beta log x - alpha log y,
    psi = x^(2 alpha) y^(2 beta) - z^2 (Chares)."""
    x, y, z, beta = d1 * stretch1, d2 * stretch2, d3, 1.0 - alpha
    if not (x > _TINY and y > _TINY):
        return 0.0
    mean = x**alpha * y**beta
    psi = (mean - abs(z)) * (mean + abs(z))
    if not psi > _TINY:
        return 0.0
    c = mean * mean / psi
    g1, g2, g3 = 2.0 * alpha * c / x, 2.0 * beta * c / y, -2.0 * z / psi
    h11 = g1 * g1 + (2.0 * alpha * (1.0 - 2.0 * alpha) * c + beta) / (x * x)
    h22 = g2 * g2 + (2.0 * beta * (1.0 - 2.0 * beta) * c + alpha) / (y * y)
    h12 = g1 * g2 - 4.0 * alpha * beta * c / (x * y)
    h13, h23, h33 = g1 * g3, g2 * g3, g3 * g3 + 2.0 / psi
    return dikin_radius(
        h11 * stretch1 * stretch1,
        h12 * stretch1 * stretch2,
        h13 * stretch1,
        h22 * stretch2 * stretch2,
        h23 * stretch2,
        h33,
    )


@kernel
def project_blocks(w: Array, alpha: float, s: Array) -> None:
    """`project` for each row of w (N, 3)."""
    for n in range(len(w)):
        project(w[n], alpha, s[n])
