"""The keywords that all layers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ffo.errors import InputError
from ffo.ghost.oracle import Way
from ffo.solvers.base import Solver

BACKWARDS = ("auto", "direct", "iterative", "resolve")


@dataclass(frozen=True)
class Smoothing:
    """Constraint smoothing of the paper's appendix.

    Right-hand sides of inequalities (and radii of second-order cones) are perturbed by independent
    U(-radius, radius) draws; outputs and gradients are means over `draws` perturbed problems. The
    derivative of that mean exists where the solution itself has a kink.

    That leaves the jumps of a linear program in its costs: no derivative of a vertex sees them. With
    `costs`, the linear term is perturbed too, by normal draws, and the derivative in it is that of the
    mean solution, E[(z - mean z) xi] / costs (the score-function estimator: unbiased, its error falls
    like one over the root of `draws`).

    Attributes:
        radius: half width of the uniform perturbation, in units of the right-hand sides.
        draws: perturbed problems per sample.
        seed: seed of the draws, or a NumPy generator of them; they go on from call to call.
        costs: standard deviation of the perturbation of the linear term, in its units.
        average: whether outputs are means over the draws; false returns every draw, in a dimension in
            front of the batch's, so that the mean can be taken of a loss that is not linear in them.
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
            raise InputError(f"smoothing costs must be finite and not negative: {self.costs!r}")
        if not (isinstance(self.draws, int) and self.draws > 0):
            raise InputError(f"smoothing draws must be a positive integer, not {self.draws!r}")
        if self.costs and self.draws < 2:
            raise InputError("smoothing costs needs two draws or more")
        if self.costs and not self.average:
            raise InputError("smoothing costs estimates the derivative of the mean solution: it needs average=True")


@dataclass(frozen=True)
class Options:
    """How to solve, how to differentiate, and what to do when either fails; `time_limit`: seconds for a call."""

    solver: str | Solver | None = None
    solver_args: Mapping[str, Any] = field(default_factory=dict)
    backward: str | Way = "auto"
    delta: float | None = None
    on_fail: Literal["raise", "nan"] = "raise"
    warm_start: bool = False
    retry: Sequence[str | Solver] | None = None
    smoothing: Smoothing | None = None
    verbose: bool = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.backward, Way) and self.backward not in BACKWARDS:
            raise InputError(f"backward must be one of {', '.join(BACKWARDS)} or a Way, not {self.backward!r}")
        if self.on_fail not in ("raise", "nan"):
            raise InputError(f"on_fail must be 'raise' or 'nan', not {self.on_fail!r}")
        if self.delta is not None and not self.delta > 0:
            raise InputError(f"delta must be positive, not {self.delta!r}")
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
