"""Any solver of the qpsolvers package, under the name "qpsolvers:NAME": quadprog, qpOASES, HPIPM, CVXOPT, QPALM, ...

qpsolvers rebuilds its solver for every sample and reports little about failures, so a native adapter is better where
there is one.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError, MissingSolverError, Status, UnsupportedProblemError
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import DenseFeed, SparseFeed, mirrored
from ffo.solvers.settings import refused_settings
from ffo.solvers.split import Split
from ffo.solvers.workspace import Point, Workspace, failed

Array = np.ndarray

PREFIX = "qpsolvers:"

#: Names of `eps` and `max_iters` in the solvers; solvers not listed take neither.
_WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "clarabel": (("tol_gap_abs", "tol_gap_rel", "tol_feas"), "max_iter"),
    "copt": (("FeasTol", "DualTol"), "BarIterLimit"),
    "cvxopt": (("abstol", "reltol", "feastol"), "maxiters"),
    "ecos": (("abstol", "reltol", "feastol"), "max_iters"),
    "gurobi": (("FeasibilityTol", "OptimalityTol", "BarConvTol"), "BarIterLimit"),
    "highs": (("primal_feasibility_tolerance", "dual_feasibility_tolerance"), "simplex_iteration_limit"),
    "hpipm": (("tol_stat", "tol_eq", "tol_ineq", "tol_comp"), "iter_max"),
    "kvxopt": (("abstol", "reltol", "feastol"), "maxiters"),
    "osqp": (("eps_abs", "eps_rel"), "max_iter"),
    "piqp": (("eps_abs", "eps_rel"), "max_iter"),
    "proxqp": (("eps_abs", "eps_rel"), "max_iter"),
    "qpalm": (("eps_abs", "eps_rel"), "max_iter"),
    "scs": (("eps_abs", "eps_rel"), "max_iters"),
}
#: DualReductions=0 distinguishes infeasible from unbounded; a qp_regularization_value would move the solution by 1e-7.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gurobi": {"DualReductions": 0},
    "highs": {"qp_regularization_value": 0.0},
    "osqp": {"max_iter": 100_000},
    "proxqp": {"eps_duality_gap_abs": 1e-8, "eps_duality_gap_rel": 1e-8},
    "scs": {"max_iters": 100_000},
}
#: The tightest accuracy that a solver accepts.
_TIGHTEST = {"gurobi": 1e-9, "highs": 1e-10}
#: Solvers that support bounds; for the others qpsolvers would turn them into rows, infinite ones included.
_BOUNDS = frozenset({"daqp", "highs", "hpipm", "piqp", "qpoases"})
#: Most rows and variables, or least share of nonzeros, for passing dense matrices to solvers that take both kinds.
_SMALL, _DENSE = 60, 0.3
#: Solvers that fail on linear programs, and why.
_TIME_LIMITS = {
    **dict.fromkeys(("clarabel", "highs", "osqp"), "time_limit"), "gurobi": "TimeLimit", "scs": "time_limit_secs",
}  # fmt: skip
_CHOLESKY = "it needs a positive definite quadratic term"
_NO_LP = {
    **dict.fromkeys(("ecos", "quadprog", "qpax", "pyqpmad"), _CHOLESKY),
    "proxqp": "its infeasibility test, which qpsolvers cannot tighten, rejects feasible ones; use solver='PROXQP'",
}
#: Parts of status messages, letters only; the first that occurs decides.
_SAID = {
    "dualinfeasible": Status.UNBOUNDED,
    "infeasible": Status.INFEASIBLE,
    "unbounded": Status.UNBOUNDED,
    "iter": Status.ITERATION_LIMIT,
    "time": Status.TIME_LIMIT,
}
_GUROBI = {3: "infeasible", 4: "infeasible or unbounded", 5: "unbounded", 7: "iteration limit", 9: "time limit"}
_SILENT = "no solution, and qpsolvers does not say why: infeasible, unbounded or not solved"


def known(name: str) -> bool:
    """Whether qpsolvers supports a solver of this name, installed or not."""
    if importlib.util.find_spec("qpsolvers") is None or not name.isidentifier():
        return False
    return importlib.util.find_spec(f"qpsolvers.solvers.{name.lower()}_") is not None


def installed() -> tuple[str, ...]:
    """Names, with their prefix, of the solvers that qpsolvers can use here (imports all of them)."""
    if importlib.util.find_spec("qpsolvers") is None:
        return ()
    import qpsolvers

    return tuple(PREFIX + name for name in sorted(qpsolvers.available_solvers))


class QpsolversSolver(Solver):
    """A solver called through qpsolvers; all settings except `eps` and `max_iters` are passed to it unchecked.

    qpsolvers may solve problems without constraints by SciPy's least squares instead.

    Args:
        name: qpsolvers' name of the solver, with or without the prefix.
    """

    name = "qpsolvers"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg}), quadratic=True, module="qpsolvers", package="qpsolvers", extra="qpsolvers"
    )
    open_settings = True

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.inner = name.lower().removeprefix(PREFIX)
        self.name = PREFIX + self.inner  # type: ignore[misc]
        self.require()
        _require_installed(self.inner)
        self.tolerances, self.iteration_limit = _WORDS.get(self.inner, ((), ""))  # type: ignore[misc]
        self.time_limit = _TIME_LIMITS.get(self.inner, "")  # type: ignore[misc]
        self.defaults = _DEFAULTS.get(self.inner, {})  # type: ignore[misc]
        if self.inner == "ecos":  # it takes quadratic objectives as second-order cones, which costs half of the digits
            self.residual_floor = 1e-4  # type: ignore[misc]
        self.tightest = _TIGHTEST.get(self.inner, 0.0)  # type: ignore[misc]
        super().__init__(settings, verbose=verbose)

    def check(self, program: ConeProgram) -> None:
        super().check(program)
        if self.inner in _NO_LP and not program.P.nnz:
            raise UnsupportedProblemError(f"{self.name} does not solve linear programs: {_NO_LP[self.inner]}")

    def workspace(self, program: ConeProgram) -> Workspace:
        return _QpsolversWorkspace(self, program)


class _QpsolversWorkspace(Workspace):
    def __init__(self, solver: QpsolversSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import qpsolvers

        self._qpsolvers, self.solver = qpsolvers, solver
        self.split = split = Split(program, bounds=solver.inner in _BOUNDS)
        feed = DenseFeed if _dense(qpsolvers, solver.inner, program) else SparseFeed
        self.P = feed(mirrored(program.P))
        self.G = feed(split.G) if len(split.unequal) else None
        self.A = feed(split.E) if len(split.equal) else None

    def start(self, sample: int) -> None:
        """Nothing to keep: qpsolvers sets its solver up on every call."""

    def run(self, sample: int) -> Point:
        program, split, solver = self.program, self.split, self.solver
        bounded = len(split.single) > 0
        if bounded and split.crossed[sample]:
            return failed(program, Status.INFEASIBLE, "a lower bound exceeds its upper bound")
        problem = self._qpsolvers.Problem(
            self.P(sample),
            np.array(program.q[sample]),
            self.G and self.G(sample),
            np.array(split.h[sample]) if self.G else None,
            self.A and self.A(sample),
            np.array(split.e[sample]) if self.A else None,
            np.array(split.lb[sample]) if bounded else None,
            np.array(split.ub[sample]) if bounded else None,
        )
        with warnings.catch_warnings(), refused_settings(solver):
            warnings.simplefilter("ignore")  # qpsolvers warns of failures and conversions; the status reports them
            answer = self._qpsolvers.solve_problem(
                problem, solver=solver.inner, verbose=solver.verbose, **solver.settings
            )
        status, said = _verdict(answer)
        return self._point(sample, answer, status, said)

    def _point(self, sample: int, answer: Any, status: Status, said: str) -> Point:
        program, split = self.program, self.split
        iterations = _iterations(answer.extras)
        x = _vector(answer.x, program.n)
        parts = [_vector(answer.y, len(split.equal)), _vector(answer.z, len(split.unequal))]
        box = _vector(answer.z_box, program.n) if len(split.single) else np.zeros(program.n)
        if x is None or status in (Status.INFEASIBLE, Status.UNBOUNDED):
            return failed(program, status, said, iterations)
        if parts[0] is None or parts[1] is None or box is None:
            return failed(program, Status.INACCURATE, "the solver returned no multipliers", iterations)
        bound = np.concatenate([np.maximum(-box, 0.0), np.maximum(box, 0.0)])
        y = split.duals(sample, parts[0], np.maximum(parts[1], 0.0), bound)
        return Point(x, y, None, status, iterations, said)


def _dense(qpsolvers: Any, name: str, program: ConeProgram) -> bool:
    if name not in qpsolvers.sparse_solvers:
        return True
    if name not in qpsolvers.dense_solvers:
        return False
    size = program.n + program.m
    return size <= _SMALL or 2 * program.P.nnz + program.A.nnz >= _DENSE * program.n * size


def _vector(value: Any, size: int) -> Array | None:
    """A vector of this size; for None, an empty vector if the size is zero, else None."""
    if size == 0:
        return np.zeros(0)
    vector = np.ravel(np.asarray(value, dtype=float)) if value is not None else None
    return vector if vector is not None and len(vector) == size else None


def _verdict(answer: Any) -> tuple[Status, str]:
    """The status, from the words a solver left in the extras, and these words if it is a failure."""
    if answer.found:
        return Status.SOLVED, ""
    said = _words(answer.extras)
    letters = re.sub("[^a-z]", "", said.lower())
    found = next((status for part, status in _SAID.items() if part in letters), Status.NUMERICAL)
    return found, said or _SILENT


def _words(extras: Mapping[str, Any]) -> str:
    info = extras.get("info")
    for value in (extras.get("infostring"), extras.get("status"), getattr(info, "status", None)):
        if isinstance(value, int) and value in _GUROBI and type(value) is int:
            return _GUROBI[value]
        if value is not None:
            return str(getattr(value, "name", value))
    return ""


def _iterations(extras: Mapping[str, Any]) -> int:
    info = extras.get("info")
    for value in (extras.get("iter"), extras.get("iterations"), getattr(info, "iter", None)):
        if value is not None:
            return int(np.max(value))
    return -1


def _require_installed(name: str) -> None:
    import qpsolvers

    if name in qpsolvers.available_solvers:
        return
    if known(name):
        raise MissingSolverError(
            f"qpsolvers supports the solver {name} but cannot use it here: pip install 'qpsolvers[{name}]'"
        )
    raise InputError(f"qpsolvers has no solver {name!r}; available here: {', '.join(installed())}")
