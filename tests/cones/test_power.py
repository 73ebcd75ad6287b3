from typing import ClassVar

import numpy as np
import pytest
from cones.contract import Array, ConeContract, projection_derivative
from cones.faces import faces

from ffo.cones import Power, SecondOrder
from ffo.errors import InputError
from ffo.kernels.cones.power import X_RAY, Y_RAY
from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX


class PowerContract(ConeContract):
    cone: Power
    cases: ClassVar = {"interior": INTERIOR, "vertex": VERTEX, "surface": BOUNDARY, "y ray": Y_RAY, "x ray": X_RAY}
    homogeneity = 3e-7  # the ray's threshold
    slow: ClassVar = {"surface": 3e-9}

    def structures(self, case: Array) -> Array:
        """The surface and the rays are one: the derivative is continuous between them."""
        return np.minimum(case, BOUNDARY)

    def test_derivative_is_almost_constant_well_within_the_margin(self, case: str) -> None:
        _, _, w, tau = self.instances(case)
        found = faces(self.cone, w, tau)
        step = np.minimum(0.01 * found.margin, 1e3)
        for direction in self.directions(case):
            moved = faces(self.cone, w + step[:, None] * direction, tau)
            for a, b, t in zip(found.blocks, moved.blocks, tau, strict=True):
                assert np.abs(projection_derivative(a, t) - projection_derivative(b, t)).max() < 0.1

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        alpha, beta = self.cone.alpha, 1.0 - self.cone.alpha
        zero, origin = np.zeros(n), np.zeros((n, 3))
        x, y, m = rng.uniform(0.4, 2, (3, n))
        sign = rng.choice([-1.0, 1.0], n)
        r = x**alpha * y**beta
        if case == "surface":
            normal = np.stack([alpha * r / x, beta * r / y, -sign], axis=1)
            return np.stack([x, y, sign * r], axis=1), m[:, None] * normal
        if case == "y ray":
            return np.stack([zero, y, zero], axis=1), np.stack([x, zero, zero], axis=1)
        if case == "x ray":
            return np.stack([x, zero, zero], axis=1), np.stack([zero, y, zero], axis=1)
        z = sign * r * rng.uniform(0, 0.8, n)
        if case == "interior":
            return np.stack([x, y, z], axis=1), origin
        return origin, np.stack([alpha * x, beta * y, z], axis=1)

    def violation(self, s: Array) -> Array:
        x, y = np.maximum(s[:, :2], 0.0).T
        bound = x**self.cone.alpha * y ** (1 - self.cone.alpha)
        return np.maximum(np.abs(s[:, 2]) - bound, -s[:, :2].min(axis=1))

    def dual_violation(self, y: Array) -> Array:
        return self.violation(y / np.array([self.cone.alpha, 1.0 - self.cone.alpha, 1.0]))


class TestFifth(PowerContract):
    cone = Power(0.2)


class TestHalf(PowerContract):
    cone = Power(0.5)
    cases: ClassVar = PowerContract.cases | {"y ray": BOUNDARY, "x ray": BOUNDARY}
    homogeneity = 1e-13

    def test_is_a_rotated_second_order_cone(self) -> None:
        """xy >= z^2  <=>  ((x+y)/sqrt 2, (x-y)/sqrt 2, sqrt 2 z) in SOC; isometric after z is stretched."""
        w = self.wild(200)
        s, v = self.cone.project(w), self.cone.project(w) - w
        r = np.sqrt(2)
        soc = lambda p, z: np.stack([(p[:, 0] + p[:, 1]) / r, (p[:, 0] - p[:, 1]) / r, z], axis=1)  # noqa: E731
        primal, dual = soc(s, r * s[:, 2]), soc(v, v[:, 2] / r)
        size = np.linalg.norm(w, axis=1)
        for point in (primal, dual):
            distance = np.linalg.norm(SecondOrder(3).project(point) - point, axis=1)
            assert np.all(distance <= 1e-14 * size)


class TestSevenTenths(PowerContract):
    cone = Power(0.7)
    slow: ClassVar = {"surface": 3e-9, "y ray": 5e-5, "x ray": 5e-5}


class TestNearlyOne(PowerContract):
    cone = Power(0.95)
    slow: ClassVar = {"surface": 1e-8}


@pytest.mark.parametrize(("alpha", "z_rows"), [(0.3, (0, 1)), (0.5, (1, 1)), (0.8, (1, 0))])
def test_rays_hold_or_free_z(alpha: float, z_rows: tuple[int, int]) -> None:
    """Below 1/2 the vanishing coordinate's exponent leaves z free, above it fixes z, at 1/2 h = 2v/y."""
    w = np.array([[-0.6, 1.5, 0.0], [1.5, -0.6, 0.0]])
    tau = np.array([2.0, 2.0])
    found = faces(Power(alpha), w, tau)
    for block, held in zip(found.blocks, z_rows, strict=True):
        assert len(block.T) == 1 + held
        D = projection_derivative(block, 2.0)
        expected = 1.0 - held if alpha != 0.5 else 1 / (1 + 2 * 0.6 / 1.5)
        np.testing.assert_allclose(D[2, 2], expected, atol=1e-14)
        if alpha == 0.5:
            np.testing.assert_allclose(block.delta, [0, 1.5 / (2 * 0.6 / 2.0)], rtol=1e-13)


@pytest.mark.parametrize(("alpha", "most"), [(0.2, 1.7e-4), (0.8, 2.2e-4), (2 / 3, 4.7e-8), (0.45, 5e-13)])
def test_ray_ends_where_the_surface_leaves_it_by_rounding(alpha: float, most: float) -> None:
    near, far = 0.8 * most, 1.3 * most
    w = np.array([[-1.0, 1.0, near], [-1.0, 1.0, far], [-1.0, 1.0, -near], [-1.0, 1.0, -far]])
    cone = Power(alpha)
    found = faces(cone, w, np.ones(4))
    np.testing.assert_array_equal(found.case, [Y_RAY, BOUNDARY, Y_RAY, BOUNDARY])
    swapped = faces(Power(1 - alpha), w[:, [1, 0, 2]], np.ones(4))
    np.testing.assert_array_equal(swapped.case, [X_RAY, BOUNDARY, X_RAY, BOUNDARY])
    np.testing.assert_allclose(found.s[0], found.s[1] * [1, 1, near / far if alpha < 0.5 else 1], atol=4e-15)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("x", [1e-2, 1e-5, 1e-9, 1e-30])
def test_surface_next_to_the_ray(alpha: float, x: float) -> None:
    r = x**alpha
    s = np.array([[x, 1.0, r]])
    y = np.array([[alpha * r / x, (1 - alpha) * r, -1.0]])
    y /= np.linalg.norm(y)
    cone = Power(alpha)
    np.testing.assert_allclose(cone.project(s - y), s, atol=4e-16)
    np.testing.assert_allclose(cone.project_dual(y - s), y, atol=4e-16)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_alpha_is_checked(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha"):
        Power(alpha)
