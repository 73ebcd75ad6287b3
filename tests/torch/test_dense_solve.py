"""Parts of the path on a device: the interior-point method, the forms of the ghost, and what is done only once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from dense_interior import interior_point
from overwriting import Overwriting

from ffo import solve_qp_batch
from ffo.torch import FFOQPLayer
from ffo.torch.dense import interior, pivoting, separable
from ffo.torch.dense.ghost import factorize
from ffo.torch.dense.graphs import Eager, flatten
from ffo.torch.dense.program import DensePoint, DenseProgram, put
from ffo.torch.dense.solve import DenseSolution, begin, finish

INF = torch.inf


def random_program(
    seed: int = 0, batch: int = 8, n: int = 60, equalities: int = 10, rows: int = 40, bounds: bool = True
) -> DenseProgram:
    """A feasible program around a random point, with two-sided rows among its inequalities."""
    rng = np.random.default_rng(seed)
    M, R = rng.normal(size=(batch, n, n)), rng.normal(size=(batch, equalities + rows, n))
    inside = rng.normal(size=(batch, n))
    value = np.einsum("bij,bj->bi", R, inside)
    slack = rng.uniform(size=(2, batch, equalities + rows))
    slack[:, :, :equalities] = 0.0
    low, upp = value - slack[0], value + slack[1]
    low[:, equalities::2] = -np.inf
    t = torch.tensor
    wide = np.full((batch, n), np.inf)
    return DenseProgram(
        t(M @ M.transpose(0, 2, 1) / n + 0.1 * np.eye(n)),
        t(rng.normal(size=(batch, n))),
        t(R),
        t(low),
        t(upp),
        t(inside - 0.5 if bounds else -wide),
        t(inside + 0.5 if bounds else wide),
        equalities,
    )


def linear(program: DenseProgram) -> DenseProgram:
    return dataclasses.replace(program, Q=torch.zeros(1, program.n, program.n, dtype=torch.float64))


def by(method: ModuleType, program: DenseProgram) -> DenseSolution:
    """The solution by a method of `solve.METHODS`."""
    found = finish(begin(program, method, True), method, True, Eager())
    assert found is not None
    return found


@pytest.mark.parametrize("eps", [1e-7, 1e-9])
@pytest.mark.parametrize(
    "program",
    [random_program(0), random_program(1, bounds=False), random_program(2, n=150, batch=4), linear(random_program(3))],
    ids=["bounds", "no bounds", "larger", "linear"],
)
def test_interior_point_stops_at_its_tolerance(program: DenseProgram, eps: float) -> None:
    point, error, iterations = interior_point(program, eps)
    assert error.max() <= 10 * eps
    assert iterations.max() <= 30
    assert torch.all(iterations >= 1)
    exact = by(interior, program).point.z
    torch.testing.assert_close(point.z, exact, rtol=0, atol=1e-2 * (eps / 1e-9) ** 0.5)


def test_interior_point_ends_at_its_best_where_the_tolerance_is_out_of_reach() -> None:
    _, error, iterations = interior_point(random_program(0), eps=0.0)
    assert error.max() <= 1e-8
    assert iterations.max() < interior.STEPS


def test_interior_point_gives_up_on_the_infeasible() -> None:
    program = random_program(4)
    R, upp = program.R.clone(), program.upp.clone()
    R[:, 12] = -R[:, 10]
    upp[:, 10] = upp[:, 12] = -50.0
    _, error, iterations = interior_point(dataclasses.replace(program, R=R, upp=upp), 1e-7)
    assert error.min() > 1e-3
    assert iterations.max() < interior.STEPS


def core(program: DenseProgram) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z, lam and mu by the core."""
    k = program.equalities
    v = {name: getattr(program, name).numpy() for name in ("Q", "p", "R", "low", "upp", "lb", "ub")}
    Q = v["Q"] if v["Q"].ndim == 3 else np.einsum("bi,ij->bij", v["Q"], np.eye(program.n))
    R = np.broadcast_to(v["R"], (program.batch, *v["R"].shape[1:]))
    G, h, lower, A, b = R[:, k:], v["upp"][:, k:], v["low"][:, k:], R[:, :k], v["upp"][:, :k]
    found = solve_qp_batch(Q, v["p"], G, h, A, b, lb=v["lb"], ub=v["ub"], lower=lower)
    return found.z, np.hstack([found.nu, found.lam]), found.mu


def diagonal(program: DenseProgram, shared: bool = False) -> DenseProgram:
    Q = torch.rand(1 if shared else program.batch, program.n, dtype=torch.float64, generator=torch.manual_seed(0)) + 0.1
    return dataclasses.replace(program, Q=Q, R=program.R[:1] if shared else program.R)


@pytest.mark.parametrize(
    ("solve", "program"),
    [
        (lambda p: by(interior, p), random_program(5)),
        (lambda p: by(interior, p), random_program(5, bounds=False)),
        (lambda p: by(pivoting, p), random_program(5, bounds=False)),
        (lambda p: by(separable, p), diagonal(random_program(5))),
        (lambda p: by(separable, p), diagonal(random_program(6, bounds=False))),
        (lambda p: by(separable, p), diagonal(random_program(7, equalities=0, batch=1), shared=True)),
    ],
    ids=[
        "interior point",
        "interior point, rows",
        "pivoting",
        "dual Newton",
        "dual Newton, rows",
        "dual Newton, shared",
    ],
)
def test_solutions_are_those_of_the_core(solve: Callable[[DenseProgram], DenseSolution], program: DenseProgram) -> None:
    found = solve(program)
    assert found.solved.all()
    assert not found.doubt.any()
    for mine, theirs in zip((found.point.z, found.point.lam, found.point.mu), core(program), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, atol=1e-8)


@pytest.mark.parametrize("method", [interior, pivoting])
def test_variables_at_bounds_equal_them(method: ModuleType) -> None:
    """Also beside variables of 1e5, whose rounding errors are 1e-12."""
    program = random_program(8, n=10, equalities=0, rows=0)
    program = dataclasses.replace(program, p=program.p * 1e5, lb=0 * program.lb, ub=program.ub + 1e5)
    found = by(method, program)
    assert found.solved.all()
    held = found.verdict.bounds
    assert {-1, 0} <= set(held.unique().tolist())
    assert torch.equal(found.point.z[held < 0], program.lb[held < 0])
    assert torch.equal(found.point.z[held > 0], program.ub[held > 0])


def test_pivoting_leaves_what_does_not_suit_it() -> None:
    program = linear(random_program(5))
    assert finish(begin(program, pivoting, True), pivoting, True, Eager()) is None


@pytest.mark.parametrize("bounds", [True, False], ids=["bounds", "no bounds"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "batched"])
def test_ghost_of_a_diagonal_is_that_of_the_full_matrix(bounds: bool, shared: bool) -> None:
    program = diagonal(random_program(6, bounds=bounds), shared)
    program = dataclasses.replace(program, upp=program.upp + 5.0, low=-INF + 0 * program.low, equalities=0)
    full = dataclasses.replace(program, Q=torch.diag_embed(program.Q))
    sides = torch.zeros_like(program.upp, dtype=torch.int8)
    sides[:, :15] = 1
    sides[0, 14] = 0  # samples need not have as many
    held = torch.zeros_like(program.p, dtype=torch.int8)
    if bounds:
        held[:, 3:9], held[1, 20] = 1, -1
    r_x, r_rows = torch.randn_like(program.p), torch.randn_like(program.upp)
    r_bounds = torch.where(held != 0, torch.randn_like(program.p), torch.zeros_like(program.p))
    found = []
    for ghost in (factorize(program, sides, held), factorize(full, sides, held)):
        u, t, residual = ghost.solve(r_x, r_rows, r_bounds)
        assert residual.max() < 1e-11
        found.append((u, t, ghost.on_bounds(r_x, u, t)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_what_the_batch_shares_is_factorized_once() -> None:
    program = random_program(7, rows=0, bounds=False)
    program = dataclasses.replace(program, Q=program.Q[:1], R=program.R[:1], bounded=False)
    solution = by(pivoting, program)
    assert solution.ghost is not None
    assert len(solution.ghost.system.C) == 1
    z = solution.point.z
    torch.testing.assert_close(z @ program.R[0].mT, program.upp, rtol=0, atol=1e-10)
    force = z @ program.Q[0] + program.p + solution.point.lam @ program.R[0]
    assert force.abs().max() < 1e-10


def test_points_are_merged_by_sample() -> None:
    a, b = (DensePoint(*(torch.full((size, k), v) for k in (3, 2, 3))) for v, size in ((1.0, 2), (2.0, 1)))
    merged = put(a, torch.tensor([1]), b)
    assert merged.z.tolist() == [[1.0] * 3, [2.0] * 3]
    assert merged.lam[1].tolist() == [2.0] * 2


def test_threads_of_the_caller_are_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        p = torch.randn(16, 50, dtype=torch.float64, requires_grad=True)
        FFOQPLayer()(torch.eye(50, dtype=torch.float64), p, lb=torch.zeros(50, dtype=p.dtype)).sum().backward()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class OneMore(Eager):
    """Takes a step too many, as a recorder does."""

    def steps(self, function: Callable[..., Any], state: Any, most: int, *arguments: Any) -> Any:
        return self.step(function, super().steps(function, state, most, *arguments), *arguments)


@pytest.mark.parametrize("run", [Overwriting(), OneMore()], ids=["overwriting", "one more"])
@pytest.mark.parametrize(
    ("method", "program"),
    [
        (interior, random_program(5)),
        (pivoting, random_program(5, bounds=False)),
        (separable, diagonal(random_program(5))),
    ],
    ids=["interior point", "pivoting", "dual Newton"],
)
def test_steps_may_overwrite_their_state_or_be_too_many(method: ModuleType, program: DenseProgram, run: Eager) -> None:
    expected, found = (finish(begin(program, method, True), method, True, each) for each in (Eager(), run))
    assert expected is not None
    assert found is not None
    for a, b in zip(flatten(found)[0], flatten(expected)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
