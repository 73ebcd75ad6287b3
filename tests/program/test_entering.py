"""Maps of parameters into blocks, and their adjoints, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ffo.program import entering
from ffo.program.affine import Pattern
from ffo.program.entering import EntryMap

Array = np.ndarray
BATCH, ROWS, N = 3, 5, 4


@pytest.fixture(params=[True, False], ids=["kernel", "NumPy"], autouse=True)
def by_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test with the method of small and of large batches."""
    if not request.param:
        monkeypatch.setattr(entering, "KERNEL", -1)


def dense_map(kind: str, rng: np.random.Generator) -> Array:
    """(ROWS * N, size) maps into all entries of a matrix, in Fortran order; size 2 N and C order but for `identity`."""
    size, length = 2 * N, ROWS * N
    M = np.zeros((length, size))
    if kind == "identity":
        return np.eye(length)
    rows = {"order": [1, 2], "twice": [1, 2], "gaps": [0, 3]}
    for k in range(size):
        row, column = divmod(k, N)
        if kind in rows:
            M[rows[kind][row] + ROWS * column, k] = 1.0
        if kind == "twice":  # the other bound of a row
            M[3 + row + ROWS * column, k] = -1.0
    if kind == "many":
        M = rng.normal(size=M.shape)
    if kind == "some":
        M[3, 5], M[11, 0] = 2.0, -0.5
    return M


@pytest.mark.parametrize("kind", ["identity", "order", "twice", "gaps", "some", "many", "nothing"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "shared"])
def test_products_are_those_of_the_matrix(kind: str, batched: bool) -> None:
    rng = np.random.default_rng(0)
    M = dense_map(kind, rng)
    into = EntryMap(sp.csc_array(M))
    lead = (BATCH,) if batched else ()
    theta, gradient = rng.normal(size=(*lead, M.shape[1])), rng.normal(size=(*lead, M.shape[0]))
    np.testing.assert_allclose(into.apply(theta), theta @ M.T, atol=1e-14)
    np.testing.assert_allclose(into.back(gradient), gradient @ M, atol=1e-14)
    assert not np.shares_memory(into.back(gradient), gradient)


@pytest.mark.parametrize("kind", ["identity", "order", "twice", "gaps", "some", "many", "nothing"])
@pytest.mark.parametrize("summed", [True, False], ids=["shared", "batched"])
def test_gradients_of_matrices_are_sampled_where_the_parameter_has_entries(kind: str, summed: bool) -> None:
    rng = np.random.default_rng(1)
    M = dense_map(kind, rng)
    places, _ = Pattern.of_positions(np.arange(ROWS * N), (ROWS, N))
    pairs = [(rng.normal(size=(BATCH, ROWS)), rng.normal(size=(BATCH, N))) for _ in range(2)]
    full = sum(np.einsum("bi,bj->bij", left, right) for left, right in pairs)
    expected = full.transpose(0, 2, 1).reshape(BATCH, -1) @ M
    found = EntryMap(sp.csc_array(M)).back_sampled(pairs, places, False, summed)
    np.testing.assert_allclose(found, expected.sum(axis=0) if summed else expected, atol=1e-13)


@pytest.mark.parametrize("given", ["full", "upper", "some"])
@pytest.mark.parametrize("summed", [True, False], ids=["shared", "batched"])
def test_gradients_of_symmetric_matrices(given: str, summed: bool) -> None:
    rng = np.random.default_rng(2)
    i, j = (v.ravel() for v in np.indices((N, N)))
    keep = {"full": i >= 0, "upper": i <= j, "some": (i + j) % 3 < 2}[given]
    i, j = i[keep], j[keep]
    low, high = np.minimum(i, j), np.maximum(i, j)
    places, entry = Pattern.of_positions(low + N * high, (N, N))
    weight = np.where(i == j, 1.0, 0.5)
    M = sp.csc_array((weight, (entry, np.arange(len(entry)))), shape=(places.nnz, len(entry)))
    u, x = rng.normal(size=(2, BATCH, N))
    # the objective 1/2 x'Px has the gradient 1/2 (u x' + x u') in the symmetric part of its matrix
    full = 0.5 * (np.einsum("bi,bj->bij", u, x) + np.einsum("bi,bj->bij", x, u))
    expected = full[:, i, j]
    found = EntryMap(M).back_sampled([(u, x), (x, u)], places, True, summed)
    np.testing.assert_allclose(found, expected.sum(axis=0) if summed else expected, atol=1e-13)


@pytest.mark.parametrize("summed", [False, True])
def test_gradients_of_full_matrices_whose_entries_have_weights_of_their_own(summed: bool) -> None:
    rng, rows, n = np.random.default_rng(5), 4, 3
    each = np.arange(rows * n)
    place = (each % n) * rows + each // n  # the parameter is ordered by rows, the block by columns
    weight = rng.normal(size=rows * n)
    into = EntryMap(sp.csc_array((weight, (place, each)), shape=(rows * n, rows * n)))
    places = Pattern.of(np.arange(n + 1) * rows, np.tile(np.arange(rows), n), (rows, n))
    left, right = rng.normal(size=(2, rows)), rng.normal(size=(2, n))
    expected = (left[:, :, None] * right[:, None, :]).reshape(2, -1) * weight
    found = into.back_sampled([(left, right)], places, False, summed)
    np.testing.assert_allclose(found, expected.sum(axis=0) if summed else expected)
