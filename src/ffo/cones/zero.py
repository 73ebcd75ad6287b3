"""The zero cone: equality constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import VERTEX, Array, Cone, Faces
from ffo.cones.rows import gather


@dataclass(frozen=True)
class Zero(Cone):
    """K = {0}, K* = R: always at its vertex, T = 1, delta = 0, and no change of case is possible."""

    name: ClassVar[str] = "zero"
    scalar: ClassVar[bool] = True

    @property
    def dim(self) -> int:
        return 1

    def project(self, w: Array) -> Array:
        return np.where(np.isnan(w), w, 0.0)

    def faces(self, w: Array, tau: Array) -> Faces:
        s = self.project(w)
        n = len(w)
        y = (s - w) / tau[:, None]
        on, T = np.ones(w.shape, dtype=bool), np.ones((n, 1, 1))
        return gather(on, np.zeros(w.shape), T, s, y, np.full(n, VERTEX), np.full(n, np.inf))
