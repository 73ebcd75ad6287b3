"""Every routine below and above the size where BLAS is used, against NumPy, inside larger arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from outer import outer

from ffo.kernels import blas

cholesky, add_gram, row_products = outer(blas.cholesky), outer(blas.add_gram), outer(blas.row_products)
multiply, multiply_transposed = outer(blas.multiply), outer(blas.multiply_transposed)
solve_lower, solve_upper = outer(blas.solve_lower), outer(blas.solve_upper)
solve_factored, solve_lower_rows = outer(blas.solve_factored), outer(blas.solve_lower_rows)

SIZES = [1, 7, blas.SMALL - 1, blas.SMALL, 80]
MARK = 7.25  # marks entries outside the block, which must not change


@pytest.fixture(params=SIZES)
def n(request: pytest.FixtureRequest) -> int:
    return request.param


def padded(block: np.ndarray) -> np.ndarray:
    """The block as the leading part of a larger array."""
    out = np.full([k + 3 for k in block.shape], MARK)
    out[tuple(slice(k) for k in block.shape)] = block
    return out


def untouched(array: np.ndarray, block: np.ndarray) -> bool:
    outside = np.ones(array.shape, dtype=bool)
    outside[tuple(slice(k) for k in block.shape)] = False
    return bool((array[outside] == MARK).all())


def factor(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A positive definite matrix and its Cholesky factor."""
    M = np.random.default_rng(n).normal(size=(n, n + 2))
    S = M @ M.T / n + np.eye(n)
    return S, np.linalg.cholesky(S)


def test_cholesky_reads_and_writes_the_lower_triangle(n: int) -> None:
    S, L = factor(n)
    above = np.triu_indices(n, 1)
    S[above] = MARK
    a = padded(S)
    assert cholesky(a, n)
    np.testing.assert_allclose(np.tril(a[:n, :n]), L, atol=1e-13)
    assert (a[:n, :n][above] == MARK).all()
    assert untouched(a, S)


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan])
def test_cholesky_refuses_what_is_not_positive_definite(n: int, bad: float) -> None:
    S, _ = factor(n)
    S[n - 1, n - 1] = bad
    assert not cholesky(S, n)


def test_triangular_solves(n: int) -> None:
    S, L = factor(n)
    a, v = padded(L), np.random.default_rng(1).normal(size=n)
    for routine, matrix in ((solve_lower, L), (solve_upper, L.T), (solve_factored, S)):
        x = padded(v)
        routine(a, n, x)
        np.testing.assert_allclose(matrix @ x[:n], v, atol=1e-12)
        assert untouched(x, v)


def test_triangular_solves_of_rows(n: int) -> None:
    _, L = factor(n)
    rows = np.random.default_rng(2).normal(size=(5, n))
    M = padded(rows)
    solve_lower_rows(padded(L), n, M, 1, 4)
    np.testing.assert_allclose(M[1:4, :n] @ L.T, rows[1:4], atol=1e-12)
    np.testing.assert_array_equal(M[[0, 4], :n], rows[[0, 4]])
    assert untouched(M, rows)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_products_with_vectors(n: int, beta: float) -> None:
    rng = np.random.default_rng(3)
    A = rng.normal(size=(n + 2, n))
    for routine, matrix in ((multiply, A), (multiply_transposed, A.T)):
        x, y = rng.normal(size=matrix.shape[1]), rng.normal(size=matrix.shape[0])
        out = padded(y if beta else np.full_like(y, np.nan))  # with beta = 0 the old values must not matter
        routine(padded(A), n + 2, n, x, out, -1.5, beta)
        np.testing.assert_allclose(out[: len(y)], -1.5 * matrix @ x + beta * y, atol=1e-12)
        assert untouched(out, y)


def test_products_of_rows(n: int) -> None:
    M = np.random.default_rng(4).normal(size=(6, n))
    S = np.full((7, 7), MARK)
    row_products(padded(M), 2, 6, n, S)
    expected = M @ M.T
    for i in range(2, 6):
        np.testing.assert_allclose(S[i, : i + 1], expected[i, : i + 1], atol=1e-12)
    assert (S[[0, 1, 6]] == MARK).all()
    assert (S[:, 6] == MARK).all()


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_gram_matrices_are_added(n: int, beta: float) -> None:
    U = np.random.default_rng(5).normal(size=(9, n))
    S, _ = factor(n)
    lower = np.tril_indices(n)
    out = padded(S if beta else np.full_like(S, np.nan))
    add_gram(padded(U), 9, n, out, -2.0, beta)
    np.testing.assert_allclose(out[:n, :n][lower], (-2.0 * U.T @ U + beta * S)[lower], atol=1e-12)
    assert untouched(out, S)
    add_gram(padded(U), 0, n, out, 1.0, 0.0)
    assert (out[:n, :n][lower] == 0.0).all()


def test_the_same_without_the_compiler() -> None:
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("this is the run without the compiler")
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
