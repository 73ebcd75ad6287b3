"""Three ways to solve the ghost problem, one answer."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from ghost.yardstick import Entries, Loss, gradient_error
from problems import FACES, MIXED, Known, beside, known_program, point

from ffo.cones import Nonneg, Product, Zero
from ffo.errors import Status
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Way, linearize
from ffo.ghost.resolve import Resolve
from ffo.kernels import kkt
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import get_solver


def black_box(program: ConeProgram) -> Solution:
    return get_solver("CLARABEL").solve(program)


#: way -> error with a black box at its default accuracy
WAYS: dict[str, tuple[Way, float]] = {
    "iterative": (Iterative(), 1e-8),
    "resolve the ghost": (Resolve(black_box), 1e-6),
    "resolve the original": (Resolve(black_box, target="original"), 3e-3),
}

#: Central differences with the step of Algorithm 1 (about 2e-3) have a large truncation error there: the
#: derivative changes like |z|^(4/3) next to this ray.
LARGE_TRUNCATION = ("pow.7", "x ray")


def gradient(known: Known, way: Way, loss: Loss) -> tuple[Entries, np.ndarray]:
    found, residual = linearize(known.program, known.solution, way).adjoint(*loss.parts)
    return Entries.of_gradient(found, known.program), residual


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(("cone", "case"), FACES, ids=[f"{n} {c}" for n, c in FACES])
def test_ways_agree_on_every_face(cone: str, case: str, name: str) -> None:
    way, tolerance = WAYS[name]
    known = known_program(beside(cone, case), 10)
    loss = Loss.random(known.program)
    expected, _ = gradient(known, Direct(), loss)
    found, residual = gradient(known, way, loss)
    if (cone, case) == LARGE_TRUNCATION and not way.polishes:
        tolerance = 0.3
    assert gradient_error(found, expected) <= tolerance
    if way.polishes:
        assert residual.max() <= 1e-9
    else:  # what two steps differ by, which grows with what either is off by
        assert (residual <= 10 * tolerance).all()


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
def test_ways_agree_with_all_cones_at_once(batched: bool, name: str) -> None:
    way, tolerance = WAYS[name]
    known = known_program(MIXED, 40, batch=3, batched=batched, seed=1)
    loss = Loss.random(known.program)
    expected, _ = gradient(known, Direct(), loss)
    found, _ = gradient(known, way, loss)
    assert gradient_error(found, expected) <= (tolerance if way.polishes else 2e-2)


@pytest.mark.parametrize("delta", [1e-6, 1e-2, 1.0, 100.0])
def test_the_ghost_is_linear_in_delta(delta: float) -> None:
    """No truncation error: the step only has to be well above the solver's tolerance."""
    known = known_program(MIXED, 40, seed=2)
    loss = Loss.random(known.program)
    tight = Resolve(lambda p: get_solver("CLARABEL", {"eps": 1e-12}).solve(p), delta=delta)
    found, _ = gradient(known, tight, loss)
    assert gradient_error(found, gradient(known, Direct(), loss)[0]) <= 1e-6


@pytest.mark.parametrize("target", ["ghost", "original"])
def test_resolve_asks_nothing_but_solves(target: str) -> None:
    """Every program passed to the solver is an ordinary one; the ghost has only equalities."""
    seen = []

    def solve(program: ConeProgram) -> Solution:
        seen.append(program)
        return black_box(program)

    known = known_program(beside("soc3", "boundary"), 10, batch=2)
    linearize(known.program, known.solution, Resolve(solve, target=target)).adjoint(*Loss.random(known.program).parts)
    if target == "ghost":
        assert all(p.cones.kinds <= {Zero} for p in seen)
    else:
        assert [p.batch for p in seen] == [2] * 4  # central differences at two steps, the whole batch at once
        assert all(p.cones == known.program.cones for p in seen)


def test_ghosts_of_a_batch_are_solved_together() -> None:
    """Samples with other active sets, some with no loss: one call of the solver for all, and few to refine."""
    known, rng = sparse_qp(12), np.random.default_rng(0)
    program = known.program.with_vectors(q=rng.normal(size=(8, 12)), b=np.repeat(known.program.b, 8, axis=0))
    solution, asked = black_box(program), []

    def solve(problem: ConeProgram) -> Solution:
        asked.append(problem.batch)
        return black_box(problem)

    loss = rng.normal(size=(8, 12))
    loss[3] = 0.0
    found = linearize(program, solution, Resolve(solve)).sensitivity(loss, np.zeros_like(program.b))
    exact = linearize(program, solution, Direct()).sensitivity(loss, np.zeros_like(program.b))
    assert len({tuple(row) for row in (exact.w != 0)}) > 2
    np.testing.assert_allclose(found.u, exact.u, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.w, exact.w, rtol=0, atol=1e-9)
    assert asked[0] == 8
    assert len(asked) <= 3


@pytest.mark.parametrize(("cone", "case"), FACES, ids=[f"{n} {c}" for n, c in FACES])
def test_a_single_re_solve_is_as_accurate_as_its_eps(cone: str, case: str) -> None:
    """Algorithm 1 and nothing else: one call of the solver, at the solver's own answer, to the accuracy asked for."""
    known = known_program(beside(cone, case), 10, batch=2)
    answer = get_solver("CLARABEL", {"eps": 1e-10}).solve(known.program)
    loss = Loss.random(known.program)
    expected, _ = gradient(known, Direct(), loss)
    asked = []

    def solve(program: ConeProgram) -> Solution:
        asked.append(program.batch)
        return get_solver("SCS", {"eps": 1e-7}).solve(program)

    derivative = linearize(known.program, answer, Resolve(solve, eps=1e-7))
    np.testing.assert_array_equal(derivative.x, answer.x)
    found, residual = derivative.adjoint(*loss.parts)
    assert asked == [2]
    assert gradient_error(Entries.of_gradient(found, known.program), expected) <= 1e-3
    assert 0 < residual.max() <= 1e-4


def test_a_single_re_solve_has_the_solvers_error_and_further_ones_remove_it() -> None:
    known = known_program(MIXED, 40, seed=2)
    loss, noise = Loss.random(known.program), np.random.default_rng(0)
    expected, _ = gradient(known, Direct(), loss)

    def error(noisy: float, eps: float | None) -> float:
        def solve(program: ConeProgram) -> Solution:
            answer = get_solver("CLARABEL", {"eps": 1e-12}).solve(program)
            x, y = (v + noisy * np.abs(v).max() * noise.normal(size=v.shape) for v in (answer.x, answer.y))
            return replace(answer, x=x, y=y)

        return gradient_error(gradient(known, Resolve(solve, eps=eps), loss)[0], expected)

    for eps in (1e-3, 1e-5, 1e-7):
        assert 0.1 * eps <= error(eps, eps) <= 100 * eps
        assert error(eps, None) <= max(1e-4 * eps, 1e-10)


@pytest.mark.parametrize("good", [False, True], ids=["rough", "exact"])
def test_a_single_re_solve_is_called_good_only_at_an_accurate_answer(good: bool) -> None:
    known = known_program(beside("soc3", "boundary"), 10)
    answer = known.solution if good else get_solver("SCS", {"eps": 1e-6}).solve(known.program)
    derivative = linearize(known.program, answer, Resolve(black_box, eps=1e-8))
    _, residual = derivative.adjoint(*Loss.random(known.program).parts)
    assert bool(derivative.certificate.after_backward(residual, derivative.dependent).good.all()) == good


@pytest.mark.parametrize("case", [("exp", "surface"), ("soc3", "boundary"), ("psd3", "rank 1")], ids=" ".join)
def test_differences_of_the_original_are_not_called_good(case: tuple[str, str]) -> None:
    """Their errors are truncation and the solver's noise, neither of which a residual shows."""
    known = known_program(beside(*case), 10)
    derivative = linearize(known.program, black_box(known.program), Resolve(black_box, target="original"))
    _, residual = derivative.adjoint(*Loss.random(known.program).parts)
    assert not derivative.certificate.after_backward(residual, derivative.dependent).good.any()


def test_a_failed_re_solve_is_no_derivative() -> None:
    known = known_program(beside("soc3", "boundary"), 10, batch=2)

    def solve(program: ConeProgram) -> Solution:
        answer = black_box(program)
        return replace(answer, status=np.array([Status.SOLVED, Status.NUMERICAL]))

    derivative = linearize(known.program, known.solution, Resolve(solve, target="original"))
    _, residual = derivative.adjoint(*Loss.random(known.program).parts)
    assert np.isfinite(residual[0])
    assert np.isinf(residual[1])


@pytest.mark.parametrize("rtol", [1e-4, 1e-8])
def test_iterative_reaches_its_tolerance(rtol: float) -> None:
    known = known_program(MIXED, 40, batch=3, seed=3)
    loss = Loss.random(known.program)
    derivative = linearize(known.program, known.solution, Iterative(rtol=rtol))
    residual = derivative.sensitivity(-loss.c_x, -loss.c_y).residual
    assert residual.max() <= 2 * rtol
    assert residual.min() > 1e-3 * rtol  # and does not go beyond it


def test_iterative_stops_at_max_iters() -> None:
    known = known_program(MIXED, 40, seed=3)
    loss = Loss.random(known.program)
    derivative = linearize(known.program, known.solution, Iterative(max_iters=2, restarts=1))
    residual = derivative.sensitivity(-loss.c_x, -loss.c_y).residual
    assert (residual > 1e-6).all()
    assert (residual <= 1.0).all()


@pytest.mark.parametrize("name", [*WAYS, "one re-solve"])
def test_nothing_is_factorized(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither numerically nor symbolically, and no memory is allocated for it."""

    def refuse(*_: object) -> None:
        raise AssertionError("no factors are needed")

    monkeypatch.setattr(kkt, "symbolic", refuse)
    monkeypatch.setattr(kkt, "_ordering", refuse)
    known = known_program([*beside("soc3", "boundary"), ("psd2", "rank 1")], 17)
    way = WAYS[name][0] if name in WAYS else Resolve(black_box, eps=1e-8)
    derivative = linearize(known.program, known.solution, way)
    derivative.adjoint(*Loss.random(known.program).parts)
    _, _, Lx, Dinv, _ = derivative.state.factors
    assert Lx.size == Dinv.size == 0


def sparse_qp(n: int, seed: int = 0) -> Known:
    """n variables, n rows with three entries each, half of them active; P diagonal."""
    rng = np.random.default_rng(seed)
    A = sp.csc_array(
        (rng.normal(size=3 * n), (np.repeat(np.arange(n), 3), rng.integers(0, n, 3 * n))), shape=(n, n)
    ) + sp.eye_array(n)
    cones = Product([(Nonneg(), n)])
    w, x = rng.normal(size=(1, n)), rng.normal(size=(1, n))
    s, y = np.maximum(w, 0), np.maximum(-w, 0)
    P = sp.diags_array(rng.uniform(0.5, 2, n))
    blank = ConeProgram.from_matrices(P, np.zeros(n), A, np.zeros(n), cones)
    return Known(blank.with_vectors(q=-blank.stationarity(x, y), b=s - blank.slack(x)), x, y, s)


def backward_memory(known: Known, way: Way) -> int:
    """Peak bytes of preparing and running the backward pass."""
    loss = Loss.random(known.program)
    solution = point(known.x, known.y, known.s)
    linearize(known.program, solution, way).adjoint(*loss.parts)  # what is cached with the data stays out
    tracemalloc.start()
    linearize(known.program, solution, way).adjoint(*loss.parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_of_iterative_is_proportional_to_the_nonzeros() -> None:
    sizes = [500, 1000, 2000, 4000]
    programs = [sparse_qp(n) for n in sizes]
    peaks = [backward_memory(p, Iterative(max_iters=60, restarts=1)) for p in programs]
    per_nonzero = [peak / p.program.A.nnz for peak, p in zip(peaks, programs, strict=True)]
    assert max(per_nonzero) <= 1.5 * min(per_nonzero)
    assert max(per_nonzero) <= 300  # bytes: a few dozen vectors; a dense row block would be 8 n / 4


@pytest.mark.parametrize("target", ["ghost", "original"])
def test_a_ghost_without_an_answer_gives_no_gradient_and_says_so(target: str) -> None:
    """A solver that fails on the re-solve returns NaN: that must not reach the gradient, nor pass for good."""
    known = known_program([("zero", "vertex"), ("nonneg", "vertex"), ("nonneg", "interior")], 4)

    def fails(program: ConeProgram) -> Solution:
        x, y, s = (np.full((program.batch, k), np.nan) for k in (program.n, program.m, program.m))
        return Solution(x, y, s, np.full(program.batch, int(Status.NUMERICAL)), np.zeros(program.batch, dtype=int))

    derivative = linearize(known.program, known.solution, Resolve(fails, target=target))
    found, residual = derivative.adjoint(np.ones_like(known.x), np.zeros_like(known.y))
    assert not found.u.any()
    assert not found.db.any()
    assert not derivative.certificate.after_backward(residual, None).good.any()
