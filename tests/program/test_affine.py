"""The affine map from parameters to data, against a dense one, and its adjoint and tangent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from ffo.cones import Nonneg, Product
from ffo.program.affine import BLOCKS, AffineMap, DataGradient, Entry
from ffo.program.cone import ConeProgram
from ffo.program.entering import sampled_products
from ffo.program.pattern import Pattern

Array = np.ndarray
BATCH = 3
N, M = 4, 5
SIZES = (6, 1, 40, 2)


@dataclass(frozen=True)
class Dense:
    """A map and its dense matrices: (block, parameter, log) -> matrix."""

    map: AffineMap
    matrices: dict[tuple[str, int, bool], Array]

    def data(self, values: list[Array]) -> dict[str, Array]:
        """Stored entries of each block for one sample."""
        total = {name: c.copy() for name, c in self.map.constants.items()}
        for (name, i, log), matrix in self.matrices.items():
            total[name] = total[name] + matrix @ (np.log(values[i]) if log else values[i])
        return total


def random_map(seed: int = 0) -> Dense:
    """Parameter 0 in every block, 1 in b through its logarithm and q as it is, 2 in A and P, 3 nowhere."""
    rng = np.random.default_rng(seed)
    P = _pattern(np.triu(rng.random((N, N)) < 0.8), (N, N))
    A = _pattern(rng.random((M, N)) < 0.6, (M, N))
    lengths = {"P": P.nnz, "q": N, "A": A.nnz, "b": M}
    where = [(0, False, BLOCKS), (1, True, ("b",)), (1, False, ("q",)), (2, False, ("A", "P"))]
    entries, matrices = [], {}
    for i, log, names in where:
        maps = {}
        for name in names:
            dense = rng.normal(size=(lengths[name], SIZES[i])) * (rng.random((lengths[name], SIZES[i])) < 0.5)
            matrices[name, i, log] = dense
            maps[name] = sp.csc_array(dense)
        entries.append(Entry(i, log, maps))
    constants = {name: rng.normal(size=length) for name, length in lengths.items()}
    constants["A"][::2] = 0.0
    return Dense(AffineMap(SIZES, entries, constants, P, A, Product([(Nonneg(), M)])), matrices)


def _pattern(mask: Array, shape: tuple[int, int]) -> Pattern:
    csc = sp.csc_array(mask.astype(float))
    return Pattern.of(csc.indptr, csc.indices, shape)


def random_values(batched: tuple[bool, ...], seed: int = 1, zeros: float = 0.0) -> list[Array]:
    rng = np.random.default_rng(seed)
    values = [rng.uniform(0.5, 2, (BATCH, size) if b else size) for size, b in zip(SIZES, batched, strict=True)]
    values[2] = np.where(rng.random(values[2].shape) < zeros, 0.0, values[2])
    return values


def sample(values: list[Array], k: int) -> list[Array]:
    return [v[k] if v.ndim == 2 else v for v in values]


def entries(program: ConeProgram, dense: Dense, k: int) -> dict[str, Array]:
    """Stored entries of one sample on the declared patterns."""
    P, A = dense.map.P, dense.map.A
    return {
        "P": program.P.matrix(k).toarray()[P.indices, P.columns],
        "q": program.q[k],
        "A": program.A.matrix(k).toarray()[A.indices, A.columns],
        "b": program.b[k],
    }


def random_gradient(seed: int = 2, batch: int = BATCH) -> DataGradient:
    rng = np.random.default_rng(seed)
    return DataGradient(*(rng.normal(size=(batch, k)) for k in (N, M, N, M, M)))


def pairing(gradient: DataGradient, change: ConeProgram) -> Array:
    """(batch,) <gradient, change> written with matrices: u'dP x + u'dq + y'dA u + v'dA x + db'db."""
    out = []
    for k in range(len(gradient.x)):
        x, y, u, v = gradient.x[k], gradient.y[k], gradient.u[k], gradient.v[k]
        dP, dA = change.P.full(k).toarray(), change.A.matrix(k).toarray()
        out.append(u @ dP @ x + u @ change.q[k] + y @ dA @ u + v @ dA @ x + gradient.db[k] @ change.b[k])
    return np.array(out)


#: which parameters are batched
MIXES = {
    "shared": (False, False, False, False),
    "batched": (True, True, True, True),
    "first": (True, False, False, False),
    "second": (False, True, False, False),
    "last two": (False, False, True, True),
}
each_mix = pytest.mark.parametrize("batched", MIXES.values(), ids=MIXES)


@each_mix
@pytest.mark.parametrize("zeros", [0.0, 0.95, 1.0], ids=["dense", "few", "none"])
def test_apply(batched: tuple[bool, ...], zeros: float) -> None:
    dense = random_map()
    values = random_values(batched, zeros=zeros)
    program = dense.map.apply(values)
    assert program.batch == (BATCH if any(batched) else 1)
    for k in range(program.batch):
        expected = dense.data(sample(values, k))
        for name, found in entries(program, dense, k).items():
            np.testing.assert_allclose(found, expected[name], atol=1e-13, err_msg=name)


def test_blocks_without_batched_parameters_stay_shared() -> None:
    program = random_map().map.apply(random_values((False, True, False, False)))
    assert program.shared_matrices
    program = random_map().map.apply(random_values((False, False, True, False)))
    assert not program.P.shared
    assert not program.A.shared


def test_few_values_leave_few_entries() -> None:
    """A dense parameter with sparse values is solved on the pattern of its values."""
    n = 10
    full = _pattern(np.triu(np.ones((n, n), dtype=bool)), (n, n))
    rows = _pattern(np.ones((n, n), dtype=bool), (n, n))
    pick = sp.csc_array(np.eye(n * n)[[j * n + i for j, i in zip(full.columns, full.indices, strict=True)]])
    everything = sp.csc_array(sp.eye_array(n * n))
    constants = {"P": np.zeros(full.nnz), "q": np.zeros(n), "A": np.zeros(n * n), "b": np.zeros(n)}
    affine = AffineMap(
        [n * n], [Entry(0, False, {"P": pick, "A": everything})], constants, full, rows, Product([(Nonneg(), n)])
    )
    program = affine.apply([2.0 * np.eye(n).ravel()])
    assert program.P.nnz == program.A.nnz == n
    np.testing.assert_array_equal(program.P.full().toarray(), 2 * np.eye(n))
    np.testing.assert_array_equal(program.A.matrix().toarray(), 2 * np.eye(n))
    crowded = affine.apply([np.arange(1.0, n * n + 1)])
    np.testing.assert_array_equal(crowded.A.matrix().toarray(), np.arange(1.0, n * n + 1).reshape(n, n, order="F"))


def test_not_a_number_is_not_lost_among_zeros() -> None:
    values = random_values((False,) * 4, zeros=1.0)
    values[2][3] = np.nan
    program = random_map().map.apply(values)
    assert not program.finite.any()


@each_mix
def test_adjoint_is_the_transpose_of_tangent(batched: tuple[bool, ...]) -> None:
    affine = random_map().map
    values, moves = random_values(batched), random_values(batched, seed=5)
    batch = BATCH if any(batched) else 1
    gradient = random_gradient(batch=batch)
    pulled = affine.adjoint(gradient, values, [True] * 4)
    change = affine.tangent(moves, values, batch)
    assert [g.shape for g in pulled] == [v.shape for v in values]
    backward = sum((g * m).sum() for g, m in zip(pulled, moves, strict=True))
    np.testing.assert_allclose(backward, pairing(gradient, change).sum(), rtol=1e-12)


@each_mix
def test_tangent_is_the_derivative_of_apply(batched: tuple[bool, ...]) -> None:
    dense = random_map()
    values, moves = random_values(batched), random_values(batched, seed=5)
    batch = BATCH if any(batched) else 1
    change, step = dense.map.tangent(moves, values, batch), 1e-4
    plus, minus = (dense.map.apply([v + t * m for v, m in zip(values, moves, strict=True)]) for t in (step, -step))
    for k in range(batch):
        high, low = entries(plus, dense, k), entries(minus, dense, k)
        for name, found in entries(change, dense, k).items():
            np.testing.assert_allclose(found, (high[name] - low[name]) / (2 * step), atol=1e-7, err_msg=name)


def test_tangents_may_be_absent() -> None:
    affine = random_map().map
    values = random_values((True,) * 4)
    moves = random_values((True,) * 4, seed=5)
    alone = affine.tangent([None, None, moves[2], None], values, BATCH)
    zeros = affine.tangent([0 * moves[0], 0 * moves[1], moves[2], 0 * moves[3]], values, BATCH)
    np.testing.assert_array_equal(alone.A.values, zeros.A.values)
    np.testing.assert_array_equal(alone.P.values, zeros.P.values)
    assert not alone.q.any()
    assert not alone.b.any()


def test_only_wanted_gradients_are_computed() -> None:
    affine, values = random_map().map, random_values((True, True, False, False))
    everything = affine.adjoint(random_gradient(), values, [True] * 4)
    some = affine.adjoint(random_gradient(), values, [True, False, False, True])
    assert some[1] is None
    assert some[2] is None
    np.testing.assert_array_equal(some[0], everything[0])
    np.testing.assert_array_equal(some[3], np.zeros(SIZES[3]))  # in no block: no influence


def test_gradient_of_a_shared_parameter_is_the_sum_over_samples() -> None:
    affine, gradient = random_map().map, random_gradient()
    shared = random_values((False,) * 4)
    repeated = [np.tile(v, (BATCH, 1)) for v in shared]
    together = affine.adjoint(gradient, shared, [True] * 4)
    apart = affine.adjoint(gradient, repeated, [True] * 4)
    for a, b in zip(together, apart, strict=True):
        np.testing.assert_allclose(a, b.sum(axis=0), atol=1e-12)


def test_copies_of_samples_add_up() -> None:
    """Smoothing passes several consecutive copies of each sample."""
    affine, gradient = random_map().map, random_gradient(batch=2 * BATCH)
    values = random_values((True, False, True, False))
    found = affine.adjoint(gradient, values, [True] * 4)
    parts = [DataGradient(*(v[start::2] for v in vars(gradient).values() if v is not None)) for start in (0, 1)]
    expected = [affine.adjoint(part, values, [True] * 4) for part in parts]
    for total, a, b in zip(found, *expected, strict=True):
        np.testing.assert_allclose(total, a + b, atol=1e-12)


def test_touches() -> None:
    affine = random_map().map
    assert all(affine.touches(name) for name in BLOCKS)
    few = AffineMap(SIZES, affine.entries[1:2], affine.constants, affine.P, affine.A, affine.cones)
    assert [few.touches(name) for name in BLOCKS] == [False, False, False, True]


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_logarithms_of_values_that_are_not_positive_are_nan_in_their_sample(value: float) -> None:
    values, affine = random_values((False, True, False, False)), random_map().map
    finite = affine.apply(values).finite
    assert finite.all()
    values[1][1] = value
    assert affine.apply(values).finite.tolist() == [k != 1 for k in range(len(finite))]
    assert affine.logged == {1}


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("density", [0.02, 0.9, 1.0])
def test_sampled_products(density: float, summed: bool) -> None:
    rng = np.random.default_rng(0)
    shape = (20, 15)
    cols, rows = np.nonzero((rng.random(shape) < density).T)
    pairs = [(rng.normal(size=(BATCH, 20)), rng.normal(size=(BATCH, 15))) for _ in range(2)]
    full = sum(np.einsum("ki,kj->kij", left, right) for left, right in pairs)[:, rows, cols]
    found = sampled_products(pairs, rows, cols, shape, summed)
    np.testing.assert_allclose(found, full.sum(axis=0) if summed else full, atol=1e-13)
