"""One sample's data, and the residuals of its optimality conditions at a point."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.jit import inner_kernel, inner_reducing_kernel
from ffo.kernels.kkt import ACOL, AROW, PCOL, PROW, Structure, part

Array = np.ndarray


class Data(NamedTuple):
    """One sample's data: entries of P and A, and q (n,), b (m,); b = +inf: the sample lacks this inequality."""

    Pv: Array
    q: Array
    Av: Array
    b: Array


@inner_kernel
def residuals(S: Structure, D: Data, x: Array, y: Array, s: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
    """r_x = -(Px + A'y + q), r_s = b - Ax - s; also the sums of the magnitudes of their terms.

    q is added last: beside a large x that P does not curve, Px cancels, and q, first, would be lost in it.
    """
    Prow, Pcol, Arow, Acol = part(S.wide, PROW), part(S.wide, PCOL), part(S.wide, AROW), part(S.wide, ACOL)
    Pv, q, Av, b, a = D.Pv, D.q, D.Av, D.b, np.empty(S.n + S.m)
    a_x, a_s = a[: S.n], a[S.n :]
    for j in range(S.n):
        r_x[j] = 0.0
        a_x[j] = abs(q[j])
    for i in range(S.m):
        missing = b[i] == np.inf
        r_s[i] = 0.0 if missing else b[i] - s[i]
        a_s[i] = 0.0 if missing else abs(b[i])
    t, last = 0, S.m - 1
    while t < Pv.size:  # entries are ordered column by column
        i, j = Prow[t], Pcol[t]
        if i == 0 and j and t + j < Pv.size and Prow[t + j] == j == Pcol[t + j]:
            _full_column(Pv, t, j, x[j], x, r_x, a_x, r_x, a_x, j)
            t += j
        elif i != j:
            _entry(Pv[t] * x[i], j, r_x, a_x)
            _entry(Pv[t] * x[j], i, r_x, a_x)
            t += 1
        else:
            _entry(Pv[t] * x[j], j, r_x, a_x)
            t += 1
    t = 0
    while t < Av.size:
        i, j = Arow[t], Acol[t]
        if i == 0 and last and t + last < Av.size and Arow[t + last] == last and Acol[t + last] == j:
            _full_column(Av, t, S.m, x[j], y, r_s, a_s, r_x, a_x, j)
            t += S.m
        else:
            _entry(Av[t] * y[i], j, r_x, a_x)
            _entry(Av[t] * x[j], i, r_s, a_s)
            t += 1
    for j in range(S.n):
        r_x[j] -= q[j]
    for i in range(S.m):
        if b[i] == np.inf:
            r_s[i] = a_s[i] = 0.0
    return a_x, a_s


@inner_kernel
def _entry(term: float, i: int, r: Array, a: Array) -> None:
    r[i] -= term
    a[i] += abs(term)


@inner_reducing_kernel
def _full_column(
    values: Array, first: int, count: int, own: float, other: Array, r: Array, a: Array, r_own: Array, a_own: Array,
    j: int,
) -> None:  # fmt: skip
    """The terms of a column j without gaps: of its rows and its own (dense, 100 variables and 100 rows: 12 us a point
    instead of 42)."""
    for i in range(count):
        v = values[first + i] * own
        r[i] -= v
        a[i] += abs(v)
    total = size = 0.0
    for i in range(count):
        v = values[first + i] * other[i]
        total += v
        size += abs(v)
    r_own[j] -= total
    a_own[j] += size
