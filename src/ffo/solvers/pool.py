"""Solving the samples of a batch one after another, on threads if that is faster.

Threads help only solvers that release the GIL. They come from the process-wide pool (`ffo.kernels.pool`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np

from ffo.cones import PSD
from ffo.errors import FFOError, Status
from ffo.kernels.deadline import Deadline, current
from ffo.kernels.pool import cpus, executor, one_blas_thread
from ffo.program.cone import ConeProgram
from ffo.solvers.workspace import OUT_OF_TIME, Point, Workspace, failed

#: the samples' answers in order, and the seconds of set-up in the calling thread
Answers = tuple[list[Point], float]

#: Seconds of remaining work, and seconds per solve, below which threads cost more than they save
#: (at 150 us a solve they contend for the GIL and gain nothing; at 1 ms two threads gain 1.5x to 1.8x).
WORTH_TOTAL, WORTH_SOLVE = 2e-3, 3e-4

NOT_FINITE = "the problem data is not finite"


def solve_samples(make: Callable[[ConeProgram], Workspace], program: ConeProgram, threads: bool) -> Answers:
    """Solve every sample in workspaces made by `make`; `threads`: whether solves release the GIL."""
    with _one_blas_thread(program):
        return _SampleLoop(make, program, current()).solve(threads)


def _one_blas_thread(program: ConeProgram) -> AbstractContextManager[Any]:
    """One BLAS thread if there are PSD blocks: they are too small for more, which halve Clarabel's speed."""
    if PSD not in program.cones.kinds:
        return nullcontext()
    return one_blas_thread()


class _SampleLoop:
    """Solves the samples of a program one after another, in workspaces made by `make`."""

    def __init__(
        self, make: Callable[[ConeProgram], Workspace], program: ConeProgram, deadline: Deadline | None
    ) -> None:
        self._make, self.program, self.deadline = make, program, deadline
        self.halted = False  # after an exception no further sample is started

    def solve(self, threads: bool) -> Answers:
        """Solve all samples; `threads`: whether to use threads if that is faster."""
        program = self.program
        workspace = self._workspace(program)
        if not threads or program.batch < 2 or cpus() < 2:
            return self._range(workspace, 0, program.batch), workspace.setup_seconds
        first = self._range(workspace, 0, 1)  # includes the set-up, which is not repeated
        start = time.perf_counter()
        second = self._range(workspace, 1, 2)
        each, left = time.perf_counter() - start, program.batch - 2
        if each < WORTH_SOLVE or left * each < WORTH_TOTAL:
            return first + second + self._range(workspace, 2, program.batch), workspace.setup_seconds
        edges = np.linspace(2, program.batch, min(cpus(), left) + 1).astype(int)
        pool = executor()
        others = [pool.submit(self._part, lo, hi) for lo, hi in pairwise(edges[1:])]
        try:
            mine = self._range(workspace, edges[0], edges[1])
            rest = [point for future in others for point in future.result()]
        finally:  # also after Ctrl-C: no thread may keep working
            self.halted = True
            wait([future for future in others if not future.cancel()])
        return first + second + mine + rest, workspace.setup_seconds

    def _workspace(self, program: ConeProgram) -> Workspace:
        start = time.perf_counter()
        workspace = self._make(program)
        workspace.setup_seconds += time.perf_counter() - start
        if self.deadline is not None:
            workspace.time_limit = self.deadline.left
        return workspace

    def _part(self, lo: int, hi: int) -> list[Point]:
        try:
            return self._range(self._workspace(self.program.take(np.arange(lo, hi))), 0, hi - lo)
        except BaseException:
            self.halted = True
            raise

    def _range(self, workspace: Workspace, lo: int, hi: int) -> list[Point]:
        points: list[Point] = []
        for k in range(lo, hi):
            if self.halted:
                break
            if self.deadline is not None:
                left = self.deadline.left
                if left == 0.0:
                    points.append(failed(workspace.program, Status.TIME_LIMIT, OUT_OF_TIME))
                    continue
                if left < 0.5 * workspace.time_limit:  # the limit given to its solver is too long by now
                    workspace = self._workspace(workspace.program)
            points.append(_guarded(workspace, k))
        return points


def _guarded(workspace: Workspace, sample: int) -> Point:
    """Solve one sample; an exception of the solver fails this sample only, and the next one starts afresh."""
    if not workspace.program.finite[sample]:  # on NaN some solvers loop, others solve the previous sample again
        return failed(workspace.program, Status.INVALID_INPUT, NOT_FINITE)
    try:
        return workspace.solve(sample)
    except FFOError:
        raise
    except Exception as error:
        workspace.ready = False
        return failed(workspace.program, Status.NUMERICAL, f"{type(error).__name__}: {error}")
