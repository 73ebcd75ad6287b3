"""The convexity check of P, which not all solvers make."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ffo import solve_qp_batch
from ffo.cones import Nonneg, Product, Zero
from ffo.engine import Engine, Options
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.program.convexity import indefinite
from ffo.program.sparse import SparseBatch, SymmetricBatch


def batch_of(*matrices: np.ndarray, shared: bool = False) -> SymmetricBatch:
    """Samples over the joint pattern of their upper triangles."""
    union = sp.csc_array(np.triu(sum(abs(M) for M in matrices)))
    base = SparseBatch.from_matrix(union)
    values = np.stack([M[base.indices, base.columns] for M in matrices])
    return SymmetricBatch(base.indptr, base.indices, values[0] if shared else values, union.shape)


def semidefinite(n: int, rank: int, seed: int = 0) -> np.ndarray:
    M = np.random.default_rng(seed).normal(size=(n, rank))
    return M @ M.T


def with_smallest(n: int, value: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return Q @ np.diag(np.concatenate([[value], rng.uniform(1, 2, size=n - 1)])) @ Q.T


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_semidefinite_passes_whatever_its_rank(rank: int) -> None:
    P = semidefinite(8, rank) if rank else np.zeros((8, 8))
    assert indefinite(batch_of(P)) == {}


@pytest.mark.parametrize("value", [-1e-3, -0.5, -10.0])
@pytest.mark.parametrize("size", [2, 8, 60])
def test_names_sample_and_eigenvalue(size: int, value: float) -> None:
    found = indefinite(batch_of(semidefinite(size, size), with_smallest(size, value), semidefinite(size, 1)))
    assert found.keys() == {1}
    assert found[1] == pytest.approx(value, rel=1e-6)


def test_rounding_is_forgiven() -> None:
    assert indefinite(batch_of(with_smallest(8, -1e-11))) == {}
    assert indefinite(batch_of(1e8 * with_smallest(8, -1e-11))) == {}  # relative to the entries


@pytest.mark.parametrize("shared", [False, True])
def test_diagonal(shared: bool) -> None:
    assert indefinite(batch_of(np.diag([1.0, 0.0, 2.0]), shared=shared)) == {}
    assert indefinite(batch_of(np.diag([1.0, -0.25, 2.0]), shared=shared)) == {0: -0.25}


def test_sparse_matrices_take_the_sparse_path() -> None:
    n = 120
    chain = np.diag(np.full(n, 2.0)) - np.diag(np.ones(n - 1), 1) - np.diag(np.ones(n - 1), -1)
    assert indefinite(batch_of(chain)) == {}
    bent = chain - 0.01 * np.eye(n)
    assert indefinite(batch_of(bent))[0] == pytest.approx(np.linalg.eigvalsh(bent)[0], rel=1e-6)


def test_variables_that_do_not_appear_are_no_matter() -> None:
    P = np.zeros((5, 5))
    P[1:3, 1:3] = [[1.0, 2.0], [2.0, 1.0]]
    assert indefinite(batch_of(P))[0] == pytest.approx(-1.0)


def test_shared_is_reported_as_sample_zero() -> None:
    assert indefinite(batch_of(with_smallest(4, -1.0), shared=True)).keys() == {0}


def test_an_indefinite_objective_is_refused_although_the_equalities_make_it_convex() -> None:
    """-x^2/2 + 2 r^2 with r = x: substituting r would leave 3 x^2/2, but the data is still not convex."""
    program = ConeProgram.from_matrices(
        np.diag([-1.0, 4.0]),
        np.ones((1, 2)),
        np.array([[1.0, -1.0], [1.0, 0.0]]),
        np.array([[0.0, 1.0]]),
        Product([(Zero(), 1), (Nonneg(), 1)]),
    )
    outcome = Engine(Options(on_fail="nan")).run(program)
    assert outcome.info.status == [Status.INVALID_INPUT]


def dense_program(*matrices: np.ndarray) -> ConeProgram:
    """minimize 1/2 x'Px - 1'x subject to |u'x| <= 1 for half as many u as variables, which suits DENSE."""
    n = len(matrices[0])
    rows = np.linalg.qr(np.random.default_rng(7).normal(size=(n, n)))[0][: n // 2]
    A = SparseBatch.from_matrix(sp.csc_array(np.concatenate([rows, -rows])))
    q, b = -np.ones((len(matrices), n)), np.ones((len(matrices), A.shape[0]))
    return ConeProgram(batch_of(*matrices), q, A, b, Product([(Nonneg(), A.shape[0])]))


def test_solvers_that_find_out_by_themselves_say_the_same() -> None:
    """A batch of one that DENSE can factorize, an indefinite one, and one that is indefinite by rounding alone."""
    good, bad, rounding = semidefinite(6, 9), with_smallest(6, -0.5), with_smallest(6, -1e-11)
    outcome = Engine(Options(on_fail="nan")).run(dense_program(good, bad, rounding))
    assert outcome.info.solver[0] == "DENSE"
    assert outcome.info.status == [Status.SOLVED, Status.INVALID_INPUT, Status.SOLVED]
    assert "not positive semidefinite: smallest eigenvalue -0.5" in outcome.info.detail[1]
    assert not outcome.info.retried[1]  # no other solver is called
    assert np.isnan(outcome.x[1]).all()


@pytest.mark.parametrize("solver", [None, "INTERIOR", "DENSE", "CLARABEL"])
def test_an_indefinite_objective_is_refused_although_other_units_hide_it(solver: str | None) -> None:
    """Large costs and a row without the second variable: in the units of both, the quadratic term is 1e-12."""
    Q, p = 1e-6 * np.array([[6.0, -3.0, -2.0], [-3.0, 1.0, 0.7], [-2.0, 0.7, 0.5]]), -1e6 * np.array([2.0, 6.0, 6.0])
    found = solve_qp_batch(Q, p, np.array([[-1e4, 0.0, -1e4]]), np.array([-8.0]), solver=solver, on_fail="nan")
    assert found.status == [Status.INVALID_INPUT]
    assert "not positive semidefinite" in found.info.detail[0]


def test_matrices_that_the_solver_has_factorized_are_not_factorized_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(P: SymmetricBatch) -> dict[int, float]:
        raise AssertionError("P was checked apart")

    monkeypatch.setattr("ffo.engine.memory.indefinite", refuse)
    monkeypatch.setattr("ffo.solvers.dense.indefinite", refuse)
    program = dense_program(semidefinite(6, 9, seed=1), semidefinite(6, 9, seed=2))
    assert Engine(Options()).run(program).info.solver == ("DENSE", "DENSE")
