"""The second-order cone; the mathematics stands in `ffo.kernels.cones.soc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ffo.cones.base import BOUNDARY, Array, Cone, Faces
from ffo.cones.rows import contiguous, numbered
from ffo.errors import InputError
from ffo.kernels.cones import soc as kernels


class SparseFaces(NamedTuple):
    """Faces of N blocks in the sparse form of `ffo.kernels.cones.soc.face`.

    Attributes:
        s, v: (N, size) with w = s - v, v = tau y.
        on, delta, u: (N, size) switches and weights of the rows, and the direction of w1 on the boundary.
        case, margin: (N,).
    """

    s: Array
    v: Array
    on: Array
    delta: Array
    u: Array
    case: Array
    margin: Array


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
        s = np.empty(w.shape)
        kernels.project_blocks(contiguous(w), s)
        return s

    def sparse_faces(self, w: Array, tau: Array) -> SparseFaces:
        """Faces of w (N, size), tau (N,), before they become triplets."""
        s, v, delta, u = np.empty((4, *w.shape))
        on, case, margin = np.empty(w.shape, np.uint8), np.empty(len(w), np.int64), np.empty(len(w))
        kernels.face_blocks(contiguous(w), contiguous(tau), s, v, on, delta, u, case, margin)
        return SparseFaces(s, v, on, delta, u, case, margin)

    def faces(self, w: Array, tau: Array) -> Faces:
        f = self.sparse_faces(w, tau)
        block, row, rows, local = numbered(f.on)
        boundary = np.flatnonzero(f.case >= BOUNDARY)
        # entries -u: of row 0 in T, and of the rows 1.. in C (absent in size 2)
        tangents = np.arange(1, self.size)
        u_block, u_col = np.repeat(boundary, len(tangents)), np.tile(tangents, len(boundary))
        minus_u = -f.u[u_block, u_col]
        curved = slice(None) if self.size > 2 else slice(0)
        aux = (f.case >= BOUNDARY) & (self.size > 2)
        return Faces(
            rows=rows,
            delta=f.delta[block, row],
            t_block=np.concatenate([block, u_block]),
            t_row=np.concatenate([local, np.zeros_like(u_block)]),
            t_col=np.concatenate([row, u_col]),
            t_value=np.concatenate([np.ones(len(block)), minus_u]),
            s=f.s,
            y=f.v / tau[:, None],
            case=f.case,
            margin=f.margin,
            aux=aux.astype(np.intp),
            c_block=u_block[curved],
            c_row=u_col[curved],
            c_col=np.zeros_like(u_col[curved]),
            c_value=minus_u[curved],
        )
