"""Sparse LDL' factorization of quasi-definite matrices on one fixed pattern.

The symbolic work is done once per pattern: `symbolic` computes the pattern of L by columns and by rows, so that the
numeric factorization needs no elimination tree. The signs of the pivots of a quasi-definite matrix are known in
advance, and every symmetric ordering is stable enough for iterative refinement (Vanderbei 1995).

From the unknown `head` on, where L is full or nearly so, the rest is factorized as a dense matrix (`trailing`): twice
as fast with 100 unknowns there, 3.4 times with 200. Variables come before rows in it: if active rows were eliminated
first, their pivots would be just the regularisation. Lx holds the columns of L before `head`, the dense matrix, and
marks of the unknowns in use.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import trailing
from ffo.kernels.blas import add_gram
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel, kernel
from ffo.kernels.vectors import fill

Array = np.ndarray

#: time of one multiplication in a dense factorization, relative to a sparse one
DENSE = 0.2
#: fraction of the work in a sparse factorization that a dense rest must save
PAYING = 0.2
#: density of L above which all unknowns are treated as dense: rows that are off are left out, and solves are three
#: times as fast (100 variables and as many rows, eliminated first: 8 instead of 25 microseconds)
FULL = 0.7
#: fewest entries of a column for which it is worth checking for gaps between them
RUN = 8
#: marks of unknowns in use
VARIABLE, ROW = 1.0, 2.0


def dense_from(Lp: Array, Li: Array) -> int:
    """`head` for a pattern of L by columns; the number of columns if the factorization should be entirely sparse."""
    n, cost = len(Lp) - 1, works(Lp, Li)
    best = int(np.argmin(cost))
    if len(Li) >= FULL * n * (n - 1) / 2:
        return 0
    return best if cost[best] < (1 - PAYING) * cost[-1] else n


def works(Lp: Array, Li: Array) -> Array:
    """(n + 1,) multiplications of a factorization, in units of sparse ones, for every `head`.

    A column with b entries from the head on costs b^2 / 2 multiplications there, in the sparse way, and those of all
    such columns together DENSE times what full ones would cost.
    """
    n, counts = len(Lp) - 1, np.diff(Lp).astype(float)
    column, row = np.repeat(np.arange(n), np.diff(Lp)), Li.astype(np.int64)
    left = counts[column] - (np.arange(len(Li)) - Lp[column])  # entries of the column from this one on
    filled = np.flatnonzero(counts)
    added = np.concatenate([[0.0], counts**2 / 2])
    below = np.cumsum(added + np.bincount(row + 1, weights=0.5 - left, minlength=n + 1))
    ends = np.bincount(row[Lp[filled + 1] - 1] + 1, minlength=n + 1)
    columns = np.cumsum(np.concatenate([[0.0], counts > 0]) - ends)
    size = np.arange(n, -1, -1.0)
    rest = DENSE * size * (size - 1) * (2 * size - 1) / 12
    return np.cumsum(added) - below + np.minimum(below, DENSE * size**2 / 2 * columns) + rest


@kernel
def room(head: int, n: int, Lp: Array) -> int:
    """Length of Lx; 0 if there is no pattern."""
    return Lp[head] + (n - head) * (n - head + 1) if Lp.size else 0


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
def _rest(Lx: Array, start: int, size: int) -> tuple[Array, Array]:
    """The unknowns in use among the last ones, variables before rows, and their dense matrix."""
    end = start + size * size
    at, count = np.empty(size, np.int64), 0
    for mark in (VARIABLE, ROW):
        for i in range(size):
            if Lx[end + i] == mark:
                at[count] = i
                count += 1
    return at[:count], Lx[start : start + count * count].reshape((count, count))


@inner_kernel
def _mark(head: int, Kp: Array, Ki: Array, Kx: Array, sign: Array, used: Array) -> None:
    """Mark unknowns that K connects with others, which excludes rows that are off."""
    fill(used, 0.0)
    for k in range(head, sign.size):
        found = False
        for p in range(Kp[k], Kp[k + 1] - 1):  # the last entry is the diagonal
            if Kx[p] != 0.0:
                found = True
                if Ki[p] >= head:
                    used[np.int64(Ki[p]) - head] = 1.0
        if found:
            used[k - head] = 1.0
    for i in range(used.size):
        if used[i] != 0.0:
            used[i] = VARIABLE if sign[head + i] > 0.0 else ROW


@inner_kernel
def _load(Kp: Array, Ki: Array, Kx: Array, scale: Array, k: int, y: Array) -> float:
    """y := column k of the scaled K above its diagonal, whose entry is returned."""
    d = 0.0
    for p in range(Kp[k], Kp[k + 1]):
        i = Ki[p]
        if i == k:
            d += Kx[p] * scale[k] * scale[k]
        else:
            y[i] = Kx[p] * scale[i] * scale[k]
    return d


@inner_kernel
def factor(
    head: int, Kp: Array, Ki: Array, Lp: Array, Li: Array, Rp: Array, Ri: Array, sign: Array,
    Kx: Array, scale: Array, shift: float, Lx: Array, Dinv: Array,
) -> float:  # fmt: skip
    """LDL' of diag(scale) K diag(scale) + shift * diag(sign); returns the smallest pivot in magnitude.

    Zero entries (rows that are switched off) cost nothing.
    """
    n = sign.size
    y, place, smallest = np.zeros(n), Lp[:head].copy(), np.inf
    for k in range(head):
        d = shift * sign[k] + _load(Kp, Ki, Kx, scale, k, y)
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
        d = trailing.pivot(d, sign[k], shift)
        smallest, Dinv[k] = min(smallest, abs(d)), 1.0 / d
    if head < n:
        end = Lp[head] + (n - head) * (n - head)
        _mark(head, Kp, Ki, Kx, sign, Lx[end : end + n - head])
        at, dense = _rest(Lx, Lp[head], n - head)
        rest = _form_rest(Kp, Ki, Lp, Li, Rp, Ri, sign, Kx, scale, shift, Lx, Dinv, place, y, at, dense)
        smallest = min(smallest, rest, trailing.factor(dense, at, sign[head:], shift, Dinv[head:]))
    return smallest


@inner_kernel
def _form_rest(
    Kp: Array, Ki: Array, Lp: Array, Li: Array, Rp: Array, Ri: Array, sign: Array, Kx: Array, scale: Array,
    shift: float, Lx: Array, Dinv: Array, place: Array, y: Array, at: Array, dense: Array,
) -> float:  # fmt: skip
    """The Schur complement after eliminating the first unknowns: K22 - L21 D L21'. Returns the smallest pivot of
    unknowns that are not in use.

    The columns of L21, times the square roots of D, are gathered if that is faster: those with pivots of either sign
    become a product by BLAS (249 equalities on 729 variables: 6 ms instead of 38). `place`: where L21 begins in each
    column."""
    head, size, smallest = place.size, at.size, np.inf
    first, mine, spot = place.copy(), np.full(head, -1), np.full(sign.size - head, -1)
    for r in range(size):
        spot[at[r]] = r
    gathered = _pays(Lp, place, sign.size - head)
    ups, downs, up, down = 0, 0, np.zeros((gathered, size)), np.zeros((gathered, size))
    for k in range(head, sign.size):
        row = spot[k - head]
        d = shift * sign[k] + _load(Kp, Ki, Kx, scale, k, y)
        for t in range(Rp[k], Rp[k + 1] if head else Rp[k]):
            c = np.int64(Ri[t])
            if c >= head:
                continue
            v, entry = y[c], 0.0
            if v != 0.0:
                y[c], entry = 0.0, v * Dinv[c]
                for q in range(Lp[c], first[c] if gathered else place[c]):
                    y[Li[q]] -= Lx[q] * v
                if not gathered:
                    d -= v * entry
                else:
                    if mine[c] < 0:  # columns of rows that are off have no entries
                        mine[c] = ups if Dinv[c] > 0.0 else downs
                        ups, downs = (ups + 1, downs) if Dinv[c] > 0.0 else (ups, downs + 1)
                    (up if Dinv[c] > 0.0 else down)[mine[c], row] = v * np.sqrt(abs(Dinv[c]))
            Lx[place[c]] = entry
            place[c] += 1
        if row < 0:
            d = trailing.pivot(d, sign[k], shift)
            smallest, Dinv[k] = min(smallest, abs(d)), 1.0 / d
            continue
        for i in range(k - head):
            c, v = spot[i], y[head + i]
            if c >= 0:
                y[head + i] = 0.0
                dense[max(row, c), min(row, c)] = v
        dense[row, row] = d
    if ups:
        add_gram(up, ups, size, dense, -1.0, 1.0)
    if downs:
        add_gram(down, downs, size, dense, 1.0, 1.0)
    return smallest


@inner_kernel
def _pays(Lp: Array, first: Array, size: int) -> int:
    """Whether to gather L21: the number of columns with entries there, 0 if the sparse way is faster."""
    sparse, count = 0.0, 0
    for c in range(first.size):
        below = Lp[c + 1] - first[c]
        sparse += 0.5 * below * below
        count += below > 0
    return count if DENSE * 0.5 * size * size * count < sparse else 0


@inner_kernel
def solve(head: int, Lp: Array, Li: Array, Lx: Array, Dinv: Array, x: Array) -> None:
    """x := (LDL')^-1 x."""
    for i in range(head):
        v = x[i]
        if v != 0.0:
            for p in range(Lp[i], Lp[i + 1]):
                x[Li[p]] -= Lx[p] * v
    if head < x.size:
        at, dense = _rest(Lx, Lp[head], x.size - head)
        trailing.solve(dense, at, Dinv[head:], x[head:])
    for i in range(head - 1, -1, -1):
        v = x[i] * Dinv[i]
        for p in range(Lp[i], Lp[i + 1]):
            v -= Lx[p] * x[Li[p]]
        x[i] = v


@inner_reducing_kernel
def multiply(Kp: Array, Ki: Array, Kx: Array, z: Array, out: Array) -> None:
    """out := K z, K symmetric, upper CSC; the last entry of a column is its diagonal.

    Columns without gaps are vectorised (100 variables, 100 dense rows: 4 us instead of 16)."""
    for j in range(z.size):
        out[j] = 0.0
    for j in range(z.size):
        total, zj, first, last = 0.0, z[j], Kp[j], Kp[j + 1] - 1
        if last - first >= RUN and Ki[last - 1] - Ki[first] == last - first - 1:
            begin = np.int64(Ki[first])
            for t in range(last - first):
                total += Kx[first + t] * z[begin + t]
            for t in range(last - first):
                out[begin + t] += Kx[first + t] * zj
        else:
            for p in range(first, last):
                i = Ki[p]
                total += Kx[p] * z[i]
                out[i] += Kx[p] * zj
        out[j] += total + Kx[last] * zj


@inner_kernel
def equilibrate(Kp: Array, Ki: Array, Kx: Array, scale: Array) -> None:
    """Symmetric scaling towards rows of unit largest entry (Ruiz), at most three passes."""
    n = scale.size
    largest = np.empty(n)
    fill(scale, 1.0)
    for _ in range(3):
        fill(largest, 0.0)
        moved = False
        for j in range(n):
            last, top = Kp[j + 1] - 1, 0.0
            for p in range(Kp[j], last):
                i = Ki[p]
                v = abs(Kx[p]) * scale[i] * scale[j]
                if v > largest[i]:
                    largest[i] = v
                if v > top:
                    top = v
            largest[j] = max(largest[j], top, abs(Kx[last]) * scale[j] * scale[j])
        for j in range(n):
            if largest[j] > 0.0 and largest[j] != 1.0 and largest[j] < np.inf:
                scale[j] /= np.sqrt(largest[j])
                moved = True
        if not moved:  # rows that are off, and incidence matrices, need no scaling
            break
