"""The second-order cone; the mathematics is in `ffo.kernels.cones.soc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ffo.cones.base import Array, Cone, projected
from ffo.errors import InputError
from ffo.kernels.cones import soc as kernels


@dataclass(frozen=True)
class SecondOrder(Cone):
    """{(s0, s1) : |s1| <= s0} in `size` coordinates; size 1 is the nonnegative ray."""

    name: ClassVar[str] = "second-order"
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"the size of a second-order cone must be at least 1, not {self.size}")

    @property
    def dim(self) -> int:
        return self.size

    @property
    def interior(self) -> Array:
        return np.eye(1, self.size)[0]

    def project(self, w: Array) -> Array:
        return projected(kernels.project_blocks, w)
