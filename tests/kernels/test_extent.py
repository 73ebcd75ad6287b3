"""Sizes of vectors and points, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.outer import outer

from ffo.kernels import evidence
from ffo.kernels.extent import extent
from ffo.kernels.point import Data

reach = outer(evidence.reach)


def test_sizes_of_vectors() -> None:
    q, b = np.array([[1.0, -3.0], [0.5, 0.25]]), np.array([[0.0, -7.0, 0.01]])
    assert extent(q, b) == (0.5, 3.0, 7.0, 7.0, 0.01)
    assert extent(q, np.zeros((2, 0))) == (0.5, 3.0, 0.0, 0.0, np.inf)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", range(2))
def test_vectors_that_are_not_finite_have_infinite_size(bad: float, at: int) -> None:
    q, b = np.ones((2, 2)), np.ones((2, 3))
    (q, b)[at][1, 0] = bad
    found = extent(q, b)
    assert np.inf in (found[1], found[3])


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
