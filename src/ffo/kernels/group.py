"""Several samples in lanes: their data, points and residuals, and the KKT system of the interior-point method."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ffo.kernels import lanes
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import (
    ACOL,
    AROW,
    DIAGONAL,
    DIM,
    FAN,
    FANP,
    INV,
    KI,
    KIND,
    KP,
    LI,
    LP,
    NONNEG,
    OWNER,
    PCOL,
    PPOS,
    PROW,
    RI,
    ROTATED,
    RP,
    START,
    ZERO,
    Structure,
    part,
)  # fmt: skip  # isort: skip
from ffo.kernels.lanes import LANES, any_below, choose, clear, largest, load, magnitude, spread, sqrt, store
from ffo.kernels.point import FLOOR
from ffo.kernels.residuals import Data

Array = np.ndarray

#: regularisation: smaller than that of a face, since the weights span many orders of magnitude anyway; but the same for
#: curved cones: with 1e-9, factors of semidefinite programs without a quadratic term overflow
SHIFT, CURVED_SHIFT = 1e-9, 1e-7
#: square of the relative residual that refinement aims at; most refinements of a step
ACCURATE, REFINEMENTS = 1e-24, 4


class Samples(NamedTuple):
    """Several samples, all arrays (., LANES): data, point, residuals, direction; K equilibrated (its scale too),
    its factors, and right-hand side, solution and residual of its systems, in K's order; the scalings of curved blocks
    (`scaling`).

    An inequality that a sample lacks (b = inf) is replaced by 0'x <= 1.
    """

    Pv: Array
    q: Array
    Av: Array
    b: Array
    x: Array
    y: Array
    s: Array
    r_x: Array
    r_s: Array
    dx: Array
    dy: Array
    ds: Array
    Kx: Array
    scale: Array
    Lx: Array
    Dinv: Array
    rhs: Array
    z: Array
    left: Array
    w: Array
    eta: Array
    lam: Array
    u: Array
    R: Array
    B: Array


@inner_kernel
def empty_group(S: Structure, entries_P: int, entries_A: int) -> Samples:
    n, m, size = S.n, S.m, S.sign.size
    entries, below = part(S.slim, KI).size, part(S.slim, LI).size
    return Samples(
        _rows(entries_P), _rows(n), _rows(entries_A), _rows(m), _rows(n), _rows(m), _rows(m), _rows(n), _rows(m),
        _rows(n), _rows(m), _rows(m), _rows(entries), _rows(size), _rows(below), _rows(size), _rows(size), _rows(size),
        _rows(size), _rows(m), _rows(S.blocks), _rows(m), _rows(m), _rows(S.rotation), _rows(S.rotation),
    )  # fmt: skip


@inner_kernel
def _rows(count: int) -> Array:
    return np.empty((count, LANES))


@inner_kernel
def put_sample(S: Structure, G: Samples, lane: int, D: Data) -> None:
    """Write the data of a sample into a lane."""
    Arow = part(S.wide, AROW)
    for t in range(D.Pv.size):
        G.Pv[t, lane] = D.Pv[t]
    for j in range(S.n):
        G.q[j, lane] = D.q[j]
    for t in range(D.Av.size):
        G.Av[t, lane] = D.Av[t] if D.b[Arow[t]] < np.inf else 0.0
    for i in range(S.m):
        G.b[i, lane] = D.b[i] if D.b[i] < np.inf else 1.0


@inner_kernel
def take_sample(G: Samples, lane: int, b: Array, x: Array, y: Array, s: Array) -> None:
    """Read the answer from a lane."""
    for j in range(x.size):
        x[j] = G.x[j, lane]
    for i in range(y.size):
        here = b[i] < np.inf
        y[i], s[i] = G.y[i, lane] if here else 0.0, G.s[i, lane] if here else np.inf


@inner_kernel
def assemble(S: Structure, G: Samples) -> None:
    """K of the starting point, weights 1, equilibrated (Ruiz, three passes)."""
    Kp, Ki, diagonals = part(S.wide, KP), part(S.slim, KI), part(S.wide, DIAGONAL)
    Ppos, fan, fanp = part(S.wide, PPOS), part(S.wide, FAN), part(S.wide, FANP)
    Arow, owner = part(S.wide, AROW), part(S.wide, OWNER)
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    clear(G.Kx)
    for t in range(Ppos.size):
        store(G.Kx, Ppos[t], load(G.Kx, Ppos[t]) + load(G.Pv, t))
    for t in range(Arow.size):
        b = owner[Arow[t]]
        place = fan[fanp[t] + (Arow[t] - starts[b] if kinds[b] >= ROTATED else 0)]
        store(G.Kx, place, load(G.Kx, place) + load(G.Av, t))
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            store(G.Kx, diagonals[S.n + i], spread(0.0 if kinds[k] == ZERO else -1.0))
    for i in range(S.n + S.m, S.sign.size):
        store(G.Kx, diagonals[i], spread(1.0))
    for i in range(S.sign.size):
        store(G.scale, i, spread(1.0))
    for _ in range(3):
        clear(G.left)
        for j in range(S.sign.size):
            own, top = load(G.scale, j), load(G.left, j)
            for p in range(Kp[j], Kp[j + 1]):
                i = Ki[p]
                v = magnitude(load(G.Kx, p)) * load(G.scale, i) * own
                store(G.left, i, largest(load(G.left, i), v))
                top = largest(top, v)
            store(G.left, j, largest(load(G.left, j), top))
        for j in range(S.sign.size):
            top = load(G.left, j)
            store(G.scale, j, load(G.scale, j) / sqrt(choose(0.0, top, top, 1.0)))
    for j in range(S.sign.size):
        own = load(G.scale, j)
        for p in range(Kp[j], Kp[j + 1]):
            store(G.Kx, p, load(G.Kx, p) * load(G.scale, Ki[p]) * own)


@inner_kernel
def factor(S: Structure, G: Samples, curved: bool | None) -> None:
    Kp, Lp, Rp = part(S.wide, KP), part(S.wide, LP), part(S.wide, RP)
    Ki, Li, Ri = part(S.slim, KI), part(S.slim, LI), part(S.slim, RI)
    shift = SHIFT if curved is None else CURVED_SHIFT
    lanes.factor(Kp, Ki, Lp, Li, Rp, Ri, S.sign, G.Kx, shift, G.left, G.Lx, G.Dinv)


@inner_kernel
def solve(S: Structure, G: Samples, careful: bool) -> None:
    """dx, dy of the system with the right-hand side (dx, dy), refined if `careful`."""
    Lp, Li, inv = part(S.wide, LP), part(S.slim, LI), part(S.wide, INV)
    n, m, size = S.n, S.m, S.sign.size
    for j in range(n):
        store(G.rhs, inv[j], load(G.dx, j) * load(G.scale, inv[j]))
    for i in range(m):
        store(G.rhs, inv[n + i], load(G.dy, i) * load(G.scale, inv[n + i]))
    for k in range(n + m, size):
        store(G.rhs, inv[k], spread(0.0))
    for k in range(size):
        store(G.z, k, load(G.rhs, k))
    lanes.solve(Lp, Li, G.Lx, G.Dinv, G.z)
    if careful:
        _refine(S, G)
    for j in range(n):
        store(G.dx, j, load(G.z, inv[j]) * load(G.scale, inv[j]))
    for i in range(m):
        store(G.dy, i, load(G.z, inv[n + i]) * load(G.scale, inv[n + i]))


@inner_kernel
def _refine(S: Structure, G: Samples) -> None:
    """Refine z while its residual decreases in any lane."""
    Kp, Lp, Ki, Li = part(S.wide, KP), part(S.wide, LP), part(S.slim, KI), part(S.slim, LI)
    size = S.sign.size
    target = spread(0.0)
    for k in range(size):
        v = load(G.rhs, k)
        target += v * v
    target *= ACCURATE
    best = lanes.residual(Kp, Ki, G.Kx, G.z, G.rhs, G.left)
    step, after = np.empty((size, LANES)), np.empty((size, LANES))
    for _ in range(REFINEMENTS):
        if not any_below(target, best):
            break
        for k in range(size):
            store(step, k, load(G.left, k))
        lanes.solve(Lp, Li, G.Lx, G.Dinv, step)
        for k in range(size):
            store(step, k, load(step, k) + load(G.z, k))
        now = lanes.residual(Kp, Ki, G.Kx, step, G.rhs, after)
        for k in range(size):
            store(G.z, k, choose(now, best, load(step, k), load(G.z, k)))
            store(G.left, k, choose(now, best, load(after, k), 0.0))
        best = choose(now, best, now, 0.0)  # a lane without progress has ended


@inner_kernel
def residuals(S: Structure, G: Samples) -> tuple[Any, Any, Any]:
    """Writes r_x = -(Px + q + A'y), r_s = b - Ax - s; returns s'y, the size of the terms of the duality gap, and
    the sum of the squares of the residuals in the units of K."""
    Prow, Pcol, Arow, Acol = part(S.wide, PROW), part(S.wide, PCOL), part(S.wide, AROW), part(S.wide, ACOL)
    inv = part(S.wide, INV)
    n, m = S.n, S.m
    dot, qx, by, left = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
    for j in range(n):
        v = load(G.q, j)
        store(G.r_x, j, 0.0 - v)
        qx += magnitude(v * load(G.x, j))
    for i in range(m):
        b, s, y = load(G.b, i), load(G.s, i), load(G.y, i)
        store(G.r_s, i, b - s)
        by += magnitude(b * y)
        dot += s * y
    for t in range(Prow.size):
        i, j, v = Prow[t], Pcol[t], load(G.Pv, t)
        store(G.r_x, i, load(G.r_x, i) - v * load(G.x, j))
        if i != j:
            store(G.r_x, j, load(G.r_x, j) - v * load(G.x, i))
    for t in range(Arow.size):
        i, j, v = Arow[t], Acol[t], load(G.Av, t)
        store(G.r_x, j, load(G.r_x, j) - v * load(G.y, i))
        store(G.r_s, i, load(G.r_s, i) - v * load(G.x, j))
    for j in range(n):
        v = load(G.r_x, j) * load(G.scale, inv[j])
        left += v * v
    for i in range(m):
        v = load(G.r_s, i) * load(G.scale, inv[n + i])
        left += v * v
    return dot, largest(qx, by), left


@inner_kernel
def error(S: Structure, G: Samples) -> Any:
    """The largest residual in units of its row: the magnitudes of its terms."""
    Prow, Pcol, Arow, Acol = part(S.wide, PROW), part(S.wide, PCOL), part(S.wide, AROW), part(S.wide, ACOL)
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    n, m = S.n, S.m
    force, length, worst = spread(0.0), spread(0.0), spread(0.0)
    terms, rows = np.empty((n + m, LANES)), np.empty((m, LANES))
    clear(rows)
    for j in range(n):
        store(terms, j, magnitude(load(G.q, j)))
        length = largest(length, magnitude(load(G.x, j)))
    for i in range(m):
        store(terms, n + i, magnitude(load(G.b, i)))
    for t in range(Prow.size):
        i, j, v = Prow[t], Pcol[t], load(G.Pv, t)
        store(terms, i, load(terms, i) + magnitude(v * load(G.x, j)))
        if i != j:
            store(terms, j, load(terms, j) + magnitude(v * load(G.x, i)))
    for t in range(Arow.size):
        i, j, v = Arow[t], Acol[t], load(G.Av, t)
        store(terms, j, load(terms, j) + magnitude(v * load(G.y, i)))
        store(terms, n + i, load(terms, n + i) + magnitude(v * load(G.x, j)))
        store(rows, i, load(rows, i) + v * v)
    for j in range(n):
        force = largest(force, load(terms, j))
    for j in range(n):
        worst = largest(worst, _relative(load(G.r_x, j), load(terms, j) + FLOOR * force))
    total, count = spread(0.0), spread(0.0)
    for i in range(m):
        v = load(rows, i)
        total += v
        count += choose(0.0, v, 1.0, 0.0)
    typical = total / largest(count, spread(1.0))  # of rows of zeros
    for k in range(S.blocks):
        own = spread(0.0)  # all rows of a curved block have the same units
        for i in range(starts[k], starts[k] + dims[k]):
            own = largest(own, load(terms, n + i)) if kinds[k] > NONNEG else own
        for i in range(starts[k], starts[k] + dims[k]):
            v = load(rows, i)
            unit = largest(own, load(terms, n + i)) + FLOOR * length * sqrt(choose(0.0, v, v, typical))
            worst = largest(worst, _relative(load(G.r_s, i), unit))
    return worst


@inner_kernel
def _relative(residual: Any, unit: Any) -> Any:
    return choose(0.0, magnitude(residual), magnitude(residual) / unit, 0.0)
