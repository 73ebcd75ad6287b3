"""Problems that do not fit are refused with an estimate before memory is allocated, or solved without factors."""

from __future__ import annotations

import time
import tracemalloc

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from ffo import solve_qp_batch
from ffo.cones import PSD, Nonneg, Product, SecondOrder
from ffo.errors import FFOError, TooLargeError
from ffo.program import fill
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of
from ffo.torch import FFOLayer, FFOQPLayer


def projection_onto_psd(order: int) -> ConeProgram:
    """min 1/2 |x - c|^2, x positive semidefinite."""
    size = order * (order + 1) // 2
    eye = sp.eye_array(size, format="csc")
    return ConeProgram.from_matrices(eye, np.zeros(size), -eye, np.zeros(size), Product([(PSD(order), 1)]))


def scattered(n: int, rows: int) -> sp.csc_array:
    """Four random entries per row: elimination fills in the rest."""
    rng = np.random.default_rng(0)
    row = np.repeat(np.arange(rows), 4)
    return sp.csc_array((rng.normal(size=4 * rows), (row, rng.integers(0, n, 4 * rows))), shape=(rows, n))


def test_a_large_semidefinite_block_is_refused_before_memory_is_taken() -> None:
    """Order 1000: half a million rows, each of which the rotation of the block spreads over all of them."""
    program = projection_onto_psd(1000)
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(
            TooLargeError, match=r"semidefinite blocks of order up to 1000.* GB, but only .* GB are available"
        ):
            plan_of(program).pattern  # noqa: B018
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e8
    assert time.perf_counter() - start < 10.0


def test_it_is_refused_through_a_layer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "LITTLE", 0.0)
    monkeypatch.setattr(fill, "available", lambda: 1e6)
    X, C = cp.Variable((14, 14), symmetric=True), cp.Parameter((14, 14))
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(X - C)), [X >> 0]), [C], [X])
    with pytest.raises(TooLargeError, match="order up to 14") as caught:
        layer(torch.eye(14, dtype=torch.float64))
    assert isinstance(caught.value, FFOError)
    assert isinstance(caught.value, MemoryError)


def test_fill_in_is_foreseen() -> None:
    n = 40_000
    A = scattered(n, n)
    program = ConeProgram.from_matrices(
        sp.eye_array(n, format="csc"), np.zeros(n), A, np.ones(n), Product([(Nonneg(), n)])
    )
    needed = fill.needed_bytes(program.cones, program.P.pattern, program.A.pattern, True)
    assert 1e9 < needed < 1e12
    chain = sp.diags_array([np.ones(n), -np.ones(n - 1)], offsets=[0, 1], format="csc")
    other = ConeProgram.from_matrices(sp.eye_array(n), np.zeros(n), chain, np.ones(n), Product([(Nonneg(), n)]))
    assert fill.needed_bytes(other.cones, other.P.pattern, other.A.pattern, True) < 1e8
    assert fill.fits(other)


def test_estimates_are_not_far_from_what_is_taken() -> None:
    """Entries of patterns and factors that were made, times the bytes of each."""
    for program in (
        projection_onto_psd(12),
        ConeProgram.from_matrices(
            sp.eye_array(60), np.zeros(60), -sp.eye_array(60), np.zeros(60), Product([(SecondOrder(20), 3)])
        ),
    ):
        structure = plan_of(program).structure
        taken = 8.0 * structure.wide.size + 4.0 * structure.slim.size
        estimate = fill.needed_bytes(program.cones, program.P.pattern, program.A.pattern, True)
        assert 0.5 < estimate / taken < 30.0


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "LITTLE", 0.0)
    monkeypatch.setattr(fill, "FEW", 10)
    monkeypatch.setattr(fill, "available", lambda: 4e4)


def test_where_factors_do_not_fit_the_iterative_way_is_taken(little_memory: None) -> None:
    """By default; with backward="direct" there is an error."""
    rng = np.random.default_rng(1)
    n = 40
    G, h, p = rng.normal(size=(20, n)), np.ones(20), rng.normal(size=n)
    sparse = sp.csc_array(np.where(rng.random(G.shape) < 0.3, G, 0.0))
    expected = solve_qp_batch(np.eye(n), p, sparse.toarray(), h, solver="DENSE", on_fail="nan")
    assert expected.status[0].ok
    p_t = torch.tensor(p, requires_grad=True)
    given = (torch.eye(n, dtype=torch.float64), p_t, torch.tensor(sparse.toarray()), torch.tensor(h))
    with pytest.raises(TooLargeError, match="backward='iterative' needs no factors"):
        FFOQPLayer(backward="direct", solver="CLARABEL")(*given)
    layer = FFOQPLayer(solver="CLARABEL")
    z = layer(*given)
    z.sum().backward()
    np.testing.assert_allclose(z.detach(), expected.z, atol=1e-8)
    assert layer.info.certificate.good.all()


def test_a_batch_that_does_not_fit_is_refused_with_a_size_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffo.ghost.direct.LARGE", 0)
    monkeypatch.setattr(fill, "LITTLE", 0.0)
    monkeypatch.setattr(fill, "available", lambda: 1e5)
    rng = np.random.default_rng(2)
    p, G = rng.normal(size=(500, 8)), rng.normal(size=(6, 8))
    with pytest.raises(TooLargeError, match=r"a batch of 500 samples would take about .* use batches of \d+"):
        solve_qp_batch(np.eye(8), p, G, np.ones(6))
    assert all(s.ok for s in solve_qp_batch(np.eye(8), p[:8], G, np.ones(6)).status)


def test_available_memory_is_read_from_the_system() -> None:
    assert fill.available() > 1e6
