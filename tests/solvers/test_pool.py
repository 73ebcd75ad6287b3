"""The loop over samples and its threads."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import numpy as np
import pytest
from solver_problems import known_program

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError, Status
from ffo.kernels import pool as shared
from ffo.program.cone import ConeProgram
from ffo.solvers import get_solver, pool
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.workspace import Point, Workspace


class _SleepyWorkspace(Workspace):
    def __init__(self, solver: Sleepy, program: ConeProgram) -> None:
        super().__init__(program)
        self.solver = solver
        solver.workspaces += 1

    def start(self, sample: int) -> None:
        pass

    def run(self, sample: int) -> Point:
        time.sleep(self.solver.nap)
        self.solver.threads.add(threading.get_ident())
        q = self.program.q[sample]
        if q[0] == self.solver.trap:
            raise self.solver.error("trapped")
        zeros = np.zeros(self.program.m)
        return Point(q.copy(), zeros, zeros, Status.SOLVED, sample)


class Sleepy(Solver):
    """Answers x = q after a nap, which releases the GIL."""

    name = "SLEEPY"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), True, "numpy", "numpy", threads=True)

    def __init__(self, nap: float = 2e-3, trap: float = np.inf, error: type[Exception] = ValueError) -> None:
        super().__init__()
        self.nap, self.trap, self.error = nap, trap, error
        self.workspaces, self.threads = 0, set[int]()

    def workspace(self, program: ConeProgram) -> Workspace:
        return _SleepyWorkspace(self, program)


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (pool, shared):
        monkeypatch.setattr(module, "cpus", lambda: 4)
    monkeypatch.setattr(shared, "_executor", None)
    yield
    pool.executor().shutdown()


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("batched", [False, True])
def test_answers_come_in_order_whatever_the_split(four_cpus: None, batch: int, batched: bool) -> None:
    program = known_program("qp", batch=batch, batched=batched).program
    solver = Sleepy()
    np.testing.assert_array_equal(solver.solve(program).x, program.q)
    assert solver.workspaces == (1 if batch <= 2 else min(4, batch - 2))


def test_cheap_solves_stay_in_one_thread(four_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTH_SOLVE", 60.0)  # on a busy machine even an empty solve exceeds the usual limit
    solver = Sleepy(nap=0.0)
    solver.solve(known_program("qp", batch=20).program)
    assert solver.threads == {threading.get_ident()}
    assert solver.workspaces == 1
    assert shared._executor is None


def test_the_pool_is_made_once(four_cpus: None) -> None:
    program = known_program("qp", batch=9).program
    solver = Sleepy()
    solver.solve(program)
    first = pool.executor()
    solver.solve(program)
    assert pool.executor() is first
    assert len(solver.threads) > 1


@pytest.mark.parametrize("place", [0, 1, 4, 11])
def test_an_exception_costs_one_sample(four_cpus: None, place: int) -> None:
    program = known_program("qp", batch=12).program
    solution = Sleepy(trap=program.q[place, 0]).solve(program)
    assert (solution.status != Status.SOLVED).nonzero()[0].tolist() == [place]
    assert solution.status[place] == Status.NUMERICAL
    assert np.isnan(solution.x[place]).all()
    assert solution.detail == {place: "ValueError: trapped"}


def test_the_users_errors_are_not_swallowed(four_cpus: None) -> None:
    program = known_program("qp", batch=12).program
    with pytest.raises(InputError, match="trapped"):
        Sleepy(trap=program.q[7, 0], error=InputError).solve(program)


def test_threads_give_the_answers_of_the_loop(four_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTH_SOLVE", 0.0)
    monkeypatch.setattr(pool, "WORTH_TOTAL", 0.0)
    program = known_program("qp", batch=12, batched=True).program
    threaded = get_solver("CLARABEL").solve(program)
    monkeypatch.setattr(pool, "cpus", lambda: 1)
    np.testing.assert_allclose(threaded.x, get_solver("CLARABEL").solve(program).x, atol=1e-6)


def _in_child(queue: Any) -> None:
    solver = Sleepy()
    program = known_program("qp", batch=9).program
    queue.put(bool((solver.solve(program).x == program.q).all()) and len(solver.threads) > 1)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_pool(four_cpus: None) -> None:
    Sleepy().solve(known_program("qp", batch=9).program)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=20)
    child.join(timeout=20)


def test_an_error_in_a_chunk_ends_the_others_and_reaches_the_caller(four_cpus: None) -> None:
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        time.sleep(5e-3)
        if start == 0:
            raise KeyboardInterrupt
        done.append(start)

    with pytest.raises(KeyboardInterrupt):
        shared.run_chunks(work, 64, 1.0)
    finished = len(done)
    time.sleep(2e-2)
    assert len(done) == finished < 8
