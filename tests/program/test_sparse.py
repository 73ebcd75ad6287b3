"""Batches of sparse matrices, against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ffo.program.pattern import span
from ffo.program.sparse import SparseBatch, SymmetricBatch, distinct, is_identity, take_rows

Array = np.ndarray
BATCH = 3

SHAPES = [(4, 6), (6, 4), (1, 1), (5, 1), (1, 5), (0, 3), (3, 0)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
storage = pytest.mark.parametrize("shared", [True, False], ids=["shared", "batched"])


def random_batch(shape: tuple[int, int], shared: bool, seed: int = 0) -> tuple[SparseBatch, Array]:
    """A batch with some stored zeros, and the equivalent dense (BATCH, rows, cols) array."""
    rng = np.random.default_rng([seed, *shape])
    pattern = SparseBatch.from_matrix((rng.random(shape) < 0.6).astype(float))
    values = rng.normal(size=(pattern.nnz,) if shared else (BATCH, pattern.nnz))
    values[..., ::4] = 0.0
    dense = np.zeros((BATCH, *shape))
    dense[:, pattern.indices, pattern.columns] = values
    return SparseBatch(pattern.indptr, pattern.indices, values, shape), dense


def random_symmetric(n: int, shared: bool, seed: int = 0) -> tuple[SymmetricBatch, Array]:
    rng = np.random.default_rng([seed, n, 1])
    pattern = SparseBatch.from_matrix(np.triu(rng.random((n, n)) < 0.7).astype(float))
    values = rng.normal(size=(pattern.nnz,) if shared else (BATCH, pattern.nnz))
    upper = np.zeros((BATCH, n, n))
    upper[:, pattern.indices, pattern.columns] = values
    dense = upper + np.triu(upper, 1).transpose(0, 2, 1)
    return SymmetricBatch(pattern.indptr, pattern.indices, values, (n, n)), dense


def products(dense: Array, x: Array) -> Array:
    return np.einsum("kij,kj->ki", dense, x)


@storage
@each_shape
def test_products(shape: tuple[int, int], shared: bool) -> None:
    batch, dense = random_batch(shape, shared)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(BATCH, shape[1])), rng.normal(size=(BATCH, shape[0]))
    np.testing.assert_allclose(batch.dot(x), products(dense, x), atol=1e-14)
    np.testing.assert_allclose(batch.tdot(y), products(dense.transpose(0, 2, 1), y), atol=1e-14)
    assert batch.dot(x).flags.c_contiguous
    assert batch.tdot(y).flags.c_contiguous


@storage
@each_shape
def test_matrices_of_samples(shape: tuple[int, int], shared: bool) -> None:
    batch, dense = random_batch(shape, shared)
    assert batch.shared is shared
    for k in range(BATCH):
        np.testing.assert_array_equal(batch.matrix(k).toarray(), dense[k])
    norms = np.broadcast_to(batch.row_norms_squared, (BATCH, batch.shape[0]))
    np.testing.assert_allclose(norms, (dense**2).sum(axis=2), atol=1e-14)


@storage
@each_shape
def test_pruning_drops_zeros_and_changes_nothing_else(shape: tuple[int, int], shared: bool) -> None:
    batch, dense = random_batch(shape, shared)
    pruned = batch.pruned()
    assert pruned.nnz == np.count_nonzero((dense != 0).any(axis=0))
    for k in range(BATCH):
        np.testing.assert_array_equal(pruned.matrix(k).toarray(), dense[k])
    assert pruned.pruned() is pruned


def test_an_entry_that_one_sample_needs_is_kept() -> None:
    pattern = SparseBatch.from_matrix(np.ones((1, 2)))
    values = np.array([[0.0, 0.0], [0.0, 3.0]])
    pruned = SparseBatch(pattern.indptr, pattern.indices, values, (1, 2)).pruned()
    np.testing.assert_array_equal(pruned.values, [[0.0], [3.0]])
    np.testing.assert_array_equal(pruned.columns, [1])


@storage
@each_shape
def test_block_diagonal(shape: tuple[int, int], shared: bool) -> None:
    batch, dense = random_batch(shape, shared)
    expected = sp.block_diag(list(dense)).toarray().reshape(BATCH * shape[0], BATCH * shape[1])
    np.testing.assert_array_equal(batch.block_diagonal(BATCH).toarray(), expected)


@storage
def test_take(shared: bool) -> None:
    batch, dense = random_batch((4, 6), shared)
    taken = batch.take(np.array([2, 0, 2]))
    for k, source in enumerate([2, 0, 2]):
        np.testing.assert_array_equal(taken.matrix(k).toarray(), dense[source])


def test_from_matrix_adds_duplicates_and_takes_any_format() -> None:
    coo = sp.coo_array((np.array([1, 2, 4]), (np.array([0, 0, 1]), np.array([1, 1, 0]))), shape=(2, 2))
    for matrix in (coo, coo.tocsr(), coo.toarray()):
        batch = SparseBatch.from_matrix(matrix)
        assert batch.values.dtype == float
        np.testing.assert_array_equal(batch.matrix().toarray(), [[0, 3], [4, 0]])


@storage
@pytest.mark.parametrize("n", [1, 2, 5])
def test_symmetric(n: int, shared: bool) -> None:
    batch, dense = random_symmetric(n, shared)
    x = np.random.default_rng(2).normal(size=(BATCH, n))
    np.testing.assert_allclose(batch.dot(x), products(dense, x), atol=1e-14)
    np.testing.assert_allclose(batch.tdot(x), products(dense, x), atol=1e-14)
    np.testing.assert_array_equal(np.broadcast_to(batch.diagonal, (BATCH, n)), np.diagonal(dense, axis1=1, axis2=2))
    for k in range(BATCH):
        np.testing.assert_array_equal(batch.full(k).toarray(), dense[k])


@storage
def test_symmetric_stays_symmetric(shared: bool) -> None:
    batch, dense = random_symmetric(5, shared)
    x = np.random.default_rng(2).normal(size=(2, 5))
    taken = batch.take(np.array([1, 2]))
    assert isinstance(taken, SymmetricBatch)
    np.testing.assert_allclose(taken.dot(x), products(dense[1:], x), atol=1e-14)
    kept = batch.restrict(batch.indices != 0)
    assert isinstance(kept, SymmetricBatch)
    assert isinstance(batch.pruned(), SymmetricBatch)
    without = dense.copy()
    without[:, 0] = without[:, :, 0] = 0.0
    np.testing.assert_allclose(kept.take(np.array([1, 2])).dot(x), products(without[1:], x), atol=1e-14)


def test_nothing_stored() -> None:
    none = np.zeros(0)
    empty = SymmetricBatch(np.zeros(4, dtype=np.int32), none.astype(np.int32), none, (3, 3))
    x = np.ones((2, 3))
    for product in (empty.dot(x), empty.tdot(x), np.broadcast_to(empty.diagonal, (2, 3))):
        np.testing.assert_array_equal(product, np.zeros((2, 3)))
    assert empty.pruned() is empty


def test_broadcast_rows_are_told_from_rows_of_nothing() -> None:
    row = np.arange(3.0)
    wide = np.broadcast_to(row, (4, 3))
    np.testing.assert_array_equal(distinct(wide), [row])
    assert distinct(np.tile(row, (4, 1))).shape == (4, 3)
    assert distinct(np.zeros((4, 0))).shape == (4, 0)
    taken = take_rows(wide, np.array([2, 0]))
    assert taken.shape == (2, 3)
    assert len(distinct(taken)) == 1
    np.testing.assert_array_equal(take_rows(np.eye(3), np.array([2, 0])), np.eye(3)[[2, 0]])
    assert take_rows(np.zeros((4, 0)), np.array([2, 0])).shape == (2, 0)


def test_consecutive_places_are_a_slice() -> None:
    assert span(np.array([3, 4, 5])) == slice(3, 6)
    assert span(np.array([7])) == slice(7, 8)
    for index in (np.array([3, 5]), np.array([5, 4]), np.zeros(0, dtype=int)):
        assert span(index) is index


@storage
def test_the_same_and_owned(shared: bool) -> None:
    batch, _ = random_batch((4, 3), shared)
    other = batch.owned()
    assert batch.same(other)
    assert other.owned() is other
    batch.values[..., 0] += 1.0
    assert not batch.same(other)
    part = other.restrict(np.arange(batch.nnz) > 0)
    assert part.own
    assert not np.shares_memory(part.values, other.values)
    assert isinstance(random_symmetric(3, shared)[0].owned(), SymmetricBatch)


def test_the_identity_is_recognized() -> None:
    assert is_identity(sp.csc_array(sp.eye_array(3)))
    assert is_identity(sp.csr_array((0, 0)))
    permuted = sp.csc_array(np.eye(3)[[1, 0, 2]])
    for other in (2.0 * sp.eye_array(3), sp.eye_array(3, 4), permuted, np.tri(3), np.diag([1.0, 0.0, 1.0])):
        assert not is_identity(sp.csc_array(other))
