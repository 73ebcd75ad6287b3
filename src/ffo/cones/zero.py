"""The zero cone: equality constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone


@dataclass(frozen=True)
class Zero(Cone):
    """K = {0}, K* = R: always at its vertex, T = 1, delta = 0; the case never changes."""

    name: ClassVar[str] = "zero"
    dim: ClassVar[int] = 1
    scalar: ClassVar[bool] = True

    @property
    def interior(self) -> Array:
        return np.zeros(1)

    def project(self, w: Array) -> Array:
        return np.where(np.isnan(w), w, 0.0)
