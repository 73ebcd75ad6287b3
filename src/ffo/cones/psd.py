"""The cone of positive semidefinite matrices; the mathematics is in `ffo.kernels.cones.psd`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone, projected
from ffo.errors import InputError
from ffo.kernels.cones import psd as kernels

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

    The case is the rank: the number of nonnegative eigenvalues of W.
    """

    name: ClassVar[str] = "psd"
    order: int

    def __post_init__(self) -> None:
        if self.order < 1:
            raise InputError(f"the order of a semidefinite cone must be at least 1, not {self.order}")

    @property
    def dim(self) -> int:
        return self.order * (self.order + 1) // 2

    @property
    def interior(self) -> Array:
        return svec(np.eye(self.order))

    def project(self, w: Array) -> Array:
        return projected(kernels.project_blocks, w)
