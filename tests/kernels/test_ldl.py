"""The factorization, sparse and with a dense rest, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tests.outer import outer

from ffo.kernels import ldl

SHIFT = 1e-7
factor, solve = outer(ldl.factor), outer(ldl.solve)


def quasi_definite(n: int, m: int, density: float, seed: int, off: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """[P A'; A -I] and the signs of its pivots; the last `off` rows have only a diagonal entry."""
    rng = np.random.default_rng(seed)
    half = np.where(rng.random((n, n)) < density, rng.standard_normal((n, n)), 0.0)
    A = np.where(rng.random((m, n)) < density, rng.standard_normal((m, n)), 0.0)
    A[m - off :] = 0.0
    K = np.block([[half @ half.T + np.eye(n), A.T], [A, -np.eye(m)]])
    return K, np.concatenate([np.ones(n), -np.ones(m)])


def factorize(K: np.ndarray, sign: np.ndarray, pattern: np.ndarray | None = None) -> tuple[int, float, np.ndarray]:
    """`head`, the smallest pivot, and (LDL')^-1 applied to the identity; without a pattern, it has every entry."""
    upper = sp.csc_array(np.triu(np.ones_like(K) if pattern is None else pattern))
    Kp, Ki = upper.indptr.astype(np.int64), upper.indices.astype(np.uint32)
    cols = np.repeat(np.arange(len(K)), np.diff(Kp))
    size = len(K)
    Lp, Li, Rp, Ri = ldl.symbolic(size, Kp, Ki)
    head = ldl.dense_from(Lp, Li)
    Lx, Dinv = np.full(ldl.room(head, size, Lp), np.nan), np.empty(size)
    smallest = factor(head, Kp, Ki, Lp, Li, Rp, Ri, sign, K[Ki, cols], np.ones(size), SHIFT, Lx, Dinv)
    columns = np.eye(size)
    for x in columns:
        solve(head, Lp, Li, Lx, Dinv, x)
    return head, smallest, columns.T


@pytest.mark.parametrize(
    ("n", "m", "off"), [(1, 0, 0), (7, 3, 0), (30, 20, 15), (90, 60, 0), (90, 60, 50), (150, 40, 40)]
)
def test_a_full_pattern_is_factorized_as_a_dense_matrix(n: int, m: int, off: int) -> None:
    K, sign = quasi_definite(n, m, 0.5, seed=n, off=off)
    head, smallest, inverse = factorize(K, sign)
    exact = np.linalg.inv(K + SHIFT * np.diag(sign))
    assert head == 0 or n + m < 10
    assert smallest >= 0.5
    np.testing.assert_allclose(inverse, exact, atol=1e-12 * np.abs(exact).max() * np.linalg.cond(K))


def test_a_sparse_pattern_with_a_dense_corner_has_both_parts() -> None:
    K, sign = quasi_definite(120, 80, 0.02, seed=3)
    head, _, inverse = factorize(K, sign, K != 0)
    assert 0 < head < len(K)
    exact = np.linalg.inv(K + SHIFT * np.diag(sign))
    np.testing.assert_allclose(inverse, exact, atol=1e-11 * np.abs(exact).max())


@pytest.mark.parametrize("off", [0, 70, 90])
@pytest.mark.parametrize("upside_down", [False, True])
def test_columns_that_a_dense_corner_shares_are_gathered(off: int, upside_down: bool) -> None:
    """Separable costs and dense rows, some of them switched off: the Schur complement of the rows is a product."""
    rng = np.random.default_rng(off)
    n, m = 150, 90
    A = rng.standard_normal((m, n)) * (rng.random(n) < 0.8)
    A[m - off :] = 0.0
    K = np.block([[np.diag(rng.uniform(0.5, 2.0, n)), A.T], [A, -np.eye(m)]])
    sign = np.concatenate([np.ones(n), -np.ones(m)])
    if upside_down:
        K, sign = -K, -sign
    pattern = np.block([[np.eye(n), np.ones((n, m))], [np.ones((m, n)), np.eye(m)]])
    head, _, inverse = factorize(K, sign, pattern != 0)
    assert head == n
    exact = np.linalg.inv(K + SHIFT * np.diag(sign))
    np.testing.assert_allclose(inverse, exact, atol=1e-11 * np.abs(exact).max())


@pytest.mark.parametrize(("n", "m", "off"), [(8, 5, 2), (60, 60, 25)])
def test_rows_that_come_first_are_eliminated_after_the_variables_of_a_dense_matrix(n: int, m: int, off: int) -> None:
    """Active rows have no diagonal entry: if eliminated first, their pivots would be just the regularisation."""
    K, sign = quasi_definite(n, m, 1.0, seed=n, off=off)
    K[n : n + m - off, n : n + m - off] = 0.0
    pattern = np.block([[np.ones((n, n + m))], [np.ones((m, n)), np.eye(m)]])
    order = np.r_[n : n + m, :n]
    K, sign, pattern = K[np.ix_(order, order)], sign[order], pattern[np.ix_(order, order)]
    head, smallest, inverse = factorize(K, sign, pattern != 0)
    exact = np.linalg.inv(K + SHIFT * np.diag(sign))
    assert head == 0
    assert smallest > 1e-3
    np.testing.assert_allclose(inverse, exact, atol=1e-12 * np.abs(exact).max() * np.linalg.cond(K))


@pytest.mark.parametrize("size", [20, 150])
def test_a_singular_matrix_has_its_pivots_set_to_the_regularisation(size: int) -> None:
    v = np.random.default_rng(1).standard_normal((size, 3))
    _, smallest, inverse = factorize(v @ v.T, np.ones(size))
    assert smallest < 1e-6
    assert np.isfinite(inverse).all()
