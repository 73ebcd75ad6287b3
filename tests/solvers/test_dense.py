"""The compiled solvers on families of dense programs: optimality to rounding, and the points of other solvers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dense_problems import boxed, lasso, max_min, optimality, random_qp, repeated, scaled, stacked, transport
from solver_problems import simple

from ffo.cones import Nonneg, Zero
from ffo.errors import Status
from ffo.kernels import pool as pool_module
from ffo.kernels.pivoting import EXCHANGES
from ffo.program.cone import ConeProgram
from ffo.solvers import get_solver
from ffo.solvers.dense import separable, suits, suits_separable

FAMILIES = {
    "random": random_qp(24, 10, 10),
    "equalities": random_qp(24, 10, 10, 3),
    "many rows": random_qp(24, 10, 80),
    "large": random_qp(6, 60, 80, 5),
    "boxed": boxed(24, 10, 6, 2),
    "large, boxed": boxed(6, 50, 20, 2),
    "only bounds": boxed(24, 8, 0),
    "columns scaled": scaled(24, 10, 10, 5, 0),
    "rows scaled": scaled(24, 10, 10, 0, 5),
    "columns and rows scaled": scaled(24, 10, 10, 5, 5),
    "every row twice": repeated(24, 10, 10),
    "every row twice, large": repeated(6, 50, 60),
    "transport": transport(24),
    "lasso": lasso(12),
    "small lasso": lasso(24, 8, 6),
    "max-min": max_min(24),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_exact(name: str) -> None:
    program = stacked(*FAMILIES[name])
    solution = get_solver("DENSE").solve(program)
    assert solution.status.tolist() == [Status.SOLVED] * program.batch, solution.detail
    assert optimality(program, solution).max() < 1e-10


@pytest.mark.parametrize("name", ["equalities", "large", "boxed", "every row twice", "transport", "lasso", "max-min"])
def test_answers_are_those_of_an_interior_point(name: str) -> None:
    program = stacked(*FAMILIES[name]).take(np.arange(6))
    other = get_solver("CLARABEL", {"eps": 1e-9}).solve(program)
    assert other.solved.all()
    np.testing.assert_allclose(get_solver("DENSE").solve(program).x, other.x, atol=2e-5)


def feasible_program(rng: np.random.Generator) -> ConeProgram:
    """Singular Q, rows of zeros, active and repeated rows, rows scaled from 1e-4 to 1e4: all at random, in a box."""
    n, m, me = int(rng.integers(1, 13)), int(rng.integers(1, 25)), int(rng.integers(0, 4))
    F, x = rng.normal(size=(n, int(rng.integers(0, n + 1)))), rng.normal(size=n)
    R = rng.normal(size=(me + m, n)) * (rng.random((me + m, n)) < rng.choice([0.3, 0.7, 1.0]))
    R[-1] = R[0]
    slack = np.concatenate([np.zeros(me), rng.choice([0, 1], size=m) * rng.uniform(size=m), np.ones(2 * n)])
    R = np.concatenate([R, np.eye(n), -np.eye(n)]) * 10.0 ** rng.uniform(-4, 4, size=(me + m + 2 * n, 1))
    return stacked((F @ F.T)[None], rng.normal(size=(1, n)), R[None], (R @ x + slack)[None], me)


def test_claims_about_random_programs_are_true() -> None:
    rng, solver = np.random.default_rng(0), get_solver("DENSE")
    solved = 0
    for _ in range(500):
        program = feasible_program(rng)
        solution = solver.solve(program)
        assert solution.status[0] not in (Status.INFEASIBLE, Status.UNBOUNDED, Status.INVALID_INPUT)
        if solution.solved[0]:
            solved += 1
            assert optimality(program, solution)[0] < 1e-8
    assert solved >= 485  # the others are reported as not verified


def test_one_row_at_a_time_where_pivoting_cycles() -> None:
    """With many more rows than variables some samples cycle: they take more steps than the limit of block pivoting."""
    program = stacked(*random_qp(24, 30, 120))
    solution = get_solver("DENSE").solve(program)
    assert solution.solved.all()
    assert solution.iterations.max() > EXCHANGES
    assert optimality(program, solution).max() < 1e-10


def test_a_sample_does_not_depend_on_its_batch() -> None:
    program = stacked(*FAMILIES["every row twice"])
    together = get_solver("DENSE").solve(program)
    for k in (0, 5, 23):
        alone = get_solver("DENSE").solve(program.take(np.array([k])))
        np.testing.assert_array_equal(alone.x[0], together.x[k])


def test_shared_matrices_give_the_answers_of_repeated_ones() -> None:
    Q, p, R, h, me = lasso(5)
    shared = get_solver("DENSE").solve(stacked(Q, p, R, h, me))
    own = get_solver("DENSE").solve(stacked(Q.repeat(5, 0), p, R.repeat(5, 0), h, me))
    np.testing.assert_allclose(own.x, shared.x, atol=1e-12)


@pytest.mark.parametrize("n", [5, 70])
def test_matrices_that_are_loaded_once_give_the_same_bits(n: int) -> None:
    """Factors are cached with matrices that cannot change; other ones are factorized in every call."""
    program, solver = stacked(*random_qp(1, n, n, 1)), get_solver("DENSE")
    P, A = (np.atleast_2d(M.values) for M in (program.P, program.A))
    alone = program.with_matrices(program.P.with_values(P), program.A.with_values(A))
    kept = program.with_matrices(program.P.with_values(P[0]).owned(), program.A.with_values(A[0]).owned())
    assert kept.shared_matrices
    assert not alone.shared_matrices
    expected = solver.solve(alone)
    for _ in range(3):
        found = solver.solve(kept)
        for v in ("x", "y", "s", "status", "iterations"):
            np.testing.assert_array_equal(getattr(found, v), getattr(expected, v))
    other = solver.solve(kept.with_vectors(q=2 * kept.q))
    np.testing.assert_array_equal(other.x, solver.solve(alone.with_vectors(q=2 * alone.q)).x)


def test_slacks_are_zero_where_multipliers_are_not() -> None:
    program = stacked(*FAMILIES["boxed"])
    solution = get_solver("DENSE").solve(program)
    inequalities = np.arange(program.m) >= 2
    active = (solution.y > 0) & inequalities
    assert active.sum() > program.batch
    assert (solution.s[active] == 0).all()


def one_of_each() -> dict[str, tuple[ConeProgram, Status]]:
    """Programs without a solution, one for each way to detect it, and one that only seems to have none."""
    rows, equal = [(Nonneg(), 3)], [(Zero(), 2), (Nonneg(), 1)]
    eye, zero, half, saddle = np.eye(2), np.zeros((2, 2)), np.diag([1.0, 0.0]), np.diag([1.0, -1.0])
    below = [[1, 1], [-1, 0], [0, -1]]
    no, sink = Status.INFEASIBLE, Status.UNBOUNDED
    return {
        "three rows": (simple(eye, [1, 1], below, [-1, 0, 0], rows), no),
        "equalities": (simple(eye, [1, 1], [[1, 1], [2, 2], [1, 0]], [1, 3, 5], equal), no),
        "bounds": (simple(eye, [1, 1], [[1, 1], [1, 0], [0, 1]], [3, 1, 1], [(Zero(), 1), (Nonneg(), 2)]), no),
        "scaled": (simple(eye, [1, 1], [[1e5, 1e5], [-1e-5, 0], [0, -1]], [-1, 0, 0], rows), no),
        "linear": (simple(zero, [1, 1], below, [-1, 0, 0], rows), no),
        "empty row": (simple(eye, [1, 1], [[0, 0], [-1, 0], [0, -1]], [-1, 0, 0], rows), no),
        "far end": (simple(half, [1, -1], [[1, 1], [-1, 0], [1, -1]], [9, 9, 9], rows), Status.SOLVED),
        "ray": (simple(half, [1, -1], [[1, 0], [-1, 0], [1, -1]], [9, 9, 9], rows), sink),
        "indefinite": (simple(saddle, [1, 1], [[1, 0], [0, 1], [1, 1]], [1, 1, 1], rows), Status.INVALID_INPUT),
    }


@pytest.mark.parametrize("name", one_of_each())
def test_programs_without_a_solution_are_told(name: str) -> None:
    program, status = one_of_each()[name]
    assert get_solver("DENSE").solve(program).status.tolist() == [status]


def test_a_bad_sample_leaves_the_others_alone() -> None:
    Q, p, R, h, me = random_qp(4, 6, 5, 1)
    good = get_solver("DENSE").solve(stacked(Q, p, R, h, me))
    Q, R, h = Q.copy(), R.copy(), h.copy()
    Q[1] = -Q[1]
    R[2, 2:4], h[2, 2:4] = [R[2, 2], -R[2, 2]], [-1.0, -1.0]
    mixed = get_solver("DENSE").solve(stacked(Q, p, R, h, me))
    assert mixed.status.tolist() == [Status.SOLVED, Status.INVALID_INPUT, Status.INFEASIBLE, Status.SOLVED]
    np.testing.assert_array_equal(mixed.x[[0, 3]], good.x[[0, 3]])


def test_threads_give_the_answers_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    program = stacked(*random_qp(64, 30, 30, 2))
    chunks: list[int] = []
    several = get_solver("DENSE")
    monkeypatch.setattr(pool_module, "cpus", lambda: 1)
    one = several.solve(program)
    monkeypatch.setattr(pool_module, "cpus", lambda: 3)
    monkeypatch.setattr(pool_module, "_executor", None)
    submit = pool_module.executor().submit
    monkeypatch.setattr(pool_module.executor(), "submit", lambda *a: chunks.append(1) or submit(*a))
    np.testing.assert_array_equal(several.solve(program).x, one.x)
    assert len(chunks) == 2


def sudoku_like(batch: int, n: int, m: int, shared: bool = True) -> ConeProgram:
    """Diagonal Q, dense equalities that a positive point satisfies, x >= 0, some x <= 3."""
    rng = np.random.default_rng([n, m])
    count = 1 if shared else batch
    A = rng.uniform(size=(count, m, n))
    bounds = np.concatenate([-np.eye(n), 2 * np.eye(n)[: n // 2]])
    Q = np.zeros((count, n, n))
    Q[:, np.arange(n), np.arange(n)] = rng.uniform(0.1, 1.0, size=(count, n))
    h = [A @ np.ones(n), np.zeros((count, n)), np.full((count, n // 2), 6.0)]
    h_all = np.broadcast_to(np.concatenate(h, axis=1), (batch, m + n + n // 2))
    R = np.concatenate([A, np.broadcast_to(bounds, (count, *bounds.shape))], axis=1)
    return stacked(Q, rng.normal(size=(batch, n)), R, np.array(h_all), m)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("n", "m"), [(12, 4), (40, 0), (160, 60)])
def test_separable_answers_are_exact_and_those_of_pivoting(n: int, m: int, shared: bool) -> None:
    program = sudoku_like(4, n, m, shared)
    solution = get_solver("SEPARABLE").solve(program)
    assert solution.solved.all(), solution.detail
    assert optimality(program, solution).max() < 1e-10
    np.testing.assert_allclose(solution.x, get_solver("DENSE").solve(program).x, atol=1e-9)


def test_separable_takes_dependent_equalities() -> None:
    program = stacked(*FAMILIES["transport"])
    solution = get_solver("SEPARABLE").solve(program)
    assert solution.solved.all(), solution.detail
    assert optimality(program, solution).max() < 1e-10
    np.testing.assert_allclose(solution.x, get_solver("DENSE").solve(program).x, atol=1e-8)


def test_what_is_separable() -> None:
    assert separable(sudoku_like(2, 12, 4))
    assert not separable(stacked(*random_qp(2, 5, 3)))
    assert not separable(stacked(*max_min(2)))
    eye = np.eye(3)
    assert not separable(simple(eye, np.ones(3), [[1, 1, 0]], [1], [(Nonneg(), 1)]))
    assert separable(simple(eye, np.ones(3), [[1, 1, 0]], [1], [(Zero(), 1)]))
    assert not separable(simple(np.diag([1.0, 1.0, -1.0]), np.ones(3), [[1, 1, 0]], [1], [(Zero(), 1)]))


def test_the_same_without_the_compiler() -> None:
    """Kernels also run as Python: one family each, in a fresh process."""
    code = (
        "import numpy as np\n"
        "from dense_problems import *\n"
        "from ffo.solvers import get_solver\n"
        "for problem in (random_qp(2, 4, 6, 1), repeated(2, 4, 3), lasso(1, 3, 2), transport(2, 2)):\n"
        "    program = stacked(*problem)\n"
        "    answer = get_solver('DENSE').solve(program)\n"
        "    assert answer.solved.all() and optimality(program, answer).max() < 1e-10\n"
        "assert get_solver('SEPARABLE').solve(program).solved.all()\n"
        "large = stacked(*random_qp(1, 48, 50, 1))\n"
        "assert optimality(large, get_solver('DENSE').solve(large)).max() < 1e-10\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_codes_of_the_kernels_have_a_status_each() -> None:
    from ffo.kernels import pivoting
    from ffo.solvers import dense

    codes = (pivoting.SOLVED, pivoting.STALLED, pivoting.INFEASIBLE, pivoting.UNBOUNDED, pivoting.INDEFINITE)
    names = [Status(int(dense._STATUS[c])) for c in codes]
    assert names == [Status.SOLVED, Status.NUMERICAL, Status.INFEASIBLE, Status.UNBOUNDED, Status.INVALID_INPUT]
    assert codes[1:3] == (dense._STALLED, dense._INFEASIBLE)


def test_what_suits_follows_shapes_and_density() -> None:
    assert suits(stacked(*random_qp(2, 10, 10, 2)))
    assert suits(stacked(*random_qp(2, 80, 60)))
    assert suits(stacked(*boxed(2, 30, 0)))  # bounds only, though there are 2n
    assert suits(stacked(*lasso(2)))
    assert not suits(stacked(*random_qp(2, 10, 20)))  # too many inequalities
    assert not suits(stacked(*boxed(2, 30, 10)))
    assert not suits(stacked(*max_min(2)))  # small and singular
    chain = np.eye(50) - np.eye(50, k=1)
    assert not suits(simple(np.eye(50), np.ones(50), chain, np.ones(50), [(Nonneg(), 50)]))  # sparse
    assert not suits(simple(np.zeros((3, 3)), np.ones(3), np.eye(3), np.ones(3), [(Nonneg(), 3)]))  # linear


def test_what_suits_newton_on_the_dual() -> None:
    assert suits_separable(sudoku_like(2, 12, 4))
    assert suits_separable(stacked(*transport(2)))
    assert not suits_separable(stacked(*random_qp(2, 5, 3)))
    chain = (np.eye(60) - np.eye(60, k=1))[:59]
    assert not suits_separable(simple(np.eye(60), np.ones(60), chain, np.ones(59), [(Zero(), 59)]))
