"""Sparse LDL' factorization of quasi-definite matrices on one fixed pattern.

The symbolic work is done once per pattern: `symbolic` writes down the pattern of L by columns and by rows, so that
the numeric factorization walks no tree. A matrix is quasi-definite where the signs of its pivots are known
in advance: then every symmetric ordering is stable enough for iterative refinement to repair (Vanderbei 1995).
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.vectors import fill

Array = np.ndarray


@kernel
def symbolic(n: int, Kp: Array, Ki: Array) -> tuple[Array, Array, Array, Array]:
    """Pattern of L for an upper CSC pattern: columns (Lp, Li), and rows (Rp, Ri) in topological order."""
    mark, parent, count = np.full(n, -1), np.full(n, -1), np.zeros(n, np.int64)
    Rp = np.zeros(n + 1, np.int64)
    for j in range(n):
        mark[j] = j
        for p in range(Kp[j], Kp[j + 1]):
            i = np.int64(Ki[p])
            while mark[i] != j:
                if parent[i] == -1:
                    parent[i] = j
                count[i] += 1
                Rp[j + 1] += 1
                mark[i] = j
                i = parent[i]
    for j in range(n):
        Rp[j + 1] += Rp[j]
    Lp = np.zeros(n + 1, np.int64)
    for j in range(n):
        Lp[j + 1] = Lp[j] + count[j]
    Li, Ri = np.empty(Lp[n], np.uint32), np.empty(Rp[n], np.uint32)
    _fill_pattern(n, Kp, Ki, parent, Lp, Li, Rp, Ri)
    return Lp, Li, Rp, Ri


@inner_kernel
def _fill_pattern(n: int, Kp: Array, Ki: Array, parent: Array, Lp: Array, Li: Array, Rp: Array, Ri: Array) -> None:
    """Write the indices; row j of L is the union of the paths from its entries towards the root."""
    place, stack, mark = Lp[:n].copy(), np.empty(n, np.int64), np.full(n, -1)
    for j in range(n):
        mark[j] = j
        top = Rp[j + 1]
        for p in range(Kp[j], Kp[j + 1]):
            i, depth = np.int64(Ki[p]), 0
            while mark[i] != j:
                stack[depth] = i
                depth += 1
                mark[i] = j
                i = parent[i]
            while depth:
                depth -= 1
                top -= 1
                Ri[top] = stack[depth]
        for t in range(Rp[j], Rp[j + 1]):
            c = Ri[t]
            Li[place[c]] = j
            place[c] += 1


@inner_kernel
def factor(
    Kp: Array, Ki: Array, Lp: Array, Li: Array, Rp: Array, Ri: Array, sign: Array,
    Kx: Array, scale: Array, shift: float, Lx: Array, Dinv: Array,
) -> float:  # fmt: skip
    """LDL' of diag(scale) K diag(scale) + shift * diag(sign); returns the smallest pivot in magnitude.

    Zero entries (rows that are switched off) cost nothing. In exact arithmetic no pivot is smaller than `shift` or of
    another sign: one that is, by rounding, is set to it.
    """
    n = sign.size
    y, place, smallest = np.zeros(n), Lp[:n].copy(), np.inf
    for k in range(n):
        d = shift * sign[k]
        for p in range(Kp[k], Kp[k + 1]):
            i = Ki[p]
            if i == k:
                d += Kx[p] * scale[k] * scale[k]
            else:
                y[i] = Kx[p] * scale[i] * scale[k]
        for t in range(Rp[k], Rp[k + 1]):
            c = Ri[t]
            v, end, entry = y[c], place[c], 0.0
            if v != 0.0:
                y[c] = 0.0
                for q in range(Lp[c], end):
                    y[Li[q]] -= Lx[q] * v
                entry = v * Dinv[c]
                d -= v * entry
            Lx[end] = entry
            place[c] = end + 1
        if not d * sign[k] > 0.5 * shift:
            d = shift * sign[k]
        smallest = min(smallest, abs(d))
        Dinv[k] = 1.0 / d
    return smallest


@inner_kernel
def solve(Lp: Array, Li: Array, Lx: Array, Dinv: Array, x: Array) -> None:
    """x := (LDL')^-1 x."""
    n = x.size
    for i in range(n):
        v = x[i]
        if v != 0.0:
            for p in range(Lp[i], Lp[i + 1]):
                x[Li[p]] -= Lx[p] * v
    for i in range(n - 1, -1, -1):
        v = x[i] * Dinv[i]
        for p in range(Lp[i], Lp[i + 1]):
            v -= Lx[p] * x[Li[p]]
        x[i] = v


@inner_kernel
def multiply(Kp: Array, Ki: Array, Kx: Array, z: Array, out: Array) -> None:
    """out := K z, K symmetric, upper CSC."""
    for j in range(z.size):
        out[j] = 0.0
    for j in range(z.size):
        total, zj = 0.0, z[j]
        for p in range(Kp[j], Kp[j + 1]):
            i = Ki[p]
            total += Kx[p] * z[i]
            if i != j:
                out[i] += Kx[p] * zj
        out[j] += total


@inner_kernel
def equilibrate(Kp: Array, Ki: Array, Kx: Array, scale: Array) -> None:
    """Symmetric scaling towards rows of unit largest entry (Ruiz), three passes."""
    n = scale.size
    largest = np.empty(n)
    fill(scale, 1.0)
    for _ in range(3):
        fill(largest, 0.0)
        for j in range(n):
            own, top = scale[j], 0.0
            for p in range(Kp[j], Kp[j + 1]):
                i = Ki[p]
                v = abs(Kx[p]) * scale[i] * own
                if v > largest[i]:
                    largest[i] = v
                if v > top:
                    top = v
            if top > largest[j]:
                largest[j] = top
        for j in range(n):
            if largest[j] > 0.0 and largest[j] < np.inf:
                scale[j] /= np.sqrt(largest[j])
