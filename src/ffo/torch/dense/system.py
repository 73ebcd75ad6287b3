"""The linear systems of the interior-point method and of the ghost, for a batch, in one form:

    [ H   B'   N' ] [u]   [r_x]
    [ B  -e    0  ] [t] = [r_b]
    [ N   0    I  ] [v]   [ 0 ]

with H positive definite, or a positive diagonal, and e >= 0 a diagonal. The rows of N are subtracted from H: they come
from second-order cones if H is a diagonal, whose curvature is a diagonal less a matrix of rank one. H + B'B/e - N'N is
positive definite on the rows without e, so that every matrix below has a Cholesky factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import Tensor, positive, raised, solved, times, triangular


@dataclass(frozen=True)
class DenseSystem:
    """The factorized system.

    Attributes:
        L: factor of H (batch or 1, n, n), or roots of its diagonal (batch or 1, n).
        V: (batch or 1, n, k) H^(-1/2) B'; C: factor of V'V + e (batch or 1, k, k).
        Z: (batch or 1, n, c) H^(-1/2) N', X = V'Z; D: factor of I - Z'Z + X'(V'V + e)^-1 X; None without N.
        good: (batch or 1,) whether all factors exist.
        pivot, of_rows: (batch or 1,) the smallest pivots of H and of V'V + e, relative to their diagonals.
    """

    L: Tensor
    V: Tensor
    C: Tensor
    Z: Tensor | None
    X: Tensor | None
    D: Tensor | None
    good: Tensor
    pivot: Tensor
    of_rows: Tensor

    def solve(self, r_x: Tensor, r_b: Tensor) -> tuple[Tensor, Tensor]:
        """u (batch, n) and t (batch, k)."""
        rest = half(self.L, r_x.unsqueeze(2)).squeeze(2)
        t = solved(self.C, times(self.V.mT, rest) - r_b)
        if self.Z is not None and self.X is not None and self.D is not None:
            v = solved(self.D, times(self.X.mT, t) - times(self.Z.mT, rest))
            t = t - solved(self.C, times(self.X, v))
            rest = rest - times(self.Z, v)
        rest = (rest - times(self.V, t)).unsqueeze(2)
        back = rest / self.L.unsqueeze(2) if self.L.ndim == 2 else triangular(self.L.mT, rest, upper=True)
        return back.squeeze(2), t


def factor(H: Tensor, B: Tensor, e: Tensor, N: Tensor | None = None, shift: Tensor | None = None) -> DenseSystem:
    """Factorize.

    Args:
        H: (batch or 1, n, n), or (batch or 1, n) if it is a diagonal.
        B, e: (batch or 1, k, n) and (batch or 1, k); N: (batch, c, n).
        shift: (batch, 1) added to the diagonal of V'V, relative to it, against dependent rows.
    """
    if H.ndim == 2:
        L, good = H.sqrt(), (H > 0).all(dim=1)
        pivot = torch.ones_like(good, dtype=H.dtype)
    else:
        L, info = torch.linalg.cholesky_ex(H)
        good, pivot = info == 0, least_pivot(L, H)
    V = half(L, B.mT)
    return with_rows(L, V, e if shift is None else e + shift * V.square().sum(dim=1), good, pivot, N)


def with_rows(L: Tensor, V: Tensor, e: Tensor, good: Tensor, pivot: Tensor, N: Tensor | None = None) -> DenseSystem:
    """The same for a factor of H, and V = H^(-1/2) B'."""
    S = raised(torch.matmul(V.mT, V), e)
    C, info = torch.linalg.cholesky_ex(S)
    good, of_rows = good & (info == 0), least_pivot(C, S)
    if N is None:
        return DenseSystem(L, V, C, None, None, None, good, pivot, of_rows)
    Z = half(L, N.mT)
    X = torch.matmul(V.mT, Z)
    Y = triangular(C, X, upper=False)
    M = torch.matmul(Y.mT, Y) - torch.matmul(Z.mT, Z)
    D, info = torch.linalg.cholesky_ex(raised(M, torch.ones_like(M[:, 0])))
    return DenseSystem(L, V, C, Z, X, D, good & (info == 0), pivot, of_rows)


def half(L: Tensor, X: Tensor) -> Tensor:
    """H^(-1/2) X for columns X (batch or 1, n, c)."""
    return X / L.unsqueeze(2) if L.ndim == 2 else triangular(L, X, upper=False)


def least_pivot(L: Tensor, H: Tensor) -> Tensor:
    """(batch or 1,) the smallest pivot of the factor L of H, relative to the diagonal of H; 1 if there is none."""
    if not H.shape[1]:
        return H.new_ones(len(H))
    root = L.diagonal(dim1=1, dim2=2)
    return (root * root / positive(H.diagonal(dim1=1, dim2=2))).amin(dim=1)
