"""Samples not solved in time have their own status; solved ones are kept, and correct."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import cvxpy as cp
import numpy as np
import pytest
import torch
from faults.faulty import Faulty, blocks
from solvers.solver_problems import known_program

import ffo.kernels.deadline as deadline_module
from ffo import solve_qp_batch
from ffo.cones import Nonneg, Product
from ffo.errors import InputError, SettingWarning, Status, TimeLimitError
from ffo.ghost.direct import newton
from ffo.kernels.deadline import Deadline, allowed_steps, current, expired
from ffo.kernels.pool import run_samples
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of, values_of
from ffo.solvers import get_solver
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer

#: solvers with a limit of their own
LIMITED = ("CLARABEL", "DAQP", "HIGHS", "OSQP", "SCS", "MOREAU")
LATE = "time limit passed"


def tensors(batch: int) -> list[torch.Tensor]:
    return [torch.tensor(v) for v in blocks(batch=batch).values()]


def random_qps(batch: int, n: int = 60, rows: int = 40) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return np.eye(n), rng.normal(size=(batch, n)), rng.normal(size=(rows, n)), np.ones(rows)


# The whole call


def test_a_slow_solver_leaves_samples_unfinished_and_the_others_right() -> None:
    """Thirty milliseconds a sample: some are solved in 0.4 s, not all of a hundred."""
    b = blocks(batch=100)
    expected = solve_qp_batch(**b).z
    start = time.perf_counter()
    found = solve_qp_batch(**b, solver=Faulty(nap=0.03), on_fail="nan", time_limit=0.4)
    assert time.perf_counter() - start < 2.0
    solved = np.array([s.ok for s in found.status])
    assert 0 < solved.sum() < 100
    np.testing.assert_allclose(found.z[solved], expected[solved], atol=1e-9)
    assert np.isnan(found.z[~solved]).all()
    assert {s for s in found.status if not s.ok} == {Status.TIME_LIMIT}
    assert all(LATE in found.info.detail[k] for k in np.flatnonzero(~solved))


@pytest.mark.parametrize("solver", [None, "INTERIOR", "DENSE", *LIMITED, "PIQP", "QOCO", "PROXQP"])
def test_whatever_the_solver(solver: str | None) -> None:
    """One millisecond for what takes a second."""
    Q, p, G, h = random_qps(2000)
    expected = solve_qp_batch(Q, p[:4], G, h, solver=solver).z  # compiles, too
    start = time.perf_counter()
    found = solve_qp_batch(Q, p, G, h, solver=solver, on_fail="nan", time_limit=1e-3)
    assert time.perf_counter() - start < 1.0
    assert Status.TIME_LIMIT in found.status
    assert set(found.status) <= {Status.SOLVED, Status.TIME_LIMIT}
    for k in range(4):
        if found.status[k].ok:
            np.testing.assert_allclose(found.z[k], expected[k], atol=1e-9)


@pytest.mark.parametrize("layer", ["qp", "cvxpy"])
def test_layers_and_gradients(layer: str) -> None:
    given = [t.requires_grad_() for t in tensors(50)]
    options: dict[str, object] = {"solver": Faulty(nap=0.02), "on_fail": "nan", "time_limit": 0.3}
    if layer == "qp":
        made = FFOQPLayer(**options)
        z = made(*given)
    else:
        z_, Q, p = cp.Variable(4), cp.Parameter((4, 4), PSD=True), cp.Parameter(4)
        G, h = cp.Parameter((3, 4)), cp.Parameter(3)
        problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(z_, Q) + p @ z_), [G @ z_ <= h])
        made = FFOLayer(problem, [Q, p, G, h], [z_], **options)
        (z,) = made(*given)
    ok = made.info.ok
    assert 0 < ok.sum() < 50
    assert made.info.status[-1] is Status.TIME_LIMIT
    z.nan_to_num(0.0).sum().backward()
    mine = [t.grad.clone() for t in given]
    for t in given:
        t.grad = None
    FFOQPLayer()(*given)[torch.tensor(ok)].sum().backward()
    for found, t in zip(mine, given, strict=True):
        torch.testing.assert_close(found, t.grad, rtol=0, atol=1e-7)


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(TimeLimitError, match=r"time limit of the call \(time_limit=\).*raise it"):
        solve_qp_batch(**blocks(batch=100), solver=Faulty(nap=0.05), time_limit=0.2)


def test_verdicts_found_in_time_stand() -> None:
    b = blocks(batch=30)
    b["G"][0, 1], b["h"][0, :2] = -b["G"][0, 0], -1.0
    found = solve_qp_batch(**b, solver=Faulty(nap=0.03), on_fail="nan", time_limit=0.3)
    assert found.status[0] is Status.INFEASIBLE
    assert found.status[-1] is Status.TIME_LIMIT


def test_a_generous_limit_changes_nothing() -> None:
    b = blocks(batch=64)
    first, second = solve_qp_batch(**b), solve_qp_batch(**b, time_limit=1e3)
    assert all(s.ok for s in second.status)
    np.testing.assert_allclose(first.z, second.z, rtol=0, atol=1e-12)


def test_the_limit_starts_anew_at_every_call() -> None:
    layer = FFOQPLayer(time_limit=20.0)
    for _ in range(2):
        layer(*tensors(4))
    assert current() is None
    assert not expired()


@pytest.mark.parametrize("limit", [0, -1.0, "soon", float("nan")])
def test_limits_that_make_no_sense(limit: object) -> None:
    with pytest.raises(InputError, match="time_limit"):
        FFOQPLayer(time_limit=limit)


# Each solve


@pytest.mark.parametrize("solver", LIMITED)
def test_a_limit_on_each_solve(solver: str) -> None:
    Q, p, G, h = random_qps(3, n=250, rows=400)
    program = ConeProgram.from_matrices(Q, p, G, h, Product([(Nonneg(), len(h))]))
    assert get_solver(solver, {"time_limit": 1e-3}).solve(program).status.tolist() == [Status.TIME_LIMIT] * 3


@pytest.mark.parametrize("solver", LIMITED)
def test_it_is_a_limit_on_each_and_not_on_all_of_them(solver: str) -> None:
    """The clock of HiGHS is not reset between samples."""
    Q, p, G, h = random_qps(40)
    start = time.perf_counter()
    solve_qp_batch(Q, p, G, h, solver=solver)
    most = max((time.perf_counter() - start) / 2, 0.02)
    assert all(s.ok for s in solve_qp_batch(Q, p, G, h, solver=solver, solver_args={"time_limit": most}).status)


@pytest.mark.parametrize("solver", ["PIQP", "QOCO", "PROXQP", "INTERIOR", "DENSE"])
def test_solvers_without_such_a_limit_say_so(solver: str) -> None:
    with pytest.warns(SettingWarning, match="'time_limit' has no effect"):
        get_solver(solver, {"time_limit": 1.0})
    with pytest.raises(InputError, match="time_limit must be a positive number"):
        get_solver("CLARABEL", {"time_limit": -1.0})


# Functions


def spring(**options: object) -> FFOFunctionLayer:
    return FFOFunctionLayer(
        lambda a, y: (y - a).square().sum(), lambda a, y: y - 1, shape=2, dims=(1,), on_fail="nan", **options
    )


@pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP", "TRUST-CONSTR"])
def test_functions_that_take_long(solver: str) -> None:
    def slow(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time.sleep(0.03)  # a solve takes AUGLAG about thirty evaluations
        return (y - a).exp().sum() - y.sum()

    layer = FFOFunctionLayer(slow, shape=2, dims=(1,), on_fail="nan", solver=solver, time_limit=0.3)
    start, a = time.perf_counter(), torch.full((40, 2), 5.0, dtype=torch.float64)
    y = layer(a)
    assert time.perf_counter() - start < 5.0
    assert Status.TIME_LIMIT in layer.info.status
    ok = torch.tensor(layer.info.ok)
    assert y[~ok].isnan().all()
    torch.testing.assert_close(y[ok], a[ok])


def test_a_users_solver_that_hangs_is_ended_where_it_evaluates_the_objective() -> None:
    def hangs(g, h, e, y0):
        while True:
            g(y0)

    layer = spring(solver=hangs, time_limit=0.2)
    start = time.perf_counter()
    assert layer(torch.full((3, 2), 5.0, dtype=torch.float64)).isnan().all()
    assert time.perf_counter() - start < 2.0
    assert layer.info.status == [Status.TIME_LIMIT] * 3


# The machinery


def test_kernels_end_at_the_step_they_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer stops kernels; samples not begun have no evidence, and are never taken for solutions."""
    program = known_program("qp", batch=4).program
    x, y, s = (np.zeros((4, k)) for k in (program.n, program.m, program.m))
    stopped = np.array([-1])
    monkeypatch.setattr("ffo.kernels.batch.allowed_steps", lambda most, seconds: stopped)
    found = newton(program, x, y, s)
    assert np.isnan(found.certificate.natural_residual).all()
    done = plan_of(program).interior(values_of(program), x, y, s, 1e-9, 50)
    assert (done < 0).all()


def test_the_timer_rings_and_is_gone() -> None:
    with Deadline(0.05):
        allowed = allowed_steps(10, seconds=1.0)
        assert allowed[0] == 10
        waited = time.monotonic()
        while allowed[0] == 10 and time.monotonic() - waited < 5.0:
            time.sleep(1e-3)
        assert allowed[0] < 0
    before = threading.active_count()
    with Deadline(1e4):
        allowed_steps(10, seconds=1.0)
        assert threading.active_count() == before + 1
    for _ in range(1000):
        if threading.active_count() == before:
            break
        time.sleep(1e-3)
    assert threading.active_count() == before


def test_short_work_starts_no_timer_and_calls_without_a_limit_nothing_at_all() -> None:
    with Deadline(1e4) as limit:
        allowed_steps(10, seconds=deadline_module.LONG / 2)
        assert limit._timer is None
    assert allowed_steps(10, 1.0) is allowed_steps(10, 1.0)


def test_samples_before_the_deadline_are_done_and_the_rest_named() -> None:
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        done.extend(range(start, stop))
        time.sleep(0.02 * (stop - start))

    left = run_samples(work, 50, 1.0, deadline=Deadline(0.2))
    assert sorted(done + left) == list(range(50))
    assert done
    assert left


def test_a_deadline_belongs_to_its_thread() -> None:
    seen: list[object] = []
    with Deadline(10.0):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current() is not None
    assert seen == [None]


@pytest.fixture(autouse=True)
def no_timer_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer) and not t.finished.is_set()]
