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

Rays. Where w1 < 0 < w2 and w3 = 0, s = (0, w2, 0), y = (v, 0, 0): normal e1. Beside the ray the surface is
x = |z|^(1/alpha) y^(-beta/alpha), so its curvature in z behaves as |z|^(1/alpha - 2): z is free for
alpha < 1/2, fixed for alpha > 1/2, and for alpha = 1/2 the surface formulas have the limit h = 2v/y. That
limit is reached slowly in |w3|, so |w3| <= 1e-7 |w| counts as on the ray (no threshold for alpha = 1/2,
where the ray is a surface point like any other). (x, 0, 0) is the same with alpha and beta exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import BOUNDARY, INTERIOR, VERTEX, Array, Cone, Faces
from ffo.cones.numerics import dikin_radius, increasing_root, unit_scaled
from ffo.cones.rows import Piece, dense_rows, gather, unit_rows, weight
from ffo.errors import InputError

#: the rays (0, y, 0) and (x, 0, 0)
Y_RAY, X_RAY = BOUNDARY + 1, BOUNDARY + 2

RAY_THRESHOLD = 1e-7
_HALF = 1e-12  # alpha this close to 1/2 is 1/2
_TINY = 1e-60


@dataclass(frozen=True)
class _Surface:
    """w = s - v on the surface; xi = log(r/(|w3| - r)), q = log(y/x)."""

    s: Array
    v: Array
    xi: Array
    q: Array


@dataclass(frozen=True)
class Power(Cone):
    """{(x, y, z) : x^alpha y^(1-alpha) >= |z|, x, y >= 0}, 0 < alpha < 1."""

    name: ClassVar[str] = "power"
    alpha: float

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise InputError(f"the exponent alpha of a power cone lies strictly between 0 and 1, not {self.alpha}")

    @property
    def dim(self) -> int:
        return 3

    @property
    def exponents(self) -> tuple[float, float]:
        return self.alpha, 1.0 - self.alpha

    def project(self, w: Array) -> Array:
        unit, scale = unit_scaled(w)
        case = self._classify(unit)
        s = np.where((case == INTERIOR)[:, None], unit, 0.0)
        s[case >= BOUNDARY] = self._surface(unit[case >= BOUNDARY]).s
        return s * scale[:, None]

    def faces(self, w: Array, tau: Array) -> Faces:
        unit, scale = unit_scaled(w)
        case = self._classify(unit)
        outside = case >= BOUNDARY
        surface = self._surface(unit[outside])
        s = np.where((case == INTERIOR)[:, None], unit, 0.0)
        s[outside] = surface.s
        v = s - unit
        v[outside] = surface.v
        margin = self._margin(unit, s, v, case) * scale
        on_surface = case[outside] == BOUNDARY
        pieces = [
            unit_rows(np.flatnonzero(case == VERTEX), [0, 1, 2]),
            *self._rays(case),
            self._rows(np.flatnonzero(case == BOUNDARY), surface, on_surface, tau),
        ]
        return gather(pieces, s * scale[:, None], v * (scale / tau)[:, None], case, margin)

    # ------------------------------------------------------------------ cases

    def _classify(self, w: Array) -> Array:
        """(N,) cases; a NaN block counts as interior, so that it gets no rows."""
        case = np.full(len(w), BOUNDARY)
        case[(w[:, 0] < 0) & (w[:, 1] > 0) & (self._off_ray(w) <= 0)] = Y_RAY
        case[(w[:, 1] < 0) & (w[:, 0] > 0) & (self._off_ray(w) <= 0)] = X_RAY
        case[self._inside(-w / np.array([*self.exponents, 1.0]))] = VERTEX
        case[self._inside(w) | ~np.isfinite(w).all(axis=1)] = INTERIOR
        return case

    def _inside(self, w: Array) -> Array:
        x, y = np.maximum(w[:, :2], 0.0).T
        return (w[:, :2] >= 0).all(axis=1) & (x**self.alpha * y ** (1.0 - self.alpha) >= np.abs(w[:, 2]))

    def _off_ray(self, w: Array) -> Array:
        """Positive where |w3| is too large for a ray; changes by at most 1 + threshold per unit of w."""
        if abs(self.alpha - 0.5) <= _HALF:
            return np.full(len(w), np.inf)
        return np.abs(w[:, 2]) - RAY_THRESHOLD * np.linalg.norm(w, axis=1)

    def _rays(self, case: Array) -> list[Piece]:
        """Normal e_i, and e_3 where the exponent of the vanishing coordinate exceeds 1/2."""
        return [
            unit_rows(np.flatnonzero(case == ray), [i, 2] if exponent > 0.5 else [i])
            for i, (ray, exponent) in enumerate(zip((Y_RAY, X_RAY), self.exponents, strict=True))
        ]

    # ------------------------------------------------------------------ surface

    def _surface(self, w: Array) -> _Surface:
        """Moreau decomposition of w (K, 3), unit scale, in neither K nor -K*."""
        z = np.maximum(np.abs(w[:, 2]), 1e-60)  # w3 = 0: a limit, reached long before
        data = np.column_stack([w[:, :2], np.log(z)])
        far = np.full(len(w), 2.0**20)
        xi = increasing_root(self._residual, np.zeros(len(w)), -far, far, data)
        x, logs, companions = [], [], []
        for exponent, wi in zip(self.exponents, w[:, :2].T, strict=True):
            primal, dual, log_primal, _ = _factor(wi, exponent, _log_theta(xi, data[:, 2]))
            x.append(primal)
            companions.append(dual)
            logs.append(log_primal)
        sign = np.sign(w[:, 2])
        s = np.stack([*x, sign * z * np.exp(-np.logaddexp(0.0, -xi))], axis=1)
        v = np.stack([*companions, -sign * z * np.exp(-np.logaddexp(0.0, xi))], axis=1)
        return _Surface(s, v, xi, logs[1] - logs[0])

    def _residual(self, xi: Array, data: Array) -> tuple[Array, Array]:
        """f and f' of the module's docstring; data = (w1, w2, log|w3|)."""
        log_theta = _log_theta(xi, data[:, 2])
        f = data[:, 2] - np.logaddexp(0.0, -xi)
        bend = np.zeros_like(xi)
        for exponent, wi in zip(self.exponents, data[:, :2].T, strict=True):
            _, _, log_primal, p = _factor(wi, exponent, log_theta)
            f -= exponent * log_primal
            bend += exponent * p
        return f, np.exp(-np.logaddexp(0.0, xi)) + np.tanh(0.5 * xi) * bend

    def _rows(self, block: Array, surface: _Surface, keep: Array, tau: Array) -> Piece:
        alpha, beta = self.exponents
        s, q, xi = surface.s[keep], surface.q[keep], surface.xi[keep]
        logs = np.stack([np.log(alpha) + beta * q, np.log(beta) - alpha * q, np.zeros_like(q)], axis=1)
        normal = np.exp(logs - logs.max(axis=1, keepdims=True))
        normal[:, 2] *= -np.copysign(1.0, s[:, 2])
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        # every entry of the quotient below is homogeneous in s: divide by |s| first
        along = s / np.maximum(np.linalg.norm(s, axis=1, keepdims=True), 1e-300)
        x, y, _ = along.T
        bend = x ** (2 * beta) * y ** (2 * alpha) + (alpha * y) ** 2 + (beta * x) ** 2
        ratio = weight(np.exp(np.minimum(xi, 300.0)) * bend, np.full_like(xi, alpha * beta), tau[block])
        delta = np.stack([np.zeros_like(ratio), ratio], axis=1)
        return dense_rows(block, np.stack([normal, np.cross(along, normal)], axis=1), delta)

    # ------------------------------------------------------------------ margins

    def _margin(self, w: Array, s: Array, v: Array, case: Array) -> Array:
        """Distance to the nearest change of case, from below in the interior and at the vertex."""
        # |s| and |v| are the distances to -K* and K; rays are left or reached through |w3| or a sign change
        margin = np.minimum(np.linalg.norm(s, axis=1), np.linalg.norm(v, axis=1))
        off = self._off_ray(w) / (1.0 + RAY_THRESHOLD)
        for i in (0, 1):
            turn = np.maximum(np.maximum(w[:, i], -w[:, 1 - i]), 0.0)
            margin = np.minimum(margin, np.where(case == BOUNDARY, np.maximum(off, turn), np.inf))
        on_ray = case > BOUNDARY
        margin[on_ray] = np.minimum(np.abs(w[on_ray, :2]).min(axis=1), -off[on_ray])
        inside, vertex = case == INTERIOR, case == VERTEX
        margin[inside] = self._radius(w[inside], np.ones(3))
        margin[vertex] = self._radius(-w[vertex], 1.0 / np.array([*self.exponents, 1.0]))
        return margin

    def _radius(self, d: Array, stretch: Array) -> Array:
        """Dikin radius at d of {d : stretch*d in K}; barrier -log psi - beta log x - alpha log y,
        psi = x^(2 alpha) y^(2 beta) - z^2 (Chares)."""
        alpha, beta = self.exponents
        p = (d * stretch).T
        mean = np.maximum(p[0], 0.0) ** alpha * np.maximum(p[1], 0.0) ** beta
        psi = (mean - np.abs(p[2])) * (mean + np.abs(p[2]))
        ok = (p[0] > _TINY) & (p[1] > _TINY) & (psi > _TINY)
        x, y, z = p[:, ok]
        psi = psi[ok]
        c = mean[ok] ** 2 / psi
        g = np.stack([2 * alpha * c / x, 2 * beta * c / y, -2 * z / psi], axis=1)
        hessian = g[:, :, None] * g[:, None, :]
        hessian[:, 0, 0] += (2 * alpha * (1 - 2 * alpha) * c + beta) / x**2
        hessian[:, 1, 1] += (2 * beta * (1 - 2 * beta) * c + alpha) / y**2
        hessian[:, 0, 1] -= 4 * alpha * beta * c / (x * y)
        hessian[:, 1, 0] = hessian[:, 0, 1]
        hessian[:, 2, 2] += 2 / psi
        radius = np.zeros(len(d))
        radius[ok] = dikin_radius(stretch[:, None] * hessian * stretch)
        return radius


def _log_theta(xi: Array, log_z: Array) -> Array:
    return 2.0 * log_z - np.logaddexp(0.0, xi) - np.logaddexp(0.0, -xi)


def _factor(w: Array, exponent: float, log_theta: Array) -> tuple[Array, Array, Array, Array]:
    """x, x - w, log x and p = (x-w)/(2x-w) for x (x - w) = exponent * theta, x > 0, without cancellation."""
    product = exponent * np.exp(log_theta)
    root = np.maximum(np.sqrt(w * w + 4.0 * product), 1e-160)  # = 2x - w
    big = 0.5 * (np.abs(w) + root)
    small = product / big
    log_small = np.log(exponent) + log_theta - np.log(big)
    right = w >= 0
    primal, dual = np.where(right, big, small), np.where(right, small, big)
    return primal, dual, np.where(right, np.log(big), log_small), dual / root
