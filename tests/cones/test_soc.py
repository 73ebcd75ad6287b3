from typing import ClassVar

import numpy as np
import pytest
from cones.contract import Array, ConeContract, norms, projection_derivative
from cones.faces import faces

from ffo.cones import SecondOrder
from ffo.errors import InputError
from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX


class SecondOrderContract(ConeContract):
    cone: SecondOrder
    cases: ClassVar = {"interior": INTERIOR, "vertex": VERTEX, "boundary": BOUNDARY}

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        k = self.cone.size - 1
        inner = rng.standard_normal((n, k))
        zero = np.zeros((n, k + 1))
        if case in ("interior", "vertex"):
            point = np.column_stack([norms(inner) + rng.uniform(0.3, 2, n), inner])
            return (point, zero) if case == "interior" else (zero, point)
        u = inner / norms(inner)[:, None]
        if k == 1:
            u = np.full((n, 1), 1.0 if case == "boundary" else -1.0)
        s0, y0 = rng.uniform(0.2, 2, (2, n, 1))
        one = np.ones((n, 1))
        return s0 * np.hstack([one, u]), y0 * np.hstack([one, -u])

    def violation(self, s: Array) -> Array:
        return norms(s[:, 1:]) - s[:, 0]


class TestRay(SecondOrderContract):
    cone = SecondOrder(1)
    cases: ClassVar = {"interior": INTERIOR, "vertex": VERTEX}


class TestPlane(SecondOrderContract):
    cone = SecondOrder(2)
    cases: ClassVar = {"interior": INTERIOR, "vertex": VERTEX, "boundary": BOUNDARY, "other boundary": BOUNDARY + 1}


class TestThree(SecondOrderContract):
    cone = SecondOrder(3)


class TestSeven(SecondOrderContract):
    cone = SecondOrder(7)

    def test_sparse_form_equals_the_orthonormal_rows(self) -> None:
        """{T't : C't = 0} is spanned by (1,-u)/sqrt 2 and (0,v), and the derivatives agree."""
        s, y, w, tau = self.instances("boundary")
        for k, block in enumerate(faces(self.cone, w, tau).blocks):
            u = s[k, 1:] / s[k, 0]
            V = np.linalg.svd(u[None])[2][1:]
            rows = np.vstack([np.r_[1, -u] / np.sqrt(2), np.hstack([np.zeros((5, 1)), V])])
            delta = np.r_[0, np.full(5, s[k, 0] / y[k, 0])]
            expected = np.eye(7) - rows.T @ np.diag(tau[k] / (tau[k] + delta)) @ rows
            np.testing.assert_allclose(projection_derivative(block, tau[k]), expected, atol=1e-14)
            kernel = np.linalg.svd(block.C.T)[2][1:]  # t with C't = 0
            span = np.linalg.qr((kernel @ block.T).T)[0]
            np.testing.assert_allclose(span @ span.T, rows.T @ rows, atol=1e-14)

    def test_rows_stay_sparse(self) -> None:
        w = self.instances("boundary")[2]
        for block in faces(self.cone, w, np.ones(len(w))).blocks:
            assert np.count_nonzero(block.T) == 2 * 7 - 1
            assert block.C.shape == (7, 1)


@pytest.mark.parametrize("gap", [1e-18, 1e-300])
def test_weight_is_bounded_where_curvature_vanishes(gap: float) -> None:
    tau = np.array([1e-4, 1.0, 1e4])
    nearly = np.tile([1.0, np.nextafter(1.0, 2.0), gap], (3, 1))
    found = faces(SecondOrder(3), nearly, tau)
    assert np.all(found.case == BOUNDARY)
    assert np.all(found.delta <= 1e16 * np.repeat(tau, 3))


def test_size_is_checked() -> None:
    with pytest.raises(InputError, match="at least 1"):
        SecondOrder(0)
