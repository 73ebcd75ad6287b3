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

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import BOUNDARY, INTERIOR, VERTEX, Array, Cone, Faces
from ffo.cones.numerics import dikin_radius, increasing_root, unit_scaled
from ffo.cones.rows import dense_rows, gather, unit_rows, weight

FACE, RAY = BOUNDARY + 1, BOUNDARY + 2

#: |rho| beyond this is a limit: e^-|rho| vanishes from 745 on, and rho^2 must not overflow.
_FAR = 1e17
_TINY = 1e-60

#: d in K* <=> L d in K.
_DUAL = np.array([[1.0, -1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class _Surface:
    """The points of the surface: s = a(rho,1,e^rho), v = m(-1,-(1-rho),e^-rho) with w = s - v."""

    block: Array
    rho: Array
    a: Array
    m: Array


@dataclass(frozen=True)
class Exponential(Cone):
    """cl {(x, y, z) : y > 0, y exp(x/y) <= z}."""

    name: ClassVar[str] = "exponential"

    @property
    def dim(self) -> int:
        return 3

    def project(self, w: Array) -> Array:
        unit, scale = unit_scaled(w)
        return _split(unit, _classify(unit))[0] * scale[:, None]

    def faces(self, w: Array, tau: Array) -> Faces:
        unit, scale = unit_scaled(w)
        case = _classify(unit)
        s, v, surface = _split(unit, case)
        margin = _margin(unit, s, v, case)
        b = surface.block
        along, normal, ratio = _frame(surface)
        T = np.stack([normal, np.cross(along, normal)], axis=1)
        delta = np.stack([np.zeros(len(b)), weight(ratio * surface.a, surface.m, tau[b])], axis=1)
        pieces = [
            unit_rows(np.flatnonzero(case == VERTEX), [0, 1, 2]),
            unit_rows(np.flatnonzero(case == FACE), [1]),
            unit_rows(np.flatnonzero(case == RAY), [1, 2]),
            dense_rows(b, T, delta),
        ]
        return gather(pieces, s * scale[:, None], v * (scale / tau)[:, None], case, margin * scale)


def _classify(w: Array) -> Array:
    """(N,) cases; a NaN block counts as interior, so that it gets no rows."""
    flat = (w[:, 0] <= 0) & (w[:, 1] <= 0)
    case = np.where(flat, np.where(w[:, 2] > 0, FACE, RAY), BOUNDARY)
    case[_inside(-w @ _DUAL.T)] = VERTEX
    case[_inside(w) | ~np.isfinite(w).all(axis=1)] = INTERIOR
    return case


def _inside(w: Array) -> Array:
    x, y, z = w.T
    open_part = (y > 0) & (z > 0)
    log_ratio = np.log(np.where(open_part, z, 1.0)) - np.log(np.where(open_part, y, 1.0))
    return (open_part & (x <= y * log_ratio)) | ((y == 0) & (x <= 0) & (z >= 0))


def _split(w: Array, case: Array) -> tuple[Array, Array, _Surface]:
    """Moreau: w = s - v with s in K, v in K*, for w of unit scale."""
    s = np.where((case == INTERIOR)[:, None], w, 0.0)
    flat = case >= FACE
    s[flat, 0], s[flat, 2] = w[flat, 0], np.maximum(w[flat, 2], 0.0)
    v = s - w
    b = np.flatnonzero(case == BOUNDARY)
    wb = w[b]
    rho = _root(wb)
    a, m = (np.maximum(c, 0.0) for c in _coefficients(rho, wb))
    small = np.exp(-np.abs(rho))
    right = rho > 0
    s3 = np.where(right, np.maximum(wb[:, 2] + m * small, 0.0), a * small)
    v3 = np.where(right, m * small, np.maximum(a * small - wb[:, 2], 0.0))
    a, m = np.where(right, s3 * small, a), np.where(right, m, v3 * small)
    s[b] = np.stack([a * rho, a, s3], axis=1)
    v[b] = np.stack([-m, (rho - 1.0) * m, v3], axis=1)
    return s, v, _Surface(b, rho, a, m)


def _coefficients(rho: Array, w: Array) -> tuple[Array, Array]:
    q = rho * (rho - 1.0) + 1.0
    return ((rho - 1.0) * w[:, 0] + w[:, 1]) / q, (w[:, 0] - rho * w[:, 1]) / q


def _residual(rho: Array, w: Array) -> tuple[Array, Array]:
    """f and f', both times e^-|rho|."""
    a, m = _coefficients(rho, w)
    q, dq = rho * (rho - 1.0) + 1.0, 2.0 * rho - 1.0
    da, dm = (w[:, 0] - a * dq) / q, (-w[:, 1] - m * dq) / q
    rise, fall = np.exp(2.0 * np.minimum(rho, 0.0)), np.exp(-2.0 * np.maximum(rho, 0.0))
    f = a * rise - m * fall - w[:, 2] * np.exp(-np.abs(rho))
    return f, (da + a) * rise + (m - dm) * fall


def _root(w: Array) -> Array:
    w1, w2 = w[:, 0], w[:, 1]
    with np.errstate(over="ignore"):  # an infinite ratio is cut off at _FAR like any large one
        lower = np.where(w1 > 0, 1.0 - w2 / np.where(w1 > 0, w1, 1.0), -_FAR)
        upper = np.where(w2 > 0, w1 / np.where(w2 > 0, w2, 1.0), _FAR)
    lower, upper = np.clip(lower, -_FAR, _FAR), np.clip(upper, -_FAR, _FAR)
    return increasing_root(_residual, np.clip(0.0, lower, upper), lower, upper, w)


def _frame(p: _Surface) -> tuple[Array, Array, Array]:
    """Unit vectors along s and along y, and the factor of a/m in 1/(tau h); nothing overflows."""
    down, up = np.exp(-np.maximum(p.rho, 0.0)), np.exp(np.minimum(p.rho, 0.0))
    along = np.stack([p.rho * down, down, up], axis=1)
    normal = np.stack([-up, (p.rho - 1.0) * up, down], axis=1)
    size_s, size_y = np.linalg.norm(along, axis=1), np.linalg.norm(normal, axis=1)
    return along / size_s[:, None], normal / size_y[:, None], (size_y / size_s) ** 2


def _margin(w: Array, s: Array, v: Array, case: Array) -> Array:
    """Distance to the nearest change of case: exact except in the interior and at the vertex."""
    # |s| and |v| are the distances to -K* and K; the third is that to {w1, w2 <= 0}
    flat = np.hypot(np.maximum(w[:, 0], 0.0), np.maximum(w[:, 1], 0.0))
    margin = np.minimum(np.minimum(np.linalg.norm(s, axis=1), np.linalg.norm(v, axis=1)), flat)
    on_flat = case >= FACE
    margin[on_flat] = np.abs(w[on_flat]).min(axis=1)
    inside, vertex = case == INTERIOR, case == VERTEX
    margin[inside] = _radius(w[inside], np.eye(3))
    margin[vertex] = _radius(-w[vertex], _DUAL)
    return margin


def _radius(d: Array, L: Array) -> Array:
    """Dikin radius at d of {d : L d in K}, barrier -log g - log y - log z, g = y log(z/y) - x."""
    x, y, z = p = (d @ L.T).T
    positive = (y > _TINY) & (z > _TINY)
    log_ratio = np.log(np.where(positive, z, 1.0)) - np.log(np.where(positive, y, 1.0))
    g = y * log_ratio - x
    ok = positive & (g > _TINY)
    radius = np.zeros(len(d))
    (x, y, z), g, log_ratio = p[:, ok], g[ok], log_ratio[ok]
    zero, one = np.zeros_like(g), np.ones_like(g)
    gradient = np.stack([-one, log_ratio - 1.0, y / z], axis=1) / g[:, None]
    bend = np.stack([zero, one, -y / z], axis=1) / np.sqrt(y * g)[:, None]  # grad^2 g = -g bend bend'
    hessian = gradient[:, :, None] * gradient[:, None, :] + bend[:, :, None] * bend[:, None, :]
    hessian[:, 1, 1] += 1.0 / y**2
    hessian[:, 2, 2] += 1.0 / z**2
    radius[ok] = dikin_radius(L.T @ hessian @ L)
    return radius
