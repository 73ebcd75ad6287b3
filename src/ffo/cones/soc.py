"""The second-order cone.

K = K* = {(s0, s1) : |s1| <= s0}. For w = (w0, w1), n = |w1|, u = w1/n, w has the two spectral values
n + w0 (along (1, u)) and w0 - n (along (1, -u)). On the boundary, |w0| < n,

    s = s0 (1, u),   tau y = tau y0 (1, -u),   s0 = (n + w0)/2,   tau y0 = (n - w0)/2.

Moving s along a tangent (0, v), v _|_ u, turns u by v/s0, hence y1 by -(y0/s0) v: curvature h = y0/s0.
The other tangent is s itself, free; the normal is (1, -u). The orthonormal rows would be (1,-u)/sqrt 2
(delta = 0) and (0, v_k) for a basis v_k of u's complement (delta = 1/h): dense, d-2 rows of length d-1.

Sparse form (DESIGN section 4). The same w = T't, without the basis:

    rows 0..d-2:   (0, e_i)     delta = s0/y0        C = -u
    row  d-1:      (1, -u)      delta = 0            C = 0

C't = 0 says u't1 = 0, and w = T't is w0 = nu, w1 = t1 - nu u: exactly the span of the dense rows. The
component of the first rows along u only fixes the auxiliary unknown; those along v are the dense ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import BOUNDARY, INTERIOR, VERTEX, Array, Cone, Faces
from ffo.cones.rows import Piece, gather, unit_rows, weight
from ffo.errors import InputError


@dataclass(frozen=True)
class SecondOrder(Cone):
    """{(s0, s1) : |s1| <= s0} in `size` coordinates; size 1 is the nonnegative ray.

    In size 2 the cone is polyhedral: its two rays are two cases (`BOUNDARY`, `BOUNDARY + 1`), each with
    the single row (1, -u).
    """

    name: ClassVar[str] = "second-order"
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"a second-order cone has at least 1 coordinate, not {self.size}")

    @property
    def dim(self) -> int:
        return self.size

    def project(self, w: Array) -> Array:
        return self.split(w)[0]

    def faces(self, w: Array, tau: Array) -> Faces:
        s, v, case, n = self.split(w)
        w0 = w[:, 0]
        distance = np.minimum(np.abs(n - w0), np.abs(n + w0))
        margin = distance / np.sqrt(2.0) if self.size > 1 else distance
        b = np.flatnonzero(case >= BOUNDARY)
        pieces = [unit_rows(np.flatnonzero(case == VERTEX), np.arange(self.size))]
        if self.size > 1:
            u = w[b, 1:] / n[b, None]
            pieces.append(self._boundary(b, u, weight(n[b] + w0[b], n[b] - w0[b], tau[b])))
        if self.size == 2:
            case[b] += w[b, 1] < 0
        return gather(pieces, s, v / tau[:, None], case, margin)

    def _boundary(self, block: Array, u: Array, delta: Array) -> Piece:
        """The sparse form; `u` (K, d-1), `delta` (K,)."""
        k = self.size - 1
        ones = np.ones((len(block), 1))
        if k == 1:  # no tangent but s itself
            return Piece(block, np.zeros_like(ones), np.zeros(2, dtype=np.intp), np.arange(2), np.hstack([ones, -u]))
        tangent = np.arange(k)
        return Piece(
            block,
            delta=np.hstack([np.repeat(delta[:, None], k, axis=1), np.zeros_like(ones)]),
            row=np.concatenate([tangent, np.full(k + 1, k)]),
            col=np.concatenate([tangent + 1, np.arange(k + 1)]),
            value=np.hstack([np.ones_like(u), ones, -u]),
            c_row=tangent,
            c_value=-u,
        )

    @staticmethod
    def split(w: Array) -> tuple[Array, Array, Array, Array]:
        """Moreau: w = s - v, s in K, v in K*; the case, and n = |w1|."""
        w0, n = w[:, 0], np.linalg.norm(w[:, 1:], axis=1)
        inside = ~(n > w0)  # a NaN block counts as interior: it gets no rows
        case = np.where(inside, INTERIOR, np.where(n <= -w0, VERTEX, BOUNDARY))
        s, v = np.where(inside[:, None], w, 0.0), np.where((case == VERTEX)[:, None], -w, 0.0)
        b = case == BOUNDARY
        u = w[b, 1:] / n[b, None]
        s[b, 0], v[b, 0] = 0.5 * (n[b] + w0[b]), 0.5 * (n[b] - w0[b])
        s[b, 1:], v[b, 1:] = s[b, :1] * u, -v[b, :1] * u
        return s, v, case, n
