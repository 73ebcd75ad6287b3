"""The exponential cone.

    K  = cl {(x, y, z) : y > 0, y e^(x/y) <= z}       = {...} u {x <= 0, y = 0, z >= 0}
    K* = cl {(u, v, w) : u < 0, -u e^(v/u - 1) <= w}  = {...} u {u = 0, v >= 0, w >= 0}

Where w = s - tau y lies:

    w in K: interior.      -w in K*: vertex.
    w1, w2 <= 0:           s = (w1, 0, max(w3, 0)), on the flat face y = 0 of K (w3 > 0, normal e2)
                           or on its ray (w1, 0, 0) (w3 <= 0, normals e2, e3); no curvature.
    otherwise: surface     s = a (rho, 1, e^rho),  tau y = m (-1, -(1-rho), e^-rho),  a, m > 0.

Projection (Friberg, "Projection onto the exponential cone", 2021). The first two equations of
w = s - tau y give, with q = rho^2 - rho + 1,

    a = ((rho-1) w1 + w2)/q,     m = (w1 - rho w2)/q,

and the third f(rho) = a e^rho - m e^-rho - w3 = 0, with f increasing where a, m > 0. f times e^-|rho|
never overflows. Where a = 0 (rho = 1 - w2/w1, w1 > 0) f < 0 because -w is not in K*; where m = 0
(rho = w1/w2, w2 > 0) f > 0 because w is not in K; these are the ends of the bracket.

For rho > 0 the small quantities are those with a, for rho <= 0 those with m; they are taken from the
third equation, a = e^-rho (w3 + m e^-rho) or m = e^rho (a e^rho - w3), which does not cancel. The pair
is then on the surfaces of K and K* and orthogonal to rounding, however large |rho| is.

Curvature. On the surface turn rho at fixed a, m: ds/a = (1, 0, e^rho), d(tau y)/m = (0, 1, -e^-rho).
Their components along the unit tangent t = s x y/|s x y| have the ratio
tau h = (m/a) (1 + rho^2 + e^(2 rho))/(1 + e^(2 rho) (1 + (1-rho)^2)).
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.cones.roots import FIRST_STEP, MAX_STEPS, dikin_radius, root_step
from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX, clear, hold, is_finite, unit_scale, weight
from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.vectors import fill

Array = np.ndarray

#: the flat face y = 0, and its ray
FACE, RAY = BOUNDARY + 1, BOUNDARY + 2

#: |rho| beyond this is a limit: e^-|rho| vanishes from 745 on, and rho^2 must not overflow.
_FAR = 1e17
#: below this (w has unit scale) a point counts as on the boundary, else the Hessian of the barrier would overflow.
_TINY = 1e-60


@inner_kernel
def _inside(x: float, y: float, z: float) -> bool:
    if y > 0.0 and z > 0.0:
        return x <= y * (np.log(z) - np.log(y))
    return y == 0.0 and x <= 0.0 and z >= 0.0


@inner_kernel
def classify(w1: float, w2: float, w3: float) -> int:
    """The case of a finite w."""
    if _inside(w1, w2, w3):
        return INTERIOR
    if _inside(w2 - w1, w1, -w3):  # d = -w is in K* where (d1 - d2, -d1, d3) is in K
        return VERTEX
    if w1 <= 0.0 and w2 <= 0.0:
        return FACE if w3 > 0.0 else RAY
    return BOUNDARY


@inner_kernel
def _coefficients(rho: float, w1: float, w2: float) -> tuple[float, float]:
    q = rho * (rho - 1.0) + 1.0
    return ((rho - 1.0) * w1 + w2) / q, (w1 - rho * w2) / q


@inner_kernel
def _residual(rho: float, w1: float, w2: float, w3: float) -> tuple[float, float]:
    """f and f', both times e^-|rho|."""
    a, m = _coefficients(rho, w1, w2)
    q, dq = rho * (rho - 1.0) + 1.0, 2.0 * rho - 1.0
    da, dm = (w1 - a * dq) / q, (-w2 - m * dq) / q
    small = np.exp(-abs(rho))
    rise, fall = (1.0, small * small) if rho > 0.0 else (small * small, 1.0)
    return a * rise - m * fall - w3 * small, (da + a) * rise + (m - dm) * fall


@inner_kernel
def _root(w1: float, w2: float, w3: float) -> float:
    """rho of the surface; w has unit scale."""
    lower, upper = -_FAR, _FAR
    if w1 > 0.0 and abs(w2) < _FAR * w1:
        lower = 1.0 - w2 / w1
    elif w1 > 0.0 and w2 < 0.0:
        lower = _FAR
    if w2 > 0.0 and abs(w1) < _FAR * w2:
        upper = w1 / w2
    elif w2 > 0.0 and w1 < 0.0:
        upper = -_FAR
    rho, last, lo, hi = min(max(0.0, lower), upper), FIRST_STEP, -np.inf, np.inf
    for _ in range(MAX_STEPS):
        f, slope = _residual(rho, w1, w2, w3)
        new, lo, hi = root_step(rho, f, slope, last, lo, hi, lower, upper)
        if new == rho:
            break
        last, rho = new - rho, new
    return rho


@inner_kernel
def split(w1: float, w2: float, w3: float, s: Array, v: Array) -> tuple[int, float, float, float]:
    """Moreau: w = s - v with s in K, v in K*, for w of unit scale; returns the case and rho, a, m of the surface."""
    case = classify(w1, w2, w3)
    fill(s, 0.0)
    fill(v, 0.0)
    if case == INTERIOR:
        s[0], s[1], s[2] = w1, w2, w3
    elif case == VERTEX:
        v[0], v[1], v[2] = -w1, -w2, -w3
    elif case != BOUNDARY:
        s[0], s[2] = w1, max(w3, 0.0)
        v[1], v[2] = -w2, max(-w3, 0.0)
    if case != BOUNDARY:
        return case, 0.0, 0.0, 0.0
    rho = _root(w1, w2, w3)
    a, m = _coefficients(rho, w1, w2)
    a, m, small = max(a, 0.0), max(m, 0.0), np.exp(-abs(rho))
    if rho > 0.0:
        v3 = m * small
        s3 = max(w3 + v3, 0.0)
        a = s3 * small
    else:
        s3 = a * small
        v3 = max(s3 - w3, 0.0)
        m = v3 * small
    s[0], s[1], s[2] = a * rho, a, s3
    v[0], v[1], v[2] = -m, (rho - 1.0) * m, v3
    return case, rho, a, m


@inner_kernel
def project(w: Array, s: Array) -> None:
    """s = Pi_K(w), (3,)."""
    if not is_finite(w):
        fill(s, np.nan)
        return
    scale = unit_scale(w)
    split(w[0] / scale, w[1] / scale, w[2] / scale, s, np.empty(3))
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
    case, rho, a, m = split(w1, w2, w3, s, v)
    margin = scale * _margin(case, w1, w2, w3, s, v)
    if case == BOUNDARY:
        _surface_rows(rho, a, m, tau, on, delta, R)
    elif case != INTERIOR:
        hold(1, on, R)
        if case != FACE:
            hold(2, on, R)
        if case == VERTEX:
            hold(0, on, R)
    for i in range(3):
        s[i] *= scale
        v[i] *= scale
    return case, margin


@inner_kernel
def _surface_rows(rho: float, a: float, m: float, tau: float, on: Array, delta: Array, R: Array) -> None:
    """The unit normal and the unit tangent s x y, with its weight; nothing overflows."""
    down, up = np.exp(-max(rho, 0.0)), np.exp(min(rho, 0.0))
    size_s = np.sqrt((rho * down) ** 2 + down * down + up * up)
    size_y = np.sqrt(up * up + ((rho - 1.0) * up) ** 2 + down * down)
    s1, s2, s3 = rho * down / size_s, down / size_s, up / size_s
    y1, y2, y3 = -up / size_y, (rho - 1.0) * up / size_y, down / size_y
    R[0], R[1], R[2] = y1, y2, y3
    R[3], R[4], R[5] = s2 * y3 - s3 * y2, s3 * y1 - s1 * y3, s1 * y2 - s2 * y1
    delta[1] = weight((size_y / size_s) ** 2 * a, m, tau)
    on[0] = on[1] = 1


@inner_kernel
def _margin(case: int, w1: float, w2: float, w3: float, s: Array, v: Array) -> float:
    """Distance to the nearest change of case: exact except in the interior and at the vertex."""
    if case == INTERIOR:
        return _radius(w1, w2, w3, False)
    if case == VERTEX:
        return _radius(w2 - w1, w1, -w3, True)
    if case != BOUNDARY:
        return min(abs(w1), abs(w2), abs(w3))
    # |s| and |v| are the distances to -K* and K; the third is that to {w1, w2 <= 0}
    to_face = np.hypot(max(w1, 0.0), max(w2, 0.0))
    size_s = np.sqrt(s[0] * s[0] + s[1] * s[1] + s[2] * s[2])
    size_v = np.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])
    return min(size_s, size_v, to_face)


@inner_kernel
def _radius(x: float, y: float, z: float, dual: bool) -> float:
    """Dikin radius at p = (x, y, z) of K, barrier -log g - log y - log z, g = y log(z/y) - x.

    grad^2 g = -g bend bend'. `dual`: that of K* at d, where p = L d, L = [1 -1 0; -1 0 0; 0 0 1]: the Hessian of the
    barrier d -> F(L d) is L'F''L.
    """
    if not (y > _TINY and z > _TINY):
        return 0.0
    log_ratio = np.log(z) - np.log(y)
    g = y * log_ratio - x
    if not g > _TINY:
        return 0.0
    g1, g2, g3 = -1.0 / g, (log_ratio - 1.0) / g, y / z / g
    bend = 1.0 / np.sqrt(y * g)
    b2, b3 = bend, -y / z * bend
    h11, h12, h13 = g1 * g1, g1 * g2, g1 * g3
    h22, h23, h33 = g2 * g2 + b2 * b2 + 1.0 / (y * y), g2 * g3 + b2 * b3, g3 * g3 + b3 * b3 + 1.0 / (z * z)
    if dual:
        return dikin_radius(h11 - 2.0 * h12 + h22, h12 - h11, h13 - h23, h11, -h13, h33)
    return dikin_radius(h11, h12, h13, h22, h23, h33)


@kernel
def project_blocks(w: Array, s: Array) -> None:
    """`project` for each row of w (N, 3)."""
    for n in range(len(w)):
        project(w[n], s[n])
