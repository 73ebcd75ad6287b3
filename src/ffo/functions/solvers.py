"""Forward solvers for problems given by functions: any callable, SciPy's, IPOPT, and a built-in one.

A solver gets a batch and starting points and returns an `Answer`. Black boxes solve one sample after the
other. `outcome` measures every answer, whatever status the solver reports.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from ffo.errors import FFOError, InputError, MissingSolverError, Status, UnknownSettingError
from ffo.functions import augmented
from ffo.functions.augmented import Answer
from ffo.functions.problem import Problem, Tensor
from ffo.functions.products import Constraints
from ffo.kernels.deadline import expired
from ffo.solvers.workspace import OUT_OF_TIME

Array = np.ndarray

#: largest problems for which SciPy's dense SLSQP is the default: variables, constraints, samples
SMALL = (100, 200, 4)


class _TimeIsUpError(Exception):
    """Raised when a black box evaluates a function after the time limit: the only way to stop it."""


def _stop_in_time() -> None:
    if expired():
        raise _TimeIsUpError


class FunctionSolver(ABC):
    """Solves a batch of problems given by functions."""

    name: str

    @abstractmethod
    def solve(self, problem: Problem, y: Tensor, exact: bool) -> Answer:
        """Solve every sample from y (batch, n); `exact`: whether second derivatives may be taken."""


class AugmentedLagrangian(FunctionSolver):
    """The batched first-order solver of `ffo.functions.augmented`."""

    name = "AUGLAG"

    def __init__(self, **settings: Any) -> None:
        known = [f.name for f in fields(augmented.LagrangianSettings)]
        _check(self.name, settings, known)
        self.settings = augmented.LagrangianSettings(**settings)

    def solve(self, problem: Problem, y: Tensor, exact: bool) -> Answer:
        return augmented.solve(problem, y, self.settings, exact)


@dataclass(frozen=True)
class Found:
    """The answer of a black box for one sample; NumPy arrays, multipliers [lam; nu] or None."""

    y: Array
    multipliers: Array | None = None
    status: Status = Status.SOLVED
    iterations: int = -1
    detail: str = ""


class Sample:
    """One sample for NumPy solvers: values and dense first derivatives at flat y (n,)."""

    def __init__(self, problem: Problem, like: Tensor) -> None:
        self._problem, self._device = problem, like.device
        self._none = torch.zeros(1, 0, dtype=torch.float64, device=like.device)
        self._linearized: tuple[Array, Constraints] | None = None
        self.inequalities = problem.inequalities

    def _tensor(self, y: Array) -> Tensor:
        return torch.tensor(np.asarray(y, dtype=float), device=self._device).reshape(1, -1)

    def value(self, y: Array) -> float:
        _stop_in_time()
        with torch.no_grad():
            return float(self._problem.objective(self._tensor(y)))

    def gradient(self, y: Array) -> Array:
        return self._problem.gradient(self._tensor(y), self._none).cpu().numpy()[0]

    def _at(self, y: Array) -> Constraints:
        if self._linearized is None or not np.array_equal(self._linearized[0], y):
            self._linearized = (np.array(y), Constraints(self._problem, self._tensor(y)))
        return self._linearized[1]

    def constraints(self, y: Array) -> Array:
        """(k,) inequalities, then equalities."""
        return self._at(y).value.cpu().numpy()[0]

    def jacobian(self, y: Array) -> Array:
        """(k, n)."""
        return self._at(y).jacobian().cpu().numpy()


class BlackBox(FunctionSolver):
    """A solver for one sample at a time."""

    @abstractmethod
    def one(self, problem: Problem, y: Tensor) -> Found:
        """Solve a batch of one from y (1, n)."""

    def solve(self, problem: Problem, y: Tensor, exact: bool) -> Answer:
        found = []
        for k in range(problem.batch):
            index = torch.tensor([k], device=y.device)
            found.append(self._guarded(problem.take(index), y[k : k + 1].clone()))
        points = torch.tensor(np.stack([f.y for f in found]), device=y.device)
        multipliers = None
        if all(f.multipliers is not None for f in found):
            multipliers = torch.tensor(np.stack([np.asarray(f.multipliers) for f in found]), device=y.device)
        detail = {k: f.detail for k, f in enumerate(found) if f.detail}
        iterations = torch.tensor([f.iterations for f in found])
        return Answer(points, multipliers, [f.status for f in found], iterations, detail)

    def _guarded(self, problem: Problem, y: Tensor) -> Found:
        """Solve one sample; an exception of the solver, or the time limit, fails this sample only."""
        start = y.cpu().numpy()[0].copy()
        try:
            _stop_in_time()
            return self.one(problem, y)
        except _TimeIsUpError:
            return Found(start, status=Status.TIME_LIMIT, detail=OUT_OF_TIME)
        except FFOError:
            raise
        except Exception as error:
            return Found(start, status=Status.NUMERICAL, detail=f"{type(error).__name__}: {error}")


class Scipy(BlackBox):
    """SciPy's SLSQP or trust-constr, for small dense problems."""

    _KNOWN = {
        "SLSQP": ("ftol", "disp", "iprint", "maxiter"),
        "TRUST-CONSTR": (
            *("gtol", "xtol", "barrier_tol", "maxiter", "disp", "verbose", "factorization_method"),
            *("initial_tr_radius", "initial_constr_penalty", "initial_barrier_parameter"),
            *("initial_barrier_tolerance", "sparse_jacobian"),
        ),
    }

    def __init__(self, name: str, eps: float | None = None, max_iters: int | None = None, **native: Any) -> None:
        self.name = name
        _check(name, native, self._KNOWN[name])
        if name == "SLSQP":
            tight = {"ftol": eps or 1e-14, "maxiter": max_iters or 1000}
        else:
            small = eps or 1e-8
            tight = {"gtol": small, "xtol": 1e-2 * small, "barrier_tol": small, "maxiter": max_iters or 3000}
        self.options = {**tight, **native}

    def one(self, problem: Problem, y: Tensor) -> Found:
        from scipy.optimize import minimize

        sample = Sample(problem, y)
        start = y.cpu().numpy()[0]
        k, m = len(sample.constraints(start)), sample.inequalities
        arguments: dict[str, Any] = {"jac": sample.gradient, "method": self.name.lower(), "options": self.options}
        parts = [(slice(0, m), "ineq"), (slice(m, k), "eq")]
        parts = [(rows, kind) for rows, kind in parts if rows.stop > rows.start]
        arguments["constraints"] = [self._constraint(sample, rows, kind) for rows, kind in parts]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its result contains the same information
            done = minimize(sample.value, start, **arguments)
        multipliers = None
        if self.name == "TRUST-CONSTR" and k:
            multipliers = np.concatenate([np.atleast_1d(v) for v in done.v])
            multipliers[:m] = np.maximum(multipliers[:m], 0.0)
        status = Status.SOLVED if done.success else self._status(done)
        detail = "" if done.success else str(done.message)
        return Found(np.asarray(done.x), multipliers, status, int(done.nit), detail)

    def _constraint(self, sample: Sample, rows: slice, kind: str) -> Any:
        from scipy.optimize import NonlinearConstraint

        def value(y: Array) -> Array:
            return sample.constraints(y)[rows]

        def jacobian(y: Array) -> Array:
            return sample.jacobian(y)[rows]

        if self.name == "TRUST-CONSTR":
            return NonlinearConstraint(value, -np.inf if kind == "ineq" else 0.0, 0.0, jac=jacobian)
        sign = -1.0 if kind == "ineq" else 1.0  # SLSQP requires nonnegative values
        return {"type": kind, "fun": lambda y: sign * value(y), "jac": lambda y: sign * jacobian(y)}

    def _status(self, done: Any) -> Status:
        if self.name == "SLSQP":
            codes = {4: Status.INFEASIBLE, 9: Status.ITERATION_LIMIT}
            return codes.get(int(done.status), Status.NUMERICAL)
        return Status.ITERATION_LIMIT if int(done.status) == 0 else Status.NUMERICAL


class Ipopt(BlackBox):
    """IPOPT through cyipopt, with its limited-memory Hessian: first derivatives only."""

    name = "IPOPT"

    def __init__(self, eps: float | None = None, max_iters: int | None = None, **native: Any) -> None:
        try:
            import cyipopt
        except ImportError as error:
            raise MissingSolverError(
                "IPOPT needs the package cyipopt: pip install 'ffo[ipopt]' (it compiles against an installed IPOPT: "
                "apt install coinor-libipopt-dev, or conda install -c conda-forge cyipopt)"
            ) from error
        self._module = cyipopt
        self.options = {"print_level": 0, "sb": "yes", "hessian_approximation": "limited-memory"}
        self.options |= {"tol": eps or 1e-10, "max_iter": max_iters or 3000, **native}

    def __reduce__(self) -> Any:
        return _ipopt, (self.options,)

    def one(self, problem: Problem, y: Tensor) -> Found:
        sample = Sample(problem, y)
        start = y.cpu().numpy()[0]
        k, m = len(sample.constraints(start)), sample.inequalities
        lower = np.concatenate([np.full(m, -1e20), np.zeros(k - m)])

        class Callbacks:
            objective = staticmethod(sample.value)
            gradient = staticmethod(sample.gradient)
            constraints = staticmethod(sample.constraints)

            @staticmethod
            def jacobian(at: Array) -> Array:
                return sample.jacobian(at).ravel()

        nlp = self._module.Problem(
            n=len(start), m=k, problem_obj=Callbacks(), lb=None, ub=None, cl=lower, cu=np.zeros(k)
        )
        for name, value in self.options.items():
            nlp.add_option(name, value)
        found, about = nlp.solve(start)
        multipliers = np.array(about["mult_g"], dtype=float)
        multipliers[:m] = np.maximum(multipliers[:m], 0.0)
        codes = {0: Status.SOLVED, 1: Status.SOLVED, 2: Status.INFEASIBLE, 4: Status.UNBOUNDED}
        codes |= {-1: Status.ITERATION_LIMIT, -4: Status.TIME_LIMIT}
        status = codes.get(int(about["status"]), Status.NUMERICAL)
        text = about["status_msg"]
        detail = "" if status is Status.SOLVED else (text.decode() if isinstance(text, bytes) else str(text))
        return Found(np.asarray(found), multipliers, status, -1, detail)


def _ipopt(options: Mapping[str, Any]) -> Ipopt:
    return Ipopt(**options)


class UserSolver(BlackBox):
    """A user's `solve(g, h, e, y0)` -> y or (y, lam, nu); h and e are None if the problem has none.

    g, h, e are functions of y alone, for one sample, differentiable by autograd; y0 and y have the shape of
    one y. Anything that `torch.as_tensor` accepts may be returned.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def one(self, problem: Problem, y: Tensor) -> Found:
        m, given = problem.inequalities, problem.functions.given

        def objective(at: Tensor) -> Tensor:
            _stop_in_time()
            return problem.objective(at.reshape(1, -1))[0]

        def inequality(at: Tensor) -> Tensor:
            return problem.constraints(at.reshape(1, -1))[0, :m]

        def equality(at: Tensor) -> Tensor:
            return problem.constraints(at.reshape(1, -1))[0, m:]

        with torch.enable_grad():
            answer = self.function(
                objective,
                inequality if given[1] is not None else None,
                equality if given[2] is not None else None,
                y.reshape(problem.shape),
            )
        if not isinstance(answer, tuple):
            return Found(self._flat(answer, "y", y.shape[1]))
        if len(answer) != 3:
            raise InputError(f"{self.name} must return y or (y, lam, nu), not a tuple of {len(answer)}")
        total = problem.constraints(y).shape[1]
        counts = {"y": y.shape[1], "lam": m, "nu": total - m}
        parts = [self._flat(v, name, count) for v, (name, count) in zip(answer, counts.items(), strict=True)]
        return Found(parts[0], np.concatenate(parts[1:]))

    def _flat(self, value: Any, what: str, count: int) -> Array:
        flat = torch.as_tensor(value if value is not None else []).detach().to("cpu", torch.float64).reshape(-1).numpy()
        if len(flat) != count:
            raise InputError(f"{self.name} returned {what} of {len(flat)} entries; expected {count}")
        return flat


NAMES = ("AUGLAG", "SLSQP", "TRUST-CONSTR", "IPOPT")


def get_solver(solver: Any, settings: Mapping[str, Any]) -> FunctionSolver:
    """A solver by name, a callable, or a solver object."""
    if isinstance(solver, FunctionSolver):
        return solver
    if callable(solver):
        if settings:
            raise UnknownSettingError(f"solver_args {sorted(settings)} are not passed to your solver: bind them to it")
        return UserSolver(solver)
    name = str(solver).upper().replace("_", "-")
    if name in ("SLSQP", "TRUST-CONSTR"):
        return Scipy(name, **settings)
    if name == "IPOPT":
        return Ipopt(**settings)
    if name == "AUGLAG":
        return AugmentedLagrangian(**settings)
    raise InputError(
        f"no solver {solver!r} for problems given by functions: use one of {', '.join(NAMES)}, or pass a function "
        "solve(g, h, e, y0) -> y or (y, lam, nu)"
    )


def choose(problem: Problem, y: Tensor, constraints: int) -> str:
    """SLSQP for a few small problems on the CPU, the batched solver for everything else."""
    return "SLSQP" if _is_small(y, constraints) and problem.batch <= SMALL[2] else "AUGLAG"


def further(y: Tensor, constraints: int, first: str) -> tuple[str, ...]:
    """Names of the solvers to try on samples that the default one fails on. SLSQP stops on absolute changes of the
    objective: at flat minima, and if the objective is 1e-9, this is too early."""
    suited = ("SLSQP", "AUGLAG") if _is_small(y, constraints) else ("AUGLAG",)
    return tuple(name for name in suited if name != first)


def _is_small(y: Tensor, constraints: int) -> bool:
    variables, rows, _ = SMALL
    return y.shape[1] <= variables and constraints <= rows and y.device.type == "cpu"


def _check(name: str, settings: Mapping[str, Any], known: Any) -> None:
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise UnknownSettingError(
            f"{name} has no setting {', '.join(unknown)}; it accepts {', '.join(sorted({'eps', 'max_iters', *known}))}"
        )
