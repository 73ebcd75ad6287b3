"""Exponential blocks of the interior-point method: their scaling, from the barriers of the cone and its dual.

The cone is not symmetric: no Nesterov-Todd point exists. With the barrier of the dual cone

    f(y) = -log r - log(-y1) - log y3,     r = y2 - y1 - y1 l,     l = log(-y3 / y1),

and that of the cone, its conjugate, let s' = -f'(y) and y' = -(conjugate)'(s). On the central path s' = s / mu and
y' = y / mu, and the scaling is mu f''. Near it the scaling is a matrix H of least change from there with

    H y = s,     H y' = s':     H = ss' / 3 mu + dd' / d'e + mu aa' / a'f''^-1 a,

with d = s - mu s', e = y - mu y' and a = y x y' (Tuncel 2001; Dahl and Andersen 2022, whose second-order term of the
direction is used too: half the third derivative of f along dy and f''^-1 ds). For the KKT system H is made diagonal:
rows T with weights THT'.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ffo.kernels.group import Samples
from ffo.kernels.jit import inner_kernel
from ffo.kernels.lanes import any_below, choose, largest, load, log, spread, sqrt, store

Array = np.ndarray
#: the three entries of a vector, each with one number per sample
Three: TypeAlias = tuple[Any, Any, Any]

#: the point of the cone at which s = s', in the middle of cone and dual cone
MIDDLE = (-1.051383945322714, 0.556409619469370, 1.258967884768947)
#: lower bound on the distance of that point to the boundaries of cone and dual cone
RADIUS = 0.55
#: mu s'y' / 3 - 1, which is zero on the central path: below, the scaling is that of the path
CENTRAL = 1e-8
#: keeps weights from vanishing by rounding
TINY = 1e-300
#: on the way to the boundary: fraction that is left of an entry that must stay positive; most steps of Newton's method,
#: and the relative length of a step after which the next would make no difference
SMALL, TRIES, CLOSE = 1e-3, 12, 1e-3
#: steps of Newton's method for the point y'
STEPS = 3


@inner_kernel
def _at(v: Array, i: int) -> Three:
    return load(v, i), load(v, i + 1), load(v, i + 2)


@inner_kernel
def spectrum(v: Array, i: int) -> tuple[Any, Any]:
    """The counterpart of bounds on spectral values: beyond them e dominates v."""
    at = _at(v, i)
    size = sqrt(_dot(at, at)) / RADIUS
    return 0.0 - size, size


@inner_kernel
def _dot(a: Three, b: Three) -> Any:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@inner_kernel
def _plus(a: Three, factor: Any, b: Three) -> Three:
    """a + factor b."""
    return a[0] + factor * b[0], a[1] + factor * b[1], a[2] + factor * b[2]


@inner_kernel
def _dual_barrier(y: Three) -> tuple[Any, Three, Three, Three]:
    """r and its gradient g; s' = -f'(y); and the entries 11, 13, 33 of M, where f''(y) = gg' / r^2 + M."""
    u, v = 1.0 / y[0], 1.0 / y[2]
    logarithm = log(0.0 - y[2] * u)
    r = y[1] - y[0] - y[0] * logarithm
    inverse = 1.0 / r
    g = (0.0 - logarithm, spread(1.0), 0.0 - y[0] * v)
    near = (u - logarithm * inverse, inverse, (1.0 - y[0] * inverse) * v)
    return r, g, near, ((u - inverse) * u, inverse * v, near[2] * v)


@inner_kernel
def _newton_step(y: Three, r: Any, g: Three, M: Three, v: Three) -> Three:
    """f''(y)^-1 v. The determinant of M, of order 2, has no cancellation: (1 - 2 y1 / r) / (y1 y3)^2."""
    a, b = v[0] - g[0] * v[1], v[2] - g[2] * v[1]
    size = y[0] * y[2]
    inverse = size * size / (1.0 - 2.0 * y[0] / r)
    first, last = (M[2] * a - M[1] * b) * inverse, (M[0] * b - M[1] * a) * inverse
    return first, r * r * v[1] - g[0] * first - g[2] * last, last


@inner_kernel
def _shadow(s: Three) -> Three:
    """y' = -(conjugate of f)'(s), the point with f'(y') = -s.

    From the three equations: with p = -s2 y1' and o = 1 + 1 / p, o + log o = c = 1 + log(s3 / s2) - s1 / s2. Three
    steps of Newton's method leave 1e-12 of o - 1.
    """
    inverse = 1.0 / s[1]
    c = 1.0 + log(s[2] * inverse) - s[0] * inverse
    o = choose(3.0, c, c - log(largest(c, spread(1.0))), 1.0 + 0.5 * (c - 1.0))
    for _ in range(STEPS):
        o -= (o + log(o) - c) * o / (o + 1.0)
    p = 1.0 / (o - 1.0)
    first = 0.0 - p * inverse
    return first, inverse + first * (2.0 - s[0] * inverse - o), (1.0 + p) / s[2]


@inner_kernel
def _second_order(y: Three, r: Any, g: Three, a: Three, b: Three) -> Three:
    """The third derivative of f at y along a and b; g: the gradient of r."""
    ga, gb = _dot(g, a), _dot(g, b)
    u, v, inverse = 1.0 / y[0], 1.0 / y[2], 1.0 / r
    a0, a2 = a[0] * u - a[2] * v, (y[0] * a[2] * v - a[0]) * v  # r''a
    b0, b2 = b[0] * u - b[2] * v, (y[0] * b[2] * v - b[0]) * v
    t0 = a[2] * b[2] * v * v - a[0] * b[0] * u * u  # the third derivative of r
    t2 = (a[0] * b[2] + a[2] * b[0] - 2.0 * y[0] * a[2] * b[2] * v) * v * v
    both = (a[0] * b0 + a[2] * b2 - 2.0 * ga * gb * inverse) * inverse * inverse
    return (
        both * g[0] + ((a0 * gb + b0 * ga) * inverse - t0) * inverse - 2.0 * a[0] * b[0] * u * u * u,
        both,
        both * g[2] + ((a2 * gb + b2 * ga) * inverse - t2) * inverse - 2.0 * a[2] * b[2] * v * v * v,
    )


@inner_kernel
def _scaling(s: Three, y: Three) -> tuple[Three, Three, Three]:
    """Columns V of the scaling H = VV'; on the central path that of mu f''."""
    mu = _dot(s, y) / 3.0
    r, g, near, M = _dual_barrier(y)
    far = _shadow(s)
    off = mu * _dot(near, far) / 3.0 - 1.0
    a = (y[1] * far[2] - y[2] * far[1], y[2] * far[0] - y[0] * far[2], y[0] * far[1] - y[1] * far[0])
    size = _dot(a, _newton_step(y, r, g, M, a))
    safe = choose(CENTRAL, off, choose(0.0, size, off, 0.0), 0.0)
    root, corner, zero = sqrt(mu), sqrt(M[0]), spread(0.0)
    determinant = sqrt(1.0 - 2.0 * y[0] / r) / (0.0 - y[0] * y[2])  # its root
    return (
        _either(safe, _scaled(s, 1.0 / sqrt(3.0 * mu)), _scaled(g, root / r)),
        _either(
            safe,
            _scaled(_plus(s, 0.0 - mu, near), 1.0 / sqrt(3.0 * mu * safe)),
            (root * corner, zero, root * M[1] / corner),
        ),
        _either(safe, _scaled(a, sqrt(mu / size)), (zero, zero, root * determinant / corner)),
    )


@inner_kernel
def _scaled(a: Three, factor: Any) -> Three:
    return factor * a[0], factor * a[1], factor * a[2]


@inner_kernel
def _either(safe: Any, a: Three, b: Three) -> Three:
    return choose(0.0, safe, a[0], b[0]), choose(0.0, safe, a[1], b[1]), choose(0.0, safe, a[2], b[2])


@inner_kernel
def _sorted(a: Any, b: Any, p: Any, q: Any) -> tuple[Any, Any]:
    """p, q, or q, p where a < b."""
    return choose(a, b, q, p), choose(a, b, p, q)


@inner_kernel
def _rows_sorted(a: Any, b: Any, p: Three, q: Three) -> tuple[Three, Three]:
    (x, u), (y, v), (z, w) = _sorted(a, b, p[0], q[0]), _sorted(a, b, p[1], q[1]), _sorted(a, b, p[2], q[2])
    return (x, y, z), (u, v, w)


@inner_kernel
def scale(G: Samples, i: int, offset: int) -> None:
    """Rows of the block (G.R) and their weights (G.u): T H T' = delta.

    The rows of V are orthogonalized, the longest first, so that no entry of T^-1 exceeds 1. H itself would have lost
    its smallest weight to rounding.
    """
    u, v, w = _scaling(_at(G.s, i), _at(G.y, i))
    a, b, c = (u[0], v[0], w[0]), (u[1], v[1], w[1]), (u[2], v[2], w[2])
    zero, one = spread(0.0), spread(1.0)
    first, second, third = (one, zero, zero), (zero, one, zero), (zero, zero, one)
    x, y = _dot(a, a), _dot(b, b)
    (a, b), (first, second) = _rows_sorted(x, y, a, b), _rows_sorted(x, y, first, second)
    x, y = _dot(a, a), _dot(c, c)
    (a, c), (first, third) = _rows_sorted(x, y, a, c), _rows_sorted(x, y, first, third)
    x = 1.0 / _dot(a, a)
    p, q = 0.0 - _dot(a, b) * x, 0.0 - _dot(a, c) * x
    b, c, second, third = _plus(b, p, a), _plus(c, q, a), _plus(second, p, first), _plus(third, q, first)
    x, y = _dot(b, b), _dot(c, c)
    (b, c), (second, third) = _rows_sorted(x, y, b, c), _rows_sorted(x, y, second, third)
    q = 0.0 - _dot(b, c) / largest(_dot(b, b), spread(TINY))
    c, third = _plus(c, q, b), _plus(third, q, second)
    weights = (_dot(a, a), _dot(b, b), _dot(c, c))
    for t in range(3):
        store(G.u, i + t, largest(weights[t], spread(TINY)))
        store(G.R, offset + t, first[t])
        store(G.R, offset + 3 + t, second[t])
        store(G.R, offset + 6 + t, third[t])


@inner_kernel
def aim(G: Samples, i: int, target: Any) -> None:
    """dy := the target of s + ds - H dy: target s', and the second-order term of the current direction."""
    y = _at(G.y, i)
    r, g, near, M = _dual_barrier(y)
    term = _second_order(y, r, g, _at(G.dy, i), _newton_step(y, r, g, M, _at(G.ds, i)))
    for c in range(3):
        store(G.dy, i + c, target * near[c] + 0.5 * term[c])


@inner_kernel
def _reach(v: Three, d: Three, alpha: Any) -> Any:
    """The largest step, at most alpha, for which v + alpha d stays inside the cone.

    y log(z / y) - x is concave along the way: from outside, Newton's method comes closer and stays outside.
    """
    for c in range(1, 3):
        alpha = choose(v[c] + alpha * d[c], SMALL * v[c], (SMALL - 1.0) * v[c] / d[c], alpha)
    for _ in range(TRIES):
        x, y, z = _plus(v, alpha, d)
        logarithm = log(z / y)
        depth = y * logarithm - x
        slope = d[1] * (logarithm - 1.0) + y * d[2] / z - d[0]
        shorter = choose(depth, 0.0, depth / slope, 0.0)
        alpha -= shorter
        if not any_below(CLOSE * alpha, shorter):
            break
    return alpha


@inner_kernel
def boundary(G: Samples, i: int, rate: Any) -> Any:
    """The larger one of rate and 1 / the largest step, at most 1, that keeps s and y inside; steps beyond 1 / rate are
    not looked at. The dual cone is the image of the cone: y is in it if (y1 - y2, -y1, y3) is in the cone."""
    most = choose(1.0, rate, 1.0 / rate, 1.0)
    y, dy = _at(G.y, i), _at(G.dy, i)
    alpha = _reach((y[0] - y[1], 0.0 - y[0], y[2]), (dy[0] - dy[1], 0.0 - dy[0], dy[2]), most)
    alpha = _reach(_at(G.s, i), _at(G.ds, i), alpha)
    return choose(alpha, most, 1.0 / alpha, rate)
