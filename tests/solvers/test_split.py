"""Splitting rows into equalities, inequalities and bounds, and back."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from residuals import residuals
from solver_problems import known_program

from ffo.cones import PSD, Exponential, Nonneg, Power, Product, SecondOrder, Zero
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch
from ffo.solvers import get_solver
from ffo.solvers.feed import DenseFeed, SparseFeed, mirrored, transposed
from ffo.solvers.ordering import Ordering
from ffo.solvers.split import Split, pick_rows


def program_of(A: np.ndarray, b: np.ndarray, blocks: list, values: np.ndarray | None = None) -> ConeProgram:
    """A program with P = I whose A has the pattern of `A` and, if given, batched `values` (batch, m, n)."""
    base = ConeProgram.from_matrices(np.eye(A.shape[1]), np.zeros(A.shape[1]), A, b, Product(blocks))
    if values is None:
        return base
    stored = values[:, base.A.indices, base.A.columns]
    batched = SparseBatch(base.A.indptr, base.A.indices, stored, base.A.shape)
    q = np.zeros((len(values), base.n))
    return ConeProgram(base.P, q, batched, np.broadcast_to(base.b, (len(values), base.m)), base.cones)


def test_singletons_become_bounds_by_sign_and_scale() -> None:
    A = np.array([[2.0, 0, 0], [0, -4.0, 0], [1, 1, 0], [0, 0, 1.0], [0, 0, 3.0]])
    program = program_of(A, np.array([6.0, 8.0, 1.0, 5.0, 6.0]), [(Nonneg(), 3), (Zero(), 1), (Nonneg(), 1)])
    split = Split(program)
    assert split.single.tolist() == [0, 1, 4]
    assert split.unequal.tolist() == [2]
    assert split.equal.tolist() == [3]
    np.testing.assert_array_equal(split.ub[0], [3, np.inf, 2])
    np.testing.assert_array_equal(split.lb[0], [-np.inf, -2, -np.inf])
    multipliers = np.array([0.0, 8, 0, 2, 0, 9])  # lower, upper
    np.testing.assert_allclose(split.duals(0, np.array([7.0]), np.array([5.0]), multipliers), [1, 2, 5, 7, 3])
    np.testing.assert_allclose(split.slacks(0, np.array([1.0, 0, 1])), [4, 8, 0, 0, 3])


def test_the_tightest_of_several_rows_gets_the_multiplier() -> None:
    A = np.array([[1.0], [2.0], [-1.0]])
    split = Split(program_of(A, np.array([[3.0, 4.0, 0.0], [1.0, 4.0, 0.0]]), [(Nonneg(), 3)]))
    assert not split.unique
    np.testing.assert_array_equal(split.ub[:, 0], [2, 1])
    nothing = np.zeros(0)
    np.testing.assert_allclose(split.duals(0, nothing, nothing, np.array([0.0, 6.0])), [0, 3, 0])
    np.testing.assert_allclose(split.duals(1, nothing, nothing, np.array([0.0, 6.0])), [6, 0, 0])
    slack = split.slacks(0, np.array([2.0]), nothing, np.array([2.0, 0.0]))
    np.testing.assert_allclose(slack, [1, 0, 2])


def test_a_zero_in_one_sample_keeps_the_row_general() -> None:
    A = np.array([[1.0, 0], [0, 1.0]])
    values = np.stack([np.diag([1.0, 1.0]), np.diag([0.0, 2.0])])
    split = Split(program_of(A, np.ones(2), [(Nonneg(), 2)], values))
    assert split.single.tolist() == [1]
    assert split.unequal.tolist() == [0]


@pytest.mark.parametrize("name", ["PIQP", "DAQP", "HIGHS"])
def test_bounds_whose_sign_and_presence_vary_over_the_batch(name: str) -> None:
    """Row 0: x1 <= 1, -x1 <= 1, 0 <= 1; rows 1, 2 bound x2 from the same or from opposite sides."""
    A = np.array([[1.0, 0], [0, 1.0], [0, 1.0]])
    signs = [(1, 1, 1), (-1, 1, -1), (0, -1, -1)]
    values = np.stack([np.array([[a, 0], [0, b], [0, c]], dtype=float) for a, b, c in signs])
    base = program_of(A, np.array([1.0, 1.0, 2.0]), [(Nonneg(), 3)], values)
    program = base.with_vectors(q=np.array([[-5.0, -5.0], [5.0, 5.0], [-5.0, 5.0]]))
    solution = get_solver(name).solve(program)
    np.testing.assert_allclose(solution.x, [[1, 1], [-1, -2], [5, -1]], atol=1e-6)
    assert residuals(solution, program).worst.max() < 1e-7


@pytest.mark.parametrize("name", ["PIQP", "DAQP", "HIGHS", "OSQP", "CLARABEL"])
def test_bounds_that_meet_fix_the_variable(name: str) -> None:
    third = 1 / 3
    A = np.array([[3.0, 0], [-1.0, 0], [0, 1]])
    program = program_of(A, np.array([1.0, -third * (1 + 1e-15), 1]), [(Nonneg(), 3)])
    solution = get_solver(name).solve(program.with_vectors(q=np.array([[4.0, -2.0]])))
    np.testing.assert_allclose(solution.x[0], [third, 1], atol=1e-6)
    assert residuals(solution, program.with_vectors(q=np.array([[4.0, -2.0]]))).worst.max() < 1e-6


@pytest.mark.parametrize("batched", [False, True])
def test_feeds_agree_with_the_matrices(batched: bool) -> None:
    program = known_program("qp", batched=batched).program
    for k in (0, 2):
        full = program.P.full(k).toarray()
        A = program.A.matrix(k).toarray()
        np.testing.assert_array_equal(DenseFeed(program.P)(k), np.triu(full))
        np.testing.assert_array_equal(DenseFeed(program.A, order="C")(k), A)
        np.testing.assert_array_equal(SparseFeed(mirrored(program.P))(k).toarray(), full)
        np.testing.assert_array_equal(transposed(program.A).matrix(k).toarray(), A.T)
        rows = np.array([3, 0, 5])
        np.testing.assert_array_equal(pick_rows(program.A, rows).matrix(k).toarray(), A[rows])
    scipy_matrix = SparseFeed(program.A)(1)
    assert sp.issparse(scipy_matrix)
    assert scipy_matrix.has_sorted_indices


def test_ordering_goes_there_and_back() -> None:
    kinds = (Zero, Nonneg, SecondOrder, PSD, Exponential, Power)
    program = known_program("mixed", batched=True).program
    order = Ordering(program, kinds, lower_psd=True)
    places = [kinds.index(type(cone)) for cone, _ in order.blocks]
    assert places == sorted(places)
    np.testing.assert_array_equal(order.back(order.program.b), program.b)
    np.testing.assert_array_equal(order.program.A.matrix(1).toarray(), program.A.matrix(1).toarray()[order.rows])


def test_lower_triangle_order_of_scs() -> None:
    """Upper by columns is (00, 01, 11, 02, 12, 22); lower by columns (00, 10, 20, 11, 21, 22)."""
    program = ConeProgram.from_matrices(np.eye(1), np.zeros(1), np.ones((6, 1)), np.arange(6.0), Product([(PSD(3), 1)]))
    assert Ordering(program, (PSD,), lower_psd=True).program.b[0].tolist() == [0, 1, 3, 2, 4, 5]
