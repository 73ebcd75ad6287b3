"""From the rows of each case to the triplets of `Faces`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ffo.cones.base import Array, Faces

#: Largest s-to-tau*y ratio that a weight may express; see `weight`.
MAX_RATIO = 1e16


def weight(numerator: Array, denominator: Array, tau: Array) -> Array:
    """delta = 1/h = tau * numerator / denominator, finite.

    The ratio is that of a size of s to one of tau*y, two numbers of one unit, so the bound on it does
    not depend on how a problem is scaled. It enters the derivative of the projection as 1/(1 + ratio):
    beyond 1e16 it cannot be told from a free direction, and y, known to eps|w|, does not determine it.
    h = 0 therefore gives delta = 1e16 tau, and h = inf gives delta = 0, a normal row.
    """
    ratio = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), MAX_RATIO)
    np.divide(numerator, denominator, out=ratio, where=numerator < MAX_RATIO * denominator)
    return ratio * tau


@dataclass(frozen=True)
class Piece:
    """The rows of those blocks that are in one case: K blocks sharing one sparsity pattern.

    Attributes:
        block: (K,) numbers of the blocks.
        delta: (K, r) weights of the r rows.
        row, col: (E,) pattern of T; value: (K, E), or (E,) where all blocks agree.
        c_row, c_value: (F,), (K, F) the one auxiliary column, where there is one.
    """

    block: Array
    delta: Array
    row: Array
    col: Array
    value: Array
    c_row: Array = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    c_value: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def aux(self) -> int:
        return int(len(self.c_row) > 0)


def unit_rows(block: Array, columns: Sequence[int] | Array) -> Piece:
    """Normal rows e_j, j in columns, for every block; all columns make a vertex."""
    col = np.asarray(columns, dtype=np.intp)
    return Piece(block, np.zeros((len(block), len(col))), np.arange(len(col)), col, np.ones(len(col)))


def dense_rows(block: Array, T: Array, delta: Array) -> Piece:
    """Rows T (K, r, dim) with weights delta (K, r)."""
    K, r, dim = T.shape
    return Piece(block, delta, np.repeat(np.arange(r), dim), np.tile(np.arange(dim), r), T.reshape(K, r * dim))


def gather(pieces: Sequence[Piece], s: Array, y: Array, case: Array, margin: Array) -> Faces:
    """The pieces as one `Faces`; blocks in no piece are free."""
    rows, aux = np.zeros(len(s), dtype=np.intp), np.zeros(len(s), dtype=np.intp)
    for p in pieces:
        rows[p.block], aux[p.block] = p.delta.shape[1], p.aux
    start = np.cumsum(rows) - rows
    delta = np.zeros(rows.sum())
    for p in pieces:
        delta[start[p.block][:, None] + np.arange(p.delta.shape[1])] = p.delta
    T = _triplets([(p.block, p.row, p.col, p.value) for p in pieces])
    C = _triplets([(p.block, p.c_row, np.zeros_like(p.c_row), p.c_value) for p in pieces])
    return Faces(rows, delta, *T, s, y, case, margin, aux, *C)


def _triplets(parts: Sequence[tuple[Array, Array, Array, Array]]) -> tuple[Array, Array, Array, Array]:
    """(block, row, col, value), with every pattern repeated for each of its blocks."""
    return (
        np.concatenate([np.repeat(block, len(row)) for block, row, _, _ in parts]),
        np.concatenate([np.tile(row, len(block)) for block, row, _, _ in parts]),
        np.concatenate([np.tile(col, len(block)) for block, _, col, _ in parts]),
        np.concatenate([np.broadcast_to(v, (len(block), len(row))).ravel() for block, row, _, v in parts]),
    )
