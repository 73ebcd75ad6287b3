"""L-BFGS for a batch: two-loop recursion and a weak-Wolfe line search, each sample with its own scalars.

The line search doubles and bisects (Lewis and Overton), which suits functions whose second derivative
jumps, such as augmented Lagrangians. Points where a function is not finite count as too far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ffo.functions.active import largest
from ffo.functions.problem import Tensor
from ffo.kernels.deadline import expired

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]

DECREASE, FLATTEN = 1e-4, 0.9
#: trials of one line search
TRIALS = 40
#: relative increase of a value that counts as rounding
ROUNDING = 1e-14
#: relative distance from the start beyond which a sample is diverging
FAR = 1e10


@dataclass
class Minimum:
    """y (batch, n) with its gradient; `runaway` (batch,) where values decrease without bound."""

    y: Tensor
    gradient: Tensor
    iterations: Tensor
    runaway: Tensor


class _History:
    """The last pairs (s, z = change of gradient), newest last; a pair without curvature has weight zero."""

    def __init__(self, memory: int, inverse: Tensor) -> None:
        self.memory, self.inverse = memory, inverse
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.size: Tensor | None = None

    def add(self, s: Tensor, z: Tensor) -> None:
        along = (s * z).sum(1)
        good = along > 1e-14 * s.norm(dim=1) * z.norm(dim=1)
        weight = torch.where(good, 1.0 / along.clamp_min(1e-300), 0.0)
        size = along / (self.inverse * z * z).sum(1).clamp_min(1e-300)
        old = torch.ones_like(size) if self.size is None else self.size
        self.size = torch.where(good, size, old)
        self.pairs = [*self.pairs[-(self.memory - 1) :], (s, z, weight)]

    def direction(self, gradient: Tensor) -> Tensor:
        """-B gradient."""
        q, alphas = gradient.clone(), []
        for s, z, weight in reversed(self.pairs):
            alpha = weight * (s * q).sum(1)
            q -= alpha.unsqueeze(1) * z
            alphas.append(alpha)
        q *= self.inverse if self.size is None else self.size.unsqueeze(1) * self.inverse
        for (s, z, weight), alpha in zip(self.pairs, reversed(alphas), strict=True):
            q += (alpha - weight * (z * q).sum(1)).unsqueeze(1) * s
        return -q


def minimize(
    objective: Objective, y: Tensor, tolerance: Tensor, limit: int, inverse: Tensor, memory: int = 10
) -> Minimum:
    """Minimize until the largest entry of the gradient is below `tolerance` (batch,) or no step helps.

    `inverse` (batch, n): approximate diagonal of the inverse Hessian, up to a factor; ones if unknown.
    """
    start = y.norm(dim=1).clamp_min(1.0)
    value, gradient = objective(y)
    history = _History(memory, inverse)
    iterations = torch.zeros(len(y), dtype=torch.long, device=y.device)
    alive = largest(gradient) > tolerance
    runaway = torch.zeros_like(alive)
    for k in range(limit):
        if not bool(alive.any()) or expired():
            break
        d = history.direction(gradient)
        slope = (d * gradient).sum(1)
        uphill = alive & (slope >= 0)
        if bool(uphill.any()):
            d = torch.where(uphill.unsqueeze(1), -inverse * gradient, d)
            slope = (d * gradient).sum(1)
        t = torch.ones_like(value) if k else (start / d.norm(dim=1).clamp_min(1e-300)).clamp_max(1.0)
        d = torch.where(alive.unsqueeze(1), d, 0.0)
        new_y, new_value, new_gradient, stepped = _search(objective, y, value, gradient, d, slope, t, alive)
        history.add(new_y - y, new_gradient - gradient)
        y, value, gradient = new_y, new_value, new_gradient
        iterations += stepped
        runaway |= alive & ((y.norm(dim=1) > FAR * start) | (value == -torch.inf))
        alive &= stepped & (largest(gradient) > tolerance) & ~runaway
    return Minimum(y, gradient, iterations, runaway)


def _search(
    objective: Objective, y: Tensor, value: Tensor, gradient: Tensor, d: Tensor, slope: Tensor, t: Tensor, alive: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, value and gradient after the step, and which samples moved."""
    low, high = torch.zeros_like(t), torch.full_like(t, torch.inf)
    todo = alive.clone()
    best_y, best_value, best_gradient, stepped = y, value, gradient, torch.zeros_like(alive)
    for _ in range(TRIALS):
        trial = y + t.unsqueeze(1) * d
        f, g = objective(trial)
        allowed = value + DECREASE * t * slope + ROUNDING * value.abs()
        enough = (f <= allowed) & g.isfinite().all(1)
        steep = (g * d).sum(1) < FLATTEN * slope
        # Any decrease is kept, in case the search ends before the curvature condition holds.
        take = todo & enough
        best_y = torch.where(take.unsqueeze(1), trial, best_y)
        best_gradient = torch.where(take.unsqueeze(1), g, best_gradient)
        best_value = torch.where(take, f, best_value)
        stepped = stepped | take
        high = torch.where(todo & ~enough, t, high)
        low = torch.where(todo & enough, t, low)
        todo = todo & ~(enough & ~steep)
        if not bool(todo.any()):
            break
        t = torch.where(todo, torch.where(high.isfinite(), 0.5 * (low + high), 2.0 * t), t)
    return best_y, best_value, best_gradient, stepped
