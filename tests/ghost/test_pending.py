"""Factors that only derivatives need are made by the first of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from problems import known_program

from ffo.ghost.direct import Compiled, newton
from ffo.kernels.evidence import PENDING, PIVOT, SINGULAR

THREADS, BATCH = 4, 64


def at_solution(batch: int = BATCH) -> Compiled:
    """Newton's method from exact solutions: without a step."""
    known = known_program([("nonneg", "vertex"), ("nonneg", "interior"), ("zero", "vertex")] * 15, 40)
    p, z = known.program, [np.repeat(v[:1], batch, axis=0) for v in (known.x, known.y, known.s)]
    return newton(p.take(np.zeros(batch, dtype=int)), *z)


def right_hand_sides(found: Compiled) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=found.x.shape), rng.normal(size=found.y.shape)


def test_an_exact_answer_is_not_factorized_without_a_derivative() -> None:
    found = at_solution()
    assert (found.state.evidence[:, PIVOT] == PENDING).all()
    assert found.certificate.good.all()
    found.sensitivity(*right_hand_sides(found))
    assert (found.state.evidence[:, PIVOT] > 0).all()


def test_the_first_derivative_may_be_of_some_samples() -> None:
    found = at_solution()
    r_x, r_s = right_hand_sides(found)
    whole = at_solution().sensitivity(r_x, r_s)
    some = np.array([2, 5])
    part = found.sensitivity(r_x[some], r_s[some], some)
    np.testing.assert_array_equal(part.u, whole.u[some])
    np.testing.assert_array_equal(found.sensitivity(r_x, r_s).u, whole.u)


@pytest.mark.parametrize("seed", range(5))
def test_first_derivatives_on_several_threads_agree(seed: int) -> None:
    del seed  # another attempt
    expected = at_solution().sensitivity(*right_hand_sides(at_solution()))
    found, start = at_solution(), Barrier(THREADS)

    def derivative(_: int) -> np.ndarray:
        start.wait()
        return found.sensitivity(*right_hand_sides(found)).u

    with ThreadPoolExecutor(THREADS) as pool:
        for u in pool.map(derivative, range(THREADS)):
            np.testing.assert_array_equal(u, expected.u)
    assert not np.isnan(found.state.evidence[:, SINGULAR]).any()
