"""A solver with a fault on some samples, and a batch in which exactly one sample triggers it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, Power, SecondOrder, Zero
from ffo.errors import Status
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import get_solver
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.workspace import Point, Workspace

Array = np.ndarray
N, ROWS, BATCH, TRAP = 4, 3, 5, 2


def raises(point: Point) -> Point:
    raise ZeroDivisionError("it broke")


def memory(point: Point) -> Point:
    raise MemoryError("no more")


def not_numbers(point: Point) -> Point:
    return replace(point, x=np.full_like(point.x, np.nan))


def multipliers_not_numbers(point: Point) -> Point:
    return replace(point, y=np.full_like(point.y, np.nan))


def wrong_point(point: Point) -> Point:
    """Feasible (the constraints are x <= b with b > 0), and of a plausible size."""
    return replace(point, x=0.5 * point.x - 0.1)


def wrong_multipliers(point: Point) -> Point:
    """Another active set: active constraints have no multiplier, and vice versa."""
    return replace(point, y=1.0 * (point.y < 0.1))


def nothing_at_all(point: Point) -> Point:
    """Zeros, as from a solver that never ran."""
    return replace(point, x=0 * point.x, y=0 * point.y, s=0 * np.asarray(point.s))


def calls_it_infeasible(point: Point) -> Point:
    return replace(point, x=np.full_like(point.x, np.nan), status=Status.INFEASIBLE)


#: changes of Clarabel's answer; all but the last claim success if they return
FAULTS: dict[str, Callable[[Point], Point]] = {
    f.__name__: f
    for f in (
        raises, memory, not_numbers, multipliers_not_numbers, wrong_point, wrong_multipliers, nothing_at_all,
        calls_it_infeasible,
    )
}  # fmt: skip


class Faulty(Solver):
    """Clarabel, with a fault on samples whose first cost is positive; `nap`: seconds that each sample takes."""

    name = "FAULTY"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg, SecondOrder, PSD, Exponential, Power}), True, "numpy", "numpy", threads=True
    )

    def __init__(self, fault: Callable[[Point], Point] = lambda point: point, nap: float = 0.0) -> None:
        super().__init__()
        self.fault, self.nap = fault, nap

    def workspace(self, program: ConeProgram) -> Workspace:
        return _FaultyWorkspace(self, program)


class _FaultyWorkspace(Workspace):
    def __init__(self, solver: Faulty, program: ConeProgram) -> None:
        super().__init__(program)
        self.solver, self.inner = solver, get_solver("CLARABEL").workspace(program)

    def start(self, sample: int) -> None:
        pass

    def run(self, sample: int) -> Point:
        time.sleep(self.solver.nap)
        right = self.inner.solve(sample)
        return self.solver.fault(right) if self.program.q[sample, 0] > 0 else right


class FaultyBatch(Faulty):
    """The same for a solver that solves whole batches: an exception fails all samples."""

    name = "FAULTY_BATCH"

    def solve(self, program: ConeProgram) -> Solution:
        right = get_solver("CLARABEL").solve(program)
        x, y, s, status = (np.array(v) for v in (right.x, right.y, right.s, right.status))
        for k in np.flatnonzero(program.q[:, 0] > 0):
            found = self.fault(Point(x[k], y[k], s[k], Status(int(status[k]))))
            x[k], y[k], s[k], status[k] = found.x, found.y, found.s, found.status
        return replace(right, x=x, y=y, s=s, status=status)


def blocks(trap: bool = True, batch: int = BATCH) -> dict[str, Array]:
    """Q, p, G, h of strictly convex programs with bounds on sums; sample TRAP has a positive first cost."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(batch, N, N))
    p = rng.normal(size=(batch, N))
    p[:, 0] = -np.abs(p[:, 0]) - 0.5
    if trap:
        p[TRAP, 0] *= -1.0
    G = np.abs(rng.normal(size=(batch, ROWS, N)))
    return {"Q": root @ root.transpose(0, 2, 1) + np.eye(N), "p": p, "G": G, "h": rng.uniform(0.1, 0.5, (batch, ROWS))}
