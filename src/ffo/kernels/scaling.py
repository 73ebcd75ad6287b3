"""Nesterov-Todd scalings of cone blocks in lanes: what the interior-point method needs to know about a cone.

The scaling W of a block takes its slack s and its multiplier y to one point, W^-T s = W y = lambda. K has -W'W in place
of the weights -s / y. On the pattern of the ghost system it takes the form T'^-1 delta T^-1, with rows T as of a face:

Second-order cone: W'W = eta^2 (2ww' - J), J = diag(1, -1, ..), w'Jw = 1. With f = 2 w0^2 - 1 and u = 2 w0 w1 / f the
row a0 - u'A1 has the weight eta^2 / f, the rows A1 have eta^2, and the auxiliary unknown the column w1 / |w1| and the
diagonal entry 1 / (2 eta^2 |w1|^2).

Semidefinite cone: W'W takes Y to GYG, G = BB', B = LU lambda^-1/2 with the singular values R'L = V lambda U' of
S = LL' and Y = RR'. With vectors t_i for which t_i'B are orthogonal, and the squares g_i of their lengths, its rows are
the pairs t_i t_j' + t_j t_i', of weight g_i g_j.

Exponential cones are not symmetric, and have their own scaling (`barrier`).

As mu tends to 0, all tend to the ghost system of the face.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.kernels import barrier, semidefinite
from ffo.kernels.group import Samples
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import (
    ACOL,
    AROW,
    COUPLING,
    DIAGONAL,
    DIM,
    EXPONENTIAL,
    EXTRA,
    FAN,
    FANP,
    INV,
    KIND,
    NONNEG,
    OWNER,
    ROTATED,
    SECOND_ORDER,
    START,
    ZERO,
    Structure,
    part,
)
from ffo.kernels.lanes import choose, largest, load, spread, sqrt, store

Array = np.ndarray

#: square of |w1| below which the auxiliary unknown of a second-order block has no effect
CENTRAL = 1e-20


@inner_kernel
def _norm(v: Array, i: int, j: int) -> Any:
    """Norm of the rows i + 1 to j."""
    total = spread(0.0)
    for r in range(i + 1, j):
        total += load(v, r) * load(v, r)
    return sqrt(total)


@inner_kernel
def _root(v: Array, i: int, j: int) -> Any:
    """sqrt(v'Jv)."""
    v0, n = load(v, i), _norm(v, i, j)
    return sqrt((v0 - n) * (v0 + n))


@inner_kernel
def _scale_second_order(S: Structure, G: Samples, k: int, i: int, j: int) -> None:
    """w, eta, lambda and u of a block; its weights, column and corner in K."""
    diagonals, inv, couplings = part(S.wide, DIAGONAL), part(S.wide, INV), part(S.wide, COUPLING)
    ns, ny, dot = _root(G.s, i, j), _root(G.y, i, j), spread(0.0)
    for r in range(i, j):
        dot += load(G.s, r) * load(G.y, r)
    gamma, square = 2.0 * sqrt(0.5 + 0.5 * dot / (ns * ny)), spread(0.0)
    for r in range(i + 1, j):
        v = (load(G.s, r) / ns - load(G.y, r) / ny) / gamma
        store(G.w, r, v)
        square += v * v
    w0, eta = sqrt(1.0 + square), sqrt(ns / ny)
    f, weight = 1.0 + 2.0 * square, ns / ny
    store(G.w, i, w0)
    store(G.eta, k, eta)
    store(G.u, i, 0.0)
    extra = part(S.wide, EXTRA)[k]
    square = choose(CENTRAL, square, square, CENTRAL)
    length = sqrt(square)
    for r in range(i, j):
        own = inv[S.n + r]
        scale = load(G.scale, own)
        if r > i:
            store(G.u, r, 2.0 * w0 * load(G.w, r) / f)
        delta = weight / f if r == i else weight if extra >= 0 else weight * f
        store(G.Kx, diagonals[S.n + r], 0.0 - delta * scale * scale)
        if couplings[r] >= 0:
            column = load(G.scale, inv[S.n + S.m + extra])
            store(G.Kx, couplings[r], 0.0 - load(G.w, r) / length * scale * column)
    if extra >= 0:
        scale = load(G.scale, inv[S.n + S.m + extra])
        store(G.Kx, diagonals[S.n + S.m + extra], 0.5 / (weight * square) * scale * scale)
    _apply(G, k, i, j, G.y, G.lam, 1.0)


@inner_kernel
def _apply(G: Samples, k: int, i: int, j: int, v: Array, out: Array, sign: float) -> None:
    """out := W v (sign 1), or W^-1 v (sign -1), on the rows i to j of a second-order block."""
    eta, w0, v0, dot = load(G.eta, k), load(G.w, i), load(v, i), spread(0.0)
    factor = eta if sign > 0.0 else 1.0 / eta
    for r in range(i + 1, j):
        dot += load(G.w, r) * load(v, r)
    top = sign * v0 + dot / (1.0 + w0)
    store(out, i, factor * (w0 * v0 + sign * dot))
    for r in range(i + 1, j):
        store(out, r, factor * (load(v, r) + load(G.w, r) * top))


@inner_kernel
def _aim_second_order(G: Samples, k: int, i: int, j: int, target: Any) -> None:
    """dy := W (lambda \\ (target e - (W^-1 ds) o (W dy)))."""
    a, v = G.ds, G.dy
    _apply(G, k, i, j, G.ds, a, -1.0)
    _apply(G, k, i, j, G.dy, v, 1.0)
    a0, v0, l0, dot, mixed, square = load(a, i), load(v, i), load(G.lam, i), spread(0.0), spread(0.0), spread(0.0)
    for r in range(i, j):
        dot += load(a, r) * load(v, r)
    for r in range(i + 1, j):
        c = 0.0 - (a0 * load(v, r) + v0 * load(a, r))
        store(a, r, c)
        mixed += load(G.lam, r) * c
        square += load(G.lam, r) * load(G.lam, r)
    length = sqrt(square)
    first = (l0 * (target - dot) - mixed) / ((l0 - length) * (l0 + length))
    store(a, i, first)
    for r in range(i + 1, j):
        store(a, r, (load(a, r) - first * load(G.lam, r)) / l0)
    _apply(G, k, i, j, a, v, 1.0)


@inner_kernel
def _boundary_second_order(i: int, j: int, v: Array, d: Array) -> Any:
    """1 / the step from v along d to the boundary, negative if there is none: in the units in which v is e."""
    size, n = _root(v, i, j), spread(0.0)
    v0, d0, dot = load(v, i) / size, load(d, i), spread(0.0)
    for r in range(i + 1, j):
        dot += load(v, r) * load(d, r)
    first = v0 * d0 - dot / size
    factor = (first + d0) / (v0 + 1.0) / size
    for r in range(i + 1, j):
        c = load(d, r) - factor * load(v, r)
        n += c * c
    return (sqrt(n) - first) / size


@inner_kernel
def scale(S: Structure, G: Samples) -> None:
    """The scalings of curved blocks, and what they change in K."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    diagonals, inv = part(S.wide, DIAGONAL), part(S.wide, INV)
    for k in range(S.blocks):
        i, j = starts[k], starts[k] + dims[k]
        if kinds[k] == SECOND_ORDER:
            _scale_second_order(S, G, k, i, j)
        elif kinds[k] >= ROTATED:
            if kinds[k] == EXPONENTIAL:
                barrier.scale(G, i, extras[k])
            else:
                semidefinite.scale(G, i, dims[k], extras[k])
            for r in range(i, j):
                own = load(G.scale, inv[S.n + r])
                store(G.Kx, diagonals[S.n + r], 0.0 - load(G.u, r) * own * own)
    _rotate(S, G)


@inner_kernel
def _rotate(S: Structure, G: Samples) -> None:
    """The rows T A of curved blocks in K."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    owner, inv, fan, fanp = part(S.wide, OWNER), part(S.wide, INV), part(S.wide, FAN), part(S.wide, FANP)
    Arow, Acol = part(S.wide, AROW), part(S.wide, ACOL)
    for turn in range(2):  # clear, then add: entries share positions
        for t in range(Arow.size):
            i, f = Arow[t], fanp[t]
            b = owner[i]
            first, d = starts[b], dims[b]
            if kinds[b] == SECOND_ORDER:
                if turn == 0:
                    store(G.Kx, fan[f + 1], spread(0.0))
                else:
                    v = load(G.Av, t) * load(G.scale, inv[S.n + first]) * load(G.scale, inv[Acol[t]])
                    share = spread(1.0) if i == first else 0.0 - load(G.u, i)
                    store(G.Kx, fan[f + 1], load(G.Kx, fan[f + 1]) + share * v)
            elif kinds[b] >= ROTATED:
                v, offset = load(G.Av, t) * load(G.scale, inv[Acol[t]]), extras[b] + i - first
                for r in range(d):
                    if turn == 0:
                        store(G.Kx, fan[f + r], spread(0.0))
                    else:
                        row = load(G.R, offset + r * d) * load(G.scale, inv[S.n + first + r])
                        store(G.Kx, fan[f + r], load(G.Kx, fan[f + r]) + row * v)


@inner_kernel
def onto(S: Structure, G: Samples, v: Array, back: bool) -> None:
    """v := T v, or T'v if `back`, on curved blocks."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    for k in range(S.blocks):
        i, d = starts[k], dims[k]
        if kinds[k] == SECOND_ORDER:
            total = load(v, i)
            for r in range(i + 1, i + d):
                if back:
                    store(v, r, load(v, r) - load(G.u, r) * total)
                else:
                    store(v, i, load(v, i) - load(G.u, r) * load(v, r))
        elif kinds[k] >= ROTATED:
            for r in range(d):
                total = spread(0.0)
                for c in range(d):
                    at = c * d + r if back else r * d + c
                    total += load(G.R, extras[k] + at) * load(v, i + c)
                store(G.left, r, total)  # workspace
            for r in range(d):
                store(v, i + r, load(G.left, r))


@inner_kernel
def aim(S: Structure, G: Samples, target: Any) -> None:
    """dy := the target of s + ds - W'W dy on curved blocks, for complementarity of `target` with the second-order terms
    of the current direction; overwrites ds."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    for k in range(S.blocks):
        if kinds[k] == SECOND_ORDER:
            _aim_second_order(G, k, starts[k], starts[k] + dims[k], target)
        elif kinds[k] == EXPONENTIAL:
            barrier.aim(G, starts[k], target)
        elif kinds[k] >= ROTATED:
            semidefinite.aim(G, starts[k], dims[k], extras[k], target)


@inner_kernel
def boundary(S: Structure, G: Samples, rate: Any) -> Any:
    """The largest of rate and 1 / the steps to the boundaries of curved blocks."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    for k in range(S.blocks):
        i, j = starts[k], starts[k] + dims[k]
        if kinds[k] == SECOND_ORDER:
            rate = largest(rate, _boundary_second_order(i, j, G.s, G.ds))
            rate = largest(rate, _boundary_second_order(i, j, G.y, G.dy))
        elif kinds[k] == EXPONENTIAL:
            rate = barrier.boundary(G, i, rate)
        elif kinds[k] >= ROTATED:
            rate = largest(rate, semidefinite.boundary(G, i, dims[k], extras[k]))
    return rate


@inner_kernel
def spectrum(kind: int, v: Array, i: int, j: int) -> tuple[Any, Any]:
    """Bounds of the spectral values of a block, the smallest and the largest: v - a e with a below the first, and
    a e - v with a above the second, are inside the cone."""
    if kind == SECOND_ORDER:
        n = _norm(v, i, j)
        return load(v, i) - n, load(v, i) + n
    if kind == EXPONENTIAL:
        return barrier.spectrum(v, i)
    return semidefinite.spectrum(v, i, j - i)


@inner_kernel
def unit(kind: int, r: int) -> float:
    """Entry r of a block's unit element, in the middle of the cone and of its dual."""
    if kind == NONNEG:
        return 1.0
    if kind == ZERO:
        return 0.0
    if kind == SECOND_ORDER:
        return 1.0 if r == 0 else 0.0
    if kind == EXPONENTIAL:
        return barrier.MIDDLE[r]
    order = int((np.sqrt(8.0 * (r + 1.0) + 1.0) - 1.0) / 2.0 + 0.5)
    return 1.0 if order * (order + 1) == 2 * (r + 1) else 0.0  # diagonal entries end the columns of svec
