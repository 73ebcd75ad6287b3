"""The theory's parameters for reaching a (delta, epsilon)-Goldstein stationary point.

F is L-Lipschitz, `gap` >= F(x0) - inf F, and the oracle's gradients have norm at most L. A window is M steps
of an online learner (gradient descent in the ball of radius D, M D = delta) against the linear losses
<g_t, .>. The random point z_t = x_{t-1} + s_t Delta_t makes the loss the decrease of F on average,

    F(x_t) - F(x_{t-1}) = E <grad F(z_t), Delta_t>,

and the regret of a window against u = -D g / |g|, g the window's mean gradient, is at most

    sum <g_t, Delta_t - u> <= (2D)^2 / (2 eta) + eta L^2 M / 2 = 2 D L sqrt(M)    with eta = 2 D / (L sqrt(M)).

Summed over K windows, T = K M:

    mean |g| <= gap / (D T) + 2 L / sqrt(M).

The right-hand side is epsilon for 2 L / sqrt(M) = theta epsilon and gap / (D T) = (1 - theta) epsilon; theta = 2/3
minimizes T:

    M = 9 L^2 / epsilon^2,  D = delta epsilon^2 / (9 L^2),  eta = 2 delta epsilon^3 / (27 L^4),
    T = 27 gap L^2 / (delta epsilon^3).

Gradients with an error of alpha add 2 alpha: alpha D per step to the decrease, and alpha to every mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ffo.errors import InputError

#: fraction of epsilon allotted to the regret
REGRET = 2 / 3


@dataclass(frozen=True)
class Plan:
    """Parameters of a `GoldsteinDescent`.

    Attributes:
        radius: D, the longest step.
        lr: eta, step size of the online learner.
        window: M, steps over which gradients are averaged; `window * radius` is delta.
        steps: T, oracle calls after which the mean over windows of the stationarity is epsilon or less,
            whatever the function; None without `gap`.
    """

    radius: float
    lr: float
    window: int
    steps: int | None = None


def check_positive(given: Mapping[str, float]) -> None:
    """Raise unless all of these numbers are positive and finite."""
    for name, value in given.items():
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name} must be positive and finite, not {value!r}")


def plan(delta: float, epsilon: float, lipschitz: float, gap: float | None = None) -> Plan:
    """The theory's parameters.

    Args:
        delta: radius within which gradients may be averaged.
        epsilon: norm of the averaged gradient to reach.
        lipschitz: L, a bound on the norm of the gradients.
        gap: a bound on F(x0) - inf F, for the number of steps.
    """
    given = {"delta": delta, "epsilon": epsilon, "lipschitz": lipschitz, "gap": 1.0 if gap is None else gap}
    check_positive(given)
    window = math.ceil((2 * lipschitz / (REGRET * epsilon)) ** 2)
    radius = delta / window
    lr = 2 * radius / (lipschitz * math.sqrt(window))
    if gap is None:
        return Plan(radius, lr, window)
    return Plan(radius, lr, window, window * math.ceil(gap / (delta * epsilon * (1 - REGRET))))
