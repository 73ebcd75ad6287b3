"""Refinement of a batch of dense systems, with inverses of neighbouring matrices."""

from __future__ import annotations

import numpy as np

from ffo.ghost.refinement import refine

Array = np.ndarray
BATCH, SIZE = 4, 5


class Dense:
    """K z = r for every sample; `inverse` is approximate."""

    def __init__(self, K: Array, inverse: Array) -> None:
        self.K, self.inverse, self.corrections = K, inverse, 0

    def correction(self, residual: Array) -> Array:
        self.corrections += 1
        return np.einsum("kij,kj->ki", self.inverse, residual)

    def residual(self, rhs: Array, z: Array) -> Array:
        return rhs - np.einsum("kij,kj->ki", self.K, z)

    def norms(self, residual: Array) -> Array:
        return np.linalg.norm(residual, axis=1)

    def moved(self, step: Array, z: Array) -> Array:
        return np.linalg.norm(step, axis=1) / np.maximum(np.linalg.norm(z, axis=1), 1e-300)

    def choose(self, mine: Array, z: Array, other: Array) -> Array:
        return np.where(mine[:, None], z, other)


def systems(errors: Array) -> tuple[Dense, Array, Array]:
    """Systems whose inverses have these relative errors, right-hand sides and solutions."""
    rng = np.random.default_rng(0)
    K = np.eye(SIZE) + 0.1 * rng.standard_normal((BATCH, SIZE, SIZE))
    inverse = np.linalg.inv(K) * (1 + np.asarray(errors, dtype=float))[:, None, None]
    z = rng.standard_normal((BATCH, SIZE))
    return Dense(K, inverse), np.einsum("kij,kj->ki", K, z), z


def test_removes_the_error_of_the_inverse_and_estimates_what_is_left() -> None:
    dense, rhs, z = systems(np.array([0.0, 1e-8, 1e-3, 0.01]))
    found = refine(dense, rhs, 1e-13, 1e-9)
    np.testing.assert_allclose(found.z, z, rtol=1e-10)
    np.testing.assert_array_equal(found.residual, dense.residual(rhs, found.z))
    np.testing.assert_allclose(found.relative, dense.norms(found.residual) / dense.norms(rhs))
    assert (found.relative <= 1e-13).all()
    assert (found.error <= 1e-9).all()


def test_exact_inverses_are_asked_once() -> None:
    dense, rhs, _ = systems(np.zeros(BATCH))
    refine(dense, rhs, 1e-13, 1e-9)
    assert dense.corrections == 1


def test_keeps_the_best_iterate_of_each_sample() -> None:
    dense, rhs, z = systems(np.array([0.0, -3.0, 0.01, -3.0]))  # -3: steps away from the solution
    found = refine(dense, rhs, 1e-13, 1e-9)
    np.testing.assert_allclose(found.z[[0, 2]], z[[0, 2]], rtol=1e-10)
    np.testing.assert_array_equal(found.z[[1, 3]], 0.0)
    np.testing.assert_array_equal(found.residual[[1, 3]], rhs[[1, 3]])
    assert found.relative[[1, 3]].tolist() == found.error[[1, 3]].tolist() == [1.0, 1.0]


def test_nothing_is_asked_of_a_sample_without_right_hand_side() -> None:
    dense, rhs, _ = systems(np.full(BATCH, 1e-3))
    rhs[1] = 0.0
    found = refine(dense, rhs, 1e-13, 1e-9)
    np.testing.assert_array_equal(found.z[1], 0.0)
    assert found.relative[1] == found.error[1] == 0.0
