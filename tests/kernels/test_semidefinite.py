"""Semidefinite blocks of the interior-point method: eigenvalues against LAPACK's, the scaling by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from tests.outer import outer

from ffo.kernels import semidefinite
from ffo.kernels.group import Samples
from ffo.kernels.jit import inner_kernel
from ffo.kernels.lanes import LANES, store

Array = np.ndarray
ORDERS = (2, 3, 8)


@outer
@inner_kernel
def least(M: Array, k: int, out: Array) -> None:
    store(out, 0, semidefinite._least(M, k))


@outer
@inner_kernel
def scale(G: Samples, d: int) -> None:
    semidefinite.scale(G, 0, d, 0)


def svec(M: Array) -> Array:
    """(LANES, k, k) -> (d, LANES)."""
    k = M.shape[1]
    columns = [(p, q) for q in range(k) for p in range(q + 1)]
    return np.array([M[:, p, q] * (1.0 if p == q else np.sqrt(2.0)) for p, q in columns])


def smat(v: Array, k: int) -> Array:
    """(d,) -> (k, k)."""
    M, t = np.zeros((k, k)), 0
    for q in range(k):
        for p in range(q + 1):
            M[p, q] = M[q, p] = v[t] / (1.0 if p == q else np.sqrt(2.0))
            t += 1
    return M


def matrices(rng: np.random.Generator, k: int, values: Array) -> Array:
    """(LANES, k, k) with these eigenvalues (k,)."""
    Q = np.linalg.qr(rng.standard_normal((LANES, k, k)))[0]
    return symmetric(np.einsum("lij,j,lkj->lik", Q, values, Q))


def symmetric(M: Array) -> Array:
    return 0.5 * (M + M.swapaxes(1, 2))


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 1e6])
def test_the_bound_of_eigenvalues_is_close_and_below(k: int, spread: float) -> None:
    rng = np.random.default_rng(k)
    M = matrices(rng, k, -1.0 + spread * rng.random(k))
    M[1] = np.diag(np.diag(M[1]))
    M[2] = 0.0
    out, smallest = np.empty((1, LANES)), np.linalg.eigvalsh(M)
    least(np.ascontiguousarray(M.reshape(LANES, k * k).T), k, out)
    size = np.abs(smallest).max(axis=1) + 1e-300
    assert (out[0] <= smallest[:, 0] + 1e-14 * size).all()
    assert (out[0] >= smallest[:, 0] - 0.05 * np.abs(smallest[:, 0]) - 1e-3 * size).all()


@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("depth", [1.0, 1e-4, 1e-8])
def test_the_scaling_takes_both_points_to_one_and_its_rows_make_it_diagonal(k: int, depth: float) -> None:
    """S and Y nearly complementary; W'W takes Y to S, and T W'W T' is the diagonal of the weights."""
    rng, d = np.random.default_rng(7), k * (k + 1) // 2
    values = np.where(np.arange(k) < k // 2, 1.0, depth) * rng.uniform(0.5, 2.0, k)
    S = matrices(rng, k, values)
    Y = depth * (symmetric(np.linalg.inv(S)) + 0.1 * matrices(rng, k, rng.random(k)))
    G = Samples(*(np.zeros((d * d, LANES)) for _ in Samples._fields))
    G.s[:d], G.y[:d] = svec(S), svec(Y)
    scale(G, d)
    for lane in range(LANES):
        B = G.B[: k * k, lane].reshape(k, k)
        inverse, lam = G.B[k * k : 2 * k * k, lane].reshape(k, k), np.diag(G.lam[:k, lane])
        np.testing.assert_allclose(B.T @ Y[lane] @ B, lam, atol=1e-7 * lam.max())
        np.testing.assert_allclose(inverse @ S[lane] @ inverse.T, lam, atol=1e-7 * lam.max())
        T = G.R[: d * d, lane].reshape(d, d)
        rows = np.array([svec((B.T @ smat(row, k) @ B)[None])[:, 0] for row in T])  # TW'
        unit = np.sqrt(G.u[:d, lane])
        np.testing.assert_allclose(rows @ rows.T / np.outer(unit, unit), np.eye(d), atol=1e-6)
