"""Is a point the solution, which constraints are active at it, and how far are they from a change?

The same evidence as `ffo.ghost.certificate` asks for, gathered by batched operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, added, largest, unit


@dataclass(frozen=True)
class Verdict:
    """What a point shows.

    Attributes:
        natural: (batch,) natural residual of the optimality conditions.
        margin: (batch,) smallest distance of a row or bound to a change of its state, both relative to
            the sizes of the sample.
        rows: (batch, r) in {-1, 0, 1}: active lower side, inactive, active upper side (boolean where there are
            no lower ones); bounds: (batch, n) the same for variables.
    """

    natural: Tensor
    margin: Tensor
    rows: Tensor
    bounds: Tensor


def judge(program: DenseProgram, point: DensePoint) -> Verdict:
    """Judge a point, in units in which variables and costs have size 1."""
    z, norms, lam = point.z, program.norms, point.lam * program.norms
    gradient = program.gradient(z)
    length, costs = unit(z), (program.p, gradient, lam)
    force = unit(*costs, point.mu) if program.bounded else unit(*costs)
    left = added(gradient, program.R.mT, point.lam)
    above = added(program.upp, program.R, z, -1.0)
    below = program.rows(z) - program.low if program.two_sided or program.equalities else None
    rows = _Sides(below, above, length * norms, lam / force)
    side, margin = rows.active, rows.margin
    if program.equalities:
        side, margin = torch.where(program.equal, 1, side), torch.where(program.equal, torch.inf, margin)
    if not program.bounded:
        conditions = torch.cat([left / force, rows.residual], dim=1)
        return Verdict(largest(conditions), _least(margin), side, torch.zeros_like(z, dtype=torch.int8))
    bounds = _Sides(z - program.lb, program.ub - z, length, point.mu / force)
    conditions = torch.cat([(left + point.mu) / force, rows.residual, bounds.residual], dim=1)
    return Verdict(largest(conditions), _least(torch.cat([margin, bounds.margin], dim=1)), side, bounds.active)


class _Sides:
    """Distances to lower and upper sides in some unit, with multipliers, all (batch, k); `below` is None where no
    row has a lower side.

    The side that is active is the one whose distance the multiplier exceeds (the rule of `ffo.kernels.point`).
    At a solution there is nothing in both: the residual is what the distances leave of the multiplier.
    """

    def __init__(self, below: Tensor | None, above: Tensor, unit: Tensor, multiplier: Tensor) -> None:
        above = above / unit
        if below is None:
            self.active = multiplier > above
            self.residual = torch.minimum(multiplier, above)
            self.margin = torch.maximum(multiplier.abs(), above)
            return
        below = below / unit
        self.active = (multiplier > above).to(torch.int8) - (multiplier < -below).to(torch.int8)
        # Sides that cross can be kept to one at a time.
        self.residual = torch.maximum(multiplier.clamp(-below, above).abs(), -below)
        self.margin = torch.maximum(multiplier.abs(), torch.minimum(above, below))


def _least(v: Tensor) -> Tensor:
    return v.amin(dim=1) if v.shape[1] else v.new_full((v.shape[0],), torch.inf)
