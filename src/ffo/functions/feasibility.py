"""Whether any point satisfies the constraints. Used only for samples that no solver could solve.

The sum of squared violations, each in units of its constraint's gradient, is minimized. If that ends at a stationary
point with a positive violation, no point nearby is feasible; for convex constraints, no point at all.
"""

from __future__ import annotations

import torch

from ffo.functions.active import largest, row_norms
from ffo.functions.lbfgs import minimize
from ffo.functions.problem import Problem, Tensor, pull
from ffo.functions.products import Constraints

#: violation, relative to the size of y, that counts as zero; and gradient of its square that counts as stationary
VIOLATED, FLAT = 1e-6, 1e-4
ITERATIONS = 500


def infeasible(problem: Problem, y: Tensor) -> Tensor:
    """(batch,) whether the violation has a positive minimum near y (batch, n)."""
    constraints = Constraints(problem, y)
    nothing = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    if not constraints.value.shape[1]:
        return nothing
    rows, m = row_norms(constraints, y), problem.inequalities

    def excess(at: Tensor) -> Tensor:
        scaled = problem.constraints(at) / rows
        return torch.cat([scaled[:, :m].clamp_min(0.0), scaled[:, m:]], dim=1)

    def objective(at: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            value = 0.5 * excess(at).square().sum(1)
            return value.detach(), pull(value.sum(), at)

    length = 1.0 + largest(y)
    found = minimize(objective, y, 1e-10 * length, ITERATIONS, torch.ones_like(y))
    with torch.no_grad():
        left = excess(found.y).norm(dim=1)
    return (left > VIOLATED * length) & (found.gradient.norm(dim=1) <= FLAT * left)
