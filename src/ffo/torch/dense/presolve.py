"""Rows with a single entry as bounds: found once for a matrix shared by the batch, and undone in the outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import Tensor


@dataclass(frozen=True)
class SingleRows:
    """The rows of R with one entry, in the same column in all samples: `rows` (k,) by number, their columns (k,) and
    entries (batch or 1, k); `rest` are the others."""

    rows: Tensor
    columns: Tensor
    entries: Tensor
    rest: Tensor

    @classmethod
    def of(cls, R: Tensor, among: slice) -> SingleRows | None:
        """Those of R (batch or 1, r, n) among some rows, its inequalities; None if there are none."""
        if among.stop <= among.start:
            return None
        there = (R != 0).any(dim=0)
        single = (there.sum(dim=1) == 1) & (R != 0).any(dim=2).all(dim=0)
        single[: among.start] = single[among.stop :] = False
        rows = torch.nonzero(single).squeeze(1)
        if not len(rows):
            return None
        columns = there[rows].to(torch.int8).argmax(dim=1)
        return cls(rows, columns, R[:, rows, columns], torch.nonzero(~single).squeeze(1))


@dataclass(frozen=True)
class Owners:
    """Which single row each bound (batch, n) comes from, by its position among them; -1: from none."""

    single: SingleRows
    upper: Tensor
    lower: Tensor
    size: int

    def rows(self, of_bounds: Tensor, of_rest: Tensor, side: Tensor, per_entry: bool = True) -> Tensor:
        """Values at all rows (batch, r) from values at active bounds (batch, n) and at the other rows.

        Args:
            side: (batch, n) in {-1, 0, 1}, which bound is active.
            per_entry: whether a row's value is its bound's divided by the entry, as for multipliers; else only its sign
                changes if the entry is negative.
        """
        found = of_rest.new_zeros(len(of_rest), self.size)
        found[:, self.single.rest] = of_rest
        weight = 1 / self.single.entries if per_entry else self.single.entries.sign()
        value = of_bounds[:, self.single.columns] * weight.to(of_bounds.dtype)
        place = torch.arange(len(self.single.rows), device=side.device)
        owner = torch.where(side > 0, self.upper, self.lower)[:, self.single.columns]
        mine = (side[:, self.single.columns] != 0) & (owner == place)
        found[:, self.single.rows] = torch.where(mine, value, 0).to(found.dtype)
        return found

    def own(self, of_bounds: Tensor, side: Tensor) -> Tensor:
        """Values at bounds that were given as bounds (batch, n)."""
        owner = torch.where(side > 0, self.upper, self.lower)
        return torch.where(owner < 0, of_bounds, 0.0)

    def bounds(self, of_bounds: Tensor, of_rows: Tensor, side: Tensor) -> Tensor:
        """The adjoint of `rows` and `own`: values at bounds (batch, n) from values at given bounds and at all rows."""
        owner = torch.where(side > 0, self.upper, self.lower)
        value = of_rows[:, self.single.rows] / self.single.entries
        theirs = torch.gather(value, 1, owner.clamp_min(0))
        return torch.where(side == 0, 0.0, torch.where(owner < 0, of_bounds, theirs))


def with_bounds(
    single: SingleRows, low: Tensor, upp: Tensor, lb: Tensor, ub: Tensor
) -> tuple[Owners, Tensor, Tensor, Tensor, Tensor]:
    """Owners, the bounds of the other rows, and the bounds of variables (batch, n) including single rows."""
    a, b = upp[:, single.rows] / single.entries, low[:, single.rows] / single.entries
    negative = single.entries < 0
    above, below = torch.where(negative, b, a), torch.where(negative, a, b)
    new_ub, upper = _tightest(single.columns, above, ub)
    new_lb, lower = _tightest(single.columns, -below, -lb)
    owners = Owners(single, upper, lower, upp.shape[1])
    return owners, low[:, single.rest], upp[:, single.rest], -new_lb, new_ub


def _tightest(columns: Tensor, side: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """For each variable the smallest of its single rows' bounds (batch, k) and the given one (batch, n), and which one
    that is; in a tie the given one, then the first row."""
    where = columns.expand(len(side), -1)
    least = given.clone().scatter_reduce(1, where, side, "amin")
    place = torch.arange(side.shape[1], device=side.device).expand_as(side)
    none = side.shape[1]
    mine = torch.where(side == torch.gather(least, 1, where), place, none)
    first = torch.full_like(given, none, dtype=torch.long).scatter_reduce(1, where, mine, "amin")
    return least, torch.where((least == given) | (first == none), -1, first)
