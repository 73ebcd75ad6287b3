"""The interface of a cone: projection onto the cone and onto its dual.

A `Cone` describes one block. Its methods take many blocks at once as `(N, dim)` arrays, where N runs over the samples
of a batch and over equal blocks of a problem. The compiled numerics of one block, and its faces, are in
`ffo.kernels.cones`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

Array = np.ndarray


def projected(project_blocks: Callable[..., None], w: Array, *parameters: float) -> Array:
    """The projections of blocks (N, dim) by a kernel."""
    s = np.empty(w.shape)
    # float64, contiguous and writable: for any other layout the kernels would be compiled again
    project_blocks(np.require(w, float, ["C", "W"]), *parameters, s)
    return s


class Cone(ABC):
    """One block of a product cone. Instances are immutable, hashable and compare by value."""

    name: ClassVar[str]
    #: True if every block is one coordinate and blocks are independent (zero, nonneg).
    scalar: ClassVar[bool] = False

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of coordinates of one block."""

    @property
    @abstractmethod
    def interior(self) -> Array:
        """(dim,) a point of the relative interior of K, of about unit size."""

    @abstractmethod
    def project(self, w: Array) -> Array:
        """Euclidean projection onto K, (N, dim) -> (N, dim)."""

    def project_dual(self, v: Array) -> Array:
        """Euclidean projection onto the dual cone K* (Moreau: v + Pi_K(-v))."""
        return v + self.project(-v)
