"""Linear costs over a region with integers, by any mixed-integer solver of CVXPY."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from threading import Lock
from typing import Any

import cvxpy as cp
import numpy as np

from ffo.errors import Status, UnsupportedProblemError, solver_error
from ffo.program.declared import numbers_of

Array = np.ndarray

#: Settings for which solvers stop at optimal decisions: by themselves they stop at relative gaps of 1e-4 to 1e-3, and
#: decisions of which others are better by that much would be returned. CBC, GLPK_MI and SCIP ask for no gap already.
EXACT: dict[str, dict[str, Any]] = {
    "HIGHS": {"mip_rel_gap": 0.0, "mip_abs_gap": 0.0},
    "GUROBI": {"MIPGap": 0.0, "MIPGapAbs": 0.0},
    "SCIPY": {"scipy_options": {"mip_rel_gap": 0.0}},
    "MOSEK": {"mosek_params": {"MSK_DPAR_MIO_TOL_REL_GAP": 0.0, "MSK_DPAR_MIO_TOL_ABS_GAP": 0.0}},
    "CPLEX": {"cplex_params": {"mip.tolerances.mipgap": 0.0, "mip.tolerances.absmipgap": 0.0}},
    "COPT": {"RelGap": 0.0, "AbsGap": 0.0},
    "XPRESS": {"miprelstop": 0.0, "mipabsstop": 0.0},
}

#: Costs are scaled so that the largest one of a sample is about 2**SIZE; a power of two changes no digits. HiGHS drops
#: decisions that improve the objective by less than its absolute tolerance of 1e-6: with costs of 1, decisions that are
#: worse by 4e-7 of the optimum were returned. Above 2**20, rounding would exceed its tolerance of reduced costs, 1e-7.
SIZE = 10
#: infeasible or unbounded
UNCLEAR = None
_STATUS: dict[str, Status | None] = {
    cp.OPTIMAL: Status.SOLVED,
    cp.OPTIMAL_INACCURATE: Status.INACCURATE,
    cp.INFEASIBLE: Status.INFEASIBLE,
    cp.INFEASIBLE_INACCURATE: Status.INFEASIBLE,
    cp.UNBOUNDED: Status.UNBOUNDED,
    cp.UNBOUNDED_INACCURATE: Status.UNBOUNDED,
    "infeasible_or_unbounded": UNCLEAR,
    "user_limit": Status.TIME_LIMIT,
}


class MixedInteger:
    """A problem with integer variables and one parameter, its costs."""

    def __init__(
        self,
        problem: cp.Problem,
        costs: cp.Parameter,
        decision: cp.Variable,
        solver: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.problem, self.costs, self.decision = problem, costs, decision
        self.solver = _chosen(problem, solver)
        self.settings = _settings(self.solver, settings)
        self._lock = Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> MixedInteger:
        return self  # nothing in it changes between calls

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def solve(self, costs: Array) -> Array:
        """(batch, *shape) optimal decisions; integers are exact."""
        bad = np.flatnonzero(~np.isfinite(costs).reshape(len(costs), -1).all(axis=1))
        if len(bad):
            raise solver_error(
                Status.INVALID_INPUT, bad.tolist(), self.solver, "the costs have NaN or infinite entries"
            )
        found = np.empty(costs.shape)
        largest = np.abs(costs).reshape(len(costs), -1).max(axis=1, initial=0.0)
        costs = np.ldexp(costs, SIZE - np.frexp(largest)[1].reshape(-1, *(1,) * (costs.ndim - 1)))
        with self._lock:
            for k, one in enumerate(costs):
                status, detail = self._solve_one(one)
                if status is UNCLEAR:
                    feasible, _ = self._solve_one(np.zeros_like(one))
                    status = Status.UNBOUNDED if feasible is Status.SOLVED else Status.INFEASIBLE
                if status is not Status.SOLVED:
                    raise solver_error(status, [k], self.solver, detail)
                found[k] = self.decision.value
        return self._rounded(found)

    def _solve_one(self, costs: Array) -> tuple[Status | None, str]:
        self.costs.value = costs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CVXPY's on statuses that are reported here
            try:
                self.problem.solve(solver=self.solver, **self.settings)
            except cp.SolverError as error:
                return Status.NUMERICAL, str(error)
        return _STATUS.get(self.problem.status, Status.NUMERICAL), ""

    def _rounded(self, found: Array) -> Array:
        """Solvers return integers up to a tolerance."""
        flat = found.reshape(len(found), -1)
        attributes = self.decision.attributes
        for word, index in (("boolean", self.decision.boolean_idx), ("integer", self.decision.integer_idx)):
            if attributes[word] is not False:
                which = numbers_of(attributes[word], index, self.decision.shape)
                flat[:, which] = np.round(flat[:, which])
        return flat.reshape(found.shape)


def _chosen(problem: cp.Problem, named: str | None) -> str:
    """The named solver, or HiGHS for linear problems, or CVXPY's choice; raises now, not at the first call."""
    if named is None and cp.HIGHS in cp.installed_solvers():
        try:
            problem.get_problem_data(cp.HIGHS)
        except cp.SolverError:  # it takes linear constraints only
            pass
        else:
            return str(cp.HIGHS)
    try:
        return str(problem.get_problem_data(named)[1].solver.name())
    except cp.SolverError as error:
        raise UnsupportedProblemError(
            f"no solver for this problem with integers: {error} HiGHS takes linear ones (pip install highspy)"
        ) from None


def _settings(solver: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's settings, and those that ask for optimal decisions where the user says nothing."""
    groups = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    grouped = {name for group in groups.values() for name in group}  # CVXPY refuses names that are given twice
    found: dict[str, Any] = {}
    for name, value in EXACT.get(solver, {}).items():
        if isinstance(value, Mapping):
            found[name] = {**value, **groups.get(name, {})}
        elif name not in grouped:
            found[name] = value
    return {**given, **found, **{name: value for name, value in given.items() if name not in groups}}
