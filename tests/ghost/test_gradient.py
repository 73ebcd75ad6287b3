"""The derivative of a solution, on every face of every cone, against two references without a ghost problem."""

from __future__ import annotations

import numpy as np
import pytest
from ghost.yardstick import (
    Entries,
    Loss,
    gradient_error,
    implicit_gradient,
    relative_error,
    tight_differences,
)
from problems import FACES, MIXED, Known, beside, known_program

from ffo.ghost.direct import Direct
from ffo.ghost.oracle import Linearization, linearize

#: Next to a ray of pow(0.7) the solution is differentiable, but its derivative changes like |z|^(4/3) or
#: |z|^(4/7): finite differences converge that slowly, so their step and tolerance differ.
SLOW = {("pow.7", "x ray"), ("pow.7", "y ray")}

each_face = pytest.mark.parametrize(("cone", "case"), FACES, ids=[f"{n} {c}" for n, c in FACES])
matrices = pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])

#: without a quadratic term: name -> (blocks, variables, rank of P)
SINGULAR = {
    "lp": ([("nonneg", "vertex")] * 4 + [("zero", "vertex")] * 2 + [("nonneg", "interior")] * 3, 6, 0),
    "socp": ([("soc3", "boundary")] * 3 + [("nonneg", "vertex"), ("soc7", "interior"), ("zero", "vertex")], 7, 0),
    "sdp": ([("psd3", "rank 1"), ("psd2", "rank 1"), ("nonneg", "vertex"), ("zero", "vertex")], 8, 0),
    "exp": ([("exp", "surface")] * 3 + [("exp", "face"), ("zero", "vertex"), ("nonneg", "interior")], 7, 0),
    "qp": ([("nonneg", "vertex")] * 4 + [("nonneg", "interior")] * 3 + [("zero", "vertex")] * 2, 9, 4),
}


def gradient(known: Known, loss: Loss) -> Entries:
    derivative = linearize(known.program, known.solution, Direct())
    found, residual = derivative.adjoint(*loss.parts)
    assert residual.max() <= 1e-11
    assert derivative.certificate.after_backward(residual, derivative.dependent).good.all()
    return Entries.of_gradient(found, known.program)


def assert_transposed(derivative: Linearization, known: Known) -> None:
    """<adjoint(c), change> = <c, tangent(change)> for the change of each block of data and of all."""
    loss, change = Loss.random(known.program), Entries.random(known.program)
    pulled = Entries.of_gradient(derivative.adjoint(*loss.parts)[0], known.program)
    for move in (*(change.only(name) for name in "PqAb"), change):
        delta = move.program(known.program)
        along = derivative.tangent(delta)
        dx, dy = along.u, along.w
        ds = delta.slack(known.x) - known.program.A.dot(dx)
        np.testing.assert_allclose(pulled.dot(move), loss(dx, dy, ds), rtol=1e-10, atol=1e-10)


@matrices
@each_face
def test_gradient_is_that_of_the_implicit_function(cone: str, case: str, batched: bool) -> None:
    known = known_program(beside(cone, case), 10, batched=batched)
    loss = Loss.random(known.program)
    slow = (cone, case) in SLOW
    expected = implicit_gradient(known.program, known.solution, loss, step=1e-6 if slow else 1e-4)
    assert gradient_error(gradient(known, loss), expected) <= (1e-6 if slow else 1e-9)


@each_face
def test_gradient_is_the_limit_of_tight_solves(cone: str, case: str) -> None:
    known = known_program(beside(cone, case), 10, seed=1)
    loss, change = Loss.random(known.program), Entries.random(known.program)
    found = gradient(known, loss)
    ray = cone.startswith("pow") and case.endswith("ray")
    for name in "PqAb":
        move = change.only(name)
        expected = tight_differences(known.program, loss, move, step=1e-6 if ray else 2e-4)
        assert relative_error(found.dot(move), expected) <= (2e-5 if (cone, case) in SLOW else 1e-6), name


@matrices
@pytest.mark.parametrize("seed", range(3))
def test_gradient_with_all_cones_at_once(batched: bool, seed: int) -> None:
    known = known_program(MIXED, 40, batch=3, batched=batched, seed=seed)
    loss, change = Loss.random(known.program), Entries.random(known.program)
    found = gradient(known, loss)
    expected = implicit_gradient(known.program, known.solution, loss, step=1e-5)
    assert gradient_error(found, expected) <= 1e-8
    along = tight_differences(known.program, loss, change, step=1e-5)
    assert relative_error(found.dot(change), along) <= 1e-6


@matrices
@pytest.mark.parametrize("kind", SINGULAR)
def test_gradient_without_strong_convexity(kind: str, batched: bool) -> None:
    """P is zero or singular: the constraints make the solution unique."""
    blocks, n, rank = SINGULAR[kind]
    known = known_program(blocks, n, batch=3, batched=batched, rank=rank)
    loss, change = Loss.random(known.program), Entries.random(known.program)
    found = gradient(known, loss)
    assert gradient_error(found, implicit_gradient(known.program, known.solution, loss)) <= 1e-8
    along = tight_differences(known.program, loss, change, step=1e-5)
    assert relative_error(found.dot(change), along) <= 1e-6


@each_face
def test_tangent_is_the_transpose_of_adjoint(cone: str, case: str) -> None:
    known = known_program(beside(cone, case), 10)
    assert_transposed(linearize(known.program, known.solution, Direct()), known)


@matrices
def test_tangent_is_the_transpose_of_adjoint_for_all_cones(batched: bool) -> None:
    known = known_program(MIXED, 40, batch=3, batched=batched)
    assert_transposed(linearize(known.program, known.solution, Direct()), known)


def test_repeated_adjoints_are_equal() -> None:
    known = known_program(MIXED, 40)
    derivative = linearize(known.program, known.solution, Direct())
    loss = Loss.random(known.program)
    first, second = (derivative.adjoint(*loss.parts)[0] for _ in range(2))
    for name, value in vars(first).items():
        np.testing.assert_array_equal(value, getattr(second, name), err_msg=name)


def test_adjoint_is_linear_and_zero_at_zero() -> None:
    known = known_program(MIXED, 40)
    derivative = linearize(known.program, known.solution, Direct())
    a, b = (Loss.random(known.program, seed) for seed in (1, 2))
    both = Loss(*(2.0 * u - v for u, v in zip(a.parts, b.parts, strict=True)))
    u, v, w = (derivative.adjoint(*loss.parts)[0].u for loss in (a, b, both))
    np.testing.assert_allclose(w, 2 * u - v, atol=1e-10 * np.abs(w).max())
    nothing, residual = derivative.adjoint(*(np.zeros_like(c) for c in a.parts))
    assert not nothing.u.any()
    assert not nothing.v.any()
    assert not residual.any()
