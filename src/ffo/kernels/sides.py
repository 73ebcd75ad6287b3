"""The rows of a program in the form of solvers with bounds: equalities, general inequalities, bounds; and answers in
the program's own rows.

Bounds are rows with one entry. Of several upper (or lower) bounds of a variable the tightest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.jit import inner_kernel

Array = np.ndarray

#: Bounds that cross by less than this (relative) are rounding; by more, the problem is infeasible.
CROSSING = 1e-9
#: Distance to a bound, relative to it, that counts as rounding.
MEETING = 1e-14


class SideRows(NamedTuple):
    """Numbers of the rows, all int64.

    Attributes:
        rows: (r,) equalities, then inequalities that are not bounds.
        single: (k,) bounds; column: (k,) the variables they bound; coefficient: (batch or 1, k) their entries.
    """

    rows: Array
    single: Array
    column: Array
    coefficient: Array


class QPAnswer(NamedTuple):
    """The results for a batch.

    Attributes:
        x: (batch, n) the solution, or the last point if there is none.
        y: (batch, m) multipliers, those of inequalities nonnegative. For an infeasible sample, a proof of
        infeasibility. s: (batch, m) slacks, zero where multipliers are not, and in equalities.
        code, steps: (batch,) int64.
        residual: (batch,) that of all optimality conditions, in natural units.
        rho: (batch,) weight of the proximal term; 0 if Q is positive definite, -1 if it is indefinite.
        meets: (batch,) whether slack and multiplier of some inequality are both zero.
    """

    x: Array
    y: Array
    s: Array
    code: Array
    steps: Array
    residual: Array
    rho: Array
    meets: Array


class OneSample(NamedTuple):
    """Workspace for the right-hand sides of one sample: h (r,); lb, ub (n,), infinite if there is no bound, or (0,);
    tight (2n,) or (0,): the position of the tightest bound, for upper, then lower ones, -1 if there is none;
    multipliers (r + 2n,) or (r,) in this order, and slacks (r,)."""

    h: Array
    lb: Array
    ub: Array
    tight: Array
    multipliers: Array
    slacks: Array


@inner_kernel
def new_sides(R: SideRows, n: int) -> OneSample:
    r, bounds = R.rows.size, n if R.single.size else 0
    return OneSample(
        np.empty(r), np.empty(bounds), np.empty(bounds), np.empty(2 * bounds, np.int64), np.empty(r + 2 * bounds),
        np.empty(r),
    )  # fmt: skip


@inner_kernel
def load_sides(R: SideRows, b: Array, sample: int, one: OneSample) -> bool:
    """The right-hand sides of a sample, from its b (m,). True if bounds cross; lower ones are then moved down."""
    for i in range(one.h.size):
        one.h[i] = b[R.rows[i]]
    n = one.lb.size
    for j in range(n):
        one.lb[j], one.ub[j], one.tight[j], one.tight[n + j] = -np.inf, np.inf, -1, -1
    entry = R.coefficient[sample if R.coefficient.shape[0] > 1 else 0]
    for k in range(R.single.size):
        j, side = R.column[k], b[R.single[k]] / entry[k]
        if entry[k] > 0.0 and (side < one.ub[j] or one.tight[j] < 0):
            one.ub[j], one.tight[j] = side, k
        elif entry[k] < 0.0 and (side > one.lb[j] or one.tight[n + j] < 0):
            one.lb[j], one.tight[n + j] = side, k
    crossed = False
    for j in range(n):
        lb, ub = one.lb[j], one.ub[j]
        if lb > ub:
            crossed = crossed or lb > ub + CROSSING * max(1.0, min(abs(lb), abs(ub)))
            one.lb[j] = ub
    return crossed


@inner_kernel
def store_sides(R: SideRows, b: Array, sample: int, me: int, one: OneSample, x: Array, y: Array, s: Array) -> bool:
    """y and s (m,) of a sample from its multipliers and slacks; whether both are zero for some inequality."""
    meets, r, n = False, one.h.size, one.lb.size
    for i in range(r):
        row, value = R.rows[i], one.multipliers[i]
        y[row] = value if i < me else max(value, 0.0)
        s[row] = 0.0 if i < me or y[row] > 0.0 else max(one.slacks[i], 0.0)
        meets = meets or (i >= me and y[row] == 0.0 and s[row] <= MEETING * abs(b[row]))
    entry = R.coefficient[sample if R.coefficient.shape[0] > 1 else 0]
    for k in range(R.single.size):
        row, j, side = R.single[k], R.column[k], 0 if entry[k] > 0.0 else n
        held = one.tight[side + j] == k
        y[row] = max(one.multipliers[r + side + j], 0.0) / abs(entry[k]) if held else 0.0
        s[row] = 0.0 if y[row] > 0.0 else max(b[row] - entry[k] * x[j], 0.0)
        meets = meets or (y[row] == 0.0 and s[row] <= MEETING * abs(b[row]))
    return meets
