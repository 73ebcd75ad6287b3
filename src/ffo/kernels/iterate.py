"""The iterates of Newton's method: moving between them, and judging them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.bundle import refer
from ffo.kernels.cones import power
from ffo.kernels.cones.rows import BOUNDARY
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import (
    ACOL,
    AROW,
    BOUND,
    DIM,
    INV,
    KIND,
    NONNEG,
    POWER,
    SECOND_ORDER,
    START,
    ZERO,
    Face,
    Full,
    Structure,
    part,
)
from ffo.kernels.point import WEAK, Sizes, clean, distance, judge, larger, sizes
from ffo.kernels.residuals import Data
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: largest size of A'd, relative to its terms, for a null vector d
CANCELLED = 1e-3
#: distance to another face up to which, and residual of an active row relative to its right-hand side from which on, a
#: converged point takes one more step
CLOSE, HELD = 1e-6, 1e-10
#: errors of a variable, relative to the largest one, that are removed at bounds
ROUNDING = 1e-13
#: fractions of a step to try if the full one failed
SHORTER = 0.5, 0.25, 0.1


class Iterate(NamedTuple):
    """An iterate: x, w = s - tau y, the cleaned pair y, s, and the residuals r_x and r_s there."""

    x: Array
    w: Array
    y: Array
    s: Array
    r_x: Array
    r_s: Array


@inner_kernel
def blank(S: Structure) -> Iterate:
    """An iterate in one piece of memory: of polishing one shortest path, allocation took a tenth of the time."""
    n, m, v = S.n, S.m, np.empty(2 * S.n + 4 * S.m)
    x, w, y, s = v[:n], v[n : n + m], v[n + m : n + 2 * m], v[n + 2 * m : n + 3 * m]
    return Iterate(x, w, y, s, v[n + 3 * m : 2 * n + 3 * m], v[2 * n + 3 * m :])


@inner_kernel
def copied(S: Structure, x: Array, y: Array, s: Array) -> Iterate:
    at = blank(S)
    copy(at.x, x)
    copy(at.y, y)
    copy(at.s, s)
    return at


@inner_kernel
def copy_point(source: Iterate, target: Iterate) -> None:
    copy(target.x, source.x)
    copy(target.w, source.w)
    copy(target.y, source.y)
    copy(target.s, source.s)
    copy(target.r_x, source.r_x)
    copy(target.r_s, source.r_s)


@inner_kernel
def move(S: Structure, D: Data, z: Sizes, here: Iterate, dx: Array, dy: Array, share: float, there: Iterate) -> bool:
    """x and w after a fraction `share` of a step; returns whether they are finite."""
    Arow, Acol = part(S.wide, AROW), part(S.wide, ACOL)
    x, w, b, Av, tau, old_x, old_y = there.x, there.w, D.b, D.Av, z.tau, here.x, here.y
    for j in range(S.n):
        x[j] = old_x[j] + share * dx[j]
    for i in range(S.m):
        w[i] = b[i] - tau[i] * (old_y[i] + share * dy[i])
    for t in range(Av.size):
        w[Arow[t]] -= Av[t] * x[Acol[t]]
    total = 0.0
    for j in range(S.n):
        total += x[j]
    for i in range(S.m):
        total += w[i] if b[i] < np.inf else 0.0
    return bool(np.isfinite(total))


@inner_kernel
def onto_bounds(S: Structure, D: Data, at: Iterate, face: Face) -> bool:
    """x_j = b_i / a_ij for every active scalar row with one entry; returns whether this moves x.

    A step fulfils such a row up to rounding errors of the largest variables, in which a bound of zero has no digits.
    Only these are removed: rows that contradict each other by more stay as they are.
    """
    bounds, Acol, x, rounding, moved = part(S.wide, BOUND), part(S.wide, ACOL), at.x, 0.0, False
    for j in range(S.n):
        rounding = max(rounding, ROUNDING * abs(x[j]))
    for i in range(S.m):
        if bounds[i] >= 0 and face.on[i] and D.Av[bounds[i]] != 0.0:
            j, side = Acol[bounds[i]], D.b[i] / D.Av[bounds[i]]
            if side != x[j] and abs(side - x[j]) <= rounding:
                x[j] = side
                moved = True
    return moved


@inner_kernel
def arrive(S: Structure, D: Data, z: Sizes, at: Iterate, face: Face, full: Full | None) -> float:
    """The face at an iterate's x and w, its cleaned pair and its residuals; returns the natural residual."""
    clean(S, at.w, z, at.s, at.y, face, full)
    return judge(S, D, z, at.x, at.y, at.s, at.r_x, at.r_s)


@inner_kernel
def shorten(
    S: Structure, D: Data, z: Sizes, here: Iterate, dx: Array, dy: Array, finite: bool, there: Iterate, face: Face,
    full: Full | None,
) -> bool:  # fmt: skip
    """Try shorter steps if the full one (at `there`, if it is finite) failed: moves to the one with the smallest merit;
    returns whether there is any."""
    best_share, best = 1.0, merit_of(S, z, there) if finite else np.inf
    for share in SHORTER:
        if move(S, D, z, here, dx, dy, share, there):
            arrive(S, D, z, there, face, full)
            merit = merit_of(S, z, there)
            if merit < best:
                best, best_share = merit, share
    return best < np.inf and move(S, D, z, here, dx, dy, best_share, there)


@inner_kernel
def set_out(S: Structure, D: Data, z: Sizes, given: Iterate, at: Iterate) -> None:
    """w of the given point."""
    for i in range(S.m):
        at.w[i] = np.inf if D.b[i] == np.inf else given.s[i] - z.tau[i] * given.y[i]


@inner_kernel
def through_rays(S: Structure, face: Face, at: Iterate) -> bool:
    """Change the weights of power cones close to a ray to those of the chord (see `power.secant`); returns whether
    there are any."""
    kinds, starts, found = part(S.wide, KIND), part(S.wide, START), False
    for k in range(S.blocks):
        if kinds[k] == POWER and face.case[k] == BOUNDARY:
            i = starts[k]
            factor = power.secant(at.s[i : i + 3], at.y[i : i + 3], S.alpha[k])
            face.delta[i + 1] *= factor
            found |= factor != 1.0
    return found


@inner_kernel
def judge_in(S: Structure, D: Data, z: Sizes, at: Iterate) -> float:
    """Natural residual of a point in given sizes."""
    return judge(S, D, refer(z), at.x, at.y, at.s, at.r_x, at.r_s)


@inner_kernel
def own_residual(S: Structure, D: Data, row: Array, at: Iterate) -> float:
    """Natural residual of a point in its own sizes."""
    return judge_in(S, D, sizes(S, D, row, at.x, at.y, at.s), at)


@inner_kernel
def to_zero(S: Structure, D: Data, row: Array, at: Iterate) -> bool:
    """x = 0 if x is rounding of the slacks, and the residual is not larger there, or is rounding and x could not come
    from the costs, which need curvature to balance them; returns whether this moves x."""
    length = slack = cost = curvature = 0.0
    for j in range(S.n):
        length = max(length, abs(at.x[j]))
        cost = max(cost, abs(D.q[j]))
    for i in range(S.m):
        slack = max(slack, abs(at.s[i]) if D.b[i] < np.inf else 0.0)
    if not 0.0 < length <= ROUNDING * slack:
        return False
    for v in D.Pv:
        curvature = max(curvature, abs(v))
    given, residual = at.x.copy(), own_residual(S, D, row, at)
    fill(at.x, 0.0)
    if own_residual(S, D, row, at) <= (residual if cost * curvature > 0.0 else max(residual, ROUNDING)):
        return True
    copy(at.x, given)
    return False


@inner_kernel
def as_it_is(S: Structure, D: Data, z: Sizes, given: Iterate, cleaned: Array, there: Iterate) -> float:
    """Natural residual of a given point that is not cleaned; `cleaned`: the slacks if it were. Overwrites the residuals
    there."""
    residual = judge(S, D, z, given.x, given.y, given.s, there.r_x, there.r_s)
    return max(residual, distance(S, z, given.s, cleaned))


@inner_kernel
def go_back(
    S: Structure, D: Data, z: Sizes, given: Iterate, here: Iterate, face: Face, there: Iterate, other: Face,
    full: Full | None,
) -> float:  # fmt: skip
    """Return to the given point if it is better than `here`: cleaned or as it is, since cleaning for a wrong face may
    cost more than the solver's error; returns the residual of complementarity. `there` and `other` are workspace."""
    found = own_residual(S, D, z.row, here)
    copy(there.x, given.x)
    set_out(S, D, z, given, there)
    clean(S, there.w, z, there.s, there.y, other, full)
    as_given = as_it_is(S, D, z, given, there.s, there)
    cleaned = own_residual(S, D, z.row, there)
    if cleaned < found:
        found = cleaned
        copy_point(there, here)
        copy_face(other, face)
    if as_given < found:
        copy_point(given, here)
        return as_given
    return 0.0


@inner_kernel
def cut_off(S: Structure, z: Sizes, most: float, y: Array) -> None:
    """Limit multipliers so that their forces do not exceed `most`; curved blocks are scaled as a whole."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            if kinds[k] > NONNEG:
                y[i] *= most / z.dual
            else:
                y[i] = min(max(y[i], -most / z.row[i]), most / z.row[i])


@inner_kernel
def let_go(S: Structure, D: Data, z: Sizes, scale: Array, at: Iterate, face: Face) -> bool:
    """If rows of the face contradict each other, the residual that a Newton step leaves in them is a null vector: A'd =
    0 for d = -scale^2 r_s. Multipliers move along it, which lowers b'y, until the first of them vanishes, and its row
    is released (a step of the dual simplex method). The row of a second-order block on its boundary is its normal, and
    the block is released. Writes w; returns whether there is such a row."""
    kinds, starts, dims, inv = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, INV)
    Arow, Acol, Av, d, t = part(S.wide, AROW), part(S.wide, ACOL), D.Av, np.zeros(S.m), np.inf
    for k in range(S.blocks):
        first, end = starts[k], starts[k] + dims[k]
        if kinds[k] == SECOND_ORDER and face.case[k] >= BOUNDARY and at.y[first] > 0.0:
            t = min(t, _along_normal(first, end, scale[inv[S.n + first]], at, face.u, d))
            continue
        for i in range(first, end):
            if at.s[i] == 0.0 and (kinds[k] == ZERO or at.y[i] > 0.0):
                d[i] = -(scale[inv[S.n + i]] ** 2) * at.r_s[i]
                if kinds[k] > NONNEG:
                    return False
                if kinds[k] == NONNEG and d[i] < 0.0:
                    t = min(t, at.y[i] / -d[i])
    image, terms = np.zeros(S.n), np.zeros(S.n)
    for e in range(Av.size):
        image[Acol[e]] += Av[e] * d[Arow[e]]
        terms[Acol[e]] += abs(Av[e] * d[Arow[e]])
    for j in range(S.n):
        if abs(image[j]) > CANCELLED * terms[j]:
            return False
    if not t < np.inf:
        return False
    for k in range(S.blocks):
        first = starts[k]
        for i in range(first, first + dims[k]):
            lead = first if kinds[k] > NONNEG else i  # a second-order block vanishes as a whole
            if d[lead] != 0.0:
                gone = d[lead] < 0.0 and at.y[lead] <= t * -d[lead]
                at.w[i] = at.s[i] + at.r_s[i] - (0.0 if gone else z.tau[i] * (at.y[i] + t * d[i]))
    return True


@inner_kernel
def _along_normal(first: int, end: int, scale: float, at: Iterate, u: Array, d: Array) -> float:
    """d of a second-order block on its boundary, whose row is (1, -u); the step after which its multiplier vanishes."""
    left = at.r_s[first]
    for i in range(first + 1, end):
        left -= u[i] * at.r_s[i]
    rate = -scale * scale * left
    d[first] = rate
    for i in range(first + 1, end):
        d[i] = -rate * u[i]
    return at.y[first] / -rate if rate < 0.0 else np.inf


@inner_kernel
def is_rough(S: Structure, D: Data, at: Iterate, face: Face) -> bool:
    """Whether one more step is due at a converged point, because of its scalar rows.

    Multipliers may have an error many times the residual: close to another face, it decides which one is right. A row
    with a small right-hand side beside large variables may have lost its digits.
    """
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    rough = False
    for k in range(S.blocks):
        if kinds[k] <= NONNEG:
            rough |= WEAK < face.margin[k] <= CLOSE
            for i in range(starts[k], starts[k] + dims[k]):
                rough |= at.s[i] == 0.0 and D.b[i] != 0.0 and abs(at.r_s[i]) > HELD * abs(D.b[i])
    return rough


@inner_kernel
def merit_of(S: Structure, z: Sizes, at: Iterate) -> float:
    """Largest residual in the sizes of the starting point: what steps from far away should reduce."""
    worst = 0.0
    for j in range(S.n):
        worst = larger(worst, at.r_x[j], z.dual)
    for i in range(S.m):
        worst = larger(worst, at.r_s[i], z.row[i] * z.primal)
    return worst


@inner_kernel
def copy_face(source: Face, target: Face) -> None:
    copy(target.on, source.on)
    copy(target.delta, source.delta)
    copy(target.u, source.u)
    copy(target.R, source.R)
    copy(target.case, source.case)
    copy(target.margin, source.margin)
