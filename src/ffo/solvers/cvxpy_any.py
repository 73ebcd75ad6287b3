"""Any solver that CVXPY can call, on the canonical data: GUROBI, MOSEK, ECOS, COPT and others.

CVXPY rebuilds the problem from P, q, A, b, K, so this is slower than a native adapter. With shared matrices the
problem is built once and only the vectors are exchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from ffo.cones import PSD, Exponential, Nonneg, Power, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.errors import InputError, MissingSolverError, Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.settings import FOREIGN, refused_settings
from ffo.solvers.workspace import Point, Workspace, failed

Array = np.ndarray

_STATUS = {
    "optimal": Status.SOLVED,
    "optimal_inaccurate": Status.INACCURATE,
    "infeasible": Status.INFEASIBLE,
    "infeasible_inaccurate": Status.INFEASIBLE,
    "unbounded": Status.UNBOUNDED,
    "unbounded_inaccurate": Status.UNBOUNDED,
    "infeasible_or_unbounded": Status.INFEASIBLE,
    "user_limit": Status.ITERATION_LIMIT,
}
#: Names of `eps` and `max_iters` in CVXPY's solvers, and the tightest accuracy each accepts; and of `time_limit`.
_WORDS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "GUROBI": (("BarConvTol", "BarQCPConvTol", "FeasibilityTol", "OptimalityTol"), "BarIterLimit", 1e-9),
    "MOSEK": (("eps",), "MSK_IPAR_INTPNT_MAX_ITERATIONS", 1e-12),
    "ECOS": (("abstol", "reltol", "feastol"), "max_iters", 0.0),
    "CVXOPT": (("abstol", "reltol", "feastol"), "max_iters", 0.0),
    "SDPA": (("epsilonStar", "epsilonDash"), "maxIteration", 0.0),
    "COPT": (("RelGap", "AbsGap", "FeasTol", "DualTol"), "BarIterLimit", 1e-9),
    "CUCLARABEL": (("tol_gap_abs", "tol_gap_rel", "tol_feas"), "max_iter", 0.0),
}
_TIME_LIMITS = {"GUROBI": "TimeLimit", "MOSEK": "MSK_DPAR_OPTIMIZER_MAX_TIME", "COPT": "TimeLimit"}
#: reoptimize distinguishes infeasible from unbounded.
_DEFAULTS: dict[str, dict[str, Any]] = {"GUROBI": {"reoptimize": True}}
_CONES: dict[str, type[Cone]] = {
    "SOC": SecondOrder,
    "PSD": PSD,
    "SvecPSD": PSD,
    "ExpCone": Exponential,
    "PowCone3D": Power,
}


@cache
def cvxpy_names() -> frozenset[str]:
    """Names of all solvers that CVXPY knows, installed or not."""
    from cvxpy.reductions.solvers import defines

    return frozenset(defines.SOLVER_MAP_CONIC) | frozenset(defines.SOLVER_MAP_QP)


class CvxpySolver(Solver):
    """A solver called through CVXPY; all settings except `eps` and `max_iters` are passed to it unchecked.

    Gurobi returns no duals at the vertex of a second-order cone; the check of the forward solve calls such answers
    inaccurate. Solvers without quadratic objectives get them as second-order cones, which costs about half of the
    digits.

    Args:
        cvxpy_name: CVXPY's name of the solver.
    """

    name = "CVXPY"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), quadratic=True, module="cvxpy", package="cvxpy")
    open_settings = True
    ignored_settings = FOREIGN

    def __init__(self, cvxpy_name: str, settings: Mapping[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.name = cvxpy_name.upper()  # type: ignore[misc]
        self.require()
        if self.name not in cvxpy_names():
            raise InputError(f"CVXPY has no solver {cvxpy_name!r}")
        self.tolerances, self.iteration_limit, self.tightest = _WORDS.get(self.name, ((), "", 0.0))  # type: ignore[misc]
        self.time_limit = _TIME_LIMITS.get(self.name, "")  # type: ignore[misc]
        self.defaults = _DEFAULTS.get(self.name, {})  # type: ignore[misc]
        self.capabilities = replace(type(self).capabilities, cones=_supported(self.name))  # type: ignore[misc]
        if not _quadratic(self.name):
            self.residual_floor = 1e-4  # type: ignore[misc]
        super().__init__(settings, verbose=verbose)
        _require_installed(self.name)

    def workspace(self, program: ConeProgram) -> Workspace:
        return _CvxpyWorkspace(self, program)


class _CvxpyWorkspace(Workspace):
    def __init__(self, solver: CvxpySolver, program: ConeProgram) -> None:
        super().__init__(program)
        self.solver, self.settings = solver, _arguments(solver)

    def start(self, sample: int) -> None:
        import cvxpy as cp

        program = self.program
        self.x, self.q = cp.Variable(program.n), cp.Parameter(program.n)
        self.b = cp.Parameter(program.m) if program.m else None
        cost = self.q @ self.x
        P = program.P.full(sample)
        if P.nnz:
            cost = cost + 0.5 * cp.quad_form(self.x, cp.psd_wrap(P))
        self.rows: list[tuple[Any, Callable[[Any], Array], Array]] = []
        if self.b is not None:
            slack = self.b - program.A.matrix(sample) @ self.x
            for group in program.cones.groups:
                self.rows += _constraints(cp, group.cone, slack, group.index)
        self.problem = cp.Problem(cp.Minimize(cost), [constraint for constraint, *_ in self.rows])
        self._set(sample)

    def _set(self, sample: int) -> None:
        self.q.value = self.program.q[sample]
        if self.b is not None:
            self.b.value = self.program.b[sample]

    def update(self, sample: int) -> None:
        if self.program.shared_matrices:
            self._set(sample)
        else:
            self.start(sample)

    def run(self, sample: int) -> Point:
        program = self.program
        with warnings.catch_warnings(), refused_settings(self.solver):
            warnings.simplefilter("ignore")  # CVXPY warns of inaccuracy; the status reports it
            self.problem.solve(solver=self.solver.name, verbose=self.solver.verbose, **self.settings)
        said = self.problem.status
        status = _STATUS.get(said, Status.NUMERICAL)
        iterations = self.problem.solver_stats.num_iters
        iterations = -1 if iterations is None else int(np.max(iterations))
        if self.x.value is None:
            return failed(program, status, said, iterations)
        x, y = np.array(self.x.value), np.zeros(program.m)
        for constraint, read, rows in self.rows:
            y[rows] = read(constraint)
        # CVXPY returns no slacks, so s is b - Ax projected onto K
        s = program.cones.project((program.b[sample] - program.A.matrix(sample) @ x)[None])[0]
        return Point(x, y, s, status, iterations, "" if status.ok else said)


def _constraints(cp: Any, cone: Cone, slack: Any, index: Array) -> list[tuple[Any, Callable[[Any], Array], Array]]:
    """CVXPY constraints for all blocks of a cone, how to read y from each, and its rows."""
    flat = index.ravel()
    if isinstance(cone, Zero):
        return [(slack[flat] == 0, lambda c: -np.ravel(c.dual_value), flat)]
    if isinstance(cone, Nonneg):
        return [(cp.NonNeg(slack[flat]), lambda c: np.maximum(np.ravel(c.dual_value), 0.0), flat)]
    if isinstance(cone, SecondOrder):
        return [(cp.SOC(slack[rows[0]], slack[rows[1:]]), _read_soc, rows) for rows in index]
    if isinstance(cone, PSD):
        unpack, pack = _triangle(cone.order)
        shape = (cone.order, cone.order)
        return [
            (cp.PSD(cp.reshape(unpack @ slack[rows], shape, order="F")), lambda c: pack @ np.ravel(c.dual_value), rows)
            for rows in index
        ]
    x, y, z = (slack[index[:, k]] for k in range(3))
    if isinstance(cone, Exponential):
        return [(cp.ExpCone(x, y, z), _read_three, index)]
    assert isinstance(cone, Power)
    return [(cp.PowCone3D(x, y, z, np.full(len(index), cone.alpha)), _read_three, index)]


def _read_soc(constraint: Any) -> Array:
    top, rest = constraint.dual_value
    return np.concatenate([np.ravel(top), np.ravel(rest)])


def _read_three(constraint: Any) -> Array:
    return np.stack([np.ravel(part) for part in constraint.dual_value], axis=1)


def _triangle(order: int) -> tuple[sp.csr_array, sp.csr_array]:
    """Maps svec (upper triangle by columns, off-diagonals times sqrt 2) -> vec, and symmetric vec -> svec."""
    column, row = np.tril_indices(order)  # upper triangle by columns: row <= column
    size, root = len(row), np.sqrt(2.0)
    place, off = np.arange(size), row != column
    value = np.where(off, 1 / root, 1.0)
    unpack = sp.csr_array((value, (row + order * column, place)), shape=(order * order, size))
    mirror = sp.csr_array((value[off], ((column + order * row)[off], place[off])), shape=(order * order, size))
    both = unpack + mirror
    return both, sp.csr_array(both.T)


def _arguments(solver: CvxpySolver) -> dict[str, Any]:
    """The settings as arguments of CVXPY's solve()."""
    settings = dict(solver.settings)
    if solver.name == "MOSEK":
        own = {k: settings.pop(k) for k in list(settings) if k.startswith("MSK_")}
        if own:
            settings["mosek_params"] = {**settings.get("mosek_params", {}), **own}
    if solver.name == "GUROBI":
        settings.setdefault("env", _gurobi(solver.verbose))
    return settings


@cache
def _gurobi(verbose: bool) -> Any:
    """A Gurobi environment that does not print its licence, one per process."""
    import gurobipy

    return gurobipy.Env(params={"OutputFlag": int(verbose)})


@cache
def _quadratic(name: str) -> bool:
    from cvxpy.reductions.solvers import defines

    conic = defines.SOLVER_MAP_CONIC.get(name)
    return name in defines.SOLVER_MAP_QP or (conic is not None and bool(conic.supports_quad_obj()))


#: what to install for solvers called through CVXPY
_PACKAGES = {
    "MOSEK": "mosek (or: pip install 'ffo[mosek]')",
    "GUROBI": "gurobipy (or: pip install 'ffo[gurobi]')",
    "ECOS": "ecos (or: pip install 'ffo[ecos]')",
    "COPT": "coptpy",
    "CVXOPT": "cvxopt",
    "CPLEX": "cplex",
    "SDPA": "sdpa-python",
    "XPRESS": "xpress",
    "SCIP": "pyscipopt",
}


@cache
def _supported(name: str) -> frozenset[type[Cone]]:
    from cvxpy.reductions.solvers import defines

    cones: set[type[Cone]] = {Zero, Nonneg}
    conic = defines.SOLVER_MAP_CONIC.get(name)
    if conic is not None:
        cones |= {_CONES[kind.__name__] for kind in conic.SUPPORTED_CONSTRAINTS if kind.__name__ in _CONES}
    return frozenset(cones)


def _require_installed(name: str) -> None:
    import cvxpy

    if name not in cvxpy.installed_solvers():
        package = _PACKAGES.get(name)
        how = f"pip install {package}" if package else "see https://www.cvxpy.org/install for its package"
        raise MissingSolverError(
            f"CVXPY supports the solver {name} but cannot use it here: {how}; commercial solvers also need a licence"
        )
