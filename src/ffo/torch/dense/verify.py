"""Is a point on an active set the solution, and how far is its active set from another?

The same evidence as `ffo.ghost.certificate` asks for, gathered by batched operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DenseProgram, Tensor, Terms, largest, positive


@dataclass(frozen=True)
class Verdict:
    """(batch,) each: natural residual of the optimality conditions, and the smallest distance of a
    row or bound to a change of its state, both relative to the sizes of the sample."""

    natural: Tensor
    margin: Tensor

    def joined(self, other: Verdict) -> Verdict:
        """The worse of two."""
        return Verdict(torch.maximum(self.natural, other.natural), torch.minimum(self.margin, other.margin))


def verify(program: DenseProgram, terms: Terms, rows: Tensor, bounds: Tensor) -> Verdict:
    """Judge a point at an active set (see `DenseGhost` for `rows` and `bounds`)."""
    point, norms = terms.point, program.norms
    length, force = positive(terms.primal).unsqueeze(1), positive(terms.dual).unsqueeze(1)
    sides = _Sides(terms.value, program.low, program.upp, point.lam, rows, program.equal)
    verdict = sides.judged(length * norms, force / norms)
    if program.bounded:
        free = torch.zeros(program.n, dtype=torch.bool, device=point.z.device)
        variables = _Sides(point.z, program.lb, program.ub, point.mu, bounds, free)
        verdict = verdict.joined(variables.judged(length, force))
    stationarity = largest((terms.curved + program.p + terms.pull + point.mu) / force)
    return Verdict(torch.maximum(stationarity, verdict.natural), verdict.margin)


@dataclass(frozen=True)
class _Sides:
    """low <= value <= upp with multipliers and the side each is active on, all (batch, k); `equal` (k,)."""

    value: Tensor
    low: Tensor
    upp: Tensor
    multiplier: Tensor
    side: Tensor
    equal: Tensor

    def judged(self, length: Tensor, force: Tensor) -> Verdict:
        """Violations and slacks in units of `length`, multipliers in units of `force`."""
        above, below = self.value - self.upp, self.low - self.value
        active, upper = self.side != 0, self.side > 0
        outside = torch.maximum(above, below)  # of either side: bounds may cross
        held = torch.where(upper, above, below).abs()
        violation = torch.maximum(outside.clamp_min(0.0), torch.where(active, held, torch.zeros_like(held)))
        pressure = torch.where(upper, self.multiplier, -self.multiplier) / force
        tested = active & ~self.equal
        wrong = torch.where(tested, -pressure, torch.zeros_like(pressure))
        slack = torch.where(active, torch.full_like(outside, torch.inf), -outside / length)
        distance = torch.where(tested, pressure.abs(), slack)
        natural = torch.maximum(violation / length, wrong)
        if not natural.shape[1]:
            return Verdict(natural.new_zeros(len(natural)), natural.new_full((len(natural),), torch.inf))
        return Verdict(natural.amax(dim=1), distance.amin(dim=1))
