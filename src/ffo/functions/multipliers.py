"""Multipliers of a point that came without: least squares on the constraints that are met.

    minimize | grad g + J'[lam; nu] |   over lam >= 0 of inequalities that are met, lam = 0 of the others.

At a solution where the gradients of active constraints are independent this is the only pair of multipliers
(the paper's appendix). Rows whose multiplier comes out negative are dropped, rows that would lower the misfit
are taken up again, until nothing changes. How closely a constraint must be met depends on how accurate the
solver was, which is not known: the closest that explains the gradient is right.
"""

from __future__ import annotations

import torch

from ffo.functions.active import VANISHING, largest, row_norms
from ffo.functions.problem import Problem, Tensor
from ffo.functions.products import Constraints
from ffo.functions.projection import Projection

#: slacks, relative to the size of the solution, up to which a constraint may be met
MET = (1e-7, 1e-5, 1e-3)
#: misfit, relative to the gradient, that is none
EXPLAINED = 1e-5
ROUNDS = 20


def recover(problem: Problem, y: Tensor) -> Tensor:
    """Multipliers (batch, k) of y (batch, n)."""
    constraints = Constraints(problem, y)
    value, m = constraints.value, problem.inequalities
    best = torch.zeros_like(value)
    if not value.shape[1]:
        return best
    gradient = problem.gradient(y, best)
    rows, size = row_norms(constraints, y), gradient.norm(dim=1)
    length = torch.maximum(largest(y), VANISHING * largest(value / rows)).unsqueeze(1)
    left = torch.full_like(size, torch.inf)
    for met in MET:
        candidate = torch.ones_like(value, dtype=torch.bool)
        candidate[:, :m] = -value[:, :m] <= met * rows[:, :m] * length
        multipliers = _least_squares(constraints, gradient, candidate, rows, m)
        misfit = (gradient + constraints.pull(multipliers)).norm(dim=1)
        better = (misfit < 0.5 * left) & (left > EXPLAINED * size)
        best = torch.where(better.unsqueeze(1), multipliers, best)
        left = torch.where(better, misfit, left)
        if bool((left <= EXPLAINED * size).all()):
            break
    return best


def _least_squares(constraints: Constraints, gradient: Tensor, candidate: Tensor, rows: Tensor, m: int) -> Tensor:
    """Multipliers on candidate rows, not negative on the first m."""
    held = candidate.clone()
    for _ in range(ROUNDS):
        _, multipliers = Projection(constraints, held, torch.ones_like(gradient), rows).reduce(-gradient)
        noise = 1e-12 * (multipliers * rows).abs().amax(1, keepdim=True) / rows
        dropped = held[:, :m] & (multipliers[:, :m] < -noise[:, :m])
        if bool(dropped.any()):
            held[:, :m] &= ~dropped
            continue
        misfit = constraints.push(gradient + constraints.pull(multipliers))[:, :m]
        small = 1e-8 * rows[:, :m] * gradient.norm(dim=1, keepdim=True)
        taken = candidate[:, :m] & ~held[:, :m] & (misfit < -small)
        if not bool(taken.any()):
            break
        held[:, :m] |= taken
    multipliers[:, :m] = multipliers[:, :m].clamp_min(0.0)
    return multipliers
