"""The second-order cone.

K = K* = {(s0, s1) : |s1| <= s0}. For w = (w0, w1), n = |w1|, u = w1/n, w has the two spectral values
n + w0 (along (1, u)) and w0 - n (along (1, -u)). On the boundary, |w0| < n,

    s = s0 (1, u),   tau y = tau y0 (1, -u),   s0 = (n + w0)/2,   tau y0 = (n - w0)/2.

Moving s along a tangent (0, v), v _|_ u, turns u by v/s0, hence y1 by -(y0/s0) v: curvature h = y0/s0.
The other tangent is s itself, free; the normal is (1, -u). The orthonormal rows would be (1,-u)/sqrt 2
(delta = 0) and (0, v_k) for a basis v_k of u's complement (delta = 1/h): dense, d-2 rows of length d-1.

Sparse form. The same w = T't, without the basis, and with one auxiliary unknown k, coupled through C:

    row  0:        (1, -u)      delta = 0            C = 0
    rows 1..d-1:   (0, e_i)     delta = s0/y0        C = -u

C't = 0 says u't1 = 0, and w = T't is w0 = nu, w1 = t1 - nu u: exactly the span of the dense rows. The
component of the last rows along u only fixes the auxiliary unknown; those along v are the dense ones.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX, is_finite, unit_scale, weight
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel, kernel
from ffo.kernels.vectors import fill

Array = np.ndarray

_SQRT2 = float(np.sqrt(2.0))


@inner_reducing_kernel
def _squares(w: Array, scale: float) -> float:
    """Sum of the squares of w1 / scale; scale is a power of two."""
    total, inverse = 0.0, 1.0 / scale
    for i in range(1, w.size):
        total += (w[i] * inverse) ** 2
    return total


@inner_kernel
def split(w: Array, s: Array, v: Array) -> tuple[int, float]:
    """Moreau: w (d,) = s - v, s in K, v in K*; returns the case and n = |w1|, NaN where w is not finite."""
    if not is_finite(w):
        fill(s, np.nan)
        fill(v, np.nan)
        return INTERIOR, np.nan
    scale = unit_scale(w)  # squares neither overflow nor underflow
    n, w0 = scale * np.sqrt(_squares(w, scale)), w[0]
    if n <= w0:
        for i in range(w.size):
            s[i], v[i] = w[i], 0.0
        return INTERIOR, n
    if n <= -w0:
        for i in range(w.size):
            s[i], v[i] = 0.0, -w[i]
        return VERTEX, n
    s0, v0 = 0.5 * (n + w0), 0.5 * (n - w0)
    s[0], v[0] = s0, v0
    for i in range(1, w.size):
        u = w[i] / n
        s[i], v[i] = s0 * u, -v0 * u
    return BOUNDARY, n


@inner_kernel
def project(w: Array, s: Array) -> None:
    """s = Pi_K(w), (d,)."""
    split(w, s, np.empty(w.size))


@inner_kernel
def face(w: Array, tau: float, s: Array, v: Array, on: Array, delta: Array, u: Array) -> tuple[int, float]:
    """The face at w (d,) = s - tau*y in the sparse form; returns (case, margin).

    Writes s, v = tau*y (d,), switches on (d,), weights delta (d,) and the direction u (d,): u[0] = 0, u[1:] the unit
    vector along w1 on the boundary, 0 elsewhere. Row 0 is (1, -u[1:]), row i is e_i; at the vertex u = 0, so these are
    the unit rows. The auxiliary unknown, with the column -u[i] on the rows i = 1..d-1, is present exactly on the
    boundary with d > 2.

    Size 1 is the nonnegative ray. In size 2 the cone is polyhedral: its two rays are two cases (`BOUNDARY` for w1 > 0,
    `BOUNDARY + 1`), each with row 0 alone.
    """
    d = w.size
    case, n = split(w, s, v)
    fill(on, 1 if case == VERTEX else 0)
    fill(delta, 0.0)
    fill(u, 0.0)
    if np.isnan(n):
        return case, 0.0
    margin = min(abs(n - w[0]), abs(n + w[0]))
    if d > 1:
        margin /= _SQRT2
    if case == BOUNDARY:
        on[0] = 1
        curved = weight(n + w[0], n - w[0], tau)
        for i in range(1, d):
            u[i] = w[i] / n
            delta[i] = curved
            on[i] = 1 if d > 2 else 0
        if d == 2 and w[1] < 0.0:
            case += 1
    return case, margin


@kernel
def project_blocks(w: Array, s: Array) -> None:
    """`project` for each row of w (N, d)."""
    v = np.empty(w.shape[1])
    for k in range(len(w)):
        split(w[k], s[k], v)
