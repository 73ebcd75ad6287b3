"""Sizes of vectors, matrices and points, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.outer import outer

from ffo.kernels import evidence
from ffo.kernels.extent import matrix_extent
from ffo.kernels.residuals import Data

reach = outer(evidence.reach)


P = np.array([[2.0, -0.5, 0.0, 0.0], [0.0, 0.25, 0.0, 0.0], [0.0] * 4, [0.0] * 4])
A = np.array([[1e-4, 3.0, 0.0, 0.0], [0.0, -2.0, 5.0, 0.0], [0.0, 0.0, 0.0, 1e-9]])


def sizes(P: np.ndarray, A: np.ndarray) -> tuple[float, float, bool, list[bool]]:
    """Of two matrices of which all nonzero entries are stored."""
    (i, j), (r, c), alone = P.nonzero(), A.nonzero(), np.empty(4, dtype=bool)
    coupling = ((A != 0).sum(axis=1) > 1)[r]
    coupled = np.bincount(c[coupling], minlength=4) > 0
    return *matrix_extent(i, j, P[i, j], r, c, A[r, c], coupling, coupled, len(A), 1e3, alone), alone.tolist()


def test_sizes_of_matrices() -> None:
    *found, fit, alone = sizes(P, A)
    assert found == [2.0, 2.0]  # the first column alone is lean
    assert not fit  # the last row is tiny
    assert alone == [False, False, False, True]
    assert sizes(P, np.where(A == 1e-9, 1.0, A))[2]
    assert not sizes(P, np.where(A == 1e-9, 1.0, 2e3 * A))[2]
    assert sizes(1e6 * P, np.where(A == 1e-9, 1.0, A))[:3] == (2e6, 2e6, True)
    assert sizes(0 * P, A[1:2]) == (0.0, np.inf, True, [True, False, False, True])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_matrices_that_are_not_finite_do_not_fit(bad: float) -> None:
    for at in range(2):
        given = [P.copy(), np.where(A == 1e-9, 1.0, A)]
        given[at][0, 1] = bad
        assert not sizes(*given)[2]


def test_reach_of_a_point() -> None:
    data = Data(np.array([2.0]), np.array([1.0, 0.0]), np.empty(0), np.empty(0))
    x, y = np.array([-3.0, 1.0]), np.array([0.5])
    assert reach(data, x, y) == 3.0
    assert reach(data, x, 4.0 * x) == 12.0
    for bad in (np.nan, np.inf):
        assert reach(data, np.array([1.0, bad]), y) == np.inf
        assert reach(data, x, np.array([bad, 1.0])) == np.inf
    buried = data._replace(q=np.array([1e-13, 0.0]))
    assert reach(buried, x, y) == np.inf
    assert reach(buried._replace(q=np.zeros(2)), x, y) == 3.0  # no costs at all
