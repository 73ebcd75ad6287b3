"""Semidefinite blocks of the interior-point method: small dense matrices in lanes.

Matrices are (k * k, LANES), row by row; vectors are svec. Singular vectors are computed by Jacobi's method, whose
rotations are the same for all samples except for their angles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.kernels.cones.psd import order_of
from ffo.kernels.group import Samples
from ffo.kernels.jit import inner_kernel
from ffo.kernels.lanes import LANES, any_below, choose, clear, largest, load, magnitude, smallest, spread, sqrt, store

Array = np.ndarray

_ROOT = float(np.sqrt(0.5))
#: most sweeps of Jacobi's method; squared cosine that the next sweep reduces to rounding
SWEEPS, LEFT = 12, 1e-16
#: steps of Laguerre's method, after which the error is below a thousandth of a bound of the eigenvalues
STEPS = 4
#: against division by zero
TINY = 1e-300


@inner_kernel
def _matrix(v: Array, first: int, k: int) -> Array:
    """The symmetric matrix of svec rows of v."""
    out, t = np.empty((k * k, LANES)), first
    for q in range(k):
        for p in range(q):
            entry = load(v, t) * _ROOT
            store(out, p * k + q, entry)
            store(out, q * k + p, entry)
            t += 1
        store(out, q * k + q, load(v, t))
        t += 1
    return out


@inner_kernel
def _vector(M: Array, k: int, out: Array, first: int) -> None:
    """Rows of out := svec(M)."""
    t = first
    for q in range(k):
        for p in range(q):
            store(out, t, (load(M, p * k + q) + load(M, q * k + p)) * _ROOT)
            t += 1
        store(out, t, load(M, q * k + q))
        t += 1


@inner_kernel
def _product(A: Array, a: int, left: bool, B: Array, b: int, right: bool, k: int) -> Array:
    """A B of the matrices from rows a and b on; `left`, `right`: transposed."""
    out = np.empty((k * k, LANES))
    for i in range(k):
        for j in range(k):
            total = spread(0.0)
            for c in range(k):
                total += load(A, a + (c * k + i if left else i * k + c)) * load(
                    B, b + (j * k + c if right else c * k + j)
                )
            store(out, i * k + j, total)
    return out


@inner_kernel
def _jacobi(N: Array, L: Array, k: int) -> None:
    """Rotate the columns of N (k, k) until they are orthogonal, and those of L with them.

    A sweep consists of rounds, as in a tournament: the angles of the k / 2 pairs of a round are computed together.
    """
    half = (k + 1) // 2
    cosines, sines, worst = np.empty((half, LANES)), np.empty((half, LANES)), np.empty((1, LANES))
    for _ in range(SWEEPS):
        store(worst, 0, spread(0.0))
        for turn in range(2 * half - 1):
            for i in range(half):
                p, q = _pair(i, turn, half)
                if q < k:
                    _angle(N, k, p, q, i, cosines, sines, worst)
            for i in range(half):
                p, q = _pair(i, turn, half)
                if q < k:
                    _turn(N, k, p, q, load(cosines, i), load(sines, i))
                    _turn(L, k, p, q, load(cosines, i), load(sines, i))
        if not any_below(LEFT, load(worst, 0)):
            return


@inner_kernel
def _pair(i: int, turn: int, half: int) -> tuple[int, int]:
    """Pair i of a round among 2 * half, the smaller one first."""
    others = 2 * half - 1
    p, q = (turn + i) % others, others if i == 0 else (turn + others - i) % others
    return min(p, q), max(p, q)


@inner_kernel
def _angle(N: Array, k: int, p: int, q: int, i: int, cosines: Array, sines: Array, worst: Array) -> None:
    """The rotation that makes two columns orthogonal: tan = sign(half) y / (|half| + sqrt(half^2 + y^2)), the smaller
    angle; `worst`: the largest square of a cosine between columns so far."""
    x, y, z = spread(TINY), spread(0.0), spread(TINY)
    for r in range(k):
        a, b = load(N, r * k + p), load(N, r * k + q)
        x, y, z = x + a * a, y + a * b, z + b * b
    store(worst, 0, largest(load(worst, 0), y * y / (x * z)))
    half = 0.5 * (z - x)
    tan = choose(half, 0.0, 0.0 - y, y) / (magnitude(half) + sqrt(half * half + y * y) + TINY)
    cosine = 1.0 / sqrt(1.0 + tan * tan)
    store(cosines, i, cosine)
    store(sines, i, tan * cosine)


@inner_kernel
def _turn(M: Array, k: int, p: int, q: int, c: Any, s: Any) -> None:
    """The rotation of two columns."""
    for r in range(k):
        a, b = load(M, r * k + p), load(M, r * k + q)
        store(M, r * k + p, c * a - s * b)
        store(M, r * k + q, s * a + c * b)


@inner_kernel
def _identity(k: int) -> Array:
    out = np.empty((k * k, LANES))
    clear(out)
    for i in range(k):
        store(out, i * k + i, spread(1.0))
    return out


@inner_kernel
def _cholesky(M: Array, k: int) -> None:
    """M := its lower factor, zeros above."""
    for j in range(k):
        for i in range(j, k):
            v = load(M, i * k + j)
            for c in range(j):
                v -= load(M, i * k + c) * load(M, j * k + c)
            store(M, i * k + j, sqrt(v) if i == j else v / load(M, j * k + j))
        for i in range(j):
            store(M, i * k + j, spread(0.0))


@inner_kernel
def _orthogonal_rows(B: Array, offset: int, k: int) -> tuple[Array, Array]:
    """T (k, k) such that the rows of TB are orthogonal, and the squares of their lengths (k,): Gram-Schmidt, the
    longest row first, so that no entry of T^-1 exceeds 1."""
    rows, T, weights = np.empty((k * k, LANES)), _identity(k), np.empty((k, LANES))
    for t in range(k * k):
        store(rows, t, load(B, offset + t))
    for j in range(k):
        for i in range(j, k):
            store(weights, i, _dot(rows, i, i, k))
        for i in range(j + 1, k):
            _order(rows, T, weights, j, i, k)
        inverse = 1.0 / largest(load(weights, j), spread(TINY))
        for i in range(j + 1, k):
            share = _dot(rows, i, j, k) * inverse
            for c in range(k):
                store(rows, i * k + c, load(rows, i * k + c) - share * load(rows, j * k + c))
                store(T, i * k + c, load(T, i * k + c) - share * load(T, j * k + c))
    return T, weights


@inner_kernel
def _dot(M: Array, i: int, j: int, k: int) -> Any:
    """Product of two rows."""
    total = spread(0.0)
    for c in range(k):
        total += load(M, i * k + c) * load(M, j * k + c)
    return total


@inner_kernel
def _order(rows: Array, T: Array, weights: Array, j: int, i: int, k: int) -> None:
    """Swap the rows j and i if the second is longer."""
    x, y = load(weights, j), load(weights, i)
    if not any_below(x, y):
        return
    for c in range(k):
        for M in (rows, T):
            a, b = load(M, j * k + c), load(M, i * k + c)
            store(M, j * k + c, choose(x, y, b, a))
            store(M, i * k + c, choose(x, y, a, b))
    store(weights, j, choose(x, y, y, x))
    store(weights, i, choose(x, y, x, y))


@inner_kernel
def scale(G: Samples, i: int, d: int, offset: int) -> None:
    """B and its inverse (into G.B), lambda (into G.lam), rows of the block (G.R) and their weights (G.u)."""
    k = order_of(d)
    L, R = _matrix(G.s, i, k), _matrix(G.y, i, k)
    _cholesky(L, k)
    _cholesky(R, k)
    N = _product(R, 0, True, L, 0, False, k)
    _jacobi(N, L, k)
    inverse = _product(N, 0, True, R, 0, True, k)
    for q in range(k):
        square = spread(0.0)
        for p in range(k):
            square += load(N, p * k + q) * load(N, p * k + q)
        value = sqrt(square)
        root = sqrt(value)
        store(G.lam, i + q, value)
        for p in range(k):
            store(G.B, offset + p * k + q, load(L, p * k + q) / root)
            store(G.B, offset + k * k + q * k + p, load(inverse, q * k + p) / (value * root))
    T, weights = _orthogonal_rows(G.B, offset, k)
    r = 0
    for a in range(k):
        for b in range(a, k):
            store(G.u, i + r, load(weights, a) * load(weights, b))
            t = offset + r * d
            for q in range(k):
                for p in range(q + 1):
                    pair = load(T, a * k + p) * load(T, b * k + q) + load(T, b * k + p) * load(T, a * k + q)
                    store(G.R, t, pair * ((_ROOT if a == b else 1.0) * (_ROOT if p == q else 1.0)))
                    t += 1
            r += 1


@inner_kernel
def _scaled(G: Samples, i: int, k: int, offset: int, primal: bool) -> Array:
    """B^-1 dS B^-T, or B'dY B."""
    if primal:
        M = _product(_matrix(G.ds, i, k), 0, False, G.B, offset + k * k, True, k)
        return _product(G.B, offset + k * k, False, M, 0, False, k)
    M = _product(_matrix(G.dy, i, k), 0, False, G.B, offset, False, k)
    return _product(G.B, offset, True, M, 0, False, k)


@inner_kernel
def aim(G: Samples, i: int, d: int, offset: int, target: Any) -> None:
    """dy := B (lambda \\ (target I - dS o dY, scaled)) B'."""
    k = order_of(d)
    C = _product(_scaled(G, i, k, offset, True), 0, False, _scaled(G, i, k, offset, False), 0, False, k)
    M = np.empty((k * k, LANES))
    for p in range(k):
        for q in range(k):
            v = -0.5 * (load(C, p * k + q) + load(C, q * k + p))
            if p == q:
                v += target
            store(M, p * k + q, 2.0 * v / (load(G.lam, i + p) + load(G.lam, i + q)))
    _vector(_product(_product(G.B, offset, False, M, 0, False, k), 0, False, G.B, offset, True, k), k, G.dy, i)


@inner_kernel
def _tridiagonal(M: Array, k: int) -> tuple[Array, Array]:
    """Diagonal and squares of the entries beside it (k, LANES) of a matrix that is M (overwritten) turned by
    Householder's reflections."""
    on, beside = np.empty((k, LANES)), np.empty((k, LANES))
    v, w = np.empty((k, LANES)), np.empty((k, LANES))
    for j in range(k):
        store(on, j, load(M, j * k + j))
        total = spread(0.0)
        for i in range(j + 1, k):
            store(v, i, load(M, i * k + j))
            total += load(v, i) * load(v, i)
        store(beside, j, total)
        if j > k - 3:
            continue
        first, length = load(v, j + 1), sqrt(total)
        store(v, j + 1, first + choose(first, 0.0, 0.0 - length, length))
        factor = 1.0 / (total + length * magnitude(first) + TINY)
        along = spread(0.0)
        for i in range(j + 1, k):
            total = spread(0.0)
            for c in range(j + 1, k):
                total += load(M, i * k + c) * load(v, c)
            store(w, i, factor * total)
            along += factor * total * load(v, i)
        along *= 0.5 * factor
        for i in range(j + 1, k):
            store(w, i, load(w, i) - along * load(v, i))
        for i in range(j + 1, k):
            p, q = load(v, i), load(w, i)
            for c in range(j + 1, k):
                store(M, i * k + c, load(M, i * k + c) - p * load(w, c) - q * load(v, c))
    return on, beside


@inner_kernel
def _least(M: Array, k: int) -> Any:
    """A tight lower bound of the smallest eigenvalue of M (overwritten): Laguerre's method from below, which does not
    pass it, on the determinant of T - x. With pivots d of T - x, e = -d' / d and f = e'."""
    on, beside = _tridiagonal(M, k)
    least, before = spread(np.inf), spread(0.0)
    for j in range(k):
        after = sqrt(load(beside, j))
        least = smallest(least, load(on, j) - before - after)
        before = after
    for _ in range(STEPS):
        d, e, f = spread(1.0), spread(0.0), spread(0.0)
        first, second, positive = spread(0.0), spread(0.0), spread(np.inf)
        for j in range(k):
            r = load(beside, j - 1) / d if j else spread(0.0)
            d = load(on, j) - least - r
            inverse = 1.0 / d
            f = r * (e * e + f) * inverse
            e = (1.0 + r * e) * inverse
            f += e * e
            first, second = first + e, second + f
            positive = smallest(positive, d)
        root = sqrt(largest((k - 1.0) * (k * second - first * first), spread(0.0)))
        least += choose(0.0, positive, 1.0 * k / (first + root), 0.0)
    return least


@inner_kernel
def spectrum(v: Array, i: int, d: int) -> tuple[Any, Any]:
    """Bounds of the eigenvalues of a block."""
    k = order_of(d)
    M, turned = _matrix(v, i, k), np.empty((k * k, LANES))
    for t in range(k * k):
        store(turned, t, 0.0 - load(M, t))
    return _least(M, k), 0.0 - _least(turned, k)


@inner_kernel
def boundary(G: Samples, i: int, d: int, offset: int) -> Any:
    """1 / the step from s along ds, or y along dy, to the boundary; negative if there is none."""
    k, rate = order_of(d), spread(-np.inf)
    for primal in (True, False):
        M = _scaled(G, i, k, offset, primal)
        for p in range(k):
            for q in range(k):
                store(M, p * k + q, load(M, p * k + q) / sqrt(load(G.lam, i + p) * load(G.lam, i + q)))
        rate = largest(rate, 0.0 - _least(M, k))
    return rate
