"""Multipliers of a point given without them: least squares on the active constraints.

    minimize | grad g + J'[lam; nu] |   over lam >= 0 of active inequalities, lam = 0 of the others,

with forces in units of the variables (`units`).
At a solution where the gradients of active constraints are independent this is the only pair of multipliers
(the paper's appendix). Rows with a negative multiplier are dropped, and rows that would lower the residual are
added again, until nothing changes. How small the slack of an active constraint is depends on the accuracy of
the solver, which is unknown: the smallest threshold that explains the gradient is used.
"""

from __future__ import annotations

from functools import partial

import torch

from ffo.functions.active import VANISHING, largest, row_norms
from ffo.functions.problem import Problem, Tensor
from ffo.functions.products import Constraints, Differences
from ffo.functions.projection import Projection
from ffo.functions.units import metric

#: thresholds on slacks, relative to the size of the solution, below which a constraint may be active
MET = (1e-7, 1e-5, 1e-3)
#: residual, relative to the gradient, that counts as zero
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
    units = metric(y, constraints, partial(Differences, problem, y, best)).units
    rows, size = row_norms(constraints, y, units), (units * gradient).norm(dim=1)
    length = torch.maximum(largest(y / units), VANISHING * largest(value / rows)).unsqueeze(1)
    left = torch.full_like(size, torch.inf)
    for met in MET:
        candidate = torch.ones_like(value, dtype=torch.bool)
        candidate[:, :m] = -value[:, :m] <= met * rows[:, :m] * length
        multipliers = _least_squares(constraints, gradient, candidate, rows, units, m)
        misfit = (units * (gradient + constraints.pull(multipliers))).norm(dim=1)
        better = (misfit < 0.5 * left) & (left > EXPLAINED * size)
        best = torch.where(better.unsqueeze(1), multipliers, best)
        left = torch.where(better, misfit, left)
        if bool((left <= EXPLAINED * size).all()):
            break
    return best


def _least_squares(
    constraints: Constraints, gradient: Tensor, candidate: Tensor, rows: Tensor, units: Tensor, m: int
) -> Tensor:
    """Multipliers on candidate rows, nonnegative on the first m."""
    held, inverse, size = candidate.clone(), units**2, (units * gradient).norm(dim=1, keepdim=True)
    for _ in range(ROUNDS):
        _, multipliers = Projection(constraints, held, inverse, rows).reduce(-gradient)
        noise = 1e-12 * (multipliers * rows).abs().amax(1, keepdim=True) / rows
        dropped = held[:, :m] & (multipliers[:, :m] < -noise[:, :m])
        if bool(dropped.any()):
            held[:, :m] &= ~dropped
            continue
        misfit = constraints.push(inverse * (gradient + constraints.pull(multipliers)))[:, :m]
        small = 1e-8 * rows[:, :m] * size
        taken = candidate[:, :m] & ~held[:, :m] & (misfit < -small)
        if not bool(taken.any()):
            break
        held[:, :m] |= taken
    multipliers[:, :m] = multipliers[:, :m].clamp_min(0.0)
    return multipliers
