"""HiGHS: simplex for LPs (exact vertices), active set for convex QPs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError, Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import transposed
from ffo.solvers.split import Split, pick_rows
from ffo.solvers.workspace import Point, Workspace, failed

_STATUS = {
    "kOptimal": Status.SOLVED,
    "kInfeasible": Status.INFEASIBLE,
    "kUnboundedOrInfeasible": Status.INFEASIBLE,
    "kUnbounded": Status.UNBOUNDED,
    "kIterationLimit": Status.ITERATION_LIMIT,
    "kTimeLimit": Status.TIME_LIMIT,
    "kModelError": Status.INVALID_INPUT,
}
#: default limits of its QP solver, which can cycle (on Q25FV47, for example): iterations, and per variable and row
_ITERATIONS, _PER_UNKNOWN = 10_000, 5


class HiGHSSolver(Solver):
    """HiGHS, by default its simplex method. Its QP regularisation is off: it would move the solution by 1e-7."""

    name = "HIGHS"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg}),
        quadratic=True,
        module="highspy",
        package="highspy",
        extra="highs",
        threads=True,
        slow_quadratic=True,
    )
    native_settings = frozenset(
        """presolve solver parallel run_crossover time_limit ranging infinite_cost infinite_bound
        small_matrix_value large_matrix_value kkt_tolerance primal_feasibility_tolerance
        dual_feasibility_tolerance primal_residual_tolerance dual_residual_tolerance optimality_tolerance
        ipm_optimality_tolerance pdlp_optimality_tolerance objective_bound random_seed threads
        user_objective_scale user_bound_scale simplex_strategy simplex_scale_strategy simplex_crash_strategy
        simplex_dual_edge_weight_strategy simplex_primal_edge_weight_strategy simplex_iteration_limit
        simplex_update_limit simplex_price_strategy ipm_iteration_limit pdlp_iteration_limit qp_iteration_limit
        qp_nullspace_limit qp_regularization_value""".split()
    )
    tolerances = ("primal_feasibility_tolerance", "dual_feasibility_tolerance", "ipm_optimality_tolerance")
    tightest = 1e-10  # it refuses smaller ones
    iteration_limit = "simplex_iteration_limit"
    time_limit = "time_limit"
    defaults = {"qp_regularization_value": 0.0}

    def workspace(self, program: ConeProgram) -> Workspace:
        return _HiGHSWorkspace(self, program)


class _HiGHSWorkspace(Workspace):
    def __init__(self, solver: HiGHSSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import highspy

        self._highspy = highspy
        most = max(_ITERATIONS, _PER_UNKNOWN * (program.n + program.m))
        self.options = {"qp_iteration_limit": most, **_options(solver)}
        self.split = split = Split(program)
        self.rows = np.concatenate([split.equal, split.unequal])
        self.A = pick_rows(program.A, self.rows)
        self.lower_P = transposed(program.P) if program.P.nnz else None  # HiGHS stores the lower triangle
        self.upper = np.ascontiguousarray(program.b[:, self.rows])
        self.lower = np.full(self.upper.shape, -np.inf)
        self.lower[:, : len(split.equal)] = split.e
        self._configured(highspy.Highs())  # raises here if an option is refused

    def _configured(self, highs: Any) -> Any:
        highs.setOptionValue("output_flag", False)
        for name, value in self.options.items():
            if highs.setOptionValue(name, value) == self._highspy.HighsStatus.kError:
                raise InputError(f"HIGHS does not accept {name}={value!r}")
        return highs

    def start(self, sample: int) -> None:
        highspy, program, split = self._highspy, self.program, self.split
        model = highspy.HighsModel()
        lp = model.lp_
        lp.num_col_, lp.num_row_ = program.n, len(self.rows)
        lp.col_cost_ = program.q[sample]
        lp.col_lower_, lp.col_upper_ = split.lb[sample], split.ub[sample]
        lp.row_lower_, lp.row_upper_ = self.lower[sample], self.upper[sample]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = self.A.indptr, self.A.indices
        lp.a_matrix_.value_ = self.A.of(sample)
        if self.lower_P is not None:
            hessian = model.hessian_
            hessian.dim_, hessian.format_ = program.n, highspy.HessianFormat.kTriangular
            hessian.start_, hessian.index_ = self.lower_P.indptr, self.lower_P.indices
            hessian.value_ = self.lower_P.of(sample)
        self.solver = self._configured(highspy.Highs())
        if self.solver.passModel(model) == highspy.HighsStatus.kError:
            raise ValueError("HiGHS refused the model")

    def update(self, sample: int) -> None:
        if not self.program.shared_matrices:
            self.start(sample)
            return
        n, m = self.program.n, len(self.rows)
        columns, split = np.arange(n, dtype=np.int32), self.split
        self.solver.clearSolver()  # else the answer would depend on the previous sample
        said = [self.solver.changeColsCost(n, columns, self.program.q[sample])]
        if len(split.single):
            said.append(self.solver.changeColsBounds(n, columns, split.lb[sample], split.ub[sample]))
        if m:
            rows = np.arange(m, dtype=np.int32)
            said.append(self.solver.changeRowsBounds(m, rows, self.lower[sample], self.upper[sample]))
        if self._highspy.HighsStatus.kError in said:  # HiGHS would solve the previous sample again
            raise ValueError("HiGHS refused the data")

    def run(self, sample: int) -> Point:
        program, split, solver = self.program, self.split, self.solver
        if len(split.single) and split.crossed[sample]:
            return failed(program, Status.INFEASIBLE, "a lower bound exceeds its upper bound")
        if "time_limit" in self.options:  # its clock is not reset between samples
            solver.setOptionValue("time_limit", solver.getRunTime() + self.options["time_limit"])
        solver.run()
        said = solver.getModelStatus().name
        status = _STATUS.get(said, Status.NUMERICAL)
        if said == "kUnboundedOrInfeasible":
            status = self._which()
        info, solution = solver.getInfo(), solver.getSolution()
        iterations = max(info.simplex_iteration_count, info.qp_iteration_count, info.ipm_iteration_count)
        x = np.array(solution.col_value)
        if len(x) != program.n or not solution.dual_valid:
            return failed(program, Status.INACCURATE if status.ok else status, said, iterations)
        row, column = -np.array(solution.row_dual), np.array(solution.col_dual)  # HiGHS: q + Px = A'row + column
        bound = np.concatenate([np.maximum(column, 0.0), np.maximum(-column, 0.0)])
        k = len(split.equal)
        y = split.duals(sample, row[:k], np.maximum(row[k:], 0.0), bound)
        return Point(x, y, split.slacks(sample, x), status, iterations, "" if status.ok else said)

    def _which(self) -> Status:
        """Presolve cannot distinguish infeasible from unbounded; the simplex method can."""
        self.solver.setOptionValue("presolve", "off")
        self.solver.run()
        said = self.solver.getModelStatus().name
        self.solver.setOptionValue("presolve", self.options.get("presolve", "choose"))
        return _STATUS.get(said, Status.INFEASIBLE)


def _options(solver: HiGHSSolver) -> dict[str, Any]:
    options = {**solver.settings, "log_to_console": solver.verbose, "output_flag": solver.verbose}
    if solver.iteration_limit in options:
        for name in ("ipm_iteration_limit", "qp_iteration_limit"):
            options[name] = options[solver.iteration_limit]
    return options
