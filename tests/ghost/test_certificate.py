"""The certificate: wrong gradients are never called good, correct ones are not flagged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from ghost.yardstick import Loss
from problems import FACES, MIXED, Blocks, Known, beside, known_program, nearly_degenerate, rescaled, with_pair

from ffo.cones import Nonneg, Product
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import linearize
from ffo.ghost.resolve import Resolve
from ffo.program.cone import ConeProgram
from ffo.solvers import get_solver

Array = np.ndarray

QP: Blocks = [("nonneg", "vertex")] * 6 + [("nonneg", None)] * 3 + [("nonneg", "interior")] * 6 + [("zero", "vertex")]
LP: Blocks = [("nonneg", "vertex")] * 9 + [("nonneg", "interior")] * 8 + [("zero", "vertex")] * 2
CURVED: Blocks = [(name, None) for name in ("soc3", "exp", "psd3", "soc7", "nonneg", "soc3", "psd2", "nonneg")]


@dataclass(frozen=True)
class Fuzz:
    """A family of problems, and the least share of gradients that should be called good.

    Attributes:
        rank: of P; None is full.
        scaling: rows and columns in units of 10^±scaling.
        degeneracy: pairs (s, y) as small as 10^-degeneracy of their natural size.
    """

    blocks: Blocks
    n: int
    good: float
    rank: int | None = None
    scaling: float = 0.0
    degeneracy: float = 0.0

    def problem(self, seed: int) -> Known:
        known = known_program(self.blocks, self.n, batch=6, batched=True, rank=self.rank, seed=seed)
        return rescaled(nearly_degenerate(known, self.degeneracy, seed), self.scaling, seed)


FUZZ = {
    "qp": Fuzz(QP, 14, good=0.95),
    "qp badly scaled": Fuzz(QP, 14, good=0.95, scaling=3),
    "qp nearly degenerate": Fuzz(QP, 14, good=0.95, degeneracy=6),
    "qp of low rank": Fuzz(LP[:-2], 12, good=0.95, rank=5, scaling=1),
    "lp": Fuzz(LP, 11, good=0.95, rank=0),
    "lp nearly degenerate": Fuzz(LP, 11, good=0.1, rank=0, degeneracy=4),
    "curved": Fuzz(CURVED, 30, good=0.95),
    "curved badly scaled": Fuzz(CURVED, 30, good=0.95, scaling=2),
    "curved nearly degenerate": Fuzz(CURVED, 30, good=0.95, degeneracy=6),
}


def error(found: Array, exact: Array) -> Array:
    """(batch,) relative errors."""
    return np.abs(found - exact).max(axis=1) / np.abs(exact).max(axis=1)


@pytest.mark.parametrize("eps", [1e-3, 1e-4, 1e-6])
@pytest.mark.parametrize("solver", ["CLARABEL", "SCS", "PIQP"])
@pytest.mark.parametrize("family", FUZZ)
def test_what_is_called_good_is_good(family: str, solver: str, eps: float) -> None:
    """Loose answers: whenever the certificate is good, the gradient is that of the exact solution."""
    fuzz = FUZZ[family]
    if solver == "PIQP" and "curved" in family:
        pytest.skip("PIQP has no curved cones")
    good, total = 0, 0
    for seed in range(3):
        known = fuzz.problem(seed)
        loss = Loss.random(known.program, seed)
        exact, _ = linearize(known.program, known.solution, Direct()).adjoint(*loss.parts)
        answer = get_solver(solver, {"eps": eps}).solve(known.program)
        finite = np.flatnonzero(np.isfinite(answer.x).all(axis=1) & np.isfinite(answer.y).all(axis=1))
        derivative = linearize(known.program.take(finite), answer.take(finite), Direct())
        found, residual = derivative.adjoint(*(c[finite] for c in loss.parts))
        called = derivative.certificate.after_backward(residual, derivative.dependent).good
        for name in ("u", "v"):
            wrong = error(getattr(found, name), getattr(exact, name)[finite])
            assert wrong[called].max(initial=0.0) <= 1e-4, name
        good, total = good + called.sum(), total + known.program.batch
    if eps <= 1e-5:
        assert good >= fuzz.good * total


def weakly_active() -> list[tuple[str, str, str]]:
    """Faces whose pair can lose its dual (s stays on the boundary) or its primal part (y stays)."""
    curved = {"boundary", "other boundary", "surface", "rank 1", "rank 2", "face", "ray"}
    found = [("nonneg", "vertex", "y"), ("soc1", "vertex", "y"), ("psd1", "vertex", "y")]
    for name, case in FACES:
        full = (name, case) in {("psd2", "rank 2")}
        if case in curved and name not in ("soc1", "psd1") and not full:
            found += [(name, case, "y"), (name, case, "s")]
    return found


@pytest.mark.parametrize("noise", [0.0, 1e-6])
@pytest.mark.parametrize(("cone", "case", "gone"), weakly_active(), ids=" ".join)
def test_weakly_active_blocks_are_flagged(cone: str, case: str, gone: str, noise: float) -> None:
    regular = known_program(beside(cone, case), 10)
    block = slice(1, 1 + regular.program.m - 3)  # `beside` puts it between scalars
    s, y = regular.s.copy(), regular.y.copy()
    (y if gone == "y" else s)[:, block] = 0.0
    known = with_pair(regular, s, y)
    start = known.disturbed(noise) if noise else known.solution
    derivative = linearize(known.program, start, Direct())
    assert derivative.certificate.weakly_active.all()
    assert not derivative.certificate.good.any()
    assert derivative.certificate.natural_residual.max() <= 1e-7  # the solution itself is found
    for k in range(known.program.batch):
        assert derivative.certificate.reasons(k)


def test_a_weakly_active_inequality_gets_a_one_sided_derivative() -> None:
    """min (x - a)^2 / 2, x <= a: dx/db is 1 on one side and 0 on the other."""
    program = ConeProgram.from_matrices(np.eye(1), [-2.0], [[1.0]], [2.0], Product([(Nonneg(), 1)]))
    answer = get_solver("CLARABEL", {"eps": 1e-10}).solve(program)
    derivative = linearize(program, answer, Direct())
    found, _ = derivative.adjoint(np.ones((1, 1)), np.zeros((1, 1)))
    assert derivative.certificate.weakly_active.all()
    assert "weakly active" in derivative.certificate.reasons(0)[0]
    assert min(abs(found.db[0, 0]), abs(found.db[0, 0] - 1)) <= 1e-9


def linear_edge() -> ConeProgram:
    """min x1, x1 >= 0, 0 <= x2 <= 1: every (0, x2) is optimal."""
    A, b = [[-1.0, 0.0], [0.0, -1.0], [0.0, 1.0]], [0.0, 0.0, 1.0]
    return ConeProgram.from_matrices(np.zeros((2, 2)), [1.0, 0.0], A, b, Product([(Nonneg(), 3)]))


def flat_bottom() -> ConeProgram:
    """min (x1 - 1)^2 / 2, x1 + x2 <= 5: x2 is free."""
    return ConeProgram.from_matrices(np.diag([1.0, 0.0]), [-1.0, 0.0], [[1.0, 1.0]], [5.0], Product([(Nonneg(), 1)]))


@pytest.mark.parametrize("way", [Direct(), Iterative()], ids=["direct", "iterative"])
@pytest.mark.parametrize("make", [linear_edge, flat_bottom])
def test_solutions_that_are_not_unique_are_flagged(make, way) -> None:
    program = make()
    derivative = linearize(program, get_solver("CLARABEL").solve(program), way)
    quiet = derivative.adjoint(np.array([[1.0, 0.0]]), np.zeros((1, program.m)))
    assert derivative.certificate.after_backward(quiet[1], derivative.dependent).good.all()  # x1 is determined
    _, residual = derivative.adjoint(np.array([[0.0, 1.0]]), np.zeros((1, program.m)))
    certificate = derivative.certificate.after_backward(residual, derivative.dependent)
    assert residual[0] > 0.5
    assert not certificate.good.any()
    assert "not unique" in certificate.reasons(0)[-1]


def test_one_sample_does_not_spoil_the_others() -> None:
    """A weakly active sample among regular ones."""
    regular = known_program(QP, 14, batch=3)
    s, y = regular.s.copy(), regular.y.copy()
    y[1, 0] = 0.0  # row 0 is active
    known = with_pair(regular, s, y)
    derivative = linearize(known.program, known.solution, Direct())
    np.testing.assert_array_equal(derivative.certificate.good, [True, False, True])
    assert not derivative.certificate.reasons(0)


@pytest.mark.parametrize("noise", [1e-2, 1e-1, 1.0])
def test_far_starts_are_never_called_good_wrongly(noise: float) -> None:
    known = known_program(MIXED, 40, batch=10)
    loss = Loss.random(known.program)
    exact, _ = linearize(known.program, known.solution, Direct()).adjoint(*loss.parts)
    derivative = linearize(known.program, known.disturbed(noise), Direct())
    found, residual = derivative.adjoint(*loss.parts)
    good = derivative.certificate.after_backward(residual, derivative.dependent).good
    assert error(found.u, exact.u)[good].max(initial=0.0) <= 1e-4
    assert error(found.v, exact.v)[good].max(initial=0.0) <= 1e-4


def test_what_cannot_be_polished_is_judged_by_its_residual() -> None:
    """Resolving the original problem: exact answers are called good, loose ones are not."""
    known = known_program(QP, 14, batch=4)
    way = Resolve(get_solver("CLARABEL").solve, target="original")
    assert linearize(known.program, known.solution, way).certificate.good.all()
    assert not linearize(known.program, known.disturbed(1e-3), way).certificate.good.any()
