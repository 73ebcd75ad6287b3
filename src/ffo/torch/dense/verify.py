"""Is a point the solution, which constraints are active at it, and how far are they from a change?

The same evidence as `ffo.ghost.certificate` asks for, gathered by batched operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DenseProgram, Point, Tensor, added, largest, positive


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
    length = positive(largest(torch.cat([z, value / norms], dim=1))).unsqueeze(1)
    costs = [program.p, curved, lam, point.mu] if program.bounded else [program.p, curved, lam]
    force = positive(largest(torch.cat(costs, dim=1))).unsqueeze(1)
    left = added(curved + program.p, program.R.mT, point.lam)
    unit = length * norms
    rows = _Sides(value / unit, program.low / unit, program.upp / unit, lam / force)
    side, margin = rows.active, rows.margin
    if program.equalities:
        side, margin = torch.where(program.equal, 1, side), torch.where(program.equal, torch.inf, margin)
    if not program.bounded:
        conditions = torch.cat([left / force, rows.residual], dim=1)
        return Verdict(largest(conditions), _least(margin), side, torch.zeros_like(z, dtype=torch.int8))
    bounds = _Sides(z / length, program.lb / length, program.ub / length, point.mu / force)
    conditions = torch.cat([(left + point.mu) / force, rows.residual, bounds.residual], dim=1)
    return Verdict(largest(conditions), _least(torch.cat([margin, bounds.margin], dim=1)), side, bounds.active)


class _Sides:
    """low <= value <= upp with multipliers, all (batch, k) and in comparable units: y = value + multiplier
    lies beyond the side that is active (the rule of `ffo.ghost.face`), and what pulling it back within the
    sides leaves of y - value is the multiplier, at a solution."""

    def __init__(self, value: Tensor, low: Tensor, upp: Tensor, multiplier: Tensor) -> None:
        y, below = value + multiplier, value - low
        self.active = (y > upp).to(torch.int8) - (y < low).to(torch.int8)
        # Sides that cross can be kept to one at a time.
        self.residual = torch.maximum((value - y.clamp(low, upp)).abs(), -below)
        self.margin = torch.maximum(torch.minimum(upp - value, below), multiplier.abs())


def _least(v: Tensor) -> Tensor:
    return v.amin(dim=1) if v.shape[1] else v.new_full((v.shape[0],), torch.inf)
