"""The cone of positive semidefinite matrices.

A block is svec(S): the upper triangle stacked by columns, off-diagonals times sqrt 2, so that
svec(S)'svec(Y) = tr(SY). With W = S - tau Y = Q diag(eig) Q', Q = [V U] and eig = (-tau gamma, lambda):

    S = U diag(lambda) U',   Y = V diag(gamma) V'.

The derivative of the projection (Loewner) is diagonal in the orthonormal basis
svec(q_i q_j' + q_j q_i')/sqrt 2 (i < j), svec(q_i q_i'), with entries

    VV 0: normal, delta = 0      UU 1: free      UV lambda_j/(lambda_j + tau gamma_i): delta = lambda_j/gamma_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone, Faces
from ffo.cones.rows import Piece, dense_rows, gather, unit_rows, weight
from ffo.errors import InputError

_SQRT2 = float(np.sqrt(2.0))


@cache
def triangle(order: int) -> tuple[Array, Array, Array]:
    """Row, column and svec factor of each entry: (0,0), (0,1), (1,1), (0,2), ..."""
    col, row = np.tril_indices(order)
    return row, col, np.where(row == col, 1.0, _SQRT2)


def svec(X: Array) -> Array:
    """(N, k, k) symmetric -> (N, k(k+1)/2)."""
    row, col, factor = triangle(X.shape[-1])
    return X[..., row, col] * factor


def smat(x: Array, order: int) -> Array:
    """(N, k(k+1)/2) -> (N, k, k) symmetric."""
    row, col, factor = triangle(order)
    X = np.empty((*x.shape[:-1], order, order))
    X[..., row, col] = X[..., col, row] = x / factor
    return X


@dataclass(frozen=True)
class PSD(Cone):
    """Symmetric positive semidefinite `order` x `order` matrices, as svec (self-dual).

    The case is the rank: the number of eigenvalues of W that are not negative.
    """

    name: ClassVar[str] = "psd"
    order: int

    def __post_init__(self) -> None:
        if self.order < 1:
            raise InputError(f"a semidefinite cone has order at least 1, not {self.order}")

    @property
    def dim(self) -> int:
        return self.order * (self.order + 1) // 2

    def project(self, w: Array) -> Array:
        eig, Q, finite = self._eigen(w)
        return np.where(finite, self._compose(np.maximum(eig, 0.0), Q), np.nan)

    def faces(self, w: Array, tau: Array) -> Faces:
        eig, Q, finite = self._eigen(w)
        s = np.where(finite, self._compose(np.maximum(eig, 0.0), Q), np.nan)
        v = np.where(finite, self._compose(np.maximum(-eig, 0.0), Q), np.nan)
        rank = (eig >= 0).sum(axis=1)
        pieces = [unit_rows(np.flatnonzero(rank == 0), np.arange(self.dim))]
        for r in range(1, self.order):  # a loop over ranks, never over blocks
            block = np.flatnonzero(rank == r)
            if len(block):
                pieces.append(self._rows(block, eig[block], Q[block], tau[block], self.order - r))
        return gather(pieces, s, v / tau[:, None], rank, np.abs(eig).min(axis=1))

    def _rows(self, block: Array, eig: Array, Q: Array, tau: Array, negative: int) -> Piece:
        """VV and UV rows of blocks with the same number of `negative` eigenvalues (they come first)."""
        i, j = np.triu_indices(self.order)
        i, j = i[i < negative], j[i < negative]
        row, col, factor = triangle(self.order)
        a, b = Q[:, :, i], Q[:, :, j]  # (K, order, r)
        T = (a[:, row] * b[:, col] + a[:, col] * b[:, row]) * factor[:, None]  # (K, dim, r)
        T *= np.where(i == j, 0.5, 1.0 / _SQRT2)
        delta = weight(np.maximum(eig[:, j], 0.0), -eig[:, i], tau[:, None])  # 0 for VV
        return dense_rows(block, T.transpose(0, 2, 1), delta)

    def _eigen(self, w: Array) -> tuple[Array, Array, Array]:
        """Eigenvalues (N, k), ascending, eigenvectors (N, k, k), and which blocks are finite (N, 1).

        LAPACK gives up on the whole batch for one NaN: such blocks are treated as zero (no rows).
        """
        finite = np.isfinite(w).all(axis=1, keepdims=True)
        eig, Q = np.linalg.eigh(smat(np.where(finite, w, 0.0), self.order))
        return eig, Q, finite

    @staticmethod
    def _compose(eig: Array, Q: Array) -> Array:
        return svec((Q * eig[:, None, :]) @ Q.transpose(0, 2, 1))
