"""From the compiled faces of single blocks to the arrays of `Faces`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ffo.cones.base import Array, Faces


def contiguous(v: Array) -> Array:
    """v as the kernels take it: float64, contiguous and writable (any other layout would be compiled anew)."""
    return np.require(v, float, ["C", "W"])


def dense_faces(face_blocks: Callable[..., None], w: Array, tau: Array, alpha: float = 0.0) -> Faces:
    """Faces of the blocks w (N, dim) by the kernel of a cone with dense rows (see `ffo.kernels.cones`)."""
    N, dim = w.shape
    s, v, delta = np.empty((3, N, dim))
    on, R = np.empty((N, dim), np.uint8), np.empty((N, dim * dim))
    case, margin = np.empty(N, np.int64), np.empty(N)
    face_blocks(contiguous(w), contiguous(tau), alpha, s, v, on, delta, R, case, margin)
    return gather(on, delta, R.reshape(N, dim, dim), s, v / tau[:, None], case, margin)


def gather(on: Array, delta: Array, R: Array, s: Array, y: Array, case: Array, margin: Array) -> Faces:
    """The rows R (N, dim, dim) that are `on` (N, dim), with weights delta (N, dim); zeros of R are not stored."""
    block, row, rows, local = numbered(on)
    T = R[block, row]  # (rows, dim)
    k, col = np.nonzero(T)
    aux = np.zeros(len(s), dtype=np.intp)
    return Faces(rows, delta[block, row], block[k], local[k], col, T[k, col], s, y, case, margin, aux)


def numbered(on: Array) -> tuple[Array, Array, Array, Array]:
    """Block and place of every row that is `on` (N, dim), the rows of each block (N,), and each row's number in it."""
    block, row = np.nonzero(on)
    rows = np.bincount(block, minlength=len(on))
    return block, row, rows, np.arange(len(block)) - (np.cumsum(rows) - rows)[block]
