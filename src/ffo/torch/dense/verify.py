"""Is a point the solution, which constraints are active at it, and how far are they from a change?

The same evidence as `ffo.ghost.certificate` asks for, gathered by batched operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DenseProgram, Point, Tensor, added, largest, unit


@dataclass(frozen=True)
class Verdict:
    """What a point shows.

    Attributes:
        natural: (batch,) natural residual of the optimality conditions.
        margin: (batch,) smallest distance of a row or bound to a change of its state, both relative to
            the sizes of the sample.
        rows: (batch, r) in {-1, 0, 1}: active lower side, inactive, active upper side; bounds: (batch, n)
            the same for variables.
    """

    natural: Tensor
    margin: Tensor
    rows: Tensor
    bounds: Tensor


def judge(program: DenseProgram, point: Point) -> Verdict:
    """Judge a point, in units in which variables and costs have size 1."""
    z, norms = point.z, program.norms
    value, curved, lam = program.rows(z), program.curved(z), point.lam * norms
    length, costs = unit(z), (program.p, curved, lam)
    force = unit(*costs, point.mu) if program.bounded else unit(*costs)
    left = added(curved + program.p, program.R.mT, point.lam)
    low = program.low if program.two_sided or program.equalities else None
    rows = _Sides(value, low, program.upp, length * norms, lam / force)
    side, margin = rows.active, rows.margin
    if program.equalities:
        side, margin = torch.where(program.equal, 1, side), torch.where(program.equal, torch.inf, margin)
    if not program.bounded:
        conditions = torch.cat([left / force, rows.residual], dim=1)
        return Verdict(largest(conditions), _least(margin), side, torch.zeros_like(z, dtype=torch.int8))
    bounds = _Sides(z, program.lb, program.ub, length, point.mu / force)
    conditions = torch.cat([(left + point.mu) / force, rows.residual, bounds.residual], dim=1)
    return Verdict(largest(conditions), _least(torch.cat([margin, bounds.margin], dim=1)), side, bounds.active)


class _Sides:
    """low <= value <= upp in some unit, with multipliers, all (batch, k); low is None where no row has one.

    The side that is active is the one whose distance the multiplier exceeds (the rule of `ffo.ghost.face`).
    At a solution there is nothing in both: the residual is what the distances leave of the multiplier.
    """

    def __init__(self, value: Tensor, low: Tensor | None, upp: Tensor, unit: Tensor, multiplier: Tensor) -> None:
        above = (upp - value) / unit
        if low is None:
            self.active = (multiplier > above).to(torch.int8)
            self.residual = torch.minimum(multiplier, above)
            self.margin = torch.maximum(multiplier.abs(), above)
            return
        below = (value - low) / unit
        self.active = (multiplier > above).to(torch.int8) - (multiplier < -below).to(torch.int8)
        # Sides that cross can be kept to one at a time.
        self.residual = torch.maximum(multiplier.clamp(-below, above).abs(), -below)
        self.margin = torch.maximum(multiplier.abs(), torch.minimum(above, below))


def _least(v: Tensor) -> Tensor:
    return v.amin(dim=1) if v.shape[1] else v.new_full((v.shape[0],), torch.inf)
