"""Clarabel: interior point for all cones of this package."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, Power, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import SparseFeed
from ffo.solvers.settings import assign
from ffo.solvers.workspace import Point, Workspace

#: also the words of Moreau
STATUS = {
    "Solved": Status.SOLVED,
    "AlmostSolved": Status.INACCURATE,
    "PrimalInfeasible": Status.INFEASIBLE,
    "AlmostPrimalInfeasible": Status.INFEASIBLE,
    "DualInfeasible": Status.UNBOUNDED,
    "AlmostDualInfeasible": Status.UNBOUNDED,
    "MaxIterations": Status.ITERATION_LIMIT,
    "MaxTime": Status.TIME_LIMIT,
    "InsufficientProgress": Status.INACCURATE,
}

#: Below this accuracy Clarabel is limited by its regularisation.
TIGHT = 1e-10


class ClarabelSolver(Solver):
    """Clarabel. Presolve and chordal decomposition are off by default: they prevent data updates."""

    name = "CLARABEL"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg, SecondOrder, PSD, Exponential, Power}),
        quadratic=True,
        module="clarabel",
        package="clarabel",
        threads=True,
    )
    native_settings = frozenset(
        """max_iter time_limit max_step_fraction tol_gap_abs tol_gap_rel tol_feas tol_infeas_abs tol_infeas_rel
        tol_ktratio reduced_tol_gap_abs reduced_tol_gap_rel reduced_tol_feas reduced_tol_infeas_abs
        reduced_tol_infeas_rel reduced_tol_ktratio equilibrate_enable equilibrate_max_iter equilibrate_min_scaling
        equilibrate_max_scaling linesearch_backtrack_step min_switch_step_length min_terminate_step_length
        max_threads direct_kkt_solver direct_solve_method static_regularization_enable
        static_regularization_constant static_regularization_proportional dynamic_regularization_enable
        dynamic_regularization_eps dynamic_regularization_delta iterative_refinement_enable
        iterative_refinement_reltol iterative_refinement_abstol iterative_refinement_max_iter
        iterative_refinement_stop_ratio presolve_enable input_sparse_dropzeros chordal_decomposition_enable
        chordal_decomposition_merge_method chordal_decomposition_compact chordal_decomposition_complete_dual
        pardiso_iparm pardiso_verbose""".split()
    )
    tolerances = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    iteration_limit = "max_iter"
    time_limit = "time_limit"
    defaults = {"max_threads": 1, "presolve_enable": False, "chordal_decomposition_enable": False}

    def workspace(self, program: ConeProgram) -> Workspace:
        return _ClarabelWorkspace(self, program)


class _ClarabelWorkspace(Workspace):
    def __init__(self, solver: ClarabelSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import clarabel

        self._new = clarabel.DefaultSolver
        self.settings = assign(clarabel.DefaultSettings(), _settings(solver), solver.name)
        self.cones = [made for cone, count in program.cones.blocks for made in _cones(clarabel, cone, count)]
        self.P, self.A = SparseFeed(program.P), SparseFeed(program.A)

    def start(self, sample: int) -> None:
        program = self.program
        self.solver = self._new(
            self.P(sample), program.q[sample], self.A(sample), program.b[sample], self.cones, self.settings
        )

    def update(self, sample: int) -> None:
        if not self.solver.is_data_update_allowed():  # presolve was enabled by the user
            self.start(sample)
            return
        data: dict[str, Any] = {"q": self.program.q[sample], "b": self.program.b[sample]}
        if not self.P.shared:
            data["P"] = self.P.values(sample)
        if not self.A.shared:
            data["A"] = self.A.values(sample)
        self.solver.update(**data)

    def run(self, sample: int) -> Point:
        result = self.solver.solve()
        said = str(result.status)
        status = STATUS.get(said, Status.NUMERICAL)
        x, y, s = np.array(result.x), np.array(result.z), np.array(result.s)
        return Point(x, y, s, status, result.iterations, "" if status.ok else said)


def _settings(solver: ClarabelSolver) -> dict[str, Any]:
    tight: dict[str, Any] = {}
    if solver.eps < TIGHT:
        tight = {
            "static_regularization_constant": 1e-10,
            "iterative_refinement_max_iter": 30,
            "iterative_refinement_reltol": 1e-15,
            "iterative_refinement_abstol": 1e-15,
        }
    return {**tight, **solver.settings, "verbose": solver.verbose}


def _cones(clarabel: Any, cone: Cone, count: int) -> list[Any]:
    if isinstance(cone, Zero):
        return [clarabel.ZeroConeT(count)]
    if isinstance(cone, Nonneg):
        return [clarabel.NonnegativeConeT(count)]
    if isinstance(cone, SecondOrder):
        return [clarabel.SecondOrderConeT(cone.dim)] * count
    if isinstance(cone, PSD):
        return [clarabel.PSDTriangleConeT(cone.order)] * count
    if isinstance(cone, Exponential):
        return [clarabel.ExponentialConeT()] * count
    assert isinstance(cone, Power)
    return [clarabel.PowerConeT(cone.alpha)] * count
