"""solve_qp_batch: quadratic programs in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import qps
import scipy.sparse as sp
from qps import KINDS, around

from ffo import QPBatch, solve_qp_batch
from ffo.errors import InfeasibleError, InputError, InvalidDataError, Status

Array = np.ndarray


def solve(blocks: dict[str, object], **options: object) -> QPBatch:
    rest = {k: blocks[k] for k in qps.ORDER[6:] if k in blocks}
    return solve_qp_batch(*(blocks.get(k) for k in qps.ORDER[:6]), **rest, **options)


@pytest.mark.parametrize("known", KINDS.values(), ids=KINDS)
def test_solution_and_multipliers_are_the_known_ones(known: qps.KnownQP) -> None:
    found = solve(known.blocks, polish=True)
    for value, expected in zip((found.z, found.nu, found.lam, found.mu), known.answer, strict=True):
        assert value.shape == expected.shape
        np.testing.assert_allclose(value, expected, atol=1e-9)
    assert found.status == [Status.SOLVED]
    assert dataclasses.is_dataclass(found)


@pytest.mark.parametrize("shared", [(), qps.MATRICES, ("p", "h", "b", "lb", "ub", "lower")])
def test_blocks_are_batched_or_shared(shared: tuple[str, ...]) -> None:
    blocks = around(KINDS["everything"], 3, shared)
    found = solve(blocks, polish=True)
    assert found.z.shape == (3, 6)
    assert found.status == [Status.SOLVED] * 3
    for i in range(3):
        alone = solve({k: v if k in shared else v[i] for k, v in blocks.items()}, polish=True)
        np.testing.assert_allclose(found.z[i], alone.z, atol=1e-9)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix])
def test_sparse_matrices_alone_or_one_per_sample(kind: type) -> None:
    known = KINDS["everything"]
    found = solve({**known.blocks, **{k: kind(known.blocks[k]) for k in qps.MATRICES}}, polish=True)
    np.testing.assert_allclose(found.z, known.z, atol=1e-9)
    blocks = around(known, 3)
    blocks["G"][0, 0] *= np.array([1, 0, 0, 0, 1, 1])  # a different pattern
    expected = solve(blocks, polish=True)
    found = solve({**blocks, **{k: [kind(m) for m in blocks[k]] for k in qps.MATRICES}}, polish=True)
    np.testing.assert_allclose(found.z, expected.z, atol=1e-9)


def test_repeated_entries_of_a_sparse_matrix_add_up() -> None:
    twice = sp.coo_array((np.ones(4), ([0, 0, 1, 1], [0, 0, 1, 1])), shape=(2, 2))
    np.testing.assert_allclose(solve_qp_batch(twice, [2.0, 4.0]).z, [-1.0, -2.0], atol=1e-8)


def test_lists_integers_and_infinite_sides() -> None:
    p = np.array([[1, -1], [2, -3]])
    found = solve_qp_batch([[1, 0], [0, 1]], p, [[1, 1]], [np.inf], lb=[[0, 0], [-np.inf, 0]], ub=[np.inf, 2])
    np.testing.assert_allclose(found.z, [[0, 1], [-2, 2]], atol=1e-8)
    np.testing.assert_allclose(found.mu, [[-1, 0], [0, 1]], atol=1e-8)
    np.testing.assert_array_equal(found.lam, np.zeros((2, 1)))


@pytest.mark.parametrize("solver", ["CLARABEL", "PIQP", "DAQP", "qpsolvers:clarabel"])
def test_solvers_settings_and_retry(solver: str) -> None:
    if solver.startswith("qpsolvers"):
        pytest.importorskip("qpsolvers", reason="qpsolvers is an extra")
    known = KINDS["everything"]
    found = solve(known.blocks, solver=solver, solver_args={"eps": 1e-9})
    np.testing.assert_allclose(found.z, known.z, atol=1e-5)
    assert found.info.solver == (solver,)
    again = solve(known.blocks, solver="SCS", solver_args={"max_iters": 1}, retry=[solver])
    np.testing.assert_allclose(again.z, known.z, atol=1e-5)


def test_failures_are_raised_or_kept_apart() -> None:
    ub = np.array([[1.0], [-1.0], [1.0]])
    with pytest.raises(InfeasibleError) as caught:
        solve_qp_batch([[1.0]], [0.5], lb=[0.0], ub=ub)
    assert caught.value.samples == (1,)
    found = solve_qp_batch([[1.0]], [0.5], lb=[0.0], ub=ub, on_fail="nan")
    assert found.status == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert np.isnan(found.z[1]).all()
    assert np.isnan(found.mu[1]).all()
    with pytest.raises(InvalidDataError, match="smallest eigenvalue -1"):
        solve_qp_batch(np.diag([1.0, -1.0]), np.zeros(2), lb=-np.ones(2), ub=np.ones(2))
    with pytest.raises(InvalidDataError, match="NaN"):
        solve_qp_batch(np.eye(2), [np.nan, 0.0])


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"p": None}, "p, the linear term, is required"),
        ({"Q": np.eye(3)}, r"Q must be \(2, 2\)"),
        ({"p": [1j, 0]}, "p must be an array of real numbers"),
        ({"p": ["a", "b"]}, "p must be an array of real numbers"),
        ({"p": sp.csr_array(np.ones((1, 2)))}, "p must be a dense array"),
        ({"G": [sp.eye_array(2), sp.csr_array(np.ones((1, 2)))], "h": [0, 0]}, "G has samples of different shapes"),
        ({"h": [1.0]}, "h was given without G"),
        ({"p": np.zeros((2, 2)), "lb": np.zeros((3, 2))}, "Inconsistent batch sizes: p: 2, lb: 3"),
        ({"p": np.zeros((0, 2))}, "batch is empty"),
    ],
)
def test_bad_input_is_named_by_its_block(blocks: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve({"Q": np.eye(2), "p": np.zeros(2)} | blocks)
