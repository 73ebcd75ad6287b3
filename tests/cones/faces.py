"""Faces of blocks of one cone as the Newton loop finds them, in plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.cones import PSD, Cone, Product
from ffo.kernels import kkt
from ffo.kernels.cones.rows import INTERIOR, VERTEX
from ffo.kernels.jit import kernel
from ffo.kernels.kkt import Face, Full, Structure, onto_face
from ffo.kernels.point import Sizes, clean
from ffo.program.plan import blocks_of

Array = np.ndarray


@dataclass(frozen=True)
class Block:
    """One block: rows T (rows, dim), their weights (rows,), and the coupling C (rows, aux) of auxiliary unknowns."""

    T: Array
    delta: Array
    C: Array


@dataclass(frozen=True)
class Faces:
    """s, y: (N, dim) cleaned pairs; case, margin: (N,)."""

    s: Array
    y: Array
    case: Array
    margin: Array
    blocks: list[Block]

    @property
    def rows(self) -> Array:
        return np.array([len(b.delta) for b in self.blocks], dtype=int)

    @property
    def delta(self) -> Array:
        return np.concatenate([*(b.delta for b in self.blocks), np.zeros(0)])


def faces(cone: Cone, w: Array, tau: Array) -> Faces:
    """At the points whose residual is w = s - tau y; w (N, dim), tau (N,) > 0."""
    N, d = w.shape
    S = kkt.build((NOTHING, NOTHING), (NOTHING, NOTHING), 0, d, blocks_of(Product([(cone, 1)])), factors=False)
    s, y, delta, u = np.full((4, N, d), np.nan)
    on, R, T = np.zeros((N, d + S.aux), np.uint8), np.full((N, S.rotation), np.nan), np.empty((N, d, d))
    case, margin = np.empty((N, 1), np.int64), np.empty((N, 1))
    v, tau = np.array(w, dtype=float), np.repeat(np.array(tau, dtype=float)[:, None], d, axis=1)
    scalar = d == 1
    row = np.full(d, 1.0 if scalar else 1.0 / np.sqrt(d))  # margins are relative to the size of a block
    clean_blocks(S, v, tau, row, s, y, on, delta, u, R, case, margin, T, Full(0, 0.0, 0))
    used = on[:, :d] == 1
    if scalar:
        case[:, 0] = 1 - used[:, 0] if isinstance(cone, PSD) else np.where(used[:, 0], VERTEX, INTERIOR)
    blocks = []
    for k in range(N):
        C = -u[k][used[k]][:, None] if S.aux and on[k, d] else np.zeros((used[k].sum(), 0))
        blocks.append(Block(T[k][used[k]], delta[k][used[k]], C))
    return Faces(s, y, case[:, 0], margin[:, 0], blocks)


NOTHING = np.zeros(0, np.int64)


@kernel
def clean_blocks(
    S: Structure, w: Array, tau: Array, row: Array, s: Array, y: Array, on: Array, delta: Array, u: Array, R: Array,
    case: Array, margin: Array, T: Array, full: Full,
) -> None:  # fmt: skip
    unit, turned = np.zeros(S.m), np.empty(S.m)
    for k in range(len(w)):
        face = Face(on[k], delta[k], u[k], R[k], case[k], margin[k])
        clean(S, w[k], Sizes(1.0, 1.0, tau[k], row, 1.0, 1.0), s[k], y[k], face, full)
        for i in range(S.m):
            unit[i] = 1.0
            onto_face(S, face, unit, turned)
            unit[i] = 0.0
            for r in range(S.m):
                T[k, r, i] = turned[r]
