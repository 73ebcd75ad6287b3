"""Pivoting as one Triton kernel: one GPU program per sample runs all exchanges.

An exchange of `pivoting` as recorded operations is dominated by their launches and latencies (H200, a step of 100
variables and rows: 8.5 ms against 4.3 with this kernel at batch 128, 44 ms against 23 at batch 4096).
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
#: columns that are factorized together
BLOCK = 16
#: rows of a warp (batch 128 / 1024 of 100 rows: 32 rows take 0.69 / 2.5 ms, 64 take 0.82 / 1.8, 128 take 1.6 / 3.0)
PER_WARP = 64


def pivots(made: Whitened) -> Pivots:
    """The result of repeating `pivoting.step` until every sample has stopped."""
    batch, r = made.free.shape
    side = torch.empty(batch, r, dtype=torch.int8, device=made.free.device)
    lam = torch.empty_like(made.free, memory_format=torch.contiguous_format)
    ended, steps = torch.empty_like(side[:, 0]), torch.empty(batch, dtype=torch.long, device=side.device)
    width = max(BLOCK, triton.next_power_of_2(r + 1))
    factor = torch.empty(batch, width * width, dtype=lam.dtype, device=side.device)
    order = torch.empty(batch, width, dtype=torch.int32, device=side.device)
    target = torch.empty(batch, width, dtype=lam.dtype, device=side.device)
    program = made.program
    vectors = [v.contiguous() for v in (made.free, program.low, program.upp)]
    _pivots[(batch,)](
        made.gram.contiguous(), *vectors, side, lam, ended, steps, factor, order, target,
        r * r if len(made.gram) > 1 else 0, r, program.equalities, program.n,
        width, BLOCK, STEPS, PATIENCE, CALM, LARGE, NEGATIVE, VIOLATED, FLAT,
        num_warps=max(1, width // PER_WARP), num_stages=1,
    )  # fmt: skip
    done, none = ended == 1, torch.zeros_like(steps)
    return Pivots(side, lam, done, torch.ones_like(done), steps, none, none, torch.zeros_like(made.valid))


@triton.jit
def _factorize(gram, factor, order, target, i, count, r, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FLAT: tl.constexpr):
    """The Cholesky factor of the held rows, in columns of `BLOCK`, with L^-1 times the target as its row `count`; and
    whether a pivot vanished. `order` has the numbers of the held rows."""
    j = tl.arange(0, BLOCK)
    mine = tl.load(order + i, mask=i < count, other=0)
    flat = count * 0
    for block in range(tl.cdiv(count, BLOCK)):
        column = block * BLOCK + j
        there = column < count
        other = tl.load(order + column, mask=there, other=0)
        A = tl.load(gram + other[None, :] * r + mine[:, None], mask=(i < count)[:, None] & there[None, :], other=0.0)
        wanted = tl.load(target + column, mask=there, other=0.0)
        A = tl.where((i == count)[:, None], wanted[None, :], A)
        for earlier in range(block):
            known = factor + earlier * WIDTH * BLOCK
            left = tl.load(known + i[:, None] * BLOCK + j[None, :])
            right = tl.load(known + column[:, None] * BLOCK + j[None, :])
            A -= tl.dot(left, tl.trans(right))
        size = tl.load(gram + other * (r + 1), mask=there, other=1.0)
        for k in range(BLOCK):
            at, number = j == k, block * BLOCK + k
            row = tl.sum(tl.where((i == number)[:, None], A, 0.0), 0)
            pivot = tl.sum(tl.where(at, row, 0.0))
            low = (pivot <= FLAT * tl.sum(tl.where(at, size, 0.0))) & (number < count)
            flat = tl.maximum(flat, low.to(tl.int32))
            scale = 1.0 / tl.sqrt(tl.where(pivot > 0.0, pivot, 1.0))
            found = tl.sum(tl.where(at[None, :], A, 0.0), 1) * scale
            A -= found[:, None] * tl.where(j > k, row * scale, 0.0)[None, :]
            A = tl.where(at[None, :], found[:, None], A)
        A = tl.where((i[:, None] >= column[None, :]) & there[None, :], A, 0.0)
        tl.store(factor + block * WIDTH * BLOCK + i[:, None] * BLOCK + j[None, :], A)
        tl.debug_barrier()
    return flat


@triton.jit
def _substitute(factor, i, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """L'^-1 times the row `count` of the factor: the multipliers of the held rows."""
    j = tl.arange(0, BLOCK)
    lam = tl.zeros([WIDTH], tl.float64)
    blocks = tl.cdiv(count, BLOCK)
    for back in range(blocks):
        block = blocks - 1 - back
        column, known = block * BLOCK + j, factor + block * WIDTH * BLOCK
        L = tl.load(known + i[:, None] * BLOCK + j[None, :])
        rest = tl.load(known + count * BLOCK + j) - tl.sum(tl.where((i < count)[:, None], L * lam[:, None], 0.0), 0)
        corner = tl.load(known + column[:, None] * BLOCK + j[None, :])
        here = tl.zeros([BLOCK], tl.float64)
        for m in range(BLOCK):
            k = BLOCK - 1 - m
            at = j == k
            row = tl.sum(tl.where(at[:, None], corner, 0.0), 0)
            pivot = tl.sum(tl.where(at, row, 0.0))
            value = tl.sum(tl.where(at, rest, 0.0)) / tl.where(pivot > 0.0, pivot, 1.0)
            value = tl.where(block * BLOCK + k < count, value, 0.0)
            here = tl.where(at, value, here)
            rest -= value * row
        lam += tl.sum(tl.where(i[:, None] == column[None, :], here[None, :], 0.0), 1)
    return lam


@triton.jit
def _moved(gram, order, lam, i, count, r, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """W'W lam (WIDTH,), from the held rows of lam."""
    j = tl.arange(0, BLOCK)
    total = tl.zeros([WIDTH], tl.float64)
    for block in range(tl.cdiv(count, BLOCK)):
        there = block * BLOCK + j < count
        row = tl.load(order + block * BLOCK + j, mask=there, other=0)
        force = tl.load(lam + row, mask=there, other=0.0)
        D = tl.load(gram + row[None, :] * r + i[:, None], mask=(i < r)[:, None] & there[None, :], other=0.0)
        total += tl.sum(D * force[None, :], 1)
    return total


@triton.jit
def _hold(
    gram, factor, order, target, held, wanted, i, r, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FLAT: tl.constexpr
):  # fmt: skip
    """The multipliers (WIDTH,) with which the held rows move as wanted, how far all rows move, and whether a pivot
    vanished."""
    count, place = tl.sum(held.to(tl.int32)), tl.cumsum(held.to(tl.int32), 0) - 1
    tl.store(order + place, i, mask=held)
    tl.store(target + place, wanted, mask=held)
    tl.debug_barrier()
    flat = _factorize(gram, factor, order, target, i, count, r, WIDTH, BLOCK, FLAT)
    packed = _substitute(factor, i, count, WIDTH, BLOCK)
    tl.store(target + i, tl.zeros([WIDTH], tl.float64))
    tl.debug_barrier()
    tl.store(target + tl.load(order + i, mask=i < count, other=0), packed, mask=i < count)
    tl.debug_barrier()
    lam, moved = tl.load(target + i), _moved(gram, order, target, i, count, r, BLOCK, WIDTH)
    tl.debug_barrier()
    return lam, moved, flat


@triton.jit
def _pivots(
    grams, free, low, upp, side_out, lam_out, ended_out, steps_out, factors, orders, targets, stride, r, equalities, n,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr, PATIENCE: tl.constexpr, CALM: tl.constexpr,
    LARGE: tl.constexpr, NEGATIVE: tl.constexpr, VIOLATED: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """Repeats the rules of `pivoting.start` and `pivoting.step`."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, WIDTH)
    there = i < r
    gram, factor = grams + b * stride, factors + b * WIDTH * WIDTH
    order, target = orders + b * WIDTH, targets + b * WIDTH
    at_start = tl.load(free + b * r + i, mask=there, other=0.0)
    lower = tl.load(low + b * r + i, mask=there, other=float("-inf"))
    upper = tl.load(upp + b * r + i, mask=there, other=float("inf"))
    diagonal = tl.load(gram + i * (r + 1), mask=there, other=0.0)
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
        wanted = at_start - tl.where(side > 0, upper, lower)
        lam, moved, flat = _hold(gram, factor, order, target, held, wanted, i, r, WIDTH, BLOCK, FLAT)
        value, force = at_start - moved, lam * root
        leaves = held & ~equal & (side * force < -NEGATIVE * tl.max(tl.abs(force)))
        above, below = value - upper, lower - value
        size = VIOLATED * (tl.abs(at_start) + tl.abs(moved))
        over, under = above - VIOLATED * tl.abs(upper) > size, below - VIOLATED * tl.abs(lower) > size
        comes = ~held & (over | under)
        wrong = leaves | comes
        number = tl.sum(wrong.to(tl.int32))
        tries = tl.where(number < best, PATIENCE, tries - 1)
        best = tl.minimum(best, number)
        badness = tl.where(comes, tl.maximum(above, below) / root, tl.where(leaves, tl.abs(force), 0.0))
        most = badness >= LARGE * tl.max(badness)
        crowded = tl.sum((held & ~leaves | comes).to(tl.int32)) > n
        last = i == tl.max(tl.where(wrong, i, -1))
        few = crowded | (tries < PATIENCE - CALM)
        changes = wrong & tl.where(tries > 0, most | (few == 0), last)
        steps += 1
        ended = ((number == 0) & (flat == 0)).to(tl.int32)
        going = ((ended == 0) & (flat == 0) & (steps < STEPS)).to(tl.int32)
        side = tl.where(changes & (going == 1), tl.where(held, 0, tl.where(over, 1, -1)), side)
    tl.store(side_out + b * r + i, side.to(tl.int8), mask=there)
    tl.store(lam_out + b * r + i, lam, mask=there)
    tl.store(ended_out + b, ended.to(tl.int8))
    tl.store(steps_out + b, steps.to(tl.int64))
