"""The usual course of a call: the same answers, reports and derivatives as by the stages, without doing work twice."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields

import numpy as np
import pytest
from engine.test_engine import POINTS, Scripted, projection
from solvers.solver_problems import KINDS, known_program

import ffo.engine.batch as batch_module
from ffo.cones import Nonneg, Product
from ffo.engine import Engine, Info, Options
from ffo.engine.outcome import Outcome
from ffo.engine.report import Findings
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch


def by_stages(program: ConeProgram, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The outcome without the short way."""
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_attempt", lambda *a: None)
        return Engine(Options(on_fail="nan")).run(program)


def assert_same(found: Info, expected: Info) -> None:
    for each in fields(Info):
        if each.name not in ("times", "evidence"):
            np.testing.assert_array_equal(getattr(found, each.name), getattr(expected, each.name), err_msg=each.name)
    for name, value in vars(found.certificate).items():
        np.testing.assert_array_equal(value, getattr(expected.certificate, name), err_msg=name)


def solved_at_once(outcome: Outcome) -> bool:
    return isinstance(outcome.report._known, Findings)


def programs() -> dict[str, ConeProgram]:
    rng = np.random.default_rng(0)
    A = np.vstack([rng.normal(size=(6, 10)), -np.eye(10)])
    b = np.hstack([rng.uniform(0.5, 1.0, (4, 6)), np.zeros((4, 10))])
    general = ConeProgram.from_matrices(np.eye(10), rng.normal(size=(4, 10)), A, b, Product([(Nonneg(), 16)]))
    weak = projection(np.array([[1.0, 0.0], [2.0, -1.0]]))  # the first sample is weakly active
    twice = np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
    dependent = ConeProgram.from_matrices(np.eye(2), [-2.0, -2.0], twice, [1.0, 1.0, 0.0], Product([(Nonneg(), 3)]))
    return {"general": general, "weak": weak, "dependent": dependent, "points": projection(POINTS)}


@pytest.mark.parametrize("name", programs())
def test_reports_and_derivatives_are_those_of_the_stages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs()[name]
    expected, found = by_stages(program, monkeypatch), Engine(Options()).run(program)
    assert solved_at_once(found)
    assert not solved_at_once(expected)
    for v in ("x", "y", "s"):
        np.testing.assert_array_equal(getattr(found, v), getattr(expected, v))
    rng = np.random.default_rng(1)
    for _ in range(3):
        c = rng.normal(size=found.x.shape), rng.normal(size=found.y.shape)
        gradient, right = found.adjoint(*c), expected.adjoint(*c)
        np.testing.assert_array_equal(gradient.u, right.u)
        np.testing.assert_array_equal(gradient.v, right.v)
        assert found.report.undoubted == expected.report.undoubted
    assert_same(found.info, expected.info)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_program_gets_the_same_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = known_program(kind).program
    found, expected = Engine(Options()).run(program), by_stages(program, monkeypatch)
    np.testing.assert_array_equal(found.x, expected.x)
    assert_same(found.info, expected.info)


def test_the_report_may_be_read_at_any_time() -> None:
    c = np.ones_like(POINTS), np.zeros_like(POINTS)
    early, late = (Engine(Options()).run(projection(POINTS)) for _ in range(2))
    before = early.info
    assert not before.differentiated
    for outcome in (early, late):
        outcome.adjoint(*c)
    assert early.info is before
    assert before.differentiated
    assert before.times.backward > 0
    assert_same(late.info, before)
    assert late.info is late.info
    for copied in (copy.deepcopy(late.report), pickle.loads(pickle.dumps(late.report))):
        assert_same(copied, late.info)


def test_nothing_is_solved_or_polished_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample is not solved, or not well: the others keep their answers."""
    polished: list[int] = []
    original = batch_module.linearize
    monkeypatch.setattr(batch_module, "linearize", lambda *a: polished.append(len(a[0].q)) or original(*a))
    solver = Scripted([Status.SOLVED] * 3, [0.0, 0.5, 0.0])
    outcome = Engine(Options(solver=solver, on_fail="nan")).run(projection(POINTS))
    assert not solved_at_once(outcome)
    assert solver.batches == [3]
    assert polished[0] == 3
    assert 2 not in polished
    assert outcome.info.ok.tolist()[::2] == [True, True]
    failing = Scripted([Status.SOLVED, Status.NUMERICAL, Status.SOLVED], [0.0, 0.5, 0.0])
    outcome = Engine(Options(solver=failing, on_fail="nan")).run(projection(POINTS))
    assert failing.batches == [3]
    assert outcome.info.ok.tolist()[::2] == [True, True]


def test_points_that_need_a_closer_look_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that are rounding beside Px; a solution that is far away."""
    box = Product([(Nonneg(), 2)])
    buried = ConeProgram.from_matrices(np.eye(2), [1e-14, 0.0], -np.eye(2), [-1.0, -1.0], box)
    distant = ConeProgram.from_matrices(1e-3 * np.eye(2), [1.0, 1.0], -np.eye(2), [-1e7, -1.0], box)
    for program in (buried, distant):
        with monkeypatch.context() as patch:
            patch.setattr("ffo.engine.engine.scaling", lambda program: None)
            outcome = Engine(Options()).run(program)
        assert not solved_at_once(outcome)
        assert outcome.info.ok.all()


def test_products_with_one_sample_are_those_of_a_batch() -> None:
    rng = np.random.default_rng(0)
    M = SparseBatch.from_matrix(rng.normal(size=(7, 5)) * (rng.random((7, 5)) < 0.4))
    x, y = rng.normal(size=(3, 5)), rng.normal(size=(3, 7))
    np.testing.assert_array_equal(np.concatenate([M.dot(x[k : k + 1]) for k in range(3)]), M.dot(x))
    np.testing.assert_array_equal(np.concatenate([M.tdot(y[k : k + 1]) for k in range(3)]), M.tdot(y))
