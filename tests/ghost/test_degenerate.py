"""Degenerate programs: dependent and empty rows, no rows, one variable, vertices, no objective."""

from __future__ import annotations

import numpy as np
import pytest
from problems import Known, known_program, point

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Linearization, Way, linearize
from ffo.ghost.resolve import Resolve
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram
from ffo.solvers import get_solver

Array = np.ndarray

WAYS = {"direct": Direct(), "iterative": Iterative(), "resolve": Resolve(get_solver("CLARABEL").solve)}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

BLOCKS = [("nonneg", "vertex")] * 3 + [("nonneg", "interior")] * 2 + [("zero", "vertex")] * 2


def dense(known: Known) -> tuple[Array, Array, Array, Array]:
    p = known.program
    return p.P.full().toarray(), p.q, p.A.matrix().toarray(), p.b


def with_rows(known: Known, rows: list[int], signs: list[float], y: Array, cones: Product) -> Known:
    """The program with more rows, multiples of its own; `y` are all multipliers."""
    P, q, A, b = dense(known)
    sign = np.array(signs)
    A = np.vstack([A, sign[:, None] * A[rows]])
    b, s = (np.hstack([v, sign * v[:, rows]]) for v in (b, known.s))
    return Known(ConeProgram.from_matrices(P, q, A, b, cones), known.x, y, s)


def derivative_in_x(program: ConeProgram, known: Known, way: Way) -> tuple[Linearization, DataGradient, Array]:
    derivative = linearize(program, known.solution, way)
    c_x = np.random.default_rng(4).normal(size=known.x.shape)
    return derivative, *derivative.adjoint(c_x, np.zeros_like(known.y))


@each_way
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_duplicate_active_inequalities(way: Way, share: float) -> None:
    """Two copies of an active row split the multiplier; the gradient in b is split too, with the same sum."""
    single = known_program(BLOCKS, 8, batch=2)
    rows = [0, 1]
    y = np.hstack([single.y, (1 - share) * single.y[:, rows]])
    y[:, rows] *= share
    double = with_rows(single, rows, [1.0, 1.0], y, Product([(Nonneg(), 5), (Zero(), 2), (Nonneg(), 2)]))
    _, expected, _ = derivative_in_x(single.program, single, Direct())
    derivative, found, residual = derivative_in_x(double.program, double, way)
    assert residual.max() <= 1e-8
    assert not derivative.certificate.unsettled.any()
    np.testing.assert_allclose(found.u, expected.u, atol=1e-7)
    together = found.db[:, :7].copy()
    together[:, rows] += found.db[:, 7:]
    np.testing.assert_allclose(together, expected.db, atol=1e-7)


@each_way
def test_equal_bounds(way: Way) -> None:
    """lb = ub as two inequalities is an equality; its multipliers are not unique."""
    single = known_program([("zero", "vertex")] * 2 + [("nonneg", "vertex"), ("nonneg", "interior")], 6)
    P, q, A, b = dense(single)
    blocks = Product([(Zero(), 1), (Nonneg(), 2), (Nonneg(), 2)])
    rows = [0, 1, 1, 2, 3]
    sign = np.array([1.0, 1.0, -1.0, 1.0, 1.0])
    y, s = single.y[:, rows].copy(), sign * single.s[:, rows]
    y[:, 1], y[:, 2] = np.maximum(single.y[:, 1], 0) + 0.3, np.maximum(-single.y[:, 1], 0) + 0.3
    known = Known(ConeProgram.from_matrices(P, q, sign[:, None] * A[rows], sign * b[:, rows], blocks), single.x, y, s)
    _, expected, _ = derivative_in_x(single.program, single, Direct())
    _, found, residual = derivative_in_x(known.program, known, way)
    assert residual.max() <= 1e-8
    np.testing.assert_allclose(found.u, expected.u, atol=1e-7)
    np.testing.assert_allclose(found.db[:, 1] - found.db[:, 2], expected.db[:, 1], atol=1e-7)


@each_way
def test_dependent_equalities(way: Way) -> None:
    single = known_program(BLOCKS, 8)
    y = np.hstack([single.y, np.zeros((2, 1))])
    double = with_rows(single, [5], [2.0], y, Product([(Nonneg(), 5), (Zero(), 3)]))
    _, expected, _ = derivative_in_x(single.program, single, Direct())
    _, found, residual = derivative_in_x(double.program, double, way)
    assert residual.max() <= 1e-8
    np.testing.assert_allclose(found.u, expected.u, atol=1e-7)
    np.testing.assert_allclose(found.db[:, 5] + 2 * found.db[:, 7], expected.db[:, 5], atol=1e-7)


@each_way
@pytest.mark.parametrize(("cone", "b"), [(Zero(), 0.0), (Nonneg(), 1.0)], ids=["0 = 0", "0 <= 1"])
def test_rows_of_zeros(way: Way, cone: Zero | Nonneg, b: float) -> None:
    single = known_program(BLOCKS, 8)
    P, q, A, rhs = dense(single)
    column = np.zeros((2, 1))
    program = ConeProgram.from_matrices(
        P,
        q,
        np.vstack([A, np.zeros((1, 8))]),
        np.hstack([rhs, column + b]),
        Product([(Nonneg(), 5), (Zero(), 2), (cone, 1)]),
    )
    known = Known(program, single.x, np.hstack([single.y, column]), np.hstack([single.s, column + b]))
    _, expected, _ = derivative_in_x(single.program, single, Direct())
    derivative, found, residual = derivative_in_x(program, known, way)
    assert derivative.certificate.after_backward(residual, derivative.dependent).good.all()
    np.testing.assert_allclose(found.u, expected.u, atol=1e-7)
    np.testing.assert_allclose(found.db[:, :7], expected.db, atol=1e-7)
    np.testing.assert_allclose(found.db[:, 7], 0, atol=1e-9)


@each_way
def test_no_constraints(way: Way) -> None:
    """x = -P^{-1} q."""
    P = np.array([[2.0, 0.5], [0.5, 1.0]])
    program = ConeProgram.from_matrices(P, [[1.0, 0.0], [0.0, 3.0]], np.zeros((0, 2)), np.zeros(0), Product([]))
    answer = get_solver("CLARABEL").solve(program)
    derivative = linearize(program, answer, way)
    c = np.array([[1.0, 2.0], [-1.0, 0.5]])
    found, residual = derivative.adjoint(c, np.zeros((2, 0)))
    np.testing.assert_allclose(derivative.x, -np.linalg.solve(P, program.q.T).T, atol=1e-12)
    np.testing.assert_allclose(found.u, -np.linalg.solve(P, c.T).T, atol=1e-10)
    assert found.db.shape == (2, 0)
    assert derivative.certificate.after_backward(residual, derivative.dependent).good.all()


@each_way
@pytest.mark.parametrize(("q", "x", "dq", "db"), [(-3.0, 1.0, 0.0, 1.0), (-1.0, 0.5, -0.5, 0.0)], ids=["bound", "free"])
def test_one_variable(way: Way, q: float, x: float, dq: float, db: float) -> None:
    """min x^2 + q x, x <= 1."""
    program = ConeProgram.from_matrices([[2.0]], [q], [[1.0]], [1.0], Product([(Nonneg(), 1)]))
    derivative = linearize(program, get_solver("CLARABEL").solve(program), way)
    found, _ = derivative.adjoint(np.ones((1, 1)), np.zeros((1, 1)))
    np.testing.assert_allclose([derivative.x[0, 0], found.u[0, 0], found.db[0, 0]], [x, dq, db], atol=1e-9)


@each_way
def test_vertex_of_a_linear_program(way: Way) -> None:
    """At a vertex x does not move with q, and moves with b as the active rows say."""
    known = known_program([("nonneg", "vertex")] * 4 + [("zero", "vertex"), ("nonneg", "interior")], 5, rank=0)
    assert known.program.P.nnz == 0
    derivative, found, _ = derivative_in_x(known.program, known, way)
    c = np.random.default_rng(4).normal(size=known.x.shape)
    active = known.program.A.matrix().toarray()[:5]
    np.testing.assert_allclose(found.u, 0, atol=1e-7)
    np.testing.assert_allclose(found.db[:, :5], np.linalg.solve(active.T, c.T).T, rtol=1e-6)
    np.testing.assert_allclose(found.db[:, 5:], 0, atol=1e-9)
    assert derivative.certificate.good.all()


@each_way
def test_feasibility_problem(way: Way) -> None:
    """No objective at all: the constraints determine x."""
    A = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 0.0]])
    program = ConeProgram.from_matrices(
        np.zeros((2, 2)), np.zeros(2), A, [3.0, 1.0, 5.0], Product([(Zero(), 2), (Nonneg(), 1)])
    )
    derivative = linearize(program, get_solver("CLARABEL").solve(program), way)
    found, residual = derivative.adjoint(np.array([[1.0, 0.0]]), np.zeros((1, 3)))
    np.testing.assert_allclose(derivative.x, [[1.0, 1.0]], atol=1e-9)
    np.testing.assert_allclose(found.db, [[1.0, -2.0, 0.0]], atol=1e-9)
    assert derivative.certificate.after_backward(residual, derivative.dependent).good.all()


def test_projection_onto_a_ball() -> None:
    """min |x - p|^2 / 2, |x| <= r: everything is known in closed form, dual and slack included."""
    p, r = np.array([3.0, 4.0, 12.0]), 2.0
    A = np.vstack([np.zeros(3), -np.eye(3)])
    program = ConeProgram.from_matrices(np.eye(3), -p, A, [r, 0, 0, 0], Product([(SecondOrder(4), 1)]))
    derivative = linearize(program, get_solver("CLARABEL").solve(program), Direct())
    u = p / 13.0
    np.testing.assert_allclose(derivative.x[0], r * u, atol=1e-12)
    np.testing.assert_allclose(derivative.y[0], (13.0 - r) * np.r_[1, -u], atol=1e-11)
    jacobian = r / 13.0 * (np.eye(3) - np.outer(u, u))  # dx/dp
    for c in np.eye(3):
        found, _ = derivative.adjoint(c[None], np.zeros((1, 4)))
        np.testing.assert_allclose(-found.u[0], jacobian @ c, atol=1e-12)
        np.testing.assert_allclose(found.db[0, 0], u @ c, atol=1e-12)
    found, _ = derivative.adjoint(np.zeros((1, 3)), np.array([[1.0, 0, 0, 0]]))
    np.testing.assert_allclose(-found.u[0], u, atol=1e-12)  # y0 = |p| - r
    np.testing.assert_allclose(found.db[0, 0], -1.0, atol=1e-12)


def test_many_samples_give_what_one_gives() -> None:
    """A large batch gives the same results as single samples."""
    known = known_program(BLOCKS, 8, batch=1)
    many = known.program.repeat(200)
    solution = point(*(np.repeat(v, 200, axis=0) for v in (known.x, known.y, known.s)))
    c = np.ones((200, 8))
    found, _ = linearize(many, solution, Direct()).adjoint(c, np.zeros((200, 7)))
    alone, _ = linearize(known.program, known.solution, Direct()).adjoint(c[:1], np.zeros((1, 7)))
    np.testing.assert_allclose(found.u, np.repeat(alone.u, 200, axis=0), atol=1e-11)


SOLVERS = ["CLARABEL", "PIQP", "SCS"]


def assert_good_gradient(program: ConeProgram, solver: str, active: Array) -> None:
    """Solve, and compare with the equality-constrained problem on the rows that are active."""
    derivative = linearize(program, get_solver(solver).solve(program), Direct())
    c = np.random.default_rng(4).normal(size=(program.batch, program.n))
    found, residual = derivative.adjoint(c, np.zeros((program.batch, program.m)))
    assert derivative.certificate.after_backward(residual, derivative.dependent).good.all()
    P, rows = program.P.full().toarray(), program.A.matrix().toarray()[active]
    system = np.block([[P, rows.T], [rows, np.zeros((len(rows), len(rows)))]])
    expected = np.linalg.solve(system, np.hstack([-c, np.zeros((program.batch, len(rows)))]).T).T[:, : program.n]
    np.testing.assert_allclose(found.u, expected, atol=1e-7)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("spread", [0, 2, 4])
@pytest.mark.parametrize("rank", [6, 0], ids=["qp", "lp"])
def test_solution_at_the_origin(rank: int, spread: int, solver: str) -> None:
    """x = 0, every row of Ax <= 0 active: no primal scale is left."""
    rng = np.random.default_rng([rank, spread])
    m = 4 if rank else 6
    M, A = rng.normal(size=(6, 6)), rng.normal(size=(m, 6))
    P = M @ M.T / 6 + 0.3 * np.eye(6) if rank else np.zeros((6, 6))
    y = 10.0 ** rng.uniform(-spread, 0, (8, m))
    program = ConeProgram.from_matrices(P, -y @ A, A, np.zeros((8, m)), Product([(Nonneg(), m)]))
    assert_good_gradient(program, solver, np.ones(m, dtype=bool))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("slack", [1.0, 1e-2])
def test_projection_of_a_feasible_point(slack: float, solver: str) -> None:
    """min |t|^2, t = x - p, Ax <= b with Ap < b: no gradient and no multipliers, only their noise."""
    rng = np.random.default_rng(2)
    A, p = rng.normal(size=(4, 3)), rng.normal(size=(8, 3))
    rows = np.block([[np.eye(3), -np.eye(3)], [np.zeros((4, 3)), A]])  # variables (t, x)
    b = np.hstack([-p, p @ A.T + slack * rng.uniform(0.5, 2, (8, 4))])
    program = ConeProgram.from_matrices(
        np.diag([2.0] * 3 + [0.0] * 3), np.zeros((8, 6)), rows, b, Product([(Zero(), 3), (Nonneg(), 4)])
    )
    assert_good_gradient(program, solver, np.arange(7) < 3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("infinity", [1e4, 1e6])
def test_bounds_that_stand_for_infinity(infinity: float, solver: str) -> None:
    known = known_program([("nonneg", "vertex")] * 2 + [("nonneg", "interior")] * 3, 6, batch=8)
    P, q, A, b = dense(known)
    program = ConeProgram.from_matrices(
        P, q, np.vstack([A, np.eye(6)]), np.hstack([b, np.full((8, 6), infinity)]), Product([(Nonneg(), 11)])
    )
    assert_good_gradient(program, solver, np.arange(11) < 2)
