"""What every way to differentiate a solution promises, on every kind of program.

A backend is a function from a program and a solution to an object with `adjoint`, `tangent`, `take` and
`certificate` (today `ffo.ghost.oracle.Linearization`). To test a new one, add a line to `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest
from contracts.programs import BATCH, DUALS_OPEN, PROGRAMS, Known, Suits, anything, build, yardstick
from ghost.yardstick import Entries, Loss, gradient_error, relative_error

from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Linearization, linearize
from ffo.ghost.resolve import Resolve
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import get_solver

Array = np.ndarray
BLOCKS = "PqAb"


def black_box(program: ConeProgram) -> Solution:
    return get_solver("CLARABEL", {"eps": 1e-10}).solve(program)


@dataclass(frozen=True)
class Backend:
    """A way to differentiate.

    Attributes:
        linearize: from a program and a solution to its derivative.
        tolerance: error of a derivative, relative to its largest entry.
        noise: by how much two routes to one number may differ, relatively: <adjoint(c), change> and
            <c, tangent(change)>, a sample in a batch and alone.
        suits: the names of programs it is made for.
    """

    linearize: Callable[[ConeProgram, Solution], Linearization]
    tolerance: float
    noise: float
    suits: Suits = anything

    def at(self, known: Known) -> Linearization:
        return self.linearize(known.program, known.solution)


#: 1e-8 is the accuracy of the reference itself; a black box is as good as its solver, differences of its
#: answers as the square root of that, and less where the solution curves strongly
BACKENDS: dict[str, Backend] = {
    "direct": Backend(partial(linearize, way=Direct()), 1e-8, 1e-10),
    "iterative": Backend(partial(linearize, way=Iterative()), 1e-8, 1e-8),
    "resolve the ghost": Backend(partial(linearize, way=Resolve(black_box)), 1e-6, 1e-6),
    "resolve the original": Backend(partial(linearize, way=Resolve(black_box, target="original")), 2e-2, 2e-2),
}

SUBJECTS = [(backend, name) for backend, its in BACKENDS.items() for name in PROGRAMS if its.suits(name)]
subjects = pytest.mark.parametrize(("backend", "name"), SUBJECTS)
matrices = pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])


@cache
def differentiated(backend: str, name: str, batched: bool) -> Linearization:
    """Made once for all tests: solves leave it as it is (see the test of repeated ones)."""
    return BACKENDS[backend].at(build(name, batched))


def subject(backend: str, name: str, batched: bool) -> tuple[Backend, Known, Linearization]:
    return BACKENDS[backend], build(name, batched), differentiated(backend, name, batched)


def loss_on(name: str, known: Known, seed: int = 0) -> Loss:
    """A loss in x, y and s, or in x alone where nothing else has a derivative."""
    loss = Loss.random(known.program, seed)
    return Loss(loss.c_x, 0 * loss.c_y, 0 * loss.c_s) if name in DUALS_OPEN else loss


def change_on(name: str, known: Known, seed: int = 0) -> Entries:
    """A change of all data, or of the costs only if moved constraints would contradict each other."""
    change = Entries.random(known.program, seed)
    return Entries(change.P, change.q, 0 * change.A, 0 * change.b) if name in DUALS_OPEN else change


def gradient(derivative: Linearization, known: Known, loss: Loss) -> Entries:
    return Entries.of_gradient(derivative.adjoint(*loss.parts)[0], known.program)


@matrices
@subjects
def test_adjoint_is_that_of_the_optimality_conditions(backend: str, name: str, batched: bool) -> None:
    way, known, derivative = subject(backend, name, batched)
    loss = loss_on(name, known)
    found, expected = gradient(derivative, known, loss), yardstick(name, batched).adjoint(loss)
    if name in DUALS_OPEN:  # gradients in constraints are not unique
        found, expected = (Entries(e.P, e.q, 0 * e.A[:, :0], 0 * e.b[:, :0]) for e in (found, expected))
    assert gradient_error(found, expected) <= way.tolerance


@subjects
def test_right_hand_sides_may_be_stored_once(backend: str, name: str) -> None:
    way, known, derivative = subject(backend, name, True)
    r_x, r_s = np.random.default_rng(0).normal(size=known.program.n), np.zeros(known.program.m)
    each = [np.broadcast_to(v, (BATCH, len(v))) for v in (r_x, r_s)]
    once, full = derivative.sensitivity(*each), derivative.sensitivity(*(v.copy() for v in each))
    assert np.abs(once.u - full.u).max() <= way.noise * np.abs(full.u).max()
    assert np.abs(once.w - full.w).max() <= way.noise * np.abs(full.w).max()


@matrices
@subjects
def test_tangent_is_that_of_the_optimality_conditions(backend: str, name: str, batched: bool) -> None:
    way, known, derivative = subject(backend, name, batched)
    change = change_on(name, known)
    found = derivative.tangent(change.program(known.program))
    dx, dy, _ = yardstick(name, batched).tangent(change)
    assert relative_error(found.u, dx) <= way.tolerance
    if name not in DUALS_OPEN:
        assert np.abs(found.w - dy).max() <= way.tolerance * max(np.abs(dx).max(), np.abs(dy).max())


@matrices
@subjects
def test_adjoint_and_tangent_are_transposes(backend: str, name: str, batched: bool) -> None:
    way, known, derivative = subject(backend, name, batched)
    loss, change = loss_on(name, known, 1), change_on(name, known, 1)
    pulled = gradient(derivative, known, loss)
    for move in (change, *(change.only(block) for block in BLOCKS)):
        delta = move.program(known.program)
        along = derivative.tangent(delta)
        ds = delta.slack(known.x) - known.program.A.dot(along.u)
        size = np.abs(pulled.q).max() * np.abs(move.q).max() + np.abs(pulled.dot(change)).max()
        assert np.abs(pulled.dot(move) - loss(along.u, along.w, ds)).max() <= way.noise * size


@subjects
def test_a_repeated_solve_gives_the_same(backend: str, name: str) -> None:
    """Also after other right-hand sides, and with a fresh object."""
    way, known, derivative = subject(backend, name, False)
    loss, other = loss_on(name, known, 2), loss_on(name, known, 3)
    first = gradient(derivative, known, loss)
    gradient(derivative, known, other)
    for again in (gradient(derivative, known, loss), gradient(way.at(known), known, loss)):
        for block in BLOCKS:
            np.testing.assert_allclose(getattr(again, block), getattr(first, block), rtol=0, atol=1e-13 * _size(first))


@matrices
@subjects
def test_some_samples_are_rows_of_the_whole(backend: str, name: str, batched: bool) -> None:
    _, known, whole = subject(backend, name, batched)
    loss, change = loss_on(name, known, 4), change_on(name, known, 4).program(known.program)
    samples = np.array([2, 0])
    part = whole.take(samples)
    for field in "xys":
        np.testing.assert_array_equal(getattr(part, field), getattr(whole, field)[samples])
    all_data, all_residuals = whole.adjoint(*loss.parts)
    data, residuals = part.adjoint(*(c[samples] for c in loss.parts))
    tangent, all_tangents = part.tangent(change.take(samples)), whole.tangent(change).take(samples)
    size = max(np.abs(all_data.u).max(), np.abs(all_data.v).max(), np.abs(all_tangents.u).max())
    for field in ("x", "y", "u", "v", "db"):
        close(getattr(data, field), getattr(all_data, field)[samples], size, field)
    close(tangent.u, all_tangents.u, size, "u")
    close(tangent.w, all_tangents.w, size, "w")
    assert residuals.shape == (2,)
    assert (residuals <= 10 * all_residuals[samples] + 1e-10).all()
    for field, values in vars(part.certificate).items():
        np.testing.assert_array_equal(values, getattr(whole.certificate, field)[samples], err_msg=field)


@subjects
def test_a_batch_is_its_samples(backend: str, name: str) -> None:
    """The derivative of a sample does not depend on the rest of the batch."""
    way, known, derivative = subject(backend, name, True)
    loss = loss_on(name, known, 5)
    whole, _ = derivative.adjoint(*loss.parts)
    for k in range(BATCH):
        at = np.array([k])
        alone = way.linearize(known.program.take(at), known.solution.take(at))
        data, _ = alone.adjoint(*(c[at] for c in loss.parts))
        size = max(np.abs(whole.u).max(), np.abs(whole.v).max())
        np.testing.assert_allclose(data.u[0], whole.u[k], rtol=0, atol=way.noise * size)
        if name not in DUALS_OPEN:
            np.testing.assert_allclose(data.v[0], whole.v[k], rtol=0, atol=way.noise * size)


def close(found: Array, expected: Array, size: float, name: str) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * max(size, 1.0), err_msg=name)


def _size(entries: Entries) -> float:
    return max(float(np.abs(v).max(initial=0.0)) for v in vars(entries).values())
