"""The workspace of a solver for one program, and the answers it returns."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from ffo.errors import Status
from ffo.kernels.deadline import expired
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray

#: details of samples that were not solved for lack of time or memory
OUT_OF_TIME, OUT_OF_MEMORY = "the time limit passed before this sample was solved", "memory ran out on this sample"


@dataclass(frozen=True)
class Point:
    """One sample's answer: x (n,), y (m,), s (m,) and the verdict of the solver.

    s is None if the solver returns no slacks; then b - Ax, projected onto the cone, is used.
    """

    x: Array
    y: Array
    s: Array | None
    status: Status
    iterations: int = -1
    detail: str = ""


class Workspace(ABC):
    """A solver set up for one program; reused for its samples.

    The first sample starts the solver; later ones pass new values on the same pattern. What depends only on the
    pattern, and what can be computed for all samples at once, belongs in the constructor. What may raise belongs in
    the three methods, where an error fails one sample.

    Attributes:
        time_limit: seconds left of the call's time when the workspace was made.
    """

    time_limit = math.inf

    def __init__(self, program: ConeProgram) -> None:
        self.program = program
        self.ready = False
        self.setup_seconds = 0.0

    def solve(self, sample: int) -> Point:
        """Solve one sample of the program."""
        if self.ready:
            self.update(sample)
        else:
            start = time.perf_counter()
            self.start(sample)
            self.ready = True
            self.setup_seconds += time.perf_counter() - start
        return self.run(sample)

    @abstractmethod
    def start(self, sample: int) -> None:
        """Set the solver up with the data of a sample."""

    def update(self, sample: int) -> None:
        """Give the solver the data of another sample; by default a fresh start."""
        self.start(sample)

    @abstractmethod
    def run(self, sample: int) -> Point:
        """Solve, and return the answer with this package's sign conventions."""


def failed(program: ConeProgram, status: Status, detail: str = "", iterations: int = -1) -> Point:
    """The answer of a failed sample."""
    nothing = np.full(program.m, np.nan)
    return Point(np.full(program.n, np.nan), nothing, nothing.copy(), status, iterations, detail)


def leave_out(
    samples: Array, point: tuple[Array, Array, Array], status: Array, iterations: Array, detail: dict[int, str]
) -> None:
    """Mark samples that a kernel left out (see `kernels.pool.run_samples`) as failed, in place."""
    for v in point:
        v[samples] = np.nan
    late = expired()
    status[samples], iterations[samples] = Status.TIME_LIMIT if late else Status.NUMERICAL, -1
    detail.update(dict.fromkeys(samples.tolist(), OUT_OF_TIME if late else OUT_OF_MEMORY))


def gather(points: list[Point], program: ConeProgram, setup_time: float = 0.0, solve_time: float = 0.0) -> Solution:
    """One `Solution` from the answers of the samples of a program."""
    x = np.stack([p.x for p in points])
    slacks = [p.s for p in points if p.s is not None]
    if len(slacks) == len(points):
        s = np.stack(slacks)
    else:  # cheap, because it is one operation for all samples
        s = program.cones.project(program.slack(x))
        for k, p in enumerate(points):
            if p.s is not None:
                s[k] = p.s
    return Solution(
        x=x,
        y=np.stack([p.y for p in points]),
        s=s,
        status=np.array([p.status for p in points], dtype=int),
        iterations=np.array([p.iterations for p in points], dtype=int),
        setup_time=setup_time,
        solve_time=solve_time,
        detail={k: p.detail for k, p in enumerate(points) if p.detail},
    )
