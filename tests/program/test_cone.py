"""Cone programs and their solutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import MIXED, Known, known_program

from ffo.cones import Product, SecondOrder
from ffo.errors import Status
from ffo.program.cone import ConeProgram

Array = np.ndarray
each_storage = pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])


def mixed(batched: bool = False) -> Known:
    return known_program(MIXED, 40, batch=3, batched=batched)


@each_storage
def test_slack_and_stationarity(batched: bool) -> None:
    known = mixed(batched)
    p, rng = known.program, np.random.default_rng(0)
    x, y = rng.normal(size=(3, p.n)), rng.normal(size=(3, p.m))
    for k in range(3):
        P, A = p.P.full(k).toarray(), p.A.matrix(k).toarray()
        np.testing.assert_allclose(p.slack(x)[k], p.b[k] - A @ x[k], atol=1e-12)
        np.testing.assert_allclose(p.stationarity(x, y)[k], P @ x[k] + p.q[k] + A.T @ y[k], atol=1e-12)


@each_storage
def test_take_and_repeat(batched: bool) -> None:
    p = mixed(batched).program
    some, twice = p.take(np.array([2, 0])), p.repeat(2)
    assert (some.batch, twice.batch) == (2, 6)
    for part, source in ((some, [2, 0]), (twice, [0, 0, 1, 1, 2, 2])):
        for k, origin in enumerate(source):
            np.testing.assert_array_equal(part.A.matrix(k).toarray(), p.A.matrix(origin).toarray())
            np.testing.assert_array_equal(part.P.full(k).toarray(), p.P.full(origin).toarray())
            np.testing.assert_array_equal(part.q[k], p.q[origin])
            np.testing.assert_array_equal(part.b[k], p.b[origin])


def test_taking_from_a_solution() -> None:
    solution = replace(mixed().solution, status=np.array([0, 2, 1]), detail={1: "no"})
    taken = solution.take(np.array([1, 0]))
    np.testing.assert_array_equal(taken.x, solution.x[[1, 0]])
    assert taken.status.tolist() == [Status.INFEASIBLE, Status.SOLVED]
    assert taken.solved.tolist() == [False, True]


@pytest.mark.parametrize("block", ["P", "q", "A", "b"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@each_storage
def test_finite(block: str, value: float, batched: bool) -> None:
    p = mixed(batched).program
    assert p.finite.all()
    if block in ("q", "b"):
        spoiled = np.array(getattr(p, block))
        spoiled[1, 0] = value
        bad = replace(p, **{block: spoiled})
    else:
        matrix = getattr(p, block)
        values = matrix.values.copy()
        values[(1, 0) if batched else 0] = value
        bad = replace(p, **{block: replace(matrix, values=values)})
    expected = [False] * 3 if block in "PA" and not batched else [True, False, True]
    assert bad.finite.tolist() == expected


def test_pruned_programs_are_equal() -> None:
    p = mixed().program
    values = p.A.values.copy()
    values[::3] = 0.0
    full = replace(p, A=replace(p.A, values=values))
    pruned = full.pruned()
    assert pruned.A.nnz < full.A.nnz
    np.testing.assert_array_equal(pruned.A.matrix().toarray(), full.A.matrix().toarray())


def test_from_matrices_broadcasts_vectors() -> None:
    program = ConeProgram.from_matrices(
        [[2, 1], [1, 3]], np.zeros((4, 2)), [[1, 0], [0, 1], [1, 1]], [1, 2, 3], Product([(SecondOrder(3), 1)])
    )
    assert (program.batch, program.n, program.m) == (4, 2, 3)
    assert program.shared_matrices
    np.testing.assert_array_equal(program.b, np.tile([1.0, 2.0, 3.0], (4, 1)))
    np.testing.assert_array_equal(program.P.full().toarray(), [[2, 1], [1, 3]])
