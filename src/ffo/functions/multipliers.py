"""Multipliers of a point that came without: least squares on the constraints that are met.

    minimize | grad g + J'[lam; nu] |   over lam >= 0 of inequalities that are met, lam = 0 of the others.

At a solution where the gradients of active constraints are independent this is the only pair of multipliers
(the paper's appendix). Rows whose multiplier comes out negative are dropped, rows that would lower the misfit
are taken up again, until nothing changes.
"""

from __future__ import annotations

import torch

from ffo.functions.active import VANISHING, largest, row_norms
from ffo.functions.problem import Problem, Tensor
from ffo.functions.products import Constraints
from ffo.functions.projection import Projection

#: slack, relative to the size of the solution, up to which a constraint may be met
MET = 1e-4
ROUNDS = 20


def recover(problem: Problem, y: Tensor) -> Tensor:
    """Multipliers (batch, k) of y (batch, n)."""
    constraints = Constraints(problem, y)
    value, m = constraints.value, problem.inequalities
    multipliers = torch.zeros_like(value)
    if not value.shape[1]:
        return multipliers
    gradient = problem.gradient(y, multipliers)
    rows = row_norms(constraints, y)
    length = torch.maximum(largest(y), VANISHING * largest(value / rows)).unsqueeze(1)
    candidate = torch.ones_like(value, dtype=torch.bool)
    candidate[:, :m] = -value[:, :m] <= MET * rows[:, :m] * length
    held = candidate.clone()
    for _ in range(ROUNDS):
        multipliers = Projection(constraints, held, torch.ones_like(y), rows).multipliers(-gradient)
        noise = 1e-12 * (multipliers * rows).abs().amax(1, keepdim=True) / rows
        dropped = held[:, :m] & (multipliers[:, :m] < -noise[:, :m])
        if not bool(dropped.any()):
            misfit = constraints.push(gradient + constraints.pull(multipliers))[:, :m]
            small = 1e-8 * rows[:, :m] * gradient.norm(dim=1, keepdim=True)
            taken = candidate[:, :m] & ~held[:, :m] & (misfit < -small)
            if not bool(taken.any()):
                break
            held[:, :m] |= taken
        else:
            held[:, :m] &= ~dropped
    multipliers[:, :m] = multipliers[:, :m].clamp_min(0.0)
    return multipliers
