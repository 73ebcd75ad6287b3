"""The exponential cone; the mathematics is in `ffo.kernels.cones.exponential`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone, projected
from ffo.kernels.cones import exponential as kernels


@dataclass(frozen=True)
class Exponential(Cone):
    """cl {(x, y, z) : y > 0, y exp(x/y) <= z}."""

    name: ClassVar[str] = "exponential"
    dim: ClassVar[int] = 3

    @property
    def interior(self) -> Array:
        return np.array([0.0, 1.0, 2.0])

    def project(self, w: Array) -> Array:
        return projected(kernels.project_blocks, w)
