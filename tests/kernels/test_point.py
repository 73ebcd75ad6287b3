"""Residuals of a point against dense linear algebra, whatever the columns of its matrices look like; its sizes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.outer import outer

from ffo.kernels import kkt, point
from ffo.kernels import residuals as terms

residuals = outer(terms.residuals)
row_norms, sizes = outer(point.row_norms), outer(point.sizes)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 1), (1, 4), (6, 5), (40, 33)])
@pytest.mark.parametrize("kind", ["full", "mixed", "sparse"])
def test_residuals_are_those_of_dense_matrices(n: int, m: int, kind: str) -> None:
    rng = np.random.default_rng(n + m)
    share = {"full": 1.0, "mixed": 0.9, "sparse": 0.2}[kind]
    upper = np.triu(rng.standard_normal((n, n)) * (rng.random((n, n)) < share))
    A = rng.standard_normal((m, n)) * (rng.random((m, n)) < share)
    if kind == "mixed":  # some columns full, some not
        A[:, ::2] = rng.standard_normal(A[:, ::2].shape)
    (Pc, Pr), (Ac, Ar) = upper.T.nonzero(), A.T.nonzero()  # column by column
    S = kkt.build((Pr, Pc), (Ar, Ac), n, m, kkt.ConeBlocks(np.array([kkt.NONNEG]), np.array([m]), np.zeros(1)))
    q, b, x, y, s = (rng.standard_normal(k) for k in (n, m, n, m, m))
    b[::3] = np.inf
    r_x, r_s = np.empty(n), np.empty(m)
    a_x, a_s = residuals(S, terms.Data(upper[Pr, Pc], q, A[Ar, Ac], b), x, y, s, r_x, r_s)
    P, there = upper + np.triu(upper, 1).T, b < np.inf
    np.testing.assert_allclose(r_x, -(P @ x + q + A.T @ y), atol=1e-12)
    np.testing.assert_allclose(a_x, np.abs(P) @ np.abs(x) + np.abs(q) + np.abs(A.T) @ np.abs(y), atol=1e-12)
    np.testing.assert_allclose(r_s[there], (b - A @ x - s)[there], atol=1e-12)
    np.testing.assert_allclose(a_s[there], (np.abs(b) + np.abs(A) @ np.abs(x))[there], atol=1e-12)
    assert not r_s[~there].any()
    assert not a_s[~there].any()


def test_entries_in_another_order_are_refused() -> None:
    blocks = kkt.ConeBlocks(np.array([kkt.NONNEG]), np.array([2]), np.zeros(1))
    each = np.arange(2)
    with pytest.raises(ValueError, match="column by column"):
        kkt.build((each, each), (np.array([1, 0]), np.array([0, 0])), 2, 2, blocks)


@pytest.mark.parametrize(("noise", "implied"), [(0.0, 3.0), (1e-17, 3.0), (1e-9, 1e-9 / np.sqrt(2))])
def test_rounding_errors_of_a_right_hand_side_are_not_the_size_of_the_data(noise: float, implied: float) -> None:
    """x1 = 15, x2 - x1 = noise, x2 <= 3: x is at least as large as 15, so 1e-17 is noise, and 1e-9 may not be."""
    entries = (np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]))
    blocks = kkt.ConeBlocks(np.array([kkt.ZERO, kkt.NONNEG]), np.array([2, 1]), np.zeros(2))
    S = kkt.build((np.arange(2), np.arange(2)), entries, 2, 3, blocks)
    data = terms.Data(np.ones(2), np.zeros(2), np.array([1.0, -1.0, 1.0, 1.0]), np.array([15.0, noise, 3.0]))
    found = sizes(S, data, row_norms(S, data.Av), np.full(2, 15.0), np.zeros(3), np.zeros(3))
    assert found.implied_primal == pytest.approx(implied)


@pytest.mark.parametrize(("small", "large"), [(1e-9, 15.0), (1e-9, 1e9)])
def test_a_small_right_hand_side_is_not_the_size_of_the_costs(small: float, large: float) -> None:
    """x1 = large, x2 - x1 = small: the multipliers balance Px, which the first row implies. The second one had: other
    forces counted as ones that cancel each other, and rounding errors of 1e-15 looked like residuals of 1e-11."""
    entries = (np.array([0, 1, 1]), np.array([0, 0, 1]))
    S = kkt.build(
        (np.arange(2), np.arange(2)), entries, 2, 2, kkt.ConeBlocks(np.array([0]), np.array([2]), np.zeros(1))
    )
    data = terms.Data(np.ones(2), np.zeros(2), np.array([1.0, -1.0, 1.0]), np.array([large, small]))
    row = row_norms(S, data.Av)
    found = sizes(S, data, row, np.full(2, large), np.full(2, -large), np.zeros(2))
    assert found.implied_dual == pytest.approx(large)
    # a point far beyond what the rows imply says nothing
    found = sizes(S, data, row, np.full(2, 1e6 * large), np.full(2, -large), np.zeros(2))
    assert found.implied_dual <= 1e3 * large
