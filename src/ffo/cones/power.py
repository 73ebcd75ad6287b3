"""The three-dimensional power cone; the mathematics is in `ffo.kernels.cones.power`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone, projected
from ffo.errors import InputError
from ffo.kernels.cones import power as kernels


@dataclass(frozen=True)
class Power(Cone):
    """{(x, y, z) : x^alpha y^(1-alpha) >= |z|, x, y >= 0}, 0 < alpha < 1."""

    name: ClassVar[str] = "power"
    dim: ClassVar[int] = 3
    alpha: float

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise InputError(f"the exponent alpha of a power cone must lie strictly between 0 and 1, not {self.alpha}")

    @property
    def interior(self) -> Array:
        return np.array([1.0, 1.0, 0.0])

    def project(self, w: Array) -> Array:
        return projected(kernels.project_blocks, w, float(self.alpha))
