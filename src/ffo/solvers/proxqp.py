"""ProxQP (proxsuite): proximal augmented Lagrangian for QPs, dense and sparse."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import DenseFeed, SparseFeed, mirrored
from ffo.solvers.settings import assign, wants_dense
from ffo.solvers.split import Split
from ffo.solvers.workspace import Point, Workspace

#: Density at which the dense interface is faster, the largest size for which it is considered, and the size up to
#: which it is always used.
DENSE_FILL, DENSE_SIZE, ALWAYS_DENSE = 0.2, 1500, 50

_STATUS = {
    "PROXQP_SOLVED": Status.SOLVED,
    "PROXQP_MAX_ITER_REACHED": Status.ITERATION_LIMIT,
    "PROXQP_PRIMAL_INFEASIBLE": Status.INFEASIBLE,
    "PROXQP_SOLVED_CLOSEST_PRIMAL_FEASIBLE": Status.INFEASIBLE,
    "PROXQP_DUAL_INFEASIBLE": Status.UNBOUNDED,
}


class ProxQPSolver(Solver):
    """ProxQP; `backend` ("auto", "sparse", "dense") chooses its interface."""

    name = "PROXQP"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg}), quadratic=True, module="proxsuite", package="proxsuite", extra="proxqp"
    )
    native_settings = frozenset(
        """backend alpha_bcl beta_bcl bcl_update check_duality_gap cold_reset_mu_eq cold_reset_mu_in
        compute_preconditioner compute_timings default_mu_eq default_mu_in default_rho eps_abs eps_dual_inf
        eps_duality_gap_abs eps_duality_gap_rel eps_primal_inf eps_rel max_iter max_iter_in mu_max_eq_inv
        mu_max_in_inv mu_min_eq mu_min_in mu_update_factor nb_iterative_refinement preconditioner_accuracy
        preconditioner_max_iter refactor_dual_feasibility_threshold refactor_rho_threshold update_preconditioner
        primal_infeasibility_solving alpha_gpdal""".split()
    )
    tolerances = ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel")
    iteration_limit = "max_iter"
    # with its default of 1e-4 for certificates it calls feasible LPs infeasible
    defaults = {"check_duality_gap": True, "eps_primal_inf": 1e-8, "eps_dual_inf": 1e-8}

    def workspace(self, program: ConeProgram) -> Workspace:
        return _ProxQPWorkspace(self, program)


class _ProxQPWorkspace(Workspace):
    """min 1/2 x'Hx + g'x  s.t.  Ax = b, Cx <= u; bounds are passed as rows of C (measured: no slower)."""

    def __init__(self, solver: ProxQPSolver, program: ConeProgram) -> None:
        super().__init__(program)
        from proxsuite import proxqp

        settings = dict(solver.settings)
        backend = settings.pop("backend", "auto")
        self.settings = {**settings, "verbose": solver.verbose}
        self.split = split = Split(program, bounds=False)
        dense = wants_dense(solver.name, backend, lambda: _dense(split))
        self._new = (proxqp.dense if dense else proxqp.sparse).QP
        self.guess = proxqp.InitialGuess
        assign(proxqp.Settings(), self.settings, solver.name)
        feed = DenseFeed if dense else SparseFeed
        self.feeds = {name: feed(M) for name, M in split.matrices(("H", "A", "C"), mirrored(program.P))}
        self.lower = np.full(len(split.unequal), -1e20)

    def _vectors(self, sample: int) -> dict[str, Any]:
        data: dict[str, Any] = {"g": np.ascontiguousarray(self.program.q[sample])}
        if len(self.split.equal):
            data["b"] = self.split.e[sample]
        if len(self.lower):
            data["l"], data["u"] = self.lower, self.split.h[sample]
        return data

    def start(self, sample: int) -> None:
        self.solver = self._new(self.program.n, len(self.split.equal), len(self.split.unequal))
        assign(self.solver.settings, self.settings, "PROXQP")
        self.solver.init(**{name: feed(sample) for name, feed in self.feeds.items()}, **self._vectors(sample))

    def update(self, sample: int) -> None:
        matrices = {name: feed(sample) for name, feed in self.feeds.items() if not feed.shared}
        self.solver.update(**matrices, **self._vectors(sample), update_preconditioner=bool(matrices))

    def run(self, sample: int) -> Point:
        split, solver = self.split, self.solver
        solver.settings.initial_guess = self.guess.NO_INITIAL_GUESS
        solver.solve()
        result = solver.results
        said = result.info.status.name
        status = _STATUS.get(said, Status.NUMERICAL)
        x = np.array(result.x)
        y = split.duals(sample, result.y, np.maximum(result.z, 0.0), None)
        return Point(x, y, split.slacks(sample, x), status, result.info.iter, "" if status.ok else said)


def _dense(split: Split) -> bool:
    n, rows = split.program.n, split.program.m
    if n + rows <= ALWAYS_DENSE:
        return True
    stored = 2 * split.program.P.nnz + split.program.A.nnz
    return n <= DENSE_SIZE and stored >= DENSE_FILL * n * (n + rows)
