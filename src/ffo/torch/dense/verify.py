"""Is a point on an active set the solution, and how far is its active set from another?

The same evidence as `ffo.ghost.certificate` asks for, gathered by batched operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DenseProgram, Point, Tensor, largest


@dataclass(frozen=True)
class Verdict:
    """(batch,) each: natural residual of the optimality conditions, and the smallest distance of a
    row or bound to a change of its state, both relative to the sizes of the sample."""

    natural: Tensor
    margin: Tensor


def verify(program: DenseProgram, point: Point, rows: Tensor, bounds: Tensor) -> Verdict:
    """Judge a point at an active set (see `DenseGhost` for `rows` and `bounds`)."""
    z, lam, mu = point.z, point.lam, point.mu
    norms = program.R.norm(dim=2).expand(program.batch, program.r)
    norms = torch.where(norms > 0, norms, torch.ones_like(norms))
    value = program.rows(z)
    Qz = program.curved(z)
    primal = torch.maximum(largest(z), largest(value / norms))
    dual = torch.stack([largest(program.p), largest(Qz), largest(lam * norms), largest(mu)]).amax(dim=0)
    primal, dual = _positive(primal), _positive(dual)
    stationarity = largest(program.stationarity(z, lam) + mu) / dual
    row = _sides(value, program.low, program.upp, lam, rows, program.equal)
    variable = _sides(z, program.lb, program.ub, mu, bounds, torch.zeros_like(z[0], dtype=torch.bool))
    violation = torch.maximum(largest(row.violation / norms) / primal, largest(variable.violation) / primal)
    wrong_sign = torch.maximum(largest(row.wrong_sign * norms) / dual, largest(variable.wrong_sign) / dual)
    margin = torch.minimum(
        _least(torch.minimum(row.slack / norms / primal.unsqueeze(1), row.pressure * norms / dual.unsqueeze(1))),
        _least(torch.minimum(variable.slack / primal.unsqueeze(1), variable.pressure / dual.unsqueeze(1))),
    )
    return Verdict(torch.stack([stationarity, violation, wrong_sign]).amax(dim=0), margin)


@dataclass(frozen=True)
class _Sides:
    """violation of the sides; multipliers of the wrong sign; slack of inactive sides and pressure
    (multiplier) of active ones, inf where neither is in question."""

    violation: Tensor
    wrong_sign: Tensor
    slack: Tensor
    pressure: Tensor


def _sides(value: Tensor, low: Tensor, upp: Tensor, multiplier: Tensor, side: Tensor, equal: Tensor) -> _Sides:
    above, below = value - upp, low - value
    infinite = torch.full_like(value, torch.inf)
    held = torch.where(side > 0, above.abs(), below.abs())
    outside = torch.maximum(above, below).clamp_min(0.0)  # of either side: bounds may cross
    violation = torch.where(side != 0, torch.maximum(held, outside), outside)
    wrong = torch.where(side > 0, -multiplier, multiplier).clamp_min(0.0)
    wrong = torch.where(equal | (side == 0), torch.zeros_like(wrong), wrong)
    slack = torch.where(side == 0, torch.minimum(-above, -below), infinite)
    pressure = torch.where((side != 0) & ~equal, multiplier.abs(), infinite)
    return _Sides(violation, wrong, slack, pressure)


def _positive(v: Tensor) -> Tensor:
    return torch.where(v > 0, v, torch.ones_like(v))


def _least(v: Tensor) -> Tensor:
    return v.amin(dim=1) if v.shape[1] else v.new_full((v.shape[0],), torch.inf)
