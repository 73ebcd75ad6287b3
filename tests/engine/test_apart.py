"""Samples that lack some rows are solved on the rows they have."""

from __future__ import annotations

import numpy as np
import pytest

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.engine import Engine, Options
from ffo.engine.apart import row_groups
from ffo.errors import InvalidDataError
from ffo.program.cone import ConeProgram

INF = np.inf


def program(b: list[list[float]]) -> ConeProgram:
    """min 1/2|x|^2 - sum x with blocks out of order: x0 <= b0, x0 + x1 = b1, |x| <= b2, x1 <= b5, -x0 <= b6."""
    A = [[1.0, 0], [1, 1], [0, 0], [1, 0], [0, 1], [0, 1], [-1, 0]]
    cones = Product([(Nonneg(), 1), (Zero(), 1), (SecondOrder(3), 1), (Nonneg(), 2)])
    return ConeProgram.from_matrices(np.eye(2), -np.ones(2), np.array(A), np.array(b), cones)


B = [[0.2, 1, 5, 0, 0, 3, 4], [INF, 1, 5, 0, 0, INF, 4], [0.1, 1, 5, 0, 0, 3, 4], [INF, 1, 5, 0, 0, 0.3, INF]]


def test_the_common_case_is_not_grouped() -> None:
    assert row_groups(program([B[0], B[2]])) is None


def test_groups_have_the_same_rows() -> None:
    groups = row_groups(program(B))
    assert groups is not None
    assert sorted((g.samples.tolist(), g.rows.tolist()) for g in groups) == [
        ([0, 2], [0, 1, 2, 3, 4, 5, 6]),
        ([1], [1, 2, 3, 4, 6]),
        ([3], [1, 2, 3, 4, 5]),
    ]


@pytest.mark.parametrize("derivative", [False, True])
def test_a_joint_outcome_is_that_of_the_samples_alone(derivative: bool) -> None:
    whole = program(B)
    engine = Engine(Options(solver="CLARABEL", solver_args={"eps": 1e-10}))
    joint = engine.run(whole, derivative, open_sides=True)
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
        alone = engine.run(whole.take(np.array([k])), derivative, open_sides=True)
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
            engine.run(program(b), False, open_sides=True)
        assert caught.value.samples == (3,)
    with pytest.raises(InvalidDataError) as caught:
        engine.run(program(B), False)
    assert caught.value.samples == (1, 3)


def test_memory_serves_groups_that_change() -> None:
    """A sample may gain and lose rows between calls."""
    engine = Engine(Options(solver="CLARABEL"))
    keys = ["a", "b", "c", "d"]
    engine.run(program(B), True, keys, open_sides=True)
    again = engine.run(program(B), True, keys, open_sides=True)
    assert again.info.warm_hits == 4
    moved = [B[1], B[0], B[3], B[2]]
    found = engine.run(program(moved), True, keys, open_sides=True)
    expected = Engine(Options(solver="CLARABEL")).run(program(moved), True, open_sides=True)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-8)
