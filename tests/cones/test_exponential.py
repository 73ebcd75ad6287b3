from typing import ClassVar

import numpy as np
import pytest
from cones.contract import Array, ConeContract, finite_difference, norms, projection_derivative
from cones.faces import faces

from ffo.cones import Exponential
from ffo.kernels.cones.exponential import FACE, RAY
from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX


def surface_pair(rho: Array, a: Array, m: Array) -> tuple[Array, Array]:
    """s along (rho, 1, e^rho), y along (-1, -(1-rho), e^-rho), of length a and m."""
    down, up = np.exp(-np.maximum(rho, 0)), np.exp(np.minimum(rho, 0))
    s = np.stack([rho * down, down, up], axis=1)
    y = np.stack([-up, (rho - 1) * up, down], axis=1)
    return s * (a / norms(s))[:, None], y * (m / norms(y))[:, None]


class TestExponential(ConeContract):
    cone = Exponential()
    cases: ClassVar = {"interior": INTERIOR, "vertex": VERTEX, "surface": BOUNDARY, "face": FACE, "ray": RAY}
    slow: ClassVar = {"surface": 3e-9}

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        zero = np.zeros(n)
        p, q, r = rng.uniform(0.3, 2, (3, n))
        if case == "surface":
            return surface_pair(rng.uniform(-2.5, 2.5, n), p + 0.3, q + 0.3)
        if case == "face":
            return np.stack([-p, zero, r], axis=1), np.stack([zero, q, zero], axis=1)
        if case == "ray":
            return np.stack([-p, zero, zero], axis=1), np.stack([zero, q, r], axis=1)
        x = rng.uniform(-1, 1, n)
        origin = np.zeros((n, 3))
        if case == "interior":
            return np.stack([x, q, q * np.exp(x / q) + r], axis=1), origin
        return origin, np.stack([-q, x, q * np.exp(-x / q - 1) + r], axis=1)

    def violation(self, s: Array) -> Array:
        x, y, z = s.T
        safe = np.where(y > 0, y, 1.0)
        return np.where(y > 0, y * np.exp(x / safe) - z, np.maximum(np.maximum(x, -y), -z))

    def dual_violation(self, y: Array) -> Array:
        u, v, w = y.T
        safe = np.where(u < 0, u, -1.0)
        return np.where(u < 0, -u * np.exp(v / safe - 1) - w, np.maximum(np.maximum(u, -v), -w))


@pytest.mark.parametrize("rho", [-600.0, -40.0, -20.0, -8.0, 8.0, 20.0, 40.0, 600.0])
def test_far_along_the_surface(rho: float) -> None:
    """Large |rho|: pair recovered, derivative right, nothing overflows."""
    s, y = surface_pair(np.array([rho]), np.array([1.0]), np.array([0.7]))
    cone, w = Exponential(), s - y
    np.testing.assert_allclose(cone.project(w), s, atol=5e-15)
    found = faces(cone, w, np.ones(1))
    D = projection_derivative(found.blocks[0], 1.0)
    exact = projection_frame(rho, 1.0, 0.7)
    np.testing.assert_allclose(D, exact, atol=1e-11)
    if abs(rho) < 10:  # for larger |rho|, the surface bends within any usable step
        np.testing.assert_allclose(D, finite_difference(cone, w, 1e-6)[0], atol=1e-7)


def projection_frame(rho: float, length_s: float, length_y: float) -> Array:
    """D Pi from the unit vectors along s and t: free along s, 1/(1 + h) along t."""
    down, up = np.exp(-max(rho, 0.0)), np.exp(min(rho, 0.0))
    s, n = np.array([rho * down, down, up]), np.array([-up, (rho - 1) * up, down])
    size_s, size_n = np.linalg.norm(s), np.linalg.norm(n)
    # a = length_s down/size_s; m = length_y up/size_n
    h = (length_y * up / size_n) / (length_s * down / size_s) * (size_s / size_n) ** 2
    t = np.cross(s / size_s, n / size_n)
    return np.outer(s, s) / size_s**2 + np.outer(t, t) / (1 + h)


@pytest.mark.parametrize("w", [(1e-300, -1.0, 0.5), (-1.0, 1e-300, -0.5), (1e-20, -1.0, 2.0), (-3.0, 1e-17, -1.0)])
def test_next_to_the_flat_face(w: tuple[float, float, float]) -> None:
    s = Exponential().project(np.array([w]))
    np.testing.assert_allclose(s[0], [min(w[0], 0.0), 0.0, max(w[2], 0.0)], atol=1e-16)
