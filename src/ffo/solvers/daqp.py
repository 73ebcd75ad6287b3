"""DAQP: dual active-set method for small dense QPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError, Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import DenseFeed, mirrored
from ffo.solvers.split import Split, pick_rows
from ffo.solvers.workspace import Point, Workspace, failed

#: Smallest violation at which a constraint enters the active set.
PIVOT = 1e-6

#: DAQP's infinity, and its code for an equality.
_INF, _EQUALITY = 1e30, 5

_STATUS = {
    1: Status.SOLVED,
    -1: Status.INFEASIBLE,
    -3: Status.UNBOUNDED,
    -4: Status.ITERATION_LIMIT,
    -5: Status.INVALID_INPUT,
    -6: Status.INFEASIBLE,
    -7: Status.TIME_LIMIT,
}
_WORDS = {
    -1: "infeasible",
    -2: "cycling",
    -3: "unbounded",
    -4: "iteration limit",
    -5: "the quadratic term is not convex",
    -6: "more equalities than they can satisfy",
    -7: "time limit",
}


class DAQPSolver(Solver):
    name = "DAQP"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), quadratic=True, module="daqp", package="daqp", threads=True)
    native_settings = frozenset(
        """primal_tol dual_tol zero_tol pivot_tol progress_tol cycle_tol iter_limit fval_bound eps_prox eta_prox
        rel_subopt abs_subopt sing_tol refactor_tol time_limit eq_reduction""".split()
    )
    tolerances = ("primal_tol",)
    #: not an accuracy (the method is exact) but the violation at which it pivots; below 1e-6 it cycles, or calls
    #: feasible problems infeasible, if P is singular or rows are repeated
    tightest = PIVOT
    iteration_limit = "iter_limit"
    time_limit = "time_limit"

    def __init__(self, settings: Mapping[str, Any] | None = None, *, verbose: bool = False) -> None:
        super().__init__(settings, verbose=verbose)
        self.settings |= {k: v for k, v in (settings or {}).items() if k == "primal_tol"}  # however small

    def workspace(self, program: ConeProgram) -> Workspace:
        return _DAQPWorkspace(self, program)


class _DAQPWorkspace(Workspace):
    """Bounds on all variables (if any), then equalities and inequalities: blower <= (x, Ax) <= bupper."""

    def __init__(self, solver: DAQPSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import daqp

        self._solve = daqp.solve
        self.settings = solver.settings
        self.split = split = Split(program)
        self.rows = np.concatenate([split.equal, split.unequal])
        self.P = DenseFeed(mirrored(program.P), order="C")
        self.A = DenseFeed(pick_rows(program.A, self.rows), order="C")
        self.bounded = len(split.single) > 0
        first = program.n if self.bounded else 0
        size = first + len(self.rows)
        self.equalities = slice(first, first + len(split.equal))
        self.inequalities = slice(first + len(split.equal), size)
        self.sense = np.zeros(size, dtype=np.int32)
        self.sense[self.equalities] = _EQUALITY
        self.upper = np.empty((program.batch, size))
        self.lower = np.full((program.batch, size), -_INF)
        self.upper[:, first:] = program.b[:, self.rows]
        self.lower[:, self.equalities] = split.e
        if self.bounded:
            self.upper[:, :first] = np.minimum(split.ub, _INF)
            self.lower[:, :first] = np.maximum(split.lb, -_INF)

    def start(self, sample: int) -> None:
        """Nothing to keep: a fresh call costs no more than an update, and carries over no active set."""

    def run(self, sample: int) -> Point:
        program, split = self.program, self.split
        if self.bounded and split.crossed[sample]:
            return failed(program, Status.INFEASIBLE, "a lower bound exceeds its upper bound")
        try:
            x, _, flag, info = self._solve(
                self.P(sample),
                program.q[sample].copy(),
                self.A(sample),
                self.upper[sample],
                self.lower[sample],
                self.sense.copy(),
                **self.settings,
            )
        except TypeError as error:
            raise InputError(f"DAQP does not accept these settings: {error}") from error
        status = _STATUS.get(flag, Status.NUMERICAL)
        dual = np.asarray(info["lam"])  # > 0 on active upper bounds, < 0 on active lower ones
        bound: Any = None
        if self.bounded:
            on_bounds = dual[: program.n]
            bound = np.concatenate([np.maximum(-on_bounds, 0.0), np.maximum(on_bounds, 0.0)])
        y = split.duals(sample, dual[self.equalities], np.maximum(dual[self.inequalities], 0.0), bound)
        x = np.array(x)
        words = "" if status.ok else _WORDS.get(flag, f"exit flag {flag}")
        return Point(x, y, None, status, info["iterations"], words)
