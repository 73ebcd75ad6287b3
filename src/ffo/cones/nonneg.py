"""The nonnegative ray: inequality constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import INTERIOR, VERTEX, Array, Cone, Faces
from ffo.cones.rows import gather


@dataclass(frozen=True)
class Nonneg(Cone):
    """K = K* = {s >= 0}: active (T = 1, delta = 0) where w < 0, that is where tau*y exceeds s."""

    name: ClassVar[str] = "nonneg"
    scalar: ClassVar[bool] = True

    @property
    def dim(self) -> int:
        return 1

    def project(self, w: Array) -> Array:
        return np.maximum(w, 0.0)

    def faces(self, w: Array, tau: Array) -> Faces:
        active = w < 0
        s, y = np.maximum(w, 0.0), np.maximum(-w, 0.0) / tau[:, None]
        case = np.where(active[:, 0], VERTEX, INTERIOR)
        return gather(active, np.zeros(w.shape), np.ones((*w.shape, 1)), s, y, case, np.abs(w[:, 0]))
