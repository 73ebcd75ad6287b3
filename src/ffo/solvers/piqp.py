"""PIQP: a proximal interior-point method for QPs with native bounds, dense and sparse."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import DenseFeed, SparseFeed
from ffo.solvers.settings import assign, wants_dense
from ffo.solvers.split import Split
from ffo.solvers.workspace import Point, Workspace, failed

#: Most variables for which the dense interface can be faster, the density at which it is, and the number of variables
#: up to which it always is.
DENSE_SIZE, DENSE_FILL, ALWAYS_DENSE = 1500, 0.3, 12
#: Rows per variable above which dense rows alone make it faster, whatever P is.
DENSE_ROWS = 0.25

_STATUS = {
    "PIQP_SOLVED": Status.SOLVED,
    "PIQP_MAX_ITER_REACHED": Status.ITERATION_LIMIT,
    "PIQP_PRIMAL_INFEASIBLE": Status.INFEASIBLE,
    "PIQP_DUAL_INFEASIBLE": Status.UNBOUNDED,
}


class PIQPSolver(Solver):
    """PIQP; `backend` ("auto", "sparse", "dense") chooses its interface."""

    name = "PIQP"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), quadratic=True, module="piqp", package="piqp")
    native_settings = frozenset(
        """backend rho_init delta_init eps_abs eps_rel check_duality_gap eps_duality_gap_abs eps_duality_gap_rel
        infeasibility_threshold reg_lower_limit reg_finetune_lower_limit reg_finetune_primal_update_threshold
        reg_finetune_dual_update_threshold max_iter max_factor_retires preconditioner_scale_cost
        preconditioner_reuse_on_update preconditioner_iter tau kkt_solver iterative_refinement_always_enabled
        iterative_refinement_eps_abs iterative_refinement_eps_rel iterative_refinement_max_iter
        iterative_refinement_min_improvement_rate iterative_refinement_static_regularization_eps
        iterative_refinement_static_regularization_rel compute_timings""".split()
    )
    tolerances = ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel")
    iteration_limit = "max_iter"
    # On 50 Maros-Meszaros problems, those solved take at most 54. Without a solution it runs to the limit (250).
    defaults = {"max_iter": 100}

    def workspace(self, program: ConeProgram) -> Workspace:
        return _PIQPWorkspace(self, program)


class _PIQPWorkspace(Workspace):
    def __init__(self, solver: PIQPSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import piqp

        settings = dict(solver.settings)
        self.split = split = Split(program)
        dense = wants_dense(solver.name, settings.pop("backend", "auto"), lambda: _dense(split))
        self._new = piqp.DenseSolver if dense else piqp.SparseSolver
        if isinstance(settings.get("kkt_solver"), str):
            settings["kkt_solver"] = getattr(piqp, settings["kkt_solver"])
        self.settings = {**settings, "verbose": solver.verbose}
        assign(self._new().settings, self.settings, solver.name)  # raises here if a value is refused
        feed = DenseFeed if dense else SparseFeed
        self.feeds = {name: feed(M) for name, M in split.matrices(("P", "A", "G"), program.P)}
        self.bounded = len(split.single) > 0

    def _matrices(self, sample: int) -> dict[str, Any]:
        return {name: feed(sample) for name, feed in self.feeds.items()}

    def _vectors(self, sample: int) -> dict[str, Any]:
        split = self.split
        data: dict[str, Any] = {"c": self.program.q[sample]}
        if len(split.equal):
            data["b"] = split.e[sample]
        if len(split.unequal):
            data["h_u"] = split.h[sample]
        if self.bounded:
            data["x_l"], data["x_u"] = split.lb[sample], split.ub[sample]
        return data

    def start(self, sample: int) -> None:
        self.solver = self._new()
        assign(self.solver.settings, self.settings, "PIQP")
        self.solver.setup(**self._matrices(sample), **self._vectors(sample))

    def update(self, sample: int) -> None:
        # All matrices or none: DenseSolver.update of PIQP 0.6 is wrong when only some are given.
        changed = any(not f.shared for f in self.feeds.values())
        self.solver.update(**(self._matrices(sample) if changed else {}), **self._vectors(sample))

    def run(self, sample: int) -> Point:
        if self.bounded and self.split.crossed[sample]:  # PIQP itself would run to its iteration limit
            return failed(self.program, Status.INFEASIBLE, "a lower bound exceeds its upper bound")
        code = self.solver.solve()
        result = self.solver.result
        status = _STATUS.get(code.name, Status.NUMERICAL)
        bound = slack = None
        if self.bounded:
            bound = np.concatenate([result.z_bl, result.z_bu])
            slack = np.concatenate([result.s_bl, result.s_bu])
        x = result.x.copy()
        y = self.split.duals(sample, result.y, result.z_u, bound)
        s = self.split.slacks(sample, x, result.s_u, slack)
        return Point(x, y, s, status, result.info.iter, "" if status.ok else code.name)


def _dense(split: Split) -> bool:
    """Measured: dense is faster if about a third of all entries is nonzero, or if the problem is tiny.

    With a sparse P, dense rows are still faster if there are enough of them, because eliminating the variables leaves
    a dense Schur complement: three times faster with 249 dense rows of 729 variables.
    """
    n, P = split.program.n, split.program.P
    rows = len(split.equal) + len(split.unequal)
    if n > DENSE_SIZE:
        return False
    in_rows = split.E.nnz + split.G.nnz
    if rows >= DENSE_ROWS * n and in_rows >= DENSE_FILL * rows * n:
        return True
    return n <= ALWAYS_DENSE or 2 * P.nnz + in_rows >= DENSE_FILL * (n * n + rows * n)
