"""Whether a point is the solution, which constraints are active at it, and how far they are from a change.

These are the rules of `ffo.kernels.point` as batched operations: every row is judged in its own units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch

from ffo.kernels.point import CANCELLING, FAR, FARTHEST, FLOOR, NOTHING, ROUNDING, VANISHING
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, largest, only, times
from ffo.torch.dense.second_order import ConeLayout, split

INF = torch.inf
#: stands for units of zero
TINY = 1e-300


@dataclass(frozen=True)
class Verdict:
    """What a point shows.

    Attributes:
        natural: (batch,) natural residual of the optimality conditions.
        margin: (batch,) smallest distance of a row or bound to a change of its state, both relative to
            the sizes of the sample.
        rows: (batch, r) in {-1, 0, 1}: active lower bound, inactive, active upper bound; on the rows of a cone 1 at
            its apex, 2 on its boundary; bounds: (batch, n) the same for variables.
        slack, force: (batch, rows of cones) slacks and multipliers of the cones, moved to the nearest complementary
            pair.
    """

    natural: Tensor
    margin: Tensor
    rows: Tensor
    bounds: Tensor
    slack: Tensor
    force: Tensor


def judge(program: DenseProgram, point: DensePoint) -> Verdict:
    """Judge a point."""
    z, lam, mu = point.z, point.lam, point.mu
    curved, reached, k = program.curved(z), program.rows(z), program.r - program.curved_rows
    every = _Sides(program.upp - reached, reached - program.low, program.upp, program.low, lam, program.norms)
    sides = [every]
    if program.bounded:
        sides.append(_Sides(program.ub - z, z - program.lb, program.ub, program.lb, mu, torch.ones_like(z[:1, :1])))
    size = _sizes(program, z, curved, sides)
    left = curved + program.pull(lam) + mu + program.p  # p last: beside a large z that Q does not curve, Qz cancels
    Q, R = program.Q.abs(), program.R.abs()
    own = program.p.abs() + (Q * z.abs() if program.diagonal else times(Q, z.abs()))
    terms = own + times(R.mT, lam.abs()) + mu.abs()
    most = FAR * (size.implied_force.unsqueeze(1) + own)  # forces that cancel each other do not count as terms
    own = torch.where((size.force > FAR * size.implied_force).unsqueeze(1), torch.minimum(terms, most), terms)
    force, length = (
        torch.minimum(size.force, FAR * size.implied_force),
        torch.minimum(torch.maximum(largest(z), VANISHING * size.length), FAR * size.implied_length),
    )
    reach = times(R, z.abs())
    rows = [every.part(slice(0, k)).judged(size, length, reach[:, :k], program.equal[:, :k])]
    if program.bounded:
        rows.append(sides[1].judged(size, length, z.abs(), None))
    bounds = rows[1].active if program.bounded else torch.zeros_like(z, dtype=torch.int8)
    active, pair = rows[0].active, (z[:, :0], z[:, :0])
    if program.cones:
        on_cones, pair = every.part(slice(k, None)).on_cones(program.layout, size, length, reach[:, k:])
        rows.append(on_cones)
        active = torch.cat([active, on_cones.active], dim=1)
    costs = program.p * z
    work = torch.minimum(size.force, size.implied_force) * torch.minimum(length, size.implied_length)
    work = work + costs.sum(dim=1).abs() + sum(each.work for each in rows).abs()  # type: ignore[union-attr]
    work = work + CANCELLING * (costs.abs().sum(dim=1) + sum(each.terms for each in rows))
    loss = (left * z).sum(dim=1) + sum(each.loss for each in rows)
    parts = [_ratio(left, own + FLOOR * force.unsqueeze(1)), _ratio(loss, work).unsqueeze(1), *(r.worst for r in rows)]
    natural = torch.cat(parts, dim=1).nan_to_num(nan=INF).amax(dim=1)
    margin = reduce(torch.minimum, (each.margin for each in rows))
    return Verdict(natural, margin, active, bounds, *pair)


@dataclass(frozen=True)
class _Sizes:
    """Natural units (batch,): of z, of the objective's gradient, and what the data alone implies for both."""

    length: Tensor
    force: Tensor
    implied_length: Tensor
    implied_force: Tensor


@dataclass(frozen=True)
class _Judged:
    """Judgement of rows: the state of each (batch, k), residuals (batch, some), the distance to a change (batch,), and
    their contribution to the work done by residuals and by the data, and the sum of its terms."""

    active: Tensor
    worst: Tensor
    margin: Tensor
    loss: Tensor
    work: Tensor
    terms: Tensor


@dataclass(frozen=True)
class _Sides:
    """Rows (batch, k): distances to their upper and lower bounds, the bounds, multipliers, and norms of the rows."""

    above: Tensor
    below: Tensor
    upp: Tensor
    low: Tensor
    multiplier: Tensor
    norms: Tensor

    def judged(self, size: _Sizes, length: Tensor, reach: Tensor, equal: Tensor | None) -> _Judged:
        """Args: length (batch,) of z by which rows are judged; reach (batch, k): sizes of the terms of a row."""
        unit = self.norms * size.length.unsqueeze(1)
        above, below = self.above / unit, self.below / unit
        pull = self.multiplier * self.norms / size.force.unsqueeze(1)
        state = (pull > above).to(torch.int8) - (pull < -below).to(torch.int8)
        margin = torch.minimum((above - pull).abs(), (below + pull).abs())
        if equal is not None:
            state, margin = torch.where(equal, 1, state).to(torch.int8), torch.where(equal, INF, margin)
        side = torch.where(state > 0, self.upp, only(state < 0, self.low))
        gap = torch.where(state > 0, self.above, only(state < 0, -self.below))
        broken = torch.maximum(-self.above, -self.below)  # of bounds that cross only one can hold
        short = torch.maximum(gap.abs(), broken.clamp_min(0.0))
        own = side.abs() + reach + FLOOR * length.unsqueeze(1) * self.norms
        counted = torch.clamp(FAR * size.implied_force / size.force, max=1.0).unsqueeze(1)
        idle = only(state == 0, pull.abs()) / counted
        wrong = only(~equal if equal is not None else state != 0, (-state * pull).clamp_min(0.0)) / counted
        met = only(state != 0, _ratio(gap, unit))
        met = met if equal is None else only(~equal, met)
        parts = torch.cat([_ratio(short, own), idle, wrong, met.abs()], dim=1)
        held = only(state != 0, self.multiplier)
        return _Judged(
            state, parts, margin.amin(dim=1) if margin.shape[1] else margin.new_full((len(margin),), INF),
            -(held * gap).sum(dim=1), (held * side).sum(dim=1), (held * side).abs().sum(dim=1),
        )  # fmt: skip

    def part(self, which: slice) -> _Sides:
        """Some of the rows."""
        return _Sides(*(v[:, which] for v in vars(self).values()))

    def on_cones(
        self, cones: ConeLayout, size: _Sizes, length: Tensor, reach: Tensor
    ) -> tuple[_Judged, tuple[Tensor, Tensor]]:
        """The judgement of rows of cones, which share their units, and the nearest complementary pair."""
        unit = self.norms * size.length.unsqueeze(1)
        tau = self.norms * unit / size.force.unsqueeze(1)
        found = split(cones, self.above - tau * self.multiplier)
        gap = self.above - found.s  # also tau times the change of the multiplier
        terms = torch.zeros_like(found.margin)
        terms = terms.scatter_reduce(1, cones.of.expand(len(terms), -1), self.upp.abs() + reach, "amax")
        own = cones.spread(terms) + FLOOR * length.unsqueeze(1) * self.norms
        margin = found.margin / (cones.heads(unit) * cones.sizes.sqrt())
        judged = _Judged(
            cones.spread(found.case), torch.cat([_ratio(gap, own), _ratio(gap, unit)], dim=1), margin.amin(dim=1),
            -(self.multiplier * gap).sum(dim=1), (self.multiplier * self.upp).sum(dim=1),
            (self.multiplier * self.upp).abs().sum(dim=1),
        )  # fmt: skip
        return judged, (found.s, found.v / tau)

    def farthest(self) -> Tensor:
        """(batch,) the largest distance to a bound, in units of z."""
        far = torch.maximum(_finite(self.upp, self.above), _finite(self.low, self.below))
        return largest(far / self.norms)

    def known(self) -> Tensor:
        """(batch,) the largest bound of an equality: every solution is at least as large."""
        return largest(only(self.upp == self.low, self.upp / self.norms))

    def nearest(self, least: Tensor, cones: int) -> Tensor:
        """(batch, 2) the smallest bounds above `least` (batch,), in units of z: of those that z = 0 satisfies, and of
        the others, to which the last rows, of cones, belong; infinite if there is none."""
        both = torch.cat([self.low.abs() / self.norms, self.upp.abs() / self.norms], dim=1)
        both = torch.where(both > least.unsqueeze(1), both, INF)
        loose = torch.cat([self.low < 0, self.upp > 0], dim=1) & (self.low != self.upp).repeat(1, 2)
        loose[:, loose.shape[1] - cones :] = False
        apart = torch.stack([torch.where(loose, both, INF), torch.where(loose, INF, both)], dim=1)
        return apart.amin(dim=2) if both.shape[1] else both.new_full((len(both), 2), INF)

    def force(self) -> Tensor:
        return largest(self.multiplier * self.norms)


def _sizes(program: DenseProgram, z: Tensor, curved: Tensor, sides: list[_Sides]) -> _Sizes:
    """See `ffo.kernels.point.sizes`."""
    curvature = program.curvature
    length, gradient = largest(z), largest(program.p)
    bent = largest(curved)
    force = torch.maximum(bent, gradient)
    reach = only(curvature > 0, force / curvature)
    slack = reduce(torch.maximum, (each.farthest() for each in sides))
    known = reduce(torch.maximum, (each.known() for each in sides))
    least = ROUNDING * known
    cones = [program.curved_rows, 0]
    nearest = (each.nearest(least, some) for each, some in zip(sides, cones, strict=False))
    limiting, forcing = reduce(torch.minimum, nearest).unbind(dim=1)
    wanted = only(curvature > 0, gradient / curvature)
    most = torch.where(gradient > 0, FAR * wanted, FAR)
    alone = (forcing == INF) & (most > 0) & (limiting < INF)
    side = torch.minimum(torch.where(alone, most, forcing), limiting)
    side = only(side < INF, side)
    force = reduce(torch.maximum, (each.force() for each in sides), force)
    implied = torch.maximum(wanted, side)
    reach = torch.where(side > 0, torch.minimum(reach, FARTHEST * torch.maximum(length, side)), reach)
    nothing = torch.where(gradient > 0, NOTHING, ROUNDING) * side
    side = torch.where(length > nothing, torch.minimum(side, FARTHEST * length), side)
    least = VANISHING * torch.maximum(reach, side)
    least = torch.where((least == 0) | ((gradient == 0) & (side == 0)), 1.0, least)
    length = torch.maximum(length, least)
    length = torch.maximum(length, torch.minimum(slack, FAR * length))
    least = VANISHING * torch.maximum(gradient, curvature * length)
    force = torch.maximum(force, torch.where(least > 0, least, 1.0))
    implied_force = torch.maximum(
        gradient, torch.maximum(curvature * implied, torch.minimum(bent, FAR * curvature * known))
    )
    return _Sizes(length, force, *(torch.where(v > 0, v, INF) for v in (implied, implied_force)))


def _finite(side: Tensor, v: Tensor) -> Tensor:
    return only(side.isfinite(), v.abs())


def _ratio(v: Tensor, unit: Tensor) -> Tensor:
    """|v| / unit, zero where v is."""
    return v.abs() / unit.clamp_min(TINY)
