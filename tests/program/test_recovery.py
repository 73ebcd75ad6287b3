"""Outputs are new arrays that the caller may change."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ffo.program.recovery import Output, Recovery


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=["whole", "permuted"])
def test_outputs_share_nothing_with_the_solution(order: list[int]) -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.zeros((2, 1))
    out = Output(sp.csr_array(np.eye(3)[order]), dual=False, exponential=False, shape=(3,))
    recovery = Recovery([out], 3, 1)
    (found,) = recovery.apply(x, y)
    np.testing.assert_array_equal(found, x[:, order])
    found[:] = -1.0
    np.testing.assert_array_equal(x, np.arange(6.0).reshape(2, 3))
    gradient = np.arange(6.0).reshape(2, 3) ** 2
    c_x, _ = recovery.adjoint([gradient], x)
    np.testing.assert_array_equal(c_x[:, order], gradient)
    np.testing.assert_array_equal(recovery.tangent(x, y, x)[0], x[:, order])
