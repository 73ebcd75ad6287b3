"""Whether any point satisfies the constraints.

`contradicting` looks for a proof in the constraints held at a point: weights w, nonnegative on inequalities, with
B'w = 0 and w'c > 0 for their gradients B and values c. Convex constraints then satisfy w'c(y') >= w'c(y) > 0 at every
point y', so no point is feasible.

`infeasible` is used only for samples that no solver could solve. The sum of squared violations, each in units of its
constraint's gradient, is minimized. If that ends at a stationary point with a positive violation, no point nearby is
feasible; for convex constraints, no point at all.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls

from ffo.functions.active import largest, row_norms
from ffo.functions.ghost import Local
from ffo.functions.lbfgs import minimize
from ffo.functions.problem import Problem, Tensor, positive_part, value_and_gradient
from ffo.functions.products import Constraints
from ffo.functions.projection import FEW, Projection

#: violation, relative to the size of y, that counts as zero; and gradient of its square that counts as stationary
VIOLATED, FLAT = 1e-6, 1e-4
ITERATIONS = 500
#: w'c, in units of the constraints, that is more than rounding; distance, relative to the size of y, up to which the
#: proof must hold although B'w is not exactly zero
CONTRADICTION, REACH = 1e-11, 1e3


def contradicting(local: Local) -> Tensor:
    """(batch,) whether the constraints held at a point provably contradict each other.

    Only violated points with dependent gradients can have a proof; it is looked for among at most FEW constraints.
    """
    rows, size, held = local.sizes.rows, local.sizes.primal, local.active.held
    c = torch.where(held, local.defect, 0.0)
    found = (largest(c / rows) > CONTRADICTION * size) & (held.sum(1) > 1) & (held.sum(1) <= FEW)
    if bool(found.any()):
        found &= Projection(local.constraints, held, 1.0 / local.diagonal, rows).dependent
    samples = found.nonzero().squeeze(1)
    if not len(samples):
        return found
    w = torch.zeros_like(c)
    for k, B in zip(samples.tolist(), _gradients(local, samples), strict=True):
        mine, unit = held[k], rows[k][held[k]]
        free = mine[local.problem.inequalities :].sum()
        w[k, mine] = _weights(B / unit.unsqueeze(1), c[k, mine] / unit, int(free)) / unit
    left = (local.sizes.units * local.constraints.pull(w)).abs().sum(1)
    gain, weight = (w * c).sum(1), (w * rows).abs().sum(1)
    return found & (gain > CONTRADICTION * weight * size) & (gain > REACH * size * left)


def _gradients(local: Local, samples: Tensor) -> list[Tensor]:
    """The gradients (held rows, n) of the constraints held by each of some samples."""
    held = local.active.held
    found = held.new_zeros((len(samples), held.shape[1], local.y.shape[1]), dtype=local.y.dtype)
    for i in held[samples].any(0).nonzero().squeeze(1).tolist():
        one = torch.zeros_like(local.constraints.value)
        one[:, i] = 1.0
        found[:, i] = local.constraints.pull(one)[samples]
    return [B[held[k]] for B, k in zip(found, samples, strict=True)]


def _weights(B: Tensor, c: Tensor, free: int) -> Tensor:
    """The w (rows,), nonnegative but for the last `free` entries, with B'w = 0 and c'w = max |c|, in least squares."""
    columns = torch.cat([B, (c / c.abs().max()).unsqueeze(1)], dim=1).mT.cpu().numpy()
    last = columns[:, columns.shape[1] - free :]
    target = np.zeros(len(columns))
    target[-1] = 1.0
    try:
        w, _ = nnls(np.hstack([columns, -last]), target)
    except RuntimeError:  # too many iterations: no proof
        return torch.zeros_like(c)
    w[len(c) - free : len(c)] -= w[len(c) :]
    return torch.as_tensor(w[: len(c)], device=c.device)


def infeasible(problem: Problem, y: Tensor) -> Tensor:
    """(batch,) whether the violation has a positive minimum near y (batch, n)."""
    constraints = Constraints(problem, y)
    nothing = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    if not constraints.value.shape[1]:
        return nothing
    rows = row_norms(constraints, y)

    def excess(at: Tensor) -> Tensor:
        return positive_part(problem.constraints(at) / rows, problem.inequalities)

    def objective(at: Tensor) -> tuple[Tensor, Tensor]:
        return value_and_gradient(lambda y: 0.5 * excess(y).square().sum(1), at)

    length = 1.0 + largest(y)
    found = minimize(objective, y, 1e-10 * length, ITERATIONS, torch.ones_like(y))
    with torch.no_grad():
        left = excess(found.y).norm(dim=1)
    return (left > VIOLATED * length) & (found.gradient.norm(dim=1) <= FLAT * left)
