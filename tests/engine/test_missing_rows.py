"""Samples that lack some rows are solved on the rows they have."""

from __future__ import annotations

import numpy as np
import pytest

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.engine import Engine, Options
from ffo.errors import InvalidDataError
from ffo.program.cone import ConeProgram

INF = np.inf


def program(b: list[list[float]]) -> ConeProgram:
    """min 1/2|x|^2 - sum x with blocks out of order: x0 <= b0, x0 + x1 = b1, |x| <= b2, x1 <= b5, -x0 <= b6."""
    A = [[1.0, 0], [1, 1], [0, 0], [1, 0], [0, 1], [0, 1], [-1, 0]]
    cones = Product([(Nonneg(), 1), (Zero(), 1), (SecondOrder(3), 1), (Nonneg(), 2)])
    return ConeProgram.from_matrices(np.eye(2), -np.ones(2), np.array(A), np.array(b), cones)


B = [[0.2, 1, 5, 0, 0, 3, 4], [INF, 1, 5, 0, 0, INF, 4], [0.1, 1, 5, 0, 0, 3, 4], [INF, 1, 5, 0, 0, 0.3, INF]]


def test_a_joint_outcome_is_that_of_the_samples_alone() -> None:
    whole = program(B)
    engine = Engine(Options(solver="CLARABEL", solver_args={"eps": 1e-10}))
    joint = engine.run(whole, open_sides=True)
    assert joint.info.ok.all()
    rng = np.random.default_rng(0)
    c_x, c_y = rng.normal(size=joint.x.shape), rng.normal(size=joint.y.shape)
    gradient = joint.adjoint(c_x, c_y)
    change = whole.with_vectors(q=c_x, b=np.where(np.isinf(whole.b), 0.0, c_y))
    dx, dy = joint.tangent(change)
    missing = np.isinf(whole.b)
    assert (joint.y[missing] == 0).all()
    assert (gradient.db[missing] == 0).all()
    assert (dy[missing] == 0).all()
    for k in range(4):
        alone = engine.run(whole.take(np.array([k])), open_sides=True)
        expected = alone.adjoint(c_x[[k]], c_y[[k]])
        np.testing.assert_allclose(joint.x[k], alone.x[0], atol=1e-8)
        np.testing.assert_allclose(gradient.u[k], expected.u[0], atol=1e-7)
        np.testing.assert_allclose(gradient.db[k], expected.db[0], atol=1e-7)
        np.testing.assert_allclose(dx[k], alone.tangent(change.take(np.array([k])))[0][0], atol=1e-7)
    assert joint.info.certificate is not None
    assert joint.info.certificate.good.shape == (4,)
    assert joint.info.times.forward > 0


def test_infinity_is_bad_data_elsewhere() -> None:
    engine = Engine(Options())
    for column, value in ((1, INF), (2, INF), (0, -INF)):
        b = [list(row) for row in B]
        b[3][column] = value
        with pytest.raises(InvalidDataError) as caught:
            engine.run(program(b), open_sides=True)
        assert caught.value.samples == (3,)
    with pytest.raises(InvalidDataError) as caught:
        engine.run(program(B))
    assert caught.value.samples == (1, 3)


def test_memory_serves_groups_that_change() -> None:
    """A sample may gain and lose rows between calls."""
    engine = Engine(Options(solver="CLARABEL"))
    keys = ["a", "b", "c", "d"]
    engine.run(program(B), keys, open_sides=True)
    again = engine.run(program(B), keys, open_sides=True)
    assert again.info.warm_hits == 4
    moved = [B[1], B[0], B[3], B[2]]
    found = engine.run(program(moved), keys, open_sides=True)
    expected = Engine(Options(solver="CLARABEL")).run(program(moved), open_sides=True)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-8)


def test_samples_that_fail_at_unit_size_and_lack_rows_are_solved_in_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Second differences of x at least 1e-13, with x of size 1; the last sample lacks the last of these rows."""
    n = 200
    points = np.random.default_rng(0).normal(size=(3, n)) + np.linspace(-2, 2, n) ** 2
    A = np.zeros((n - 2, n))
    for k, weight in enumerate((-1.0, 2.0, -1.0)):
        A[np.arange(n - 2), np.arange(n - 2) + k] = weight
    b = np.full((3, n - 2), -1e-13)
    b[2, -1] = INF
    given = ConeProgram.from_matrices(np.eye(n), -points, A, b, Product([(Nonneg(), n - 2)]))
    nothing = given.with_vectors(b=np.where(np.isinf(b), INF, 0.0))
    expected = Engine(Options(solver="CLARABEL", solver_args={"eps": 1e-10})).run(nothing, open_sides=True)
    outcome = Engine(Options(solver="CLARABEL")).run(given, open_sides=True)
    assert outcome.info.ok.all()
    np.testing.assert_allclose(outcome.x, expected.x, atol=1e-6)
    gradient = outcome.adjoint(np.ones((3, n)), np.zeros((3, n - 2)))
    assert gradient.db.shape == (3, n - 2)
    assert gradient.db[2, -1] == 0
    monkeypatch.setattr("ffo.engine.engine.solve_in_given_units", lambda *a: None)
    alone = Engine(Options(solver="CLARABEL", on_fail="nan")).run(given, open_sides=True)
    assert not alone.info.ok.all()  # it is needed
