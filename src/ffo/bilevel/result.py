"""The result of a bilevel minimization."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import torch

Point = torch.Tensor | tuple[torch.Tensor, ...]


class Reason(enum.Enum):
    """Why a minimization stopped."""

    STATIONARY = "a window reached epsilon"
    BUDGET = "the budget of oracle calls was used up"
    CALLBACK = "the callback asked to stop"
    NOT_FINITE = "the objective or its gradient was not finite"


@dataclass
class History:
    """One entry per window.

    Attributes:
        calls: oracle calls up to the end of the window.
        seconds: time up to that point.
        values: mean of the upper objective over the window.
        stationarity: norm of the mean gradient over the window.
        epsilon: the tolerance that the window was planned for.
    """

    calls: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stationarity: list[float] = field(default_factory=list)
    epsilon: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """The best point found, and how good it is.

    Attributes:
        x: centre of the window that reached epsilon, else of the best one; same shape as `x0` (a tuple if
            that was a sequence).
        y: the layer's output at x (every draw, with smoothing).
        value: upper(x, y) (its mean over the draws, with smoothing).
        stationarity: norm of the mean of gradients taken within `radius` of x: with exact gradients of a
            deterministic problem, x is certain to be (radius, stationarity)-Goldstein stationary. An oracle
            with an error of alpha adds alpha; random gradients add their standard error over the window.
        radius: total length of the steps in that window, at most `delta`.
        delta: as requested.
        epsilon: as requested.
        reason: why it stopped.
        calls: oracle calls, each one forward and one backward pass of the layer.
        seconds: time taken.
        lipschitz: largest norm of a gradient, or the given bound.
        doubtful: number of oracle calls with a `GradientWarning`. Near a kink the gradient of either side
            will do here, so these are counted instead of warned about.
        history: one entry per window.
    """

    x: Point
    y: Any
    value: float
    stationarity: float
    radius: float
    delta: float
    epsilon: float
    reason: Reason
    calls: int
    seconds: float
    lipschitz: float
    doubtful: int
    history: History

    @property
    def converged(self) -> bool:
        """Whether epsilon was reached."""
        return self.reason is Reason.STATIONARY
