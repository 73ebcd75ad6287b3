"""OSQP: operator splitting for QPs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError, Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import SparseFeed
from ffo.solvers.split import rows_by_kind
from ffo.solvers.workspace import Point, Workspace

_STATUS = {
    "OSQP_SOLVED": Status.SOLVED,
    "OSQP_SOLVED_INACCURATE": Status.INACCURATE,
    "OSQP_PRIMAL_INFEASIBLE": Status.INFEASIBLE,
    "OSQP_PRIMAL_INFEASIBLE_INACCURATE": Status.INFEASIBLE,
    "OSQP_DUAL_INFEASIBLE": Status.UNBOUNDED,
    "OSQP_DUAL_INFEASIBLE_INACCURATE": Status.UNBOUNDED,
    "OSQP_MAX_ITER_REACHED": Status.ITERATION_LIMIT,
    "OSQP_TIME_LIMIT_REACHED": Status.TIME_LIMIT,
    "OSQP_NON_CVX": Status.INVALID_INPUT,
}


class OSQPSolver(Solver):
    """OSQP takes every row as l <= Ax <= u, so rows keep their order: l = b on zero rows, else -inf."""

    name = "OSQP"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg}),
        quadratic=True,
        module="osqp",
        package="osqp",
        extra="osqp",
        # Its solves release the GIL (1.5x on two threads), but each installs its own SIGINT handler and restores the
        # one it found. After two concurrent solves Ctrl-C is lost for the rest of the process.
        threads=False,
    )
    native_settings = frozenset(
        """device allocate_solution profiler_level polishing linsys_solver rho rho_is_vec sigma alpha
        cg_max_iter cg_tol_reduction cg_tol_fraction cg_precond adaptive_rho adaptive_rho_interval
        adaptive_rho_fraction adaptive_rho_tolerance max_iter eps_abs eps_rel eps_prim_inf eps_dual_inf
        scaled_termination check_termination check_dualgap time_limit delta polish_refine_iter scaling
        solver_type cg_preconditioner algebra""".split()
    )
    tolerances = ("eps_abs", "eps_rel")
    iteration_limit = "max_iter"
    time_limit = "time_limit"
    # its default of 4000 iterations is meant for 1e-3; polishing reaches 1e-8
    defaults = {"max_iter": 100_000, "polishing": True}

    def workspace(self, program: ConeProgram) -> Workspace:
        return _OSQPWorkspace(self, program)


class _OSQPWorkspace(Workspace):
    def __init__(self, solver: OSQPSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import osqp

        settings = dict(solver.settings)
        algebra = settings.pop("algebra", None)
        self._new = lambda: osqp.OSQP(algebra=algebra) if algebra else osqp.OSQP()
        self.codes = {int(code): name for name, code in osqp.SolverStatus.__members__.items()}
        self.settings = {**settings, "verbose": solver.verbose}
        self.P, self.A = SparseFeed(program.P), SparseFeed(program.A)
        equal = rows_by_kind(program).equal
        self.upper = np.ascontiguousarray(program.b)
        self.lower = np.full(program.b.shape, -np.inf)
        self.lower[:, equal] = program.b[:, equal]
        self.free = np.ones(program.m, dtype=bool)
        self.free[equal] = False

    def start(self, sample: int) -> None:
        self.solver = self._new()
        bounds = {"l": self.lower[sample], "u": self.upper[sample]}
        A = self.A(sample) if self.program.m else None
        if A is None:
            bounds = {"l": None, "u": None}
        try:
            self.solver.setup(self.P(sample), self.program.q[sample], A, **bounds, **self.settings)
        except (TypeError, AssertionError) as error:
            raise InputError(f"OSQP does not accept these settings: {error}") from error

    def update(self, sample: int) -> None:
        data: dict[str, Any] = {"q": self.program.q[sample]}
        if self.program.m:
            data |= {"l": self.lower[sample], "u": self.upper[sample]}
        if not self.P.shared:
            data["Px"] = self.P.values(sample)
        if not self.A.shared:
            data["Ax"] = self.A.values(sample)
        self.solver.update(**data)

    def run(self, sample: int) -> Point:
        program = self.program
        self.solver.warm_start(x=np.zeros(program.n), y=np.zeros(program.m))  # else it starts from the previous sample
        result = self.solver.solve(raise_error=False)
        said = self.codes.get(result.info.status_val, "unknown")
        if said == "OSQP_SIGINT":  # OSQP does not pass Ctrl-C on
            raise KeyboardInterrupt
        status = _STATUS.get(said, Status.NUMERICAL)
        x, y = np.array(result.x), np.array(result.y)
        y[self.free] = np.maximum(y[self.free], 0.0)
        slack = program.b[sample] - program.A.matrix(sample) @ x
        s = np.where(self.free, np.maximum(slack, 0.0), 0.0)
        return Point(x, y, s, status, result.info.iter, "" if status.ok else said)
