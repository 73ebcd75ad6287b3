"""Pivoting of small programs as one Triton kernel: one GPU program per sample, entirely in registers.

If `pivoting` runs operation by operation, even recorded, programs of ten variables are dominated by the launch time
of kernels (batch 4096: 3.4 of 3.7 ms on an H200).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, import-not-found"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ffo.kernels.pivoting import LARGE, NEGATIVE, VIOLATED
from ffo.torch.dense.pivoting import CALM, PATIENCE, STEPS, Pivots, Whitened

#: pivot, relative to the diagonal, below which rows count as dependent
FLAT = 1e-14


def pivots(made: Whitened) -> Pivots:
    """The result of repeating `pivoting.step` until every sample has stopped."""
    batch, r = made.free.shape
    side = torch.empty(batch, r, dtype=torch.int8, device=made.free.device)
    lam = torch.empty_like(made.free, memory_format=torch.contiguous_format)
    ended, steps = torch.empty_like(side[:, 0]), torch.empty(batch, dtype=torch.long, device=side.device)
    width = max(16, triton.next_power_of_2(r))
    program = made.program
    vectors = [v.contiguous() for v in (made.free, program.low, program.upp)]
    _pivots[(batch,)](
        made.gram.contiguous(), *vectors, side, lam, ended, steps, r * r if len(made.gram) > 1 else 0, r,
        program.equalities, program.n, width, STEPS, PATIENCE, CALM, LARGE, NEGATIVE, VIOLATED, FLAT,
        num_warps=1 if width <= 16 else 4,
    )  # fmt: skip
    done, none = ended == 1, torch.zeros_like(steps)
    return Pivots(side, lam, done, torch.ones_like(done), steps, none, none, torch.zeros_like(made.valid))


@triton.jit
def _solve(D, held, target, i, r, FLAT: tl.constexpr):
    """The solution of the system on the held rows by Gauss-Jordan elimination, and whether a pivot vanished. Rows that
    are not held are skipped."""
    both = held[:, None] & held[None, :]
    A = tl.where(both, D, 0.0) + tl.where((i[:, None] == i[None, :]) & ~held[:, None], 1.0, 0.0)
    size = tl.sum(tl.where(i[:, None] == i[None, :], A, 0.0), 1)
    y, flat = target, tl.sum(held.to(tl.int32)) * 0
    for k in range(r):
        at = i == k
        if tl.sum((at & held).to(tl.int32)) == 1:
            row = tl.sum(tl.where(at[:, None], A, 0.0), 0)
            column = tl.sum(tl.where(at[None, :], A, 0.0), 1)
            pivot = tl.sum(tl.where(at, row, 0.0))
            flat = tl.maximum(flat, (pivot <= FLAT * tl.sum(tl.where(at, size, 0.0))).to(tl.int32))
            share = tl.where(at, 0.0, column / pivot)
            A = A - share[:, None] * row[None, :]
            y = y - share * tl.sum(tl.where(at, y, 0.0))
    return y / tl.sum(tl.where(i[:, None] == i[None, :], A, 0.0), 1), flat


@triton.jit
def _pivots(
    gram, free, low, upp, side_out, lam_out, ended_out, steps_out, stride, r, equalities, n,
    WIDTH: tl.constexpr, STEPS: tl.constexpr, PATIENCE: tl.constexpr, CALM: tl.constexpr, LARGE: tl.constexpr,
    NEGATIVE: tl.constexpr, VIOLATED: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """Repeats the rules of `pivoting.start` and `pivoting.step`."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, WIDTH)
    there = i < r
    D = tl.load(gram + b * stride + i[:, None] * r + i[None, :], mask=there[:, None] & there[None, :], other=0.0)
    at_start = tl.load(free + b * r + i, mask=there, other=0.0)
    lower = tl.load(low + b * r + i, mask=there, other=float("-inf"))
    upper = tl.load(upp + b * r + i, mask=there, other=float("inf"))
    diagonal = tl.sum(tl.where(i[:, None] == i[None, :], D, 0.0), 1)
    root = tl.sqrt(tl.where(diagonal > 0.0, diagonal, 1.0))
    equal = i < equalities
    side = tl.where(equal, 1, 0)
    if (equalities == 0) & (r <= n):  # as in `pivoting.start`
        side = tl.where(at_start > upper, 1, 0) - tl.where(at_start < lower, 1, 0)
    lam = tl.zeros([WIDTH], tl.float64)
    none = tl.sum(equal.to(tl.int32)) * 0  # a zero on the device
    best, tries, steps, ended, going = none + r + 1, none + PATIENCE, none, none, none + 1
    while going == 1:
        held = side != 0
        target = tl.where(held, at_start - tl.where(side > 0, upper, lower), 0.0)
        lam, flat = _solve(D, held, target, i, r, FLAT)
        moved = tl.sum(D * lam[None, :], 1)
        value, force = at_start - moved, lam * root
        leaves = held & ~equal & (side * force < -NEGATIVE * tl.max(tl.abs(force)))
        above, below = value - upper, lower - value
        size = VIOLATED * (tl.abs(at_start) + tl.abs(moved))
        over, under = above - VIOLATED * tl.abs(upper) > size, below - VIOLATED * tl.abs(lower) > size
        comes = ~held & (over | under)
        wrong = leaves | comes
        count = tl.sum(wrong.to(tl.int32))
        tries = tl.where(count < best, PATIENCE, tries - 1)
        best = tl.minimum(best, count)
        badness = tl.where(comes, tl.maximum(above, below) / root, tl.where(leaves, tl.abs(force), 0.0))
        most = badness >= LARGE * tl.max(badness)
        crowded = tl.sum((held & ~leaves | comes).to(tl.int32)) > n
        last = i == tl.max(tl.where(wrong, i, -1))
        few = crowded | (tries < PATIENCE - CALM)
        changes = wrong & tl.where(tries > 0, most | (few == 0), last)
        steps += 1
        ended = ((count == 0) & (flat == 0)).to(tl.int32)
        going = ((ended == 0) & (flat == 0) & (steps < STEPS)).to(tl.int32)
        side = tl.where(changes & (going == 1), tl.where(held, 0, tl.where(over, 1, -1)), side)
    tl.store(side_out + b * r + i, side.to(tl.int8), mask=there)
    tl.store(lam_out + b * r + i, lam, mask=there)
    tl.store(ended_out + b, ended.to(tl.int8))
    tl.store(steps_out + b, steps.to(tl.int64))
