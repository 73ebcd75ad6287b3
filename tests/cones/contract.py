"""Tests that every cone must pass for the ghost system.

A cone's tests inherit `ConeContract`, name the cases that occur, and implement three methods: complementary
pairs (s, y) of a given case, made from the cone's definition and not from its projection, and how far a
point is from satisfying the inequalities of K and of K*.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import ClassVar

import numpy as np
import pytest
from cones.faces import Block, faces

from ffo.cones import Cone

Array = np.ndarray
COUNT = 12
SCALES = [1e-6, 1.0, 1e6]


def projection_derivative(block: Block, tau: float) -> Array:
    """D Pi_K(w) from the rows of a face, w = s - tau y.

    The face says T ds + delta t - C k = 0, C't = 0, dy = T't. With ds = v + tau dy for a move v of w,

        [ tau T T' + delta   -C ] [t]   [-T v]
        [ -C'                 0 ] [k] = [  0 ],     D Pi v = v + tau T't.

    For orthonormal T and no C: D Pi = I - T' diag(tau/(tau + delta)) T.
    """
    (rows, dim), aux = block.T.shape, block.C.shape[1]
    gram = tau * block.T @ block.T.T + np.diag(block.delta)
    system = np.block([[gram, -block.C], [-block.C.T, np.zeros((aux, aux))]])
    t = np.linalg.solve(system, np.vstack([-block.T, np.zeros((aux, dim))]))[:rows]
    return np.eye(dim) + tau * block.T.T @ t


def finite_difference(cone: Cone, w: Array, step: float) -> Array:
    """(N, dim, dim) Jacobians of the projection, fourth-order central differences."""
    columns = []
    for e in np.eye(cone.dim):
        near = cone.project(w + step * e) - cone.project(w - step * e)
        far = cone.project(w + 2 * step * e) - cone.project(w - 2 * step * e)
        columns.append((8 * near - far) / (12 * step))
    return np.stack(columns, axis=2)


def norms(v: Array) -> Array:
    return np.linalg.norm(v, axis=1)


class ConeContract:
    cone: ClassVar[Cone]
    #: name of each case -> its code
    cases: ClassVar[dict[str, int]]
    #: cases where finite differences of the projection converge slowly: name -> tolerance
    slow: ClassVar[dict[str, float]] = {}
    #: rounding errors relative to |w|
    rounding: ClassVar[float] = 5e-15
    #: how well D Pi(w) w = Pi(w) holds (a cone with thresholds has less)
    homogeneity: ClassVar[float] = 1e-13

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """n strictly complementary pairs of order one, (n, dim) each."""
        raise NotImplementedError

    def violation(self, s: Array) -> Array:
        """(n,) largest violation of K's inequalities."""
        raise NotImplementedError

    def dual_violation(self, y: Array) -> Array:
        return self.violation(y)

    # ------------------------------------------------------------------ material

    def rng(self, case: str = "") -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.cone!r} {case}".encode()))

    def instances(self, case: str, scale: float = 1.0) -> tuple[Array, Array, Array, Array]:
        """s, y, w = s - tau y and tau, where s and tau y are of size `scale`."""
        rng = self.rng(case)
        s, v = self.pair(case, rng, COUNT)
        tau = 10.0 ** rng.uniform(-3, 3, COUNT)
        return scale * s, scale * v / tau[:, None], scale * (s - v), tau

    def wild(self, n: int = 2000) -> Array:
        """Blocks of all sizes with entries of all sizes, and small integers (ties, zeros)."""
        rng = self.rng("wild")
        w = rng.standard_normal((n, self.cone.dim)) * 10.0 ** rng.uniform(-8, 8, (n, 1))
        w[::2] *= 10.0 ** rng.uniform(-8, 0, w[::2].shape)
        w[: n // 4] = rng.integers(-2, 3, (n // 4, self.cone.dim))
        return w

    # ------------------------------------------------------------------ projection

    @pytest.mark.parametrize("scale", SCALES)
    def test_projection_of_known_pairs(self, case: str, scale: float) -> None:
        s, y, w, tau = self.instances(case, scale)
        size = norms(w)
        assert np.all(norms(self.cone.project(w) - s) <= self.rounding * size)
        dual = self.cone.project_dual(-w)
        assert np.all(norms(dual - tau[:, None] * y) <= self.rounding * size)

    def test_projection_lies_in_cone(self, case: str) -> None:
        w = self.instances(case)[2]
        tolerance = 20 * self.rounding * norms(w)
        assert np.all(self.violation(self.cone.project(w)) <= tolerance)
        assert np.all(self.dual_violation(self.cone.project_dual(-w)) <= tolerance)

    def test_moreau_decomposition_of_wild_points(self) -> None:
        w = self.wild()
        size = np.maximum(norms(w), 1e-100)
        s = self.cone.project(w)
        v = self.cone.project_dual(-w)
        assert np.all(norms(w - s + v) <= self.rounding * size)
        assert np.all(np.abs(np.sum(s * v, axis=1)) / size <= self.rounding * size)
        assert np.all(norms(self.cone.project(s) - s) <= self.rounding * size)
        assert np.all(norms(self.cone.project(-v)) <= self.rounding * size)

    def test_projection_is_nonexpansive_and_homogeneous(self) -> None:
        w = self.wild(400)
        p = self.cone.project(w)
        assert np.all(norms(p[1:] - p[:-1]) <= (1 + 1e-12) * norms(w[1:] - w[:-1]) + 1e-300)
        np.testing.assert_allclose(self.cone.project(4.0 * w), 4.0 * p, rtol=1e-12, atol=0)

    # ------------------------------------------------------------------ faces

    @pytest.mark.parametrize("scale", SCALES)
    def test_case_and_cleaned_pair(self, case: str, scale: float) -> None:
        s, y, w, tau = self.instances(case, scale)
        found = faces(self.cone, w, tau)
        size = norms(w)
        assert np.all(found.case == self.cases[case])
        assert np.all(norms(found.s - s) <= self.rounding * size)
        assert np.all(norms(found.y - y) <= self.rounding * size / tau)
        parts = norms(found.s) * norms(found.y)
        assert np.all(np.abs(np.sum(found.s * found.y, axis=1)) <= self.rounding * parts)
        # the same code, compiled twice: sums may be contracted differently
        np.testing.assert_allclose(found.s, self.cone.project(w), rtol=1e-15, atol=1e-15 * size.max())

    def test_weights_are_finite_everywhere(self) -> None:
        w = self.wild()
        found = faces(self.cone, w, np.full(len(w), 1e3))
        assert np.all(np.isfinite(found.delta))
        assert np.all((found.delta >= 0) & (found.delta <= 1e19))
        assert all(np.isfinite(b.T).all() and np.isfinite(b.C).all() for b in found.blocks)
        assert np.all(found.margin >= 0)
        assert len(found.delta) == found.rows.sum()

    @pytest.mark.parametrize("scale", SCALES)
    def test_derivative_of_the_projection(self, case: str, scale: float) -> None:
        _, _, w, tau = self.instances(case, scale)
        blocks = faces(self.cone, w, tau).blocks
        D = np.stack([projection_derivative(b, t) for b, t in zip(blocks, tau, strict=True)])
        expected = finite_difference(self.cone, w, 1e-4 * scale)
        np.testing.assert_allclose(D, expected, rtol=0, atol=self.slow.get(case, 1e-9))

    def test_derivative_of_wild_points(self) -> None:
        """D Pi is symmetric with eigenvalues in [0, 1] and D Pi(w) w = Pi(w) (homogeneity), everywhere."""
        w = self.wild(100)
        tau = 10.0 ** self.rng("tau").uniform(-3, 3, len(w))
        found = faces(self.cone, w, tau)
        for k, block in enumerate(found.blocks):
            D = projection_derivative(block, tau[k])
            eigenvalues = np.linalg.eigvalsh((D + D.T) / 2)
            assert np.abs(D - D.T).max() <= 1e-12
            assert eigenvalues[0] >= -1e-12
            assert eigenvalues[-1] <= 1 + 1e-12
            assert norms((D @ w[k] - found.s[k])[None])[0] <= self.homogeneity * norms(w[k][None])[0]

    # ------------------------------------------------------------------ margins

    @pytest.mark.parametrize("scale", SCALES)
    def test_case_is_constant_within_the_margin(self, case: str, scale: float) -> None:
        _, _, w, tau = self.instances(case, scale)
        found = faces(self.cone, w, tau)
        assert np.all(found.margin > 0)
        step = np.minimum(0.99 * found.margin, 1e3 * scale)
        for direction in self.directions(case):
            moved = faces(self.cone, w + step[:, None] * direction, tau)
            np.testing.assert_array_equal(self.structures(moved.case), self.structures(found.case))

    def structures(self, case: Array) -> Array:
        """Equal numbers for cases between which the derivative is continuous: these need no margin."""
        return case

    def test_case_changes_beyond_the_margin(self, case: str) -> None:
        _, _, w, tau = self.instances(case)
        found = faces(self.cone, w, tau)
        changes = np.isinf(found.margin)
        for direction in self.directions(case):
            step = 8 * np.where(np.isinf(found.margin), 0.0, found.margin)
            changes |= faces(self.cone, w + step[:, None] * direction, tau).case != found.case
        assert changes.all()

    def directions(self, case: str) -> list[Array]:
        """Unit directions (n, dim): random ones, the axes, and along s and y."""
        rng = self.rng(case + " directions")
        s, y, w, _ = self.instances(case)
        steps = [rng.standard_normal(w.shape) for _ in range(25)]
        steps += [np.broadcast_to(sign * e, w.shape) for e in np.eye(self.cone.dim) for sign in (1, -1)]
        steps += [sign * v for v in (s, y) for sign in (1, -1)]
        return [v / np.maximum(norms(v), 1e-100)[:, None] for v in steps]

    # ------------------------------------------------------------------ arrays

    def test_many_blocks_equal_one_by_one(self) -> None:
        w = np.concatenate([self.wild(40), *(self.instances(case)[2] for case in self.cases)])
        tau = 10.0 ** self.rng("tau").uniform(-3, 3, len(w))
        together = faces(self.cone, w, tau)
        same = {"rtol": 1e-11, "atol": 1e-13}
        for k, block in enumerate(together.blocks):
            alone = faces(self.cone, w[k : k + 1], tau[k : k + 1])
            (single,) = alone.blocks
            assert alone.case[0] == together.case[k]
            np.testing.assert_allclose(together.s[k], alone.s[0], **same)
            np.testing.assert_allclose(together.y[k], alone.y[0], **same)
            np.testing.assert_allclose(together.margin[k], alone.margin[0], **same)
            np.testing.assert_allclose(block.T, single.T, **same)
            np.testing.assert_allclose(block.delta, single.delta, **same)
            np.testing.assert_allclose(block.C, single.C, **same)

    def test_no_blocks(self) -> None:
        w = np.zeros((0, self.cone.dim))
        assert self.cone.project(w).shape == w.shape
        found = faces(self.cone, w, np.zeros(0))
        assert found.s.shape == found.y.shape == w.shape
        assert [len(v) for v in (found.blocks, found.case, found.margin)] == [0] * 3

    def test_origin(self) -> None:
        found = faces(self.cone, np.zeros((2, self.cone.dim)), np.ones(2))
        assert not found.s.any()
        assert not found.y.any()
        assert np.all(np.isfinite(found.delta))

    def test_a_block_that_is_not_finite_stays_alone(self) -> None:
        w = self.wild(20)
        clean = self.cone.project(w)
        w[7] = np.nan
        found = faces(self.cone, w, np.ones(20))
        assert np.all(np.isnan(found.s[7] + found.y[7]))
        assert all(np.isfinite(b.T).all() for b in found.blocks)
        assert np.isfinite(found.delta).all()
        assert not np.isnan(self.cone.project(np.delete(w, 7, axis=0))).any()
        np.testing.assert_allclose(np.delete(found.s, 7, axis=0), np.delete(clean, 7, axis=0), rtol=1e-12)

    def test_a_neighbourhood_of_the_interior_point_lies_in_the_cone(self) -> None:
        w = self.cone.interior + 0.1 * np.random.default_rng(0).uniform(-1, 1, (COUNT, self.cone.dim))
        if self.cone.name == "zero":
            assert not self.cone.interior.any()
        else:
            np.testing.assert_allclose(self.cone.project(w), w, rtol=0, atol=1e-12)

    def test_cones_compare_by_value(self) -> None:
        twin = dataclasses.replace(self.cone)  # type: ignore[type-var]
        assert twin == self.cone
        assert hash(twin) == hash(self.cone)
