"""Semidefinite blocks of the interior point, samples side by side: small dense matrices in lanes.

Matrices are (k * k, LANES), row by row; vectors are svec as everywhere. Eigenvalues are Jacobi's: rotations are the
same for all samples but for their angles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.kernels.cones.psd import order_of
from ffo.kernels.group import Samples
from ffo.kernels.jit import inner_kernel
from ffo.kernels.lanes import LANES, choose, clear, largest, load, magnitude, spread, sqrt, store

Array = np.ndarray

_ROOT = float(np.sqrt(0.5))
#: sweeps of Jacobi's method; square of what may be left off the diagonal, relative to it
SWEEPS, LEFT = 12, 1e-28
#: sweeps for bounds of the eigenvalues
ROUGH = 3
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
def _jacobi(M: Array, k: int, V: Array, sweeps: int) -> None:
    """Rotate M towards a diagonal matrix; the rotations are applied to the columns of V (k, k), if it has any."""
    seen = np.empty((2, LANES))
    for _ in range(sweeps):
        off, on = spread(0.0), spread(TINY)
        for i in range(k):
            on += load(M, i * k + i) * load(M, i * k + i)
            for j in range(i):
                off += load(M, i * k + j) * load(M, i * k + j)
        store(seen, 0, off)
        store(seen, 1, LEFT * on)
        if np.all(seen[0] <= seen[1]):
            return
        for p in range(k - 1):
            for q in range(p + 1, k):
                _turn(M, k, p, q, V)


@inner_kernel
def _turn(M: Array, k: int, p: int, q: int, V: Array) -> None:
    """The rotation that makes M[p, q] zero."""
    x, y, z = load(M, p * k + p), load(M, p * k + q), load(M, q * k + q)
    half = 0.5 * (z - x)
    # tan = sign(half) y / (|half| + sqrt(half^2 + y^2)), the smaller angle
    root = magnitude(half) + sqrt(half * half + y * y)
    tan = choose(half, 0.0, 0.0 - y, y) / (root + TINY)
    c = 1.0 / sqrt(1.0 + tan * tan)
    s = tan * c
    for r in range(k):
        a, b = load(M, r * k + p), load(M, r * k + q)
        store(M, r * k + p, c * a - s * b)
        store(M, r * k + q, s * a + c * b)
    for r in range(k):
        a, b = load(M, p * k + r), load(M, q * k + r)
        store(M, p * k + r, c * a - s * b)
        store(M, q * k + r, s * a + c * b)
    if V.shape[0] > 0:
        for r in range(k):
            a, b = load(V, r * k + p), load(V, r * k + q)
            store(V, r * k + p, c * a - s * b)
            store(V, r * k + q, s * a + c * b)


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
def _inverse(L: Array, k: int) -> Array:
    """Inverse of a lower triangular matrix."""
    out = _identity(k)
    for j in range(k):
        for i in range(j, k):
            v = load(out, i * k + j)
            for c in range(j, i):
                v -= load(L, i * k + c) * load(out, c * k + j)
            store(out, i * k + j, v / load(L, i * k + i))
    return out


@inner_kernel
def scale(G: Samples, i: int, d: int, offset: int) -> None:
    """B and its inverse (into G.B), lambda (into G.lam), rows of the block (G.R) and their weights (G.u)."""
    k = order_of(d)
    L, Y = _matrix(G.s, i, k), _matrix(G.y, i, k)
    _cholesky(L, k)
    M, U = _product(Y, 0, False, L, 0, False, k), _identity(k)
    M = _product(L, 0, True, M, 0, False, k)
    _jacobi(M, k, U, SWEEPS)
    B, inverse = _product(L, 0, False, U, 0, False, k), _product(U, 0, True, _inverse(L, k), 0, False, k)
    for q in range(k):
        value = sqrt(load(M, q * k + q))
        root = sqrt(value)
        store(G.lam, i + q, value)
        for p in range(k):
            store(G.B, offset + p * k + q, load(B, p * k + q) / root)
            store(G.B, offset + k * k + q * k + p, load(inverse, q * k + p) * root)
    M, V = _product(G.B, offset, False, G.B, offset, True, k), _identity(k)
    _jacobi(M, k, V, SWEEPS)
    r = 0
    for a in range(k):
        for b in range(a, k):
            store(G.u, i + r, load(M, a * k + a) * load(M, b * k + b))
            t = offset + r * d
            for q in range(k):
                for p in range(q + 1):
                    pair = load(V, p * k + a) * load(V, q * k + b) + load(V, p * k + b) * load(V, q * k + a)
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
def _bounds(M: Array, k: int) -> tuple[Any, Any]:
    """Bounds of the eigenvalues of M (overwritten): Gershgorin's after a few rotations."""
    _jacobi(M, k, np.empty((0, LANES)), ROUGH)
    low, high = spread(-np.inf), spread(-np.inf)
    for p in range(k):
        radius = spread(0.0)
        for q in range(k):
            if q != p:
                radius += magnitude(load(M, p * k + q))
        low, high = largest(low, radius - load(M, p * k + p)), largest(high, radius + load(M, p * k + p))
    return 0.0 - low, high


@inner_kernel
def spectrum(v: Array, i: int, d: int) -> tuple[Any, Any]:
    """Bounds of the eigenvalues of a block."""
    k = order_of(d)
    return _bounds(_matrix(v, i, k), k)


@inner_kernel
def boundary(G: Samples, i: int, d: int, offset: int) -> Any:
    """1 / the step from s along ds, or y along dy, to the boundary; negative where there is none."""
    k, rate = order_of(d), spread(-np.inf)
    for primal in (True, False):
        M = _scaled(G, i, k, offset, primal)
        for p in range(k):
            for q in range(k):
                store(M, p * k + q, load(M, p * k + q) / sqrt(load(G.lam, i + p) * load(G.lam, i + q)))
        low, _ = _bounds(M, k)
        rate = largest(rate, 0.0 - low)
    return rate
