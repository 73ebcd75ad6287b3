"""Linear costs over a region with integers, by any mixed-integer solver of CVXPY."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from threading import Lock
from typing import Any

import cvxpy as cp
import numpy as np

from ffo.errors import Status, UnsupportedProblemError, solver_error

Array = np.ndarray

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
        self.solver, self.settings = solver, dict(settings)
        self._lock = Lock()
        try:  # raises now, not at the first call
            problem.get_problem_data(solver)
        except cp.SolverError as error:
            raise UnsupportedProblemError(
                f"no solver for this problem with integers: {error} HiGHS takes linear ones (pip install highspy)"
            ) from None

    def __deepcopy__(self, memo: dict[int, Any]) -> MixedInteger:
        return self  # nothing in it changes between calls

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def solve(self, costs: Array) -> Array:
        """(batch, *shape) optimal decisions; integers are exact."""
        found = np.empty(costs.shape)
        with self._lock:
            for k, one in enumerate(costs):
                status, detail = self._solve_one(one)
                if status is UNCLEAR:
                    feasible, _ = self._solve_one(np.zeros_like(one))
                    status = Status.UNBOUNDED if feasible is Status.SOLVED else Status.INFEASIBLE
                if status is not Status.SOLVED:
                    stats = self.problem.solver_stats
                    name = stats.solver_name if stats is not None else self.solver or "CVXPY"
                    raise solver_error(status, [k], str(name), detail)
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
        attributes = self.decision.attributes
        if attributes["boolean"] is True or attributes["integer"] is True:
            return np.round(found)
        for index in (*self.decision.boolean_idx, *self.decision.integer_idx):
            found[(slice(None), *index)] = np.round(found[(slice(None), *index)])
        return found
