from typing import ClassVar

import numpy as np
import pytest
from cones.contract import Array, ConeContract
from cones.faces import faces

from ffo.cones import PSD
from ffo.cones.psd import smat, svec
from ffo.errors import InputError


class PSDContract(ConeContract):
    cone: PSD

    def pair(self, case: str, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        k, rank = self.cone.order, self.cases[case]
        Q = np.linalg.qr(rng.standard_normal((n, k, k)))[0]
        size = rng.uniform(0.3, 2, (n, 1, k))
        positive = np.arange(k) < rank
        compose = lambda eig: svec((Q * eig) @ Q.transpose(0, 2, 1))  # noqa: E731
        return compose(size * positive), compose(size * ~positive)

    def violation(self, s: Array) -> Array:
        return -np.linalg.eigvalsh(smat(s, self.cone.order))[:, 0]


class TestOrder1(PSDContract):
    cone = PSD(1)
    cases: ClassVar = {"vertex": 0, "interior": 1}


class TestOrder2(PSDContract):
    cone = PSD(2)
    cases: ClassVar = {f"rank {r}": r for r in range(3)}


class TestOrder4(PSDContract):
    cone = PSD(4)
    cases: ClassVar = {f"rank {r}": r for r in range(5)}
    rounding = 1e-14

    def test_rows_are_orthonormal_whatever_the_rank(self) -> None:
        w = np.concatenate([self.instances(case)[2] for case in self.cases])
        w = w[self.rng("shuffle").permutation(len(w))]
        found = faces(self.cone, w, np.ones(len(w)))
        p = 4 - found.case
        np.testing.assert_array_equal(found.rows, p * (p + 1) // 2 + p * found.case)
        for block in found.blocks:
            np.testing.assert_allclose(block.T @ block.T.T, np.eye(len(block.T)), atol=1e-14)


def test_svec_stacks_the_upper_triangle_by_columns() -> None:
    X = np.array([[1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]])
    r = np.sqrt(2)
    np.testing.assert_allclose(svec(X), [1, 2 * r, 3, 4 * r, 5 * r, 6])
    np.testing.assert_allclose(smat(svec(X), 3), X)


def test_order_is_checked() -> None:
    with pytest.raises(InputError, match="order of a semidefinite cone must be at least 1"):
        PSD(0)
