"""Polish: Newton steps that never make a solution worse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from ghost.yardstick import Entries, Loss, gradient_error
from problems import FACES, MIXED, Known, beside, known_program, point

from ffo.cones import Nonneg, Product
from ffo.ghost.direct import Direct, newton
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Linearization, linearize
from ffo.kernels.point import CANCELLING, FAR, FLOOR
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.registry import get_solver

Array = np.ndarray

VERTEX = [("nonneg", "vertex")] * 6 + [("nonneg", "interior")] * 8 + [("zero", "vertex")] * 2
INEQUALITIES = [("nonneg", "vertex")] * 6 + [("nonneg", "interior")] * 10 + [("zero", "vertex")] * 2


def natural_residual(program: ConeProgram, point: Solution) -> Array:
    """(batch,) natural residual of the cleaned pair, computed independently."""
    x, y, s = point.x, point.y, point.s
    squared = np.stack([(program.A.matrix(k).toarray() ** 2).sum(axis=1) for k in range(program.batch)])
    rows = np.sqrt(squared)
    primal = np.maximum(np.abs(x).max(axis=1), np.abs(s / rows).max(axis=1))
    forces = (program.q, program.P.dot(x), y * rows)
    dual = np.maximum.reduce([np.abs(v).max(axis=1) for v in forces])
    for g in program.cones.groups:
        squared[:, g.index] = (
            squared[:, g.index].mean(axis=2, keepdims=True) if not g.cone.scalar else squared[:, g.index]
        )
    tau = squared * (primal / dual)[:, None]
    cleaned = program.cones.project(s - tau * y)
    return by_rows(program, x, (cleaned - s) / tau + y, cleaned)[0]


def flipped(known: Known, wrong: int, seed: int) -> Solution:
    """The solution with `wrong` inequalities of each sample on the wrong side."""
    rng = np.random.default_rng([seed, 3])
    s, y = known.s.copy(), known.y.copy()
    rows = 16  # the inequalities come first
    for k in range(len(s)):
        for i in rng.permutation(rows)[:wrong]:
            s[k, i], y[k, i] = y[k, i], s[k, i]
    return point(known.x, y, s)


@pytest.mark.parametrize("noise", [1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize(("cone", "case"), FACES, ids=[f"{n} {c}" for n, c in FACES])
def test_noise_is_removed_on_every_face(cone: str, case: str, noise: float) -> None:
    known = known_program(beside(cone, case), 10, batch=3)
    start = known.disturbed(noise)
    done = newton(known.program, start.x, start.y, start.s)
    assert done.certificate.natural_residual.max() <= 1e-12
    assert done.certificate.good.all()
    for found, exact in ((done.x, known.x), (done.y, known.y), (done.s, known.s)):
        np.testing.assert_allclose(found, exact, atol=1e-10)


@pytest.mark.parametrize("way", [Direct(), Iterative()], ids=["direct", "iterative"])
@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
def test_noise_is_removed_with_all_cones_at_once(way: Direct | Iterative, batched: bool) -> None:
    known = known_program(MIXED, 40, batch=4, batched=batched)
    start = known.disturbed(1e-5)
    done = linearize(known.program, start, way)
    assert done.certificate.natural_residual.max() <= 1e-10
    np.testing.assert_allclose(done.x, known.x, atol=1e-9)


@pytest.mark.parametrize("wrong", [1, 2, 4])
def test_wrong_active_sets_are_repaired(wrong: int) -> None:
    known = known_program(INEQUALITIES, 14, batch=20, batched=True)
    start = flipped(known, wrong, seed=wrong)
    assert natural_residual(known.program, start).min() > 1e-3
    done = newton(known.program, start.x, start.y, start.s)
    repaired = done.certificate.good
    assert repaired.mean() >= 0.9
    np.testing.assert_allclose(done.x[repaired], known.x[repaired], atol=1e-10)
    assert (done.certificate.natural_residual[~repaired] > 1e-6).all()  # and the rest is known to be wrong


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
@pytest.mark.parametrize("noise", [1e-9, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("kind", ["all cones", "lp"])
def test_never_worse_than_it_went_in(kind: str, noise: float, steps: int) -> None:
    """For any start and number of steps; on linear programs Newton steps often diverge."""
    known = known_program(MIXED, 40, batch=6) if kind == "all cones" else known_program(VERTEX, 8, batch=20, rank=0)
    start = known.disturbed(noise)
    before = newton(known.program, start.x, start.y, start.s, steps=0).certificate.natural_residual
    done = newton(known.program, start.x, start.y, start.s, steps=steps)
    between = noise == 1.0 and steps == 1  # the units of the start and of the answer differ, and both count
    reported = done.certificate.natural_residual
    (rows, rounding), rtol = by_rows(known.program, done.x, done.y, done.s), 0.2 if between else 1e-6
    pairs = np.abs(done.s * done.y).max(axis=1) <= 1e-9 * np.abs(done.s).max(axis=1) * np.abs(done.y).max(axis=1)
    pairs |= reported < 0.1  # an unchanged start also lacks complementarity, which the rows do not show
    assert (np.abs(reported - rows)[pairs] <= (rtol * rows + 1e-15 + rounding)[pairs]).all()
    assert (reported >= rows * (1 - rtol) - 1e-14).all()
    assert (reported <= before * (1.5 if between else 1 + 1e-12)).all()


def by_rows(program: ConeProgram, x: Array, y: Array, s: Array) -> tuple[Array, Array]:
    """(batch,) the residual of a complementary pair, every row in units of its own terms; and the rounding error of the
    gap, a sum of residuals times x and y."""
    out, rounding = np.zeros(len(x)), np.zeros(len(x))
    for k in range(len(x)):
        P, A = program.P.full(k).toarray(), program.A.matrix(k).toarray()
        gradient = np.abs(P) @ np.abs(x[k]) + np.abs(program.q[k]) + np.abs(A.T) @ np.abs(y[k])
        side = np.abs(A) @ np.abs(x[k]) + np.abs(program.b[k])
        rows = np.linalg.norm(A, axis=1)
        start = 0
        for cone, count in program.cones.blocks:
            for _ in range(count if not cone.scalar else 0):
                block = slice(start, start + cone.dim)
                side[block], rows[block] = side[block].max(), np.sqrt((rows[block] ** 2).mean())
                start += cone.dim
            start += count if cone.scalar else 0
        force = max(np.abs(program.q[k]).max(), np.abs(P @ x[k]).max(), (np.abs(y[k]) * rows).max())
        cost, curvature, sides = np.abs(program.q[k]).max(), np.abs(P).max(), np.abs(program.b[k]) / rows
        implied = max(cost / curvature if curvature else 0.0, sides[sides > 0].min())
        force = min(force, FAR * max(cost, curvature * implied))
        dual = np.abs(program.stationarity(x, y)[k]) / (gradient + FLOOR * force)
        length = min(np.abs(x[k]).max(), FAR * implied)
        left = program.slack(x)[k] - s[k]
        primal = np.abs(left) / (side + FLOOR * rows * length)
        costs, pulls = program.q[k] * x[k], program.b[k] * y[k]
        work = abs(costs.sum()) + abs(pulls.sum()) + CANCELLING * (np.abs(costs).sum() + np.abs(pulls).sum())
        work += min(force, max(cost, curvature * implied)) * min(length, implied)
        gap = abs(y[k] @ left - x[k] @ program.stationarity(x, y)[k]) / work
        out[k] = max(dual.max(), primal.max(), gap)
        rounding[k] = np.finfo(float).eps * (np.abs(x[k]) @ gradient + np.abs(y[k]) @ side) / work
    return out, rounding


def test_a_start_far_away_does_not_excuse_the_answer() -> None:
    """Sizes of a diverged start (y of 1e17) would make any residual look small."""
    known = known_program(INEQUALITIES, 14, batch=4, batched=True)
    start = known.solution
    done = newton(known.program, start.x + 1.0, start.y + 1e17, start.s, steps=1)
    wrong = np.abs(done.x - known.x).max(axis=1) > 1e-3
    assert wrong.any()
    assert (done.certificate.natural_residual[wrong] > 1e-6).all()
    assert not done.certificate.good[wrong].any()


def test_a_point_that_steps_make_worse_is_returned_as_it_came() -> None:
    """min x1 + 1e-7 x2, x1 >= 1, x2 >= 0 at a point whose second constraint looks inactive: its equations have no
    solution, and without its multiplier the given point is a worse one."""
    A = -np.eye(2)
    program = ConeProgram.from_matrices(np.zeros((2, 2)), [1.0, 1e-7], A, [-1.0, 0.0], Product([(Nonneg(), 2)]))
    x, y, s = np.array([[1.0, 2e-7]]), np.array([[1.0, 1e-7]]), np.array([[0.0, 2e-7]])
    done = newton(program, x, y, s)
    np.testing.assert_array_equal(done.x, x)
    np.testing.assert_array_equal(done.y, y)
    assert not done.certificate.good.any()


def test_returned_pair_is_complementary() -> None:
    known = known_program(MIXED, 40, batch=6)
    start = known.disturbed(1e-3)
    done = newton(known.program, start.x, start.y, start.s)
    cones = known.program.cones
    np.testing.assert_allclose(cones.project(done.s), done.s, atol=1e-14)
    np.testing.assert_allclose(cones.project_dual(done.y), done.y, atol=1e-14)
    np.testing.assert_allclose((done.s * done.y).sum(axis=1), 0, atol=1e-12)


def test_samples_take_as_many_steps_as_they_need() -> None:
    """Exact, disturbed and wrongly identified samples in one batch; each gets its own solver's answer."""
    known = known_program(INEQUALITIES, 14, batch=9, batched=True)
    exact, noisy, wrong = known.solution, known.disturbed(1e-2), flipped(known, 2, seed=2)
    kind = np.arange(9) % 3
    start = point(*(np.choose(kind[:, None], [getattr(v, f) for v in (exact, noisy, wrong)]) for f in ("x", "y", "s")))
    derivative = linearize(known.program, start, Direct())
    assert derivative.steps[kind == 0].max() < derivative.steps[kind == 2].max()
    np.testing.assert_allclose(derivative.x, known.x, atol=1e-10)
    assert_like_alone(derivative, known, start)


@pytest.mark.parametrize(("cone", "case"), FACES, ids=[f"{n} {c}" for n, c in FACES])
def test_solutions_to_rounding_take_no_step_and_have_the_same_derivative(cone: str, case: str) -> None:
    known = known_program(beside(cone, case), 10, batch=3)
    start = known.disturbed(1e-6)
    near = newton(known.program, start.x, start.y, start.s)
    exact = newton(known.program, near.x, near.y, near.s)
    assert exact.certificate.good.all()
    assert (exact.steps <= 1).all()
    if cone in ("zero", "nonneg"):
        assert (exact.steps == 0).any()
    c = np.random.default_rng(4).normal(size=known.x.shape)
    first, second = (done.sensitivity(c, np.zeros_like(known.y)) for done in (near, exact))
    np.testing.assert_allclose(second.u, first.u, atol=1e-8 * (1 + np.abs(first.u).max()))
    np.testing.assert_allclose(second.w, first.w, atol=1e-8 * (1 + np.abs(first.w).max()))


def test_samples_of_different_structure() -> None:
    known = known_program(MIXED, 40, batch=5)
    start = known.disturbed(1e-6)
    derivative = linearize(known.program, start, Direct())
    assert_like_alone(derivative, known, start)


def assert_like_alone(derivative: Linearization, known: Known, start: Solution) -> None:
    """Gradients of a batch are those of its samples taken alone, and `take` picks them out."""
    program, loss = known.program, Loss.random(known.program)
    together = Entries.of_gradient(derivative.adjoint(*loss.parts)[0], program)
    for k in range(program.batch):
        chosen = np.array([k])
        alone = program.take(chosen)
        part = [c[chosen] for c in loss.parts]
        single = linearize(alone, start.take(chosen), Direct()).adjoint(*part)[0]
        expected = Entries(*(v[chosen] for v in vars(together).values()))
        assert gradient_error(Entries.of_gradient(single, alone), expected) <= 1e-8
        taken, residual = derivative.take(chosen).adjoint(*part)
        assert gradient_error(Entries.of_gradient(taken, alone), expected) <= 1e-13
        assert residual.shape == (1,)


@pytest.mark.parametrize("samples", [[3, 0], [2], [0, 1, 2, 3, 4]], ids=["reordered", "one", "all"])
def test_take(samples: list[int]) -> None:
    known = known_program(MIXED, 40, batch=5)
    whole = linearize(known.program, known.disturbed(1e-5), Direct())
    chosen = np.array(samples)
    part = whole.take(chosen)
    np.testing.assert_array_equal(part.x, whole.x[chosen])
    np.testing.assert_array_equal(part.certificate.good, whole.certificate.good[chosen])
    change = Entries.random(known.program).program(known.program)
    full, some = whole.tangent(change), part.tangent(change.take(chosen))
    for a, b in ((full.u, some.u), (full.w, some.w)):
        np.testing.assert_allclose(b, a[chosen], rtol=1e-10, atol=1e-12)
    again = part.take(np.array([0]))
    np.testing.assert_allclose(again.tangent(change.take(chosen[:1])).u, full.u[chosen[:1]], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n", "eps"), [(300, 1e-3), (1000, 1e-5)])
def test_many_rows_are_exchanged(n: int, eps: float) -> None:
    """A box and a budget. Steps that exchange many active rows need not lower the residual: they were given up."""
    q = np.random.default_rng(n).standard_normal((16, n))
    A = sp.vstack([np.ones((1, n)), sp.eye_array(n), -sp.eye_array(n)])
    b = np.concatenate([[0.2 * n], np.ones(n), np.zeros(n)])
    program = ConeProgram.from_matrices(sp.eye_array(n), q, A, np.tile(b, (16, 1)), Product([(Nonneg(), 2 * n + 1)]))
    answer = get_solver("PIQP", {"eps": eps}).solve(program)
    found = newton(program, answer.x, answer.y, answer.s)
    assert not found.certificate.unsettled.any()
    assert found.certificate.natural_residual.max() <= 1e-12
