"""Other coordinates of curved cones: maps of each cone onto itself, undone exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from problems import beside, known_program, with_pair

from ffo.cones import PSD, Cone, Exponential, Power, Product, SecondOrder
from ffo.ghost.direct import Direct
from ffo.ghost.oracle import linearize
from ffo.program.balance import balance, units_of_blocks
from ffo.program.cone import ConeProgram
from ffo.program.presolve import Presolve

COUNT = 40
RNG = np.random.default_rng


def long_exponential(rng: np.random.Generator) -> np.ndarray:
    s2, rho = 10.0 ** rng.uniform(-5, 5, COUNT), rng.uniform(-20, 20, COUNT)
    return np.stack([s2 * rho, s2, s2 * np.exp(rho)], axis=-1)


def long_power(rng: np.random.Generator) -> np.ndarray:
    x, y = 10.0 ** rng.uniform(-5, 5, (2, COUNT))
    return np.stack([x, y, x**0.3 * y**0.7], axis=-1)


def long_second_order(rng: np.random.Generator) -> np.ndarray:
    """(x + t, 2, x - t, 0) for xt = 1."""
    x = 10.0 ** (rng.uniform(1, 4, COUNT) * rng.choice([-1, 1], COUNT))
    return np.stack([x + 1 / x, np.full(COUNT, 2.0), x - 1 / x, np.zeros(COUNT)], axis=-1)


def long_semidefinite(rng: np.random.Generator) -> np.ndarray:
    v = 10.0 ** rng.uniform(-2, 2, (2, COUNT))
    return np.stack([v[0] ** 2, np.sqrt(2) * v[0] * v[1], v[1] ** 2], axis=-1)


LONG: dict[str, tuple[Cone, Callable[[np.random.Generator], np.ndarray]]] = {
    "exponential": (Exponential(), long_exponential),
    "power": (Power(0.3), long_power),
    "second-order": (SecondOrder(4), long_second_order),
    "semidefinite": (PSD(2), long_semidefinite),
}


def steps_for(cone: Cone, s: np.ndarray, y: np.ndarray) -> Presolve:
    """At x = 0, whose slacks are the right-hand sides."""
    none = np.zeros((len(s), 2))
    program = ConeProgram.from_matrices(np.eye(2), none, np.ones((cone.dim, 2)), s, Product([(cone, 1)]))
    found = balance(program, none, y, s, np.zeros(s.shape, dtype=bool))
    assert found.uneven.any()
    assert found.skewed.any()
    return found.steps


@pytest.mark.parametrize("name", LONG)
def test_points_near_a_solution_get_unit_size(name: str) -> None:
    cone, long = LONG[name]
    s = long(RNG(0))
    _, _, there = steps_for(cone, s, np.ones(s.shape)).inward(np.zeros((COUNT, 2)), np.ones(s.shape), s)
    there /= np.abs(there).max(axis=1, keepdims=True)
    if name == "exponential":
        np.testing.assert_allclose(there[:, 1:], 1.0, rtol=1e-6)
        np.testing.assert_allclose(there[:, 0], 0.0, atol=1e-6)
    elif name == "second-order":
        np.testing.assert_allclose(there, np.tile([1.0, 1.0, 0.0, 0.0], (COUNT, 1)), atol=1e-5)
    else:
        np.testing.assert_allclose(
            np.abs(there).min(axis=1), {"power": 1.0, "semidefinite": np.sqrt(0.5)}[name], rtol=1e-6
        )


@pytest.mark.parametrize("name", LONG)
def test_a_cone_is_mapped_onto_itself(name: str) -> None:
    """Points of the cone and of its dual stay there, in both directions, and keep their inner product."""
    cone, long = LONG[name]
    rng = RNG(1)
    step = steps_for(cone, long(rng), rng.normal(size=(COUNT, cone.dim)))
    w, v = rng.normal(size=(2, COUNT, cone.dim))
    s, y = (np.where(np.abs(v) > 1e-14, v, 0.0) for v in (cone.project(w), cone.project(v) - v))
    x = np.zeros((COUNT, 2))
    for there in (step.inward(x, y, s), step.outward(x, y, s)):
        size_y, size_s = (np.abs(v).max(axis=1, keepdims=True) + 1e-300 for v in there[1:])
        new_y, new_s = there[1] / size_y, there[2] / size_s
        np.testing.assert_allclose(cone.project(new_s), new_s, atol=1e-12)
        np.testing.assert_allclose(cone.project(-new_y), 0.0, atol=1e-12)
        before = (s * y).sum(axis=1)
        np.testing.assert_allclose((there[1] * there[2]).sum(axis=1), before, atol=1e-10 * (size_y * size_s).max())
    for old, back in zip((x, y, s), step.outward(*step.inward(x, y, s)), strict=True):
        np.testing.assert_allclose(back, old, rtol=1e-6, atol=1e-8 * np.abs(old).max())


SMOOTH = [("exp", "surface"), ("pow.7", "surface"), ("soc3", "boundary"), ("soc7", "boundary"), ("psd2", "rank 1"),
          ("psd3", "rank 2")]  # fmt: skip


@pytest.mark.parametrize(("cone", "case"), SMOOTH)
def test_derivatives_come_back(cone: str, case: str) -> None:
    known = known_program(beside(cone, case), 8, batched=True)
    known = with_pair(known, known.s, known.y)
    program = known.program
    inside = known.s + 1e-3 * program.cones.interior  # the point of an interior-point method
    steps = balance(program, known.x, known.y, inside, np.zeros(inside.shape, dtype=bool)).steps
    presolve = steps.then(Presolve.of(units_of_blocks(steps.apply(program))))
    reduced = presolve.apply(program)
    there = presolve.inward(known.x, known.y, known.s)
    found = linearize(reduced, type(known.solution)(*there, known.solution.status, known.solution.iterations), Direct())
    rng = RNG(2)
    r_x, r_s = rng.normal(size=known.x.shape), rng.normal(size=known.y.shape)
    expected = linearize(program, known.solution, Direct()).sensitivity(r_x, r_s)
    u, w, *_ = presolve.solve(found.sensitivity, r_x, r_s)
    np.testing.assert_allclose(u, expected.u, rtol=1e-8, atol=1e-8 * np.abs(expected.u).max())
    np.testing.assert_allclose(w, expected.w, rtol=1e-8, atol=1e-8 * np.abs(expected.w).max())
    for old, back in zip((known.x, known.y, known.s), presolve.outward(*there), strict=True):
        np.testing.assert_allclose(back, old, rtol=1e-12, atol=1e-12)


def test_points_on_a_face_change_nothing() -> None:
    """An exponential cone at its ray, a semidefinite one with a zero row: there is no map to unit size."""
    cones = Product([(Exponential(), 1), (PSD(2), 1)])
    program = ConeProgram.from_matrices(np.eye(2), np.zeros(2), np.ones((6, 2)), np.zeros(6), cones)
    s = np.array([[-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
    steps, skewed, uneven = balance(program, np.zeros((1, 2)), np.zeros((1, 6)), s, np.zeros((1, 6), dtype=bool))
    assert not (skewed | uneven).any()
    np.testing.assert_array_equal(steps.apply(program).A.matrix().toarray(), np.ones((6, 2)))


@pytest.mark.parametrize("large", [1e4, 1e8, 1e12])
def test_sums_of_data_cancel_exactly(large: float) -> None:
    """(x + t, x - t, 2) at x = 1e12, t = 1e-12: no digit of t is left in the given coordinates, all in others."""
    A = np.array([[-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]])
    program = ConeProgram.from_matrices(
        np.eye(2), np.zeros((1, 2)), A, np.array([[0.0, 0.0, 2.0]]), Product([(SecondOrder(3), 1)])
    )
    x = np.array([[large, 1 / large]])
    s = program.slack(x)
    found = balance(program, x, np.array([[1.0, -1.0, 0.0]]), s, np.zeros((1, 3), dtype=bool))
    assert found.skewed[0]
    reduced = found.steps.apply(program)
    units = units_of_blocks(reduced)
    there = units.apply(reduced).slack(units.inward(x, s, s)[0])
    np.testing.assert_allclose(there / there[0, 0], [[1.0, 0.0, 1.0]], rtol=1e-12, atol=1e-12)


def test_blocks_that_keep_their_coordinates() -> None:
    cones = Product([(Power(0.5), 2)])
    s = np.array([[1e8, 1e-8, 1.0, 1e8, 1e-8, 1.0]])
    program = ConeProgram.from_matrices(np.eye(2), np.zeros((1, 2)), np.ones((6, 2)), s, cones)
    kept = np.array([[True] * 3 + [False] * 3])
    there = balance(program, np.zeros((1, 2)), np.ones((1, 6)), s, kept).steps.inward(np.zeros((1, 2)), s, s)[2]
    np.testing.assert_array_equal(there[0, :3], s[0, :3])
    np.testing.assert_allclose(there[0, 3:], there[0, 3], rtol=1e-12)
