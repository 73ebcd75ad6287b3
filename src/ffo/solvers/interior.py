"""INTERIOR: this package's compiled interior-point method."""

from __future__ import annotations

import time

import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, SecondOrder, Zero
from ffo.errors import Status
from ffo.program.cone import ConeProgram, Solution
from ffo.program.plan import plan_of, values_of
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.workspace import leave_out

#: iterations after which a sample has failed; ten to fifteen are usual
LIMIT = 60


class InteriorSolver(Solver):
    """Mehrotra's method on the KKT pattern of the ghost system (`ffo.kernels.interior`), batched over threads."""

    name = "INTERIOR"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg, SecondOrder, PSD, Exponential}),
        quadratic=True,
        module="numba",
        package="numba",
        threads=True,
    )
    native_settings = frozenset({"limit", "tolerance"})
    tolerances = ("tolerance",)
    iteration_limit = "limit"

    def solve(self, program: ConeProgram) -> Solution:
        """Solve every sample of the batch."""
        self.check(program)
        start = time.perf_counter()
        plan, values = plan_of(program), values_of(program)
        batch, n, m = program.batch, program.n, program.m
        x, y, s = np.empty((batch, n)), np.empty((batch, m)), np.empty((batch, m))
        ready = time.perf_counter()
        limit = int(self.settings.get("limit", LIMIT))
        done = plan.interior(values, x, y, s, float(self.settings["tolerance"]), limit)
        status, detail = np.zeros(batch, int), {}
        if done.min() < 0:
            from ffo.kernels.batch import LEFT_OUT

            status[done < 0] = Status.NUMERICAL
            status[done <= -limit] = Status.ITERATION_LIMIT
            detail = dict.fromkeys(np.flatnonzero(done < 0).tolist(), "the interior-point method made no more progress")
            leave_out(np.flatnonzero(done == LEFT_OUT), (x, y, s), status, done, detail)
            done = np.abs(done)
        return Solution(x, y, s, status, done, ready - start, time.perf_counter() - ready, detail)
