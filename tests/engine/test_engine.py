"""The engine without a framework: which steps are taken, and for which samples."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from solvers.solver_problems import infeasible, known_program

import ffo.engine.batch as batch_module
import ffo.engine.engine as engine_module
from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.engine import Engine, Options
from ffo.engine.options import Smoothing
from ffo.engine.smoothing import Sampler, perturbed_rows
from ffo.errors import InaccurateError, InfeasibleError, InputError, Status, UnsupportedProblemError
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Linearization
from ffo.ghost.resolve import Resolve
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution
from ffo.program.scaling import scaling
from ffo.solvers import get_solver
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.workspace import Workspace


def projection(points: np.ndarray) -> ConeProgram:
    """min 1/2 |x - p|^2, x >= 0 for every row p."""
    n = points.shape[1]
    return ConeProgram.from_matrices(np.eye(n), -points, -np.eye(n), np.zeros(n), Product([(Nonneg(), n)]))


POINTS = np.array([[1.0, -1.0], [2.0, 3.0], [-1.0, -2.0]])


def test_solves_a_batch() -> None:
    outcome = Engine(Options()).run(projection(POINTS))
    np.testing.assert_allclose(outcome.x, np.maximum(POINTS, 0), atol=1e-6)
    assert outcome.info.status == [Status.SOLVED] * 3
    assert outcome.info.ok.all()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_right_hand_sides_of_rounding_error_are_not_the_scale(size: float) -> None:
    """Most of b is 1e-16 of the rest, where zero was meant: x1 + x2 = b1, x3 + x4 = b2, ..., x >= 0."""
    b = size * np.array([1.0, 2.0, *np.full(8, 1e-16)])
    A = np.vstack([np.repeat(np.eye(10), 2, axis=1), -np.eye(20)])
    cones = Product([(Zero(), 10), (Nonneg(), 20)])
    program = ConeProgram.from_matrices(np.eye(20), np.arange(20.0) % 2, A, np.concatenate([b, np.zeros(20)]), cones)
    outcome = Engine(Options(solver="CLARABEL")).run(program)
    pairs = outcome.x.reshape(10, 2)
    np.testing.assert_allclose(pairs.sum(axis=1), b, rtol=1e-9, atol=1e-9 * size)
    np.testing.assert_allclose(pairs[:2, 0] - pairs[:2, 1], np.minimum(b[:2], 1.0), rtol=1e-9)


def smooth(points: np.ndarray, least: float) -> ConeProgram:
    """min 1/2 |x - p|^2, second differences of x at least `least`: tiny compared with x of size 1."""
    n = points.shape[1]
    A = np.zeros((n - 2, n))
    for k, weight in enumerate((-1.0, 2.0, -1.0)):
        A[np.arange(n - 2), np.arange(n - 2) + k] = weight
    cones = Product([(Nonneg(), n - 2)])
    return ConeProgram.from_matrices(np.eye(n), -points, A, np.full(n - 2, -least), cones)


def test_samples_that_fail_at_unit_size_are_solved_in_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).normal(size=(3, 200)) + np.linspace(-2, 2, 200) ** 2
    expected = Engine(Options(solver="CLARABEL", solver_args={"eps": 1e-10})).run(smooth(points, 0.0))
    units = scaling(smooth(points, 1e-13))
    assert units is not None
    assert units.length.max() < 1e-12
    outcome = Engine(Options(solver="CLARABEL")).run(smooth(points, 1e-13))
    assert outcome.info.ok.all()
    np.testing.assert_allclose(outcome.x, expected.x, atol=1e-6)
    monkeypatch.setattr("ffo.engine.engine.solve_in_given_units", lambda *a: None)
    alone = Engine(Options(solver="CLARABEL", on_fail="nan")).run(smooth(points, 1e-13))
    assert not alone.info.ok.all()  # it is needed


def test_every_point_is_polished_once_and_ready_for_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = batch_module.linearize
    monkeypatch.setattr(batch_module, "linearize", lambda *a: calls.append(len(a[0].q)) or original(*a))
    outcome = Engine(Options(solver="SCS", solver_args={"eps": 1e-4})).run(projection(POINTS))
    assert calls == [3]
    np.testing.assert_allclose(outcome.x, np.maximum(POINTS, 0), atol=1e-12)
    assert outcome.info.residual.max() < 1e-12
    first, second = (outcome.adjoint(np.ones_like(POINTS), np.zeros_like(POINTS)) for _ in range(2))
    outcome.tangent(replace(outcome.program, q=np.ones_like(POINTS)))
    assert calls == [3]
    assert outcome.info.certificate.good.all()
    np.testing.assert_array_equal(first.u, second.u)
    np.testing.assert_allclose(first.u, -(POINTS > 0).astype(float), atol=1e-9)


def test_equal_matrices_are_shared_however_they_are_given() -> None:
    program = projection(POINTS)
    A = replace(program.A, values=np.tile(program.A.values, (3, 1)))
    outcome = Engine(Options()).run(replace(program, A=A))
    assert outcome.program.shared_matrices
    np.testing.assert_allclose(outcome.x, np.maximum(POINTS, 0), atol=1e-12)


def test_verdicts_of_several_passes_add_up() -> None:
    """min 1/2 (x0 + x1 - q)^2 + 1/2 x2^2: x0 and x1 are not unique, their sum and x2 are."""
    P = np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])
    box = Product([(Nonneg(), 6)])
    program = ConeProgram.from_matrices(P, [-1.0, -1.0, 0.0], np.vstack([np.eye(3), -np.eye(3)]), 5 * np.ones(6), box)
    outcome = Engine(Options(solver="CLARABEL")).run(program)
    none = np.zeros((1, 6))

    def costs(gradient: DataGradient) -> np.ndarray:
        return (gradient.u if gradient.dq is None else gradient.dq).any(axis=1)

    outcome.adjoint(np.array([[0.0, 0.0, 1.0]]), none, costs)
    assert outcome.info.certificate.good.all()
    outcome.adjoint(np.array([[0.0, 0.0, 1.0]]), none)  # dx2 / dP02 = -x0, which is not unique
    assert outcome.info.certificate.ambiguous.all()
    outcome.adjoint(np.array([[0.0, 0.0, 1.0]]), none, costs)
    assert not outcome.info.certificate.good.any()  # the worst verdict is kept


class Scripted(Solver):
    """Clarabel's answers, x of each sample moved by `shift`, with a given status."""

    name = "SCRIPTED"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), True, "numpy", "numpy")

    def __init__(self, claim: list[Status], shift: list[float]) -> None:
        super().__init__()
        self.claim, self.shift, self.batches = claim, shift, []

    def workspace(self, program: ConeProgram) -> Workspace:
        raise NotImplementedError

    def solve(self, program: ConeProgram) -> Solution:
        self.batches.append(program.batch)
        right = get_solver("CLARABEL").solve(program)
        x = right.x + np.array(self.shift[: program.batch])[:, None]
        status = np.array(self.claim[: program.batch], dtype=int)
        return Solution(x, right.y, right.s, status, right.iterations, detail={})


def test_samples_fall_back_alone_in_order_and_are_announced() -> None:
    first = Scripted([Status.SOLVED, Status.NUMERICAL, Status.SOLVED], [0.0, 0.5, 0.5])
    second = Scripted([Status.SOLVED, Status.SOLVED], [0.0, 0.5])
    outcome = Engine(Options(solver=first, retry=[second, "OSQP"])).run(projection(POINTS))
    assert outcome.info.ok.all()
    assert outcome.info.solver == ("SCRIPTED", "SCRIPTED", "OSQP")
    assert outcome.info.retried.tolist() == [False, True, True]
    assert (first.batches, second.batches) == ([3], [2])
    np.testing.assert_allclose(outcome.x, np.maximum(POINTS, 0), atol=1e-12)


def test_answers_that_are_not_verified_go_on_to_the_next_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual relative to the largest term of the program hides what the row's own units show."""
    original, doubted = batch_module.linearize, {3}

    def doubtful(*a: object) -> Linearization:
        found = original(*a)
        if len(found.x) in doubted:
            found.certificate.natural_residual[len(found.x) // 2] = 1e-3
        return found

    monkeypatch.setattr(batch_module, "linearize", doubtful)
    outcome = Engine(Options(solver="CLARABEL", retry=["PIQP"])).run(projection(POINTS))
    assert outcome.info.solver == ("CLARABEL", "PIQP", "CLARABEL")
    assert outcome.info.retried.tolist() == [False, True, False]
    assert outcome.info.ok.all()
    doubted.add(1)
    with pytest.raises(InaccurateError, match="row by row") as caught:
        Engine(Options(solver="CLARABEL", retry=["PIQP"])).run(projection(POINTS))
    assert caught.value.samples == (1,)


def test_a_proven_verdict_is_final() -> None:
    outcome = Engine(Options(solver="PIQP", retry=["CLARABEL"], on_fail="nan")).run(infeasible())
    assert outcome.info.status == [Status.INFEASIBLE]
    assert outcome.info.solver == ("PIQP",)
    assert not outcome.info.retried.any()


def test_retry_solvers_must_fit_the_problem() -> None:
    with pytest.raises(UnsupportedProblemError, match="PIQP"):
        Engine(Options(solver="CLARABEL", retry=["PIQP"])).run(known_program("sdp").program)
    with pytest.raises(InputError, match="unknown solver"):
        Engine(Options(solver="CLARABEL", retry=["NONE"]))


def test_failed_samples_give_zero_gradients() -> None:
    points = POINTS.copy()
    points[1, 0] = np.nan
    outcome = Engine(Options(on_fail="nan")).run(projection(points))
    assert [s.ok for s in outcome.info.status] == [True, False, True]
    assert np.isnan(outcome.x[1]).all()
    gradient = outcome.adjoint(np.ones_like(points), np.zeros_like(points))
    for part in (gradient.x, gradient.u, gradient.v, gradient.db):
        assert (part[1] == 0).all()
    dx, dy = outcome.tangent(replace(outcome.program, q=np.ones_like(points), b=np.zeros_like(outcome.program.b)))
    assert (dx[1] == 0).all()
    assert (dy[1] == 0).all()
    assert not outcome.info.certificate.good[1]


def test_errors_name_the_samples_of_the_caller() -> None:
    """Copies of a sample (smoothing) share its number."""
    n = 1
    b = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])  # 0 <= x <= b_0
    A = np.array([[1.0], [-1.0]])
    program = ConeProgram.from_matrices(np.eye(n), np.zeros(n), A, b, Product([(Nonneg(), 2)]))
    with pytest.raises(InfeasibleError) as caught:
        Engine(Options()).run(program, copies=2)
    assert caught.value.samples == (1,)


def test_remembers_by_key() -> None:
    engine, order = Engine(Options(warm_start=True)), [2, 0, 1]
    calls = [("abc", POINTS, 0), ("cab", POINTS[order], 3), (None, POINTS, 0), ("abx", POINTS, 2)]
    for keys, points, hits in calls:
        outcome = engine.run(projection(points), keys)
        assert outcome.info.warm_hits == hits
        np.testing.assert_allclose(outcome.x, np.maximum(points, 0), atol=1e-6)


def test_a_copied_engine_keeps_options_and_forgets_solutions() -> None:
    engine = Engine(Options(backward="direct", solver="CLARABEL"))
    engine.run(projection(POINTS), keys="abc")
    for other in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert other.options == engine.options
        assert other.run(projection(POINTS), keys="abc").info.warm_hits == 0


@pytest.mark.parametrize(("backward", "kind"), [("direct", Direct), ("iterative", Iterative), ("resolve", Resolve)])
def test_ways_by_name(backward: str, kind: type) -> None:
    engine = Engine(Options(backward=backward, delta=0.1))
    way = engine.way(projection(POINTS), partial(get_solver, "CLARABEL"))
    assert isinstance(way, kind)
    if kind is Resolve:
        assert way.delta == 0.1


def test_large_programs_are_not_factorized_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Options())
    assert isinstance(engine.way(projection(POINTS), partial(get_solver, "CLARABEL")), Direct)
    monkeypatch.setattr(engine_module, "DIRECT_LIMIT", 3)
    assert isinstance(engine.way(projection(POINTS), partial(get_solver, "CLARABEL")), Iterative)


def test_solvers_are_configured_once() -> None:
    engine, program = Engine(Options(solver="CLARABEL")), projection(POINTS)
    assert engine.solver(program) is engine.solver(program)
    assert engine.solver(program, {"eps": 1e-4}) is not engine.solver(program)
    assert engine.solver(program, {"eps": 1e-4}).eps == 1e-4


def test_convexity_is_checked_only_when_it_may_fail() -> None:
    program = projection(POINTS)
    bad = replace(program, P=replace(program.P, values=-program.P.values))
    outcome = Engine(Options(on_fail="nan")).run(bad)
    assert outcome.info.status == [Status.INVALID_INPUT] * 3
    assert "smallest eigenvalue -1" in outcome.info.detail[0]


def test_smoothing_moves_inequalities_and_radii_alone() -> None:
    cones = Product([(Zero(), 2), (Nonneg(), 3), (SecondOrder(3), 2)])
    program = ConeProgram.from_matrices(np.eye(2), np.zeros((2, 2)), np.ones((11, 2)), np.zeros(11), cones)
    assert perturbed_rows(program).tolist() == [2, 3, 4, 5, 8]
    moved, score = Sampler(Smoothing(0.5, draws=3, seed=1)).perturb(program)
    assert score is None
    assert moved.batch == 6
    changed = np.flatnonzero(np.abs(moved.b).max(axis=0) > 0)
    assert changed.tolist() == [2, 3, 4, 5, 8]
    assert np.abs(moved.b).max() <= 0.5
    again, _ = Sampler(Smoothing(0.5, draws=3, seed=1)).perturb(program)
    np.testing.assert_array_equal(moved.b, again.b)


def test_settings_of_a_call_are_checked_though_no_solver_is_asked() -> None:
    engine = Engine(Options())
    engine.run(projection(POINTS), keys="abc")
    assert engine.run(projection(POINTS), keys="abc").info.warm_hits == 3
    with pytest.raises(InputError, match="nonsense"):
        engine.run(projection(POINTS), keys="abc", overrides={"nonsense": 1})
