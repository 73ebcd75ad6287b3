"""The nonnegative ray: inequality constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone


@dataclass(frozen=True)
class Nonneg(Cone):
    """K = K* = {s >= 0}: active (T = 1, delta = 0) where w < 0, that is where tau*y exceeds s."""

    name: ClassVar[str] = "nonneg"
    dim: ClassVar[int] = 1
    scalar: ClassVar[bool] = True

    @property
    def interior(self) -> Array:
        return np.ones(1)

    def project(self, w: Array) -> Array:
        return np.maximum(w, 0.0)
