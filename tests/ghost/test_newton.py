"""Second-order cone programs over one pattern: what its ghost systems and its Newton steps give is what others
give, and what they cannot settle is left to others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from ghost.yardstick import Entries, Loss, gradient_error, implicit_gradient, relative_error, tight_differences
from problems import Known, with_pair

import ffo.ghost.bordered as bordered_module
import ffo.ghost.newton as newton_module
from ffo.cones import PSD, Nonneg, Product, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.ghost.ball import BallLayout, layout_of
from ffo.ghost.ballsolver import BallSolver, Face
from ffo.ghost.bordered import Pattern
from ffo.ghost.direct import Direct, DirectSolver
from ffo.ghost.face import ActiveSet, scale
from ffo.ghost.newton import from_nothing, newton, polish_balls
from ffo.ghost.oracle import linearize, linearize_from_nothing
from ffo.ghost.polish import Polished, polish
from ffo.ghost.problem import GhostSystem
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch
from ffo.solvers import get_solver

Array = np.ndarray

#: norms of variables, of sums of them, of both, and with a coordinate that is constant
BALLS = ("single", "spread", "mixed", "bare")
CASES = ("boundary", "vertex", "interior")
#: coordinates that are constant cannot be at a vertex
BARE_CASES = ("boundary", "boundary", "interior")
N, EQUAL, ROWS, SIZE = 18, 2, 3, 6


def ball_rows(kind: str, columns: Array, rng: np.random.Generator) -> sp.csr_array:
    """(SIZE, N): a top, and SIZE - 1 rows of A1 that touch these variables."""
    single = np.zeros((SIZE, N))
    single[np.arange(1, SIZE), columns] = rng.uniform(0.5, 1.5, SIZE - 1) * rng.choice([-1, 1], SIZE - 1)
    spread = np.where(rng.random((SIZE, N)) < 0.4, rng.normal(size=(SIZE, N)), 0.0)
    spread[:, :2] = rng.uniform(0.5, 1.5, (SIZE, 2))
    if kind == "spread":
        return sp.csr_array(spread)
    single[0] = spread[0]
    if kind == "mixed":
        single[:3] = spread[:3]
    if kind == "bare":
        single[0] = single[-1] = 0.0
    return sp.csr_array(single)


def ball_program(kind: str, batch: int = 6, *, batched: bool = False, diagonal: bool = True, seed: int = 0) -> Known:
    """Equalities, rows, bounds on both sides and three blocks, one in each case, around a known x."""
    rng = np.random.default_rng([seed, BALLS.index(kind), batch])
    apart = rng.permutation(N).reshape(3, -1)[:, : SIZE - 1]
    rows = sp.random_array((EQUAL + ROWS, N), density=0.6, rng=rng, data_sampler=rng.standard_normal)
    bounds = [2.0 * sp.eye_array(N), -0.5 * sp.eye_array(N)]
    A = sp.vstack([rows, *bounds, *(ball_rows(kind, columns, rng) for columns in apart)])
    cones = Product([(Zero(), EQUAL), (Nonneg(), ROWS + 2 * N), (SecondOrder(SIZE), 3)])
    half = np.diag(rng.uniform(0.5, 2.0, N)) if diagonal else rng.normal(size=(N, N))
    m = A.shape[0]
    program = ConeProgram.from_matrices(half @ half.T, np.zeros((batch, N)), A, np.zeros((batch, m)), cones)
    if batched:
        values = program.A.values * rng.uniform(0.5, 1.5, (batch, program.A.nnz))
        program = replace(program, A=SparseBatch(program.A.indptr, program.A.indices, values, program.A.shape))
    s, y = np.zeros((2, batch, m))
    s[:, EQUAL : m - 3 * SIZE] = rng.uniform(0.5, 1.5, (batch, m - EQUAL - 3 * SIZE))
    y[:, :EQUAL] = rng.normal(size=(batch, EQUAL))
    for k in range(batch):
        order = rng.permutation(3)
        free = np.setdiff1d(np.arange(N), apart[order[1]])  # those of the vertex are fixed already
        active = np.concatenate([[EQUAL], EQUAL + ROWS + rng.permutation(free)[:3]])
        s[k, active], y[k, active] = 0.0, rng.uniform(0.5, 1.5, 4)
        for case, j in zip(BARE_CASES if kind == "bare" else CASES, order, strict=True):
            block = slice(m - 3 * SIZE + j * SIZE, m - 3 * SIZE + (j + 1) * SIZE)
            s[k, block], y[k, block] = ball_pair(case, rng)
    return with_pair(Known(program, rng.normal(size=(batch, N)), y, s), s, y)


def ball_pair(case: str, rng: np.random.Generator) -> tuple[Array, Array]:
    v = rng.normal(size=SIZE - 1)
    inside = np.concatenate([[1.7], v / np.linalg.norm(v)])
    if case == "interior":
        return inside, np.zeros(SIZE)
    if case == "vertex":
        return np.zeros(SIZE), inside
    u = v / np.linalg.norm(v)
    return 1.3 * np.concatenate([[1.0], u]), 0.8 * np.concatenate([[1.0], -u])


def both_solvers(known: Known) -> tuple[BallSolver, DirectSolver]:
    program = known.program
    tau = scale(program, known.x, known.y, known.s).tau
    w = known.s - tau * known.y
    layout = BallLayout(program)
    mine = BallSolver(program, layout, Face.at(program, w, tau, layout), tau)
    return mine, DirectSolver(GhostSystem(program, ActiveSet(program, w, tau)))


@pytest.fixture(params=["bordered", "sparse"])
def factors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Pattern, "is_bordered", request.param == "bordered")
    monkeypatch.setattr(Pattern, "is_sparse", True)
    return request.param


@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
@pytest.mark.parametrize("kind", BALLS)
def test_solves_the_ghost_system(kind: str, batched: bool, factors: str) -> None:
    known = ball_program(kind, batched=batched)
    mine, other = both_solvers(known)
    assert type(mine._factors).__name__ == {"bordered": "BorderedFactors", "sparse": "SparseFactors"}[factors]
    assert mine.regular.all()
    rng = np.random.default_rng(1)
    for with_rows in (False, True):
        r_x, r_s = rng.normal(size=known.x.shape), with_rows * rng.normal(size=known.y.shape)
        a, b = mine.solve(r_x, r_s), other.solve(r_x, r_s)
        np.testing.assert_allclose(a.u, b.u, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(a.w, b.w, rtol=1e-9, atol=1e-9)
        assert a.residual.max() <= 1e-9


@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])
@pytest.mark.parametrize("kind", BALLS)
def test_polish_reaches_the_known_solution(kind: str, diagonal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ball_program(kind, diagonal=diagonal)
    monkeypatch.setattr(newton_module, "polish", None)  # nobody is left over
    start = known.disturbed(1e-4)
    found = polish_balls(known.program, start.x, start.y, start.s, BallLayout(known.program), Direct())
    for value, exact in ((found.x, known.x), (found.y, known.y), (found.s, known.s)):
        np.testing.assert_allclose(value, exact, atol=1e-11)
    assert found.certificate.good.all()
    assert found.certificate.natural_residual.max() <= 1e-13


@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
@pytest.mark.parametrize("kind", BALLS)
def test_derivatives_are_those_of_the_optimality_conditions_and_of_tight_solves(
    kind: str, batched: bool, factors: str
) -> None:
    known = ball_program(kind, batch=3, batched=batched, seed=4)
    found = linearize(known.program, known.disturbed(1e-6), Direct())
    assert [type(part.solver) for part in found.parts] == [BallSolver]
    loss, change = Loss.random(known.program), Entries.random(known.program)
    data, residual = found.adjoint(*loss.parts)
    assert residual.max() <= 1e-9
    mine = Entries.of_gradient(data, known.program)
    assert gradient_error(mine, implicit_gradient(known.program, known.solution, loss)) <= 1e-8
    along = tight_differences(known.program, loss, change, step=1e-5)
    assert relative_error(mine.dot(change), along) <= 1e-6


def decision(n: int, batch: int, seed: int = 0, *, spread: float = 1.0) -> ConeProgram:
    """min 1/2 x'Dx - q'x, 0 <= x <= 1, two rows, |Wx - c| <= 1 and |x| <= t <= 1 as CVXPY writes it: t is a
    variable without curvature."""
    rng = np.random.default_rng([seed, n, batch])
    zero, eye = sp.csr_array((n, 1)), sp.eye_array(n)
    last = sp.csr_array(([1.0], ([0], [n])), shape=(1, n + 1))
    weights = sp.diags_array(rng.uniform(0.5, 1.5, n))
    flat = [sp.hstack([M, zero]) for M in (eye, -eye)]
    A = sp.vstack(
        [
            *flat,
            sp.csr_array(np.hstack([rng.random((2, n)), np.zeros((2, 1))])),
            last,
            -last,
            sp.hstack([-eye, zero]),
            sp.csr_array((1, n + 1)),
            sp.hstack([-weights, zero]),
        ]
    )
    sides = [np.ones(n), np.zeros(n), 0.3 * np.sqrt(n) * np.ones(2), [1.0], np.zeros(n + 1), [1.0]]
    b = np.concatenate([*sides, -0.2 / np.sqrt(n) * rng.random(n)])
    P = np.diag(np.append(rng.uniform(0.5, 2.0, n), 0.0))
    q = np.hstack([spread * rng.normal(size=(batch, n)), np.zeros((batch, 1))])
    cones = Product([(Nonneg(), 2 * n + 3), (SecondOrder(n + 1), 2)])
    return ConeProgram.from_matrices(P, q, A, b, cones)


@pytest.mark.parametrize("n", [10, 40, 150])
def test_newton_from_nothing_finds_what_a_solver_finds(n: int) -> None:
    program = decision(n, batch=12)
    layout = layout_of(program)
    assert layout is not None
    found, steps = linearize_from_nothing(program, layout)
    settled = ~found.certificate.unsettled
    assert settled.mean() > 0.6
    assert found.certificate.good[settled].all()
    assert (steps[settled] < newton_module.STEPS).all()
    answer = get_solver("CLARABEL", {"eps": 1e-12}).solve(program)
    exact = polish(program, answer.x, answer.y, answer.s, Direct())
    np.testing.assert_allclose(found.x[settled, :n], exact.x[settled, :n], atol=1e-10)
    assert (found.x[settled, n] == 1.0).all()
    np.testing.assert_allclose(found.y[settled], exact.y[settled], atol=1e-10)
    touching = (exact.y[:, [2 * n + 3, -n - 1]] > 0).any(axis=1)
    assert touching.any()
    assert (n > 10) or not touching.all()  # then t is not unique
    assert (exact.y[:, : 2 * n] > 1e-6).any(axis=1).all()
    assert np.isinf(found.certificate.natural_residual[~settled]).all()


def test_derivatives_of_newton_from_nothing_are_those_of_tight_solves() -> None:
    program = decision(12, batch=4, seed=2)
    layout = layout_of(program)
    assert layout is not None
    found, _ = linearize_from_nothing(program, layout)
    assert not found.certificate.unsettled.any()
    loss = Loss.random(program)
    change = Entries.random(program)
    change.P[:] = 0.0
    mine = Entries.of_gradient(found.adjoint(*loss.parts)[0], program)
    assert relative_error(mine.dot(change), tight_differences(program, loss, change, step=1e-5)) <= 1e-6


def test_steps_that_do_not_converge_are_left_to_others() -> None:
    program = decision(40, batch=12)
    layout = BallLayout(program)
    zero = np.zeros((12, program.n)), np.zeros((12, program.m))
    done, steps = newton(program, *zero, program.cones.project(np.ascontiguousarray(program.b)), layout, steps=3)
    assert done.certificate.unsettled.all()
    assert done.parts == ()
    assert not done.certificate.good.any()
    assert (steps == 4).all()


def test_polish_hands_over_those_it_cannot_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample is far away, one is not finite, the others are near."""
    known = ball_program("single")
    handed: list[int] = []

    def counted(program: ConeProgram, *rest: object) -> Polished:
        handed.append(program.batch)
        return polish(program, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(newton_module, "polish", counted)
    monkeypatch.setattr(newton_module, "POLISHING", 2)
    start = known.disturbed(1e-9)
    start.s[1], start.y[1] = np.random.default_rng(0).normal(size=(2, known.program.m))
    start.x[3] = np.nan
    with np.errstate(all="ignore"):
        found = polish_balls(known.program, start.x, start.y, start.s, BallLayout(known.program), Direct())
    assert handed == [2]
    near = np.isin(np.arange(6), [0, 2, 4, 5])
    np.testing.assert_allclose(found.x[near], known.x[near], atol=1e-11)
    assert found.certificate.good[near].all()
    assert not found.certificate.good[3]


@pytest.mark.parametrize("copied", ["bound", "row", "vertex"])
def test_dependent_constraints_are_not_regular(copied: str) -> None:
    known = ball_program("single", batch=3)
    program, m = known.program, known.program.m
    first = {"bound": EQUAL + ROWS, "row": EQUAL, "vertex": m - 3 * SIZE}[copied]
    rows = np.arange(first, first + (SIZE if copied == "vertex" else N if copied == "bound" else 1))
    held = np.ones(3, dtype=bool) if copied != "vertex" else (known.s[:, rows] == 0).all(axis=1)
    assert held.any()
    A = program.A.matrix().tocsr()
    block = [(SecondOrder(SIZE), 1)] if copied == "vertex" else [(Nonneg(), len(rows))]
    cones = Product([*program.cones.blocks, *block])
    b, s, y = (np.hstack([v, v[:, rows]]) for v in (program.b, known.s, known.y))
    y[:, rows] /= 2
    y[:, m:] /= 2
    twice = ConeProgram.from_matrices(program.P.full().toarray(), program.q, sp.vstack([A, A[rows]]), b, cones)
    mine, _ = both_solvers(Known(twice, known.x, y, s))
    assert not mine.regular[held].any()
    found = linearize(twice, Known(twice, known.x, y, s).solution, Direct())
    np.testing.assert_allclose(found.x, known.x, atol=1e-9)
    assert found.certificate.dependent[held].all()


def test_one_singular_matrix_does_not_disturb_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """x_0 + x_1 <= 1 given twice: exactly singular, where it holds, but for the regularisation that is taken away."""
    monkeypatch.setattr(bordered_module, "SLIGHT", 0.0)
    A = np.vstack([np.ones((2, 4)), np.zeros(4), -np.eye(4)])
    cones = Product([(Nonneg(), 2), (SecondOrder(5), 1)])
    q = np.array([[-3.0, -3.0, -3.0, -3.0], [1.0, 1.0, 1.0, 0.5]])
    program = ConeProgram.from_matrices(np.eye(4), q, A, np.array([1.0, 1.0, 1.0, 0, 0, 0, 0]), cones)
    done, _ = from_nothing(program, BallLayout(program))
    assert done.certificate.unsettled.tolist() == [True, False]
    np.testing.assert_allclose(done.x[1], -q[1] / np.linalg.norm(q[1]), atol=1e-12)


def test_what_is_not_unique_is_not_settled() -> None:
    """Two variables without curvature that only their sum matters of, in a constraint that holds."""
    program = decision(10, batch=3)
    P = np.diag(np.append(program.P.diagonal[0], np.zeros(2)))
    pair = sp.csr_array(([-1.0, -1.0], ([0, 0], [11, 12])), shape=(1, 13))
    A = sp.vstack([sp.hstack([program.A.matrix(), sp.csr_array((program.m, 2))]), pair])
    q, b = np.hstack([program.q, np.ones((3, 2))]), np.hstack([program.b, np.ones((3, 1))])
    cones = Product([*program.cones.blocks, (Nonneg(), 1)])
    flat = ConeProgram.from_matrices(P, q, A, b, cones)
    assert from_nothing(program, BallLayout(program))[0].certificate.good.sum() == 2
    assert from_nothing(flat, BallLayout(flat))[0].certificate.unsettled.all()


def test_a_derivative_of_what_is_not_unique_is_told() -> None:
    """t is open where |x| < 1: derivatives of the others are good, those of t are not."""
    program = decision(10, batch=12)
    found, _ = linearize_from_nothing(program, BallLayout(program))
    open_t = ~found.certificate.unsettled & (found.y[:, 22] == 0)
    assert open_t.any()
    zero = np.zeros_like(found.y)
    rest, last = np.ones_like(found.x), np.zeros_like(found.x)
    rest[:, -1], last[:, -1] = 0.0, 1.0
    assert found.adjoint(rest, zero)[1][open_t].max() <= 1e-9
    assert found.adjoint(last, zero)[1][open_t].min() > 0.1


def test_weakly_active_balls_are_told() -> None:
    """The ball passes through the unconstrained minimum."""
    A, b = np.vstack([np.zeros(4), -np.eye(4)]), np.array([2.0, 0, 0, 0, 0])
    q = -np.array([[1.0, 1, 1, 1], [2.0, 2, 2, 2], [0.1, 0.2, 0.3, 0.4]])
    program = ConeProgram.from_matrices(np.eye(4), q, A, b, Product([(SecondOrder(5), 1)]))
    answer = get_solver("CLARABEL").solve(program)
    found = linearize(program, answer, Direct())
    assert found.certificate.weakly_active.tolist() == [True, False, False]
    assert found.certificate.good.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("blocks", "has_one"),
    [
        ([(Zero(), 1), (Nonneg(), 2), (SecondOrder(4), 1)], True),
        ([(Nonneg(), 7)], False),
        ([(SecondOrder(2), 1), (SecondOrder(5), 1)], False),
        ([(SecondOrder(4), 1), (PSD(2), 1)], False),
    ],
    ids=["ball", "flat", "plane", "matrix"],
)
def test_layouts_are_for_balls(blocks: list[tuple[Cone, int]], has_one: bool) -> None:
    program = ConeProgram.from_matrices(np.eye(7), np.ones(7), np.eye(7), np.ones(7), Product(blocks))
    assert (layout_of(program) is not None) == has_one


@pytest.mark.parametrize(
    ("coupling", "rows", "kind"),
    [("none", 0, "bordered"), ("chain", 0, "sparse"), ("all", 0, None), ("none", 45, None)],
)
def test_layouts_are_for_light_matrices(coupling: str, rows: int, kind: str | None) -> None:
    program = decision(60, batch=1)
    n, P = program.n, program.P.full().toarray()
    if coupling == "chain":
        P[np.arange(n - 2), np.arange(1, n - 1)] = P[np.arange(1, n - 1), np.arange(n - 2)] = 0.1
    elif coupling == "all":
        P[:-1, :-1] += 0.1
    A = sp.vstack([program.A.matrix(), sp.csr_array(np.ones((rows, n)))])
    sides = np.hstack([program.b, np.full((1, rows), 100.0)])
    cones = Product([*program.cones.blocks, (Nonneg(), rows)])
    layout = layout_of(ConeProgram.from_matrices(P, program.q, A, sides, cones))
    if kind is None:
        assert layout is None
    else:
        assert layout is not None
        assert layout.pattern.is_bordered == (kind == "bordered")


def test_sparse_elimination_that_fails_says_so() -> None:
    """A matrix of zeros, then a good one again."""
    known = ball_program("single", batch=2)
    pattern = BallLayout(known.program).pattern
    values = np.zeros(len(pattern.row))
    values[pattern.diagonal] = 2.0
    assert np.isnan(pattern.solve(np.zeros_like(values), np.ones(pattern.size))).all()
    np.testing.assert_allclose(pattern.solve(values, np.ones(pattern.size)), 0.5)
