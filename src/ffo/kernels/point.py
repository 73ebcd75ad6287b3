"""A point of one sample: its natural sizes, its face, and the residual by which it is judged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.cones import exponential, power, psd, soc
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import (
    AROW,
    DIM,
    EXPONENTIAL,
    EXTRA,
    KIND,
    NONNEG,
    PCOL,
    POWER,
    PROW,
    SECOND_ORDER,
    SEMIDEFINITE,
    START,
    ZERO,
    Face,
    Full,
    Structure,
    part,
)  # fmt: skip
from ffo.kernels.residuals import Data, residuals

Array = np.ndarray

#: least assumed size of the solution, relative to the sizes that the data implies
VANISHING = 1e-3
#: slacks count for the size of x up to the first multiple of it, right-hand sides and Newton's step up to the second: a
#: bound of 1e9 that is never active says nothing about x, nor does a step of 1e18 that constraints do not allow
FAR, FARTHEST = 1e3, 1e6
#: right-hand sides of this fraction of x are rounding errors of those who computed them (and without costs, the other
#: way round); an x of this fraction of the right-hand sides is zero, however it was computed (not larger: sides of 1e14
#: that mean infinity say nothing about x)
ROUNDING, NOTHING = 1e-13, 1e-18
#: fraction of the largest terms of a program by which a row with small terms of its own is judged; if ten times
#: smaller, rounding errors of other rows count against it. These terms count up to FAR times the size that the data
#: implies: else a point that diverges, or whose multipliers do, would excuse any violation
FLOOR = 1e-3
#: fraction of the terms of q'x and b'y by which the work of residuals is judged if they cancel each other; if ten times
#: smaller, rounding errors of large terms count
CANCELLING = 1e-6
#: relative distance to another face below which, and residual relative to that distance above which, a block may belong
#: to either face
WEAK, MARGIN_RATIO = 1e-9, 0.5


class Sizes(NamedTuple):
    """Natural sizes: of x, of the objective's gradient; tau (m,) and row (m,), both constant on curved blocks; and what
    the data alone implies for the first two, infinite where it implies nothing."""

    primal: float
    dual: float
    tau: Array
    row: Array
    implied_primal: float
    implied_dual: float


@inner_kernel
def row_norms(S: Structure, Av: Array) -> Array:
    """Euclidean norms of the rows of A; the root mean square over a curved block; typical where a row is zero."""
    kinds, starts, dims, Arow = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, AROW)
    row = np.zeros(S.m)
    for t in range(Av.size):
        row[Arow[t]] += Av[t] * Av[t]
    total, count = 0.0, 0
    for i in range(S.m):
        if row[i] > 0.0:
            total += row[i]
            count += 1
    typical = total / count if count else 1.0
    for i in range(S.m):
        if not row[i] > 0.0:
            row[i] = typical
    for b in range(S.blocks):
        first, d = starts[b], dims[b]
        if kinds[b] > NONNEG:
            mean = 0.0
            for i in range(first, first + d):
                mean += row[i] / d
            for i in range(first, first + d):
                row[i] = mean
    for i in range(S.m):
        row[i] = np.sqrt(row[i])
    return row


@inner_kernel
def _nearest_side(S: Structure, D: Data, row: Array, wanted: float) -> float:
    """The smallest distance |b_i| / |a_i| of a row from the origin, zero if all are zero.

    Every solution is at least as large as that of any equality; what is rounding beside it counts as zero. Inequalities
    that hold at the origin only limit x: alone, they count up to FAR times `wanted`, the size that the costs imply
    (zero if none).
    """
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    least, forcing, limiting = 0.0, np.inf, np.inf
    for k in range(S.blocks):
        if kinds[k] == ZERO:
            for i in range(starts[k], starts[k] + dims[k]):
                least = max(least, ROUNDING * abs(D.b[i]) / row[i])
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            distance = abs(D.b[i]) / row[i]
            if distance > least:
                if kinds[k] == NONNEG and D.b[i] > 0.0:
                    limiting = min(limiting, distance)
                else:
                    forcing = min(forcing, distance)
    if forcing == np.inf and limiting < np.inf and wanted > 0.0:
        return min(limiting, FAR * wanted)
    side = min(forcing, limiting)
    return 0.0 if side == np.inf else side


@inner_kernel
def _farthest_side(S: Structure, D: Data, row: Array) -> float:
    """The largest distance of an equality, or of an inequality that excludes the origin: x is as large."""
    kinds, starts, dims, most = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), 0.0
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            if kinds[k] == ZERO or (kinds[k] == NONNEG and D.b[i] < 0.0):
                most = max(most, abs(D.b[i]) / row[i])
    return most


@inner_kernel
def sizes(S: Structure, D: Data, row: Array, x: Array, y: Array, s: Array) -> Sizes:
    """The natural sizes at a point; `row`: `row_norms`. Identification compares s with tau y, tau_i = |a_i|^2 l / f:

        l = max(|x|, |s_i| / |a_i|),   f = max(|q|, |Px|, |y_i| |a_i|).

    If a solution vanishes, only noise would be left to measure with: a fraction of the sizes that the data implies
    bounds both from below, and so do the slacks of curved blocks that hold x (P >> 0 and P + S >> 0 at P = 0).
    """
    Prow, Pcol = part(S.wide, PROW), part(S.wide, PCOL)
    tau, Px = np.empty(S.m), np.zeros(S.n)
    curvature, column, value = 0.0, 0, 0.0
    for t in range(D.Pv.size):
        i, j, v = Prow[t], Pcol[t], D.Pv[t]
        curvature = max(curvature, abs(v))
        if j != column:
            Px[column] += value
            column, value = j, 0.0
        Px[i] += v * x[j]
        value += v * x[i] if i != j else 0.0
    if column < S.n:
        Px[column] += value
    length = gradient = bent = slack = 0.0
    for j in range(S.n):
        length = max(length, abs(x[j]))
        gradient = max(gradient, abs(D.q[j]))
        bent = max(bent, abs(Px[j]))
    force = max(gradient, bent)
    # not the size of multipliers: if they diverge, it would excuse any violation
    reach = force / curvature if curvature > 0.0 else 0.0
    for i in range(S.m):
        force = max(force, abs(y[i]) * row[i])
        if D.b[i] < np.inf:
            slack = max(slack, abs(s[i]) / row[i])
    wanted = gradient / curvature if curvature > 0.0 else 0.0
    side = _nearest_side(S, D, row, wanted if gradient > 0.0 else 1.0)  # x = 0 is as good without costs
    implied = max(wanted, side)
    reach = min(reach, FARTHEST * max(length, side)) if side > 0.0 else reach
    if length > (NOTHING if gradient > 0.0 else ROUNDING) * side:
        side = min(side, FARTHEST * length)
    least = VANISHING * max(reach, side)
    if least == 0.0 or (gradient == 0.0 and side == 0.0):
        least = 1.0  # b = 0, and P = 0 or q = 0: any length will do
    length = max(length, least)
    length = max(length, min(slack, FAR * length), _held_length(S, row, y, s, force))
    least = VANISHING * max(gradient, curvature * length)
    force = max(force, least if least > 0.0 else 1.0)
    ratio = length / force
    for i in range(S.m):
        tau[i] = row[i] * row[i] * ratio
    # Px of variables that constraints keep from zero, of which the nearest side says too little
    bent = min(bent, FAR * curvature * _farthest_side(S, D, row)) if bent > curvature * implied else 0.0
    implied_force = max(gradient, curvature * implied, bent)
    return Sizes(
        length, force, tau, row, implied if implied > 0.0 else np.inf, implied_force if implied_force > 0.0 else np.inf
    )


@inner_kernel
def _held_length(S: Structure, row: Array, y: Array, s: Array, force: float) -> float:
    """The largest slack |s_i| / |a_i| of curved blocks with a force, and so on their boundary: unlike that of an
    inactive row, however far away, it says in which units x is known."""
    kinds, starts, dims, length = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), 0.0
    for k in range(S.blocks):
        if kinds[k] > NONNEG:
            mine = slack = 0.0
            for i in range(starts[k], starts[k] + dims[k]):
                mine, slack = max(mine, abs(y[i]) * row[i]), max(slack, abs(s[i]) / row[i])
            if mine >= VANISHING * force:
                length = max(length, slack)
    return length


@inner_kernel
def clean(S: Structure, w: Array, z: Sizes, s: Array, y: Array, face: Face, full: Full | None) -> None:
    """Face at w = s - tau y, and the cleaned pair: s in K, y in K*, complementary. Margins are relative to |a| l.

    `full`: None if all cones are scalar. Numba then leaves out the code of the others.
    """
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    for k in range(S.blocks):
        kind, i, j = kinds[k], starts[k], starts[k] + dims[k]
        if kind <= NONNEG:
            face.case[k] = 0
            face.margin[k] = _clean_scalars(kind == ZERO, i, j, w, z, s, y, face)
        elif full is not None:
            _clean_curved(S, k, kind, i, j, w, z, s, y, face)


@inner_kernel
def _clean_curved(
    S: Structure, k: int, kind: int, i: int, j: int, w: Array, z: Sizes, s: Array, y: Array, face: Face
) -> None:
    """Block k, rows i to j, of a curved cone."""
    extra, tau, alpha = part(S.wide, EXTRA)[k], z.tau[i], S.alpha[k]
    on, delta = face.on[i:j], face.delta[i:j]
    code, margin = 0, 0.0
    if kind == SECOND_ORDER:
        code, margin = soc.face(w[i:j], tau, s[i:j], y[i:j], on, delta, face.u[i:j])
        if extra >= 0:
            face.on[S.m + extra] = 1 if code >= 2 else 0
    else:
        R = face.R[extra : extra + (j - i) ** 2]
        if kind == SEMIDEFINITE:
            code, margin = psd.face(w[i:j], tau, alpha, s[i:j], y[i:j], on, delta, R)
        elif kind == EXPONENTIAL:
            code, margin = exponential.face(w[i:j], tau, alpha, s[i:j], y[i:j], on, delta, R)
        elif kind == POWER:
            code, margin = power.face(w[i:j], tau, alpha, s[i:j], y[i:j], on, delta, R)
    for r in range(i, j):
        y[r] /= tau
    face.case[k], face.margin[k] = code, margin / (z.row[i] * np.sqrt(1.0 * (j - i)) * z.primal)


@inner_kernel
def _clean_scalars(equal: bool, i: int, j: int, w: Array, z: Sizes, s: Array, y: Array, face: Face) -> float:
    """Rows i to j of a scalar cone; the smallest relative distance to a change."""
    on, delta, tau, row, nearest = face.on, face.delta, z.tau, z.row, np.inf
    for r in range(i, j):
        active = equal or w[r] < 0.0
        on[r] = active
        delta[r] = 0.0
        s[r] = 0.0 if active else w[r]
        y[r] = -w[r] / tau[r] if active else 0.0
        if not equal:
            nearest = min(nearest, abs(w[r]) / (row[r] * z.primal))
    return nearest


@inner_kernel
def judge(S: Structure, D: Data, z: Sizes, x: Array, y: Array, s: Array, r_x: Array, r_s: Array) -> float:
    """The natural residual of a complementary pair s, y and x: every row in its own units. Writes r_x and r_s.

    A row's units are the magnitudes of its own terms, so that no large right-hand side elsewhere excuses it; rows of a
    curved block share theirs. Forces of dependent rows that cancel each other do not count as terms. If x or y diverge,
    their terms would excuse anything, but not the work x'r_x + y'r_s, which is the gap between primal and dual
    objective, relative to q'x and b'y and to what the data implies for both.
    NaN counts as infinite.
    """
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    a_x, a_s = residuals(S, D, x, y, s, r_x, r_s)
    if z.dual > FAR * z.implied_dual:
        _without_cancelling(S, D, FAR * z.implied_dual, x, a_x)
    length = 0.0
    for j in range(S.n):
        length = max(length, abs(x[j]))
    length, row = max(length, VANISHING * z.primal), z.row
    force, length = min(z.dual, FAR * z.implied_dual), min(length, FAR * z.implied_primal)
    worst, floor = 0.0, FLOOR * force
    left = costs = sides = terms = 0.0
    for j in range(S.n):
        worst = larger(worst, r_x[j], a_x[j] + floor)
        left += x[j] * r_x[j]
        costs += D.q[j] * x[j]
        terms += abs(D.q[j] * x[j])
    for i in range(S.m):
        if y[i] != 0.0:
            left += y[i] * r_s[i]
            sides += D.b[i] * y[i]
            terms += abs(D.b[i] * y[i])
    natural = min(z.dual, z.implied_dual) * min(length, z.implied_primal)
    worst = larger(worst, left, natural + abs(costs) + abs(sides) + CANCELLING * terms)
    floor = FLOOR * length
    for b in range(S.blocks):
        i, k = starts[b], starts[b] + dims[b]
        own = 0.0
        if kinds[b] > NONNEG:
            for r in range(i, k):
                own = max(own, a_s[r])
        for r in range(i, k):
            worst = larger(worst, r_s[r], max(own, a_s[r]) + floor * row[r])
    return worst


@inner_kernel
def _without_cancelling(S: Structure, D: Data, most: float, x: Array, a_x: Array) -> None:
    """Forces count up to `most`, and up to FAR times the other terms of the objective's gradient, |q| + |P||x|."""
    Prow, Pcol, own = part(S.wide, PROW), part(S.wide, PCOL), np.abs(D.q)
    for t in range(D.Pv.size):
        i, j = Prow[t], Pcol[t]
        own[i] += abs(D.Pv[t] * x[j])
        own[j] += abs(D.Pv[t] * x[i]) if i != j else 0.0
    for j in range(S.n):
        a_x[j] = min(a_x[j], most + FAR * own[j])


@inner_kernel
def distance(S: Structure, z: Sizes, s: Array, cleaned: Array) -> float:
    """How far a pair is from the cleaned one, in natural units; with `judge` at s and y as they are, the natural
    residual of a point that has not been cleaned.

    The residual of a scalar pair is the smaller one: the slack, or tau times the multiplier. A multiplier is compared
    with forces up to FAR times what the data implies: else others that diverge would excuse it.
    """
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    counted = min(1.0, FAR * z.implied_dual / z.dual)
    worst = 0.0
    for b in range(S.blocks):
        share = counted if kinds[b] == NONNEG else 1.0
        for i in range(starts[b], starts[b] + dims[b]):
            if s[i] != cleaned[i]:
                worst = larger(worst, s[i] - cleaned[i], z.row[i] * z.primal * (share if cleaned[i] > 0.0 else 1.0))
    return worst


@inner_kernel
def larger(worst: float, residual: float, unit: float) -> float:
    """max(worst, |residual| / unit); a plain maximum would hide a NaN."""
    if abs(residual) <= worst * unit:  # almost always: no division
        return worst
    value = abs(residual) / unit if residual != 0.0 else 0.0
    return value if value > worst or value != value else worst
