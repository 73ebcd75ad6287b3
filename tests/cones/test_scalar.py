from typing import ClassVar

import numpy as np
from cones.contract import Array, ConeContract
from cones.faces import faces

from ffo.cones import Nonneg, Zero
from ffo.kernels.cones.rows import INTERIOR, VERTEX


class TestZero(ConeContract):
    cone = Zero()
    cases: ClassVar = {"vertex": VERTEX}

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        return np.zeros((n, 1)), rng.standard_normal((n, 1))

    def violation(self, s: Array) -> Array:
        return np.abs(s[:, 0])

    def dual_violation(self, y: Array) -> Array:
        return np.zeros(len(y))


class TestNonneg(ConeContract):
    cone = Nonneg()
    cases: ClassVar = {"interior": INTERIOR, "vertex": VERTEX}

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        v = rng.uniform(0.2, 2, (n, 1))
        return (v, np.zeros((n, 1))) if case == "interior" else (np.zeros((n, 1)), v)

    def violation(self, s: Array) -> Array:
        return -s[:, 0]

    def test_margin_is_the_distance_to_zero(self) -> None:
        w = np.array([[-3.0], [0.0], [2.0]])
        np.testing.assert_array_equal(faces(self.cone, w, np.ones(3)).margin, [3, 0, 2])


def test_scalar_cones_say_so() -> None:
    assert Zero.scalar
    assert Nonneg.scalar
