"""The options common to all layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

import numpy as np

from ffo.cones import Power
from ffo.errors import InputError
from ffo.ghost.oracle import Way
from ffo.program.names import Names
from ffo.solvers.base import Solver
from ffo.solvers.registry import get_solver, named_in_settings

BACKWARDS = ("auto", "direct", "iterative", "resolve")


@dataclass(frozen=True)
class Smoothing:
    """Constraint smoothing of the paper's appendix.

    Right-hand sides of inequalities (and radii of second-order cones) are perturbed by independent
    U(-radius, radius) draws; outputs and gradients are means over `draws` perturbed problems. The
    derivative of that mean exists even where the solution itself has a kink. Semidefinite constraints cannot be
    perturbed this way: a radius is an error if there are any, or if there are neither inequalities nor norms.

    Rows are not normalized: every right-hand side, as written, moves by up to `radius`. The same constraint
    multiplied by ten is therefore perturbed ten times less. Scale rows to unit norm if they should move equally.

    The solution of a linear program jumps as its costs change, and the derivative of a vertex does not show the jumps.
    With `costs`, the linear term is perturbed too, by normal draws, and the derivative with respect to it is
    that of the mean solution, E[(z - mean z) xi] / costs (the score-function estimator: unbiased, with an error
    proportional to one over the square root of `draws`).

    Attributes:
        radius: half width of the uniform perturbation, in units of the right-hand sides.
        draws: perturbed problems per sample.
        seed: seed of the draws, or a NumPy generator for them; each call continues the sequence.
        costs: standard deviation of the perturbation of the linear term, in its units.
        average: whether outputs are means over the draws; false returns every draw, in a leading dimension
            before the batch dimension, so that the mean can be taken of a loss that is not linear in them.

    The report on a call, `layer.info`, has one entry per draw, those of a sample next to each other:
    `info.ok.reshape(batch, draws).all(1)` says which samples were solved.
    """

    radius: float = 0.0
    draws: int = 16
    seed: int | np.random.Generator = 0
    costs: float = 0.0
    average: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.radius < np.inf and not (self.radius == 0 and self.costs > 0):
            raise InputError(f"smoothing radius must be positive and finite, not {self.radius!r}")
        if not 0 <= self.costs < np.inf:
            raise InputError(f"smoothing costs must be nonnegative and finite, not {self.costs!r}")
        if not (isinstance(self.draws, int) and self.draws > 0):
            raise InputError(f"smoothing draws must be a positive integer, not {self.draws!r}")
        if self.costs and self.draws < 2:
            raise InputError("smoothing costs needs at least two draws")
        if self.costs and not self.average:
            raise InputError("smoothing costs estimates the derivative of the mean solution: it needs average=True")


@dataclass(frozen=True)
class Relax:
    """Solve the nearest feasible problem of infeasible samples,

        minimize f(x) + weight/2 |r|^2  over x and r, with the constraints violated by r.

    An inequality g(x) <= h becomes g(x) <= h + r, an equality g(x) = h becomes g(x) = h + r, and a cone g(x) in K
    becomes g(x) + r in K; |r| is the Euclidean norm over all of them (Frobenius for semidefinite ones). The penalty is
    smooth, so that solution and derivative are defined as for any other problem, and are exact for this weight. As the
    weight grows, r tends to the smallest violation in the least-squares sense, at a rate of 1/weight, and x to the best
    point with that violation. Samples with a feasible point are solved unchanged.

    Attributes:
        constraints: those that may be violated, or a single one; None: all that the user wrote (declared attributes of
            variables always hold). In `FFOLayer` constraints of the problem, or their numbers; in quadratic programs
            "b", "h", "lower", "ub", "lb".
        weight: in units of the objective per squared unit of the constraints.
        rest: "raise" or "nan", for other failures and for samples that stay infeasible.
    """

    constraints: Any = None
    weight: float = 1e4
    rest: Literal["raise", "nan"] = "raise"

    def __post_init__(self) -> None:
        if not 0 < self.weight < np.inf:
            raise InputError(f"the weight of relaxed constraints must be positive and finite, not {self.weight!r}")
        if self.rest not in ("raise", "nan"):
            raise InputError(f"rest must be 'raise' or 'nan', not {self.rest!r}")
        if isinstance(self.constraints, str):
            raise InputError(f"constraints must be a list, such as constraints=[{self.constraints!r}]")
        if self.constraints is not None:
            several = isinstance(self.constraints, Iterable)
            object.__setattr__(self, "constraints", tuple(self.constraints) if several else (self.constraints,))
        if self.constraints == ():
            raise InputError("constraints=[] leaves nothing that may be violated: omit it for all, or omit Relax")


#: names of the constraints of quadratic programs
SIDES = ("b", "h", "lower", "ub", "lb")


def check_relaxed(relax: Relax | None) -> None:
    """Raise unless the constraints that may be violated are those of a quadratic program."""
    for name in (relax and relax.constraints) or ():
        if name not in SIDES:
            raise InputError(f"constraints of a quadratic program are named {', '.join(SIDES)}, not {name!r}")


OnFail = Literal["raise", "nan", "relax"] | Relax


@dataclass(frozen=True)
class Options:
    """How to solve, how to differentiate, and what to do if either fails.

    `backward_eps` and `backward_solver`: of the re-solves of `backward="resolve"`; `time_limit`: seconds for a call;
    `verbose`: true if positive, so that qpth's -1 means silence.
    """

    solver: str | Solver | None = None
    solver_args: Mapping[str, Any] = field(default_factory=dict)
    backward: str | Way = "auto"
    delta: float | None = None
    backward_eps: float | None = None
    backward_solver: Any = None
    on_fail: OnFail = "raise"
    warm_start: bool = False
    retry: Sequence[str | Solver] | None = None
    smoothing: Smoothing | None = None
    verbose: bool = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "verbose", _is_verbose(self.verbose))
        if not isinstance(self.warm_start, (bool, np.bool_)):
            raise InputError(f"warm_start must be true or false, not {self.warm_start!r}")
        if not isinstance(self.backward, Way) and self.backward not in BACKWARDS:
            raise InputError(f"backward must be one of {', '.join(BACKWARDS)} or a Way, not {self.backward!r}")
        if self.on_fail == "relax":
            object.__setattr__(self, "on_fail", Relax())
        if not isinstance(self.on_fail, Relax) and self.on_fail not in ("raise", "nan"):
            raise InputError(f"on_fail must be 'raise', 'nan', 'relax' or a Relax object, not {self.on_fail!r}")
        if self.delta is not None and not self.delta > 0:
            raise InputError(f"delta must be positive, not {self.delta!r}")
        if self.backward_eps is not None and not 0 < self.backward_eps < np.inf:
            raise InputError(f"backward_eps must be positive and finite, not {self.backward_eps!r}")
        for name in ("backward_eps", "backward_solver"):
            if getattr(self, name) is not None and self.backward != "resolve":
                raise InputError(f"{name} is for backward='resolve': other ways call no solver in the backward pass")
        if self.time_limit is not None and not (isinstance(self.time_limit, (int, float)) and self.time_limit > 0):
            raise InputError(f"time_limit must be a positive number of seconds, not {self.time_limit!r}")
        if isinstance(self.retry, str):
            raise InputError(f"retry must be a list of solvers, such as retry=[{self.retry!r}]")
        if self.retry is not None:
            object.__setattr__(self, "retry", tuple(self.retry))
        if isinstance(self.smoothing, (int, float)) and not isinstance(self.smoothing, bool):
            object.__setattr__(self, "smoothing", Smoothing(float(self.smoothing)))
        elif self.smoothing is not None and not isinstance(self.smoothing, Smoothing):
            raise InputError(f"smoothing must be a radius or a Smoothing object, not {self.smoothing!r}")

    @property
    def relax(self) -> Relax | None:
        """What to do with infeasible samples, if anything."""
        return self.on_fail if isinstance(self.on_fail, Relax) else None

    @property
    def raises(self) -> bool:
        """Whether failures are raised."""
        return (self.on_fail.rest if isinstance(self.on_fail, Relax) else self.on_fail) == "raise"

    @property
    def draws(self) -> int:
        """How many perturbed problems are solved for each sample."""
        return self.smoothing.draws if self.smoothing else 1

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading dimension of outputs, if there is one for each draw."""
        return () if self.smoothing is None or self.smoothing.average else (self.smoothing.draws,)

    @property
    def power_cones(self) -> bool:
        """Whether every solver that is named accepts power cones."""
        named = (named_in_settings(self.solver, self.solver_args)[0], self.backward_solver, *(self.retry or ()))
        return all(Power in get_solver(solver).capabilities.cones for solver in named if solver is not None)


def from_qpth(
    solver: str | Solver | Enum | None, solver_args: Mapping[str, Any] | None, eps: float | None, verbose: bool | int
) -> dict[str, Any]:
    """The options `solver`, `solver_args` and `verbose` from arguments that may be written as for qpth.

    Both members of qpth's enumeration `QPSolvers` mean the default solver: its batched interior point has no
    counterpart here, and its CVXPY one names no solver. `eps` in `solver_args` takes precedence over the argument.
    """
    return {
        "solver": None if type(solver).__name__ == "QPSolvers" else solver,
        "solver_args": {**({} if eps is None else {"eps": eps}), **(solver_args or {})},
        "verbose": _is_verbose(verbose),
    }


def _is_verbose(value: Any) -> bool:
    if not isinstance(value, (bool, int, float, np.bool_)):
        raise InputError(f"verbose must be true or false, not {value!r}")
    return bool(value > 0)


def numbered_relaxation(options: Options, names: Names, constraints: Sequence[Any]) -> Options:
    """The options in which constraints that may be violated are named by their numbers in the problem."""
    relax = options.relax
    if relax is None or relax.constraints is None:
        return options
    return replace(options, on_fail=replace(relax, constraints=names.numbers(relax.constraints, constraints)))
