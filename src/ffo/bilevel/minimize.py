"""minimize: x with F(x) = upper(x, y(x)) Goldstein stationary, y(x) the solution of a layer.

Every window is a certificate for the same delta, whatever its length, so each has its own tolerance tau. Far
from stationary points it is large, with short windows and long steps. A window that ends with a mean gradient
of norm n has decreased F by delta (n - 2 tau / 3) or more, on average.

- n <= 5/6 tau: the tolerance is halved, down to epsilon;
- n > 5/6 tau: F has decreased by delta tau / 6 or more; the next tolerance is n.

At most 6 gap / (delta epsilon) windows can end the second way. Between two of them the tolerance is halved
down to epsilon at most once, at the cost of a few windows of the length for epsilon. The number of calls
therefore stays within a constant of the theory's gap L^2 / (delta epsilon^3).

L is a bound on the gradients of one window at a time. If given by the user, it is only ever raised, by larger
gradients. Otherwise it is the largest gradient norm of the previous window, and a window that meets one twice
as large ends there: windows are short where gradients are small. For random gradients, it is the largest so far.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ffo.bilevel.goldstein import GoldsteinDescent, Window
from ffo.bilevel.progress import progress_bar
from ffo.bilevel.result import History, Reason, Result
from ffo.bilevel.smoothing import Objective, Upper, smoothed_layer
from ffo.bilevel.theory import check_positive, plan
from ffo.engine.options import Smoothing
from ffo.errors import GradientWarning, InputError, NotFiniteError

T = TypeVar("T")
#: oracle calls between two updates of the progress bar
REPORT_EVERY = 10
#: fraction of the tolerance that a window's stationarity must reach for the tolerance to be halved
SUCCESS = 5 / 6
#: how many times larger than expected a gradient may be before its window ends
SURPRISE = 2.0


def minimize(
    upper: Upper,
    layer: Callable[..., Any],
    x0: torch.Tensor | Sequence[torch.Tensor],
    *,
    delta: float,
    epsilon: float,
    budget: int,
    lipschitz: float | None = None,
    smoothing: float | Smoothing | None = None,
    stochastic: bool = False,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
    callback: Callable[[Window], bool | None] | None = None,
) -> Result:
    """Minimize upper(x, y) over x, where y = layer(x) solves a constrained problem that depends on x.

    Args:
        upper: (x, y) -> scalar, differentiable in both by torch.
        layer: any layer of this package, or any differentiable function of x: called as `layer(x)`, or
            `layer(*x)` if `x0` is a sequence. A tuple of one output is passed to `upper` as that output. Wrap
            a layer that also needs constants: `lambda x: qp(Q, x, G, h)`.
        x0: starting point, one tensor or a sequence of them.
        delta: radius within which gradients may be averaged, in units of x.
        epsilon: norm of the averaged gradient to reach.
        budget: most oracle calls, each a forward and a backward pass.
        lipschitz: a bound on the norm of the hypergradient, needed for the exact guarantee of the theory; None
            takes the largest norm of the previous window.
        smoothing: minimize the mean of upper(x, y) over perturbed right-hand sides of the layer's
            constraints instead: the half width rho of U(-rho, rho), or an `ffo.torch.Smoothing` with the
            number of `draws` to average in an oracle call. The mean has a gradient even where active sets are
            ambiguous. Only for layers of this package; give a wrapped layer its own `smoothing=`.
        stochastic: whether values of F are random (a minibatch in `upper`, a layer with smoothing; implied by
            `smoothing`). A short mean of random gradients may be small by chance, so only windows of the
            theory's length for epsilon count then; their standard error is a third of epsilon or less.
        generator: source of all random numbers, including the draws of `smoothing` (default: torch's own).
        progress: whether to show a progress bar; None shows it in a terminal if `rich` is installed.
        callback: called with every finished `Window`; a true return value stops.

    Returns:
        A `Result`: the centre of the best window, its stationarity, and the history of the windows.

    Example:
        >>> import cvxpy as cp, torch
        >>> from ffo.torch import FFOLayer
        >>> y, x = cp.Variable(), cp.Parameter()
        >>> layer = FFOLayer(cp.Problem(cp.Minimize((y - 2) ** 2), [y <= 2 * x]), [x], [y])  # y = min(2, 2x)
        >>> x0 = torch.tensor(0.0, dtype=torch.float64)
        >>> found = minimize(lambda x, y: x - y, layer, x0, delta=0.1, epsilon=0.1, budget=2000)
        >>> found.converged, round(float(found.x), 1)  # F(x) = |x - 1| - 1
        (True, 1.0)
    """
    _check(delta, epsilon, budget, lipschitz)
    draws = None
    if smoothing is not None:
        layer, draws = smoothed_layer(layer, smoothing, generator)
    random = stochastic or smoothing is not None
    run = _Minimization(Objective(upper, layer, x0, draws), delta, epsilon, lipschitz, random, generator)
    with progress_bar(progress, budget, epsilon) as report:
        while run.reason is None:
            run.call()
            window = run.end_of_window(last=run.calls == budget)
            if window and callback and callback(window):
                run.reason = run.reason or Reason.CALLBACK
            if run.calls % REPORT_EVERY == 0 or run.reason:
                report(run.calls, run.best, run.value)
    return run.result()


def _check(delta: float, epsilon: float, budget: int, lipschitz: float | None) -> None:
    check_positive({"delta": delta, "epsilon": epsilon} | ({} if lipschitz is None else {"lipschitz": lipschitz}))
    if not (isinstance(budget, int) and budget > 0):
        raise InputError(f"budget must be a positive number of oracle calls, not {budget!r}")


@dataclass
class _Minimization:
    """The state of a minimization."""

    objective: Objective
    delta: float
    epsilon: float
    lipschitz: float | None
    stochastic: bool
    generator: torch.Generator | None
    reason: Reason | None = None
    calls: int = 0
    doubtful: int = 0
    value: float = math.nan
    longest: float = 0.0
    longest_in_window: float = 0.0
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        # The first window has one call, which measures a gradient and takes no step.
        self.tolerance, self.bound = math.inf, math.inf
        self.walk = GoldsteinDescent(self.objective.x, self.delta, self.delta, 1, generator=self.generator)

    @property
    def best(self) -> float:
        return min(self.history.stationarity, default=math.inf)

    def call(self) -> None:
        """One oracle call and one step."""
        self.calls += 1
        try:
            self.value = float(self.walk.step(self._closure))
        except NotFiniteError:
            self.reason = Reason.NOT_FINITE

    def end_of_window(self, last: bool) -> Window | None:
        """Plan the next window if one has finished, or must be ended."""
        unfinished = self.walk.filled > 0
        if self.reason is None and last:
            self.reason = Reason.BUDGET
        surprised = self.lipschitz is None and self.longest_in_window > SURPRISE * self.bound
        if unfinished and self.reason is None and not surprised:
            return None
        window = self.walk.finish_window() if unfinished else self.walk.last
        if window is None or window.index < len(self.history.calls):
            return None
        self.history.calls.append(self.calls)
        self.history.seconds.append(time.perf_counter() - self.started)
        self.history.values.append(window.value)
        self.history.stationarity.append(window.stationarity)
        self.history.epsilon.append(min(self.tolerance, self.longest))
        if window.stationarity <= self.epsilon and not (self.stochastic and self._short):
            self.reason = Reason.STATIONARY
        elif self.reason is None:
            self._next_window(window)
        return window

    @property
    def _short(self) -> bool:
        """Whether the last window was planned for a tolerance above epsilon, or ended early."""
        since = self.history.calls[-2] if len(self.history.calls) > 1 else 0
        return self.tolerance > self.epsilon or self.calls - since < self.walk.window

    def _next_window(self, window: Window) -> None:
        if self.lipschitz is None and not self.stochastic:
            self.bound = max(self.longest_in_window, self.epsilon)
        else:  # a window without large gradients may be chance
            self.bound = max(self.lipschitz or 0.0, self.longest, self.epsilon)
        self.longest_in_window = 0.0
        tolerance = min(self.tolerance, self.bound)
        found = window.stationarity
        self.tolerance = max(self.epsilon, tolerance / 2 if found <= SUCCESS * tolerance else found)
        self.walk.follow(plan(self.delta, self.tolerance, self.bound))

    def _closure(self) -> torch.Tensor:
        value, doubted = _without_doubts(self.objective.value_and_gradient)
        self.doubtful += doubted
        if not math.isfinite(float(value)):
            raise NotFiniteError(f"the upper objective is {float(value)}")
        norm = self.objective.gradient_norm()
        self.longest_in_window = max(self.longest_in_window, norm)
        self.longest = max(self.longest, norm)
        return value

    def result(self) -> Result:
        objective = self.objective
        # for random gradients, the window that ended the run need not be the one with the smallest mean
        window = self.walk.last if self.reason is Reason.STATIONARY else self.walk.best
        if window is None:
            raise NotFiniteError("the upper objective or its gradient is not finite at x0: start elsewhere")
        objective.move_to(window.centre)
        with torch.no_grad():
            (y, value), _ = _without_doubts(objective.evaluate)
        assert self.reason is not None
        return Result(
            x=objective.point(),
            y=y,
            value=float(value),
            stationarity=window.stationarity,
            radius=window.radius,
            delta=self.delta,
            epsilon=self.epsilon,
            reason=self.reason,
            calls=self.calls,
            seconds=time.perf_counter() - self.started,
            lipschitz=max(self.longest, self.lipschitz or 0.0),
            doubtful=self.doubtful,
            history=self.history,
        )


def _without_doubts(function: Callable[[], T]) -> tuple[T, bool]:
    """The function's result, and whether it issued a `GradientWarning`; other warnings pass through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GradientWarning)
        found = function()
    others = [w for w in caught if not issubclass(w.category, GradientWarning)]
    for w in others:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return found, len(others) < len(caught)
