"""The dual of a dense quadratic program on a set of rows held as equalities.

    minimize 1/2 x'Qx + p'x   subject to  r_i'x <= h_i  for every row i

Rows are numbered: those of R first, then x_j <= ub_j, then -x_j <= -lb_j; bounds are never stored as rows. With
Q = LL', m_i = L^-1 r_i and w = L^-1 p, the minimiser on the rows F held as equalities and its multipliers are

    x = -L^-T (w + M_F'y),     S_F y = -(h_F + M_F w),     S_F = M_F M_F'.

A row's m_i and its row of S are computed when it is first held; most rows never are. C is the Cholesky factor of S_F.

Units. Columns are scaled such that the diagonal of Q is about 1, rows to a norm of about 1, both by powers of two,
so that nothing is rounded. A violation, an angle between rows, or a multiplier then has a natural size, and
tolerances mean the same for every row. If Q is singular, L is the factor of Q + PROXIMAL I.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ffo.kernels.blas import (
    cholesky,
    multiply,
    row_products,
    solve_factored,
    solve_lower,
    solve_lower_rows,
    solve_upper,
)
from ffo.kernels.jit import inner_reducing_kernel

Array = np.ndarray

#: Weight of the proximal term, relative to a unit diagonal of Q. If ten times smaller, S has pivots that cancel and
#: fewer singular problems are solved; if ten times larger, more proximal steps are needed.
PROXIMAL = 1e-2
#: Q counts as singular if a pivot falls below this fraction of its diagonal.
SINGULAR = 1e-13
#: Squared sine of the angle below which a row depends on those held. If ten times smaller, multipliers of nearly
#: dependent rows lose their last digits; if ten times larger, different rows are taken for the same.
DEPENDENT = 1e-12


class DualMatrices(NamedTuple):
    """Q (n, n) and R (r, n) of one sample in natural units, and what has been computed from them.

    Attributes:
        column: (n,) x = column * (x in natural units).
        row: (rows,) y = row * (y in natural units), with or without 2n bounds.
        L: (n, n) factor of Q, or of Q + PROXIMAL I.
        M: (rows, n) and S: (rows, rows), lower triangle: filled up to admitted[0], in the order of admission.
        slot: (rows,) position of a row in M and S, -1 if it has none.
        admitted: (1,) number of rows admitted so far.
        dependent: (me,) equalities that follow from those before them.
    """

    Q: Array
    R: Array
    column: Array
    row: Array
    L: Array
    M: Array
    S: Array
    slot: Array
    admitted: Array
    dependent: Array


class Loaded(NamedTuple):
    """What all samples of a batch with shared matrices have in common: fields of `DualMatrices`, and rho (1,), the
    result of `load_matrices`. Empty arrays: nothing is known."""

    Q: Array
    R: Array
    column: Array
    row: Array
    L: Array
    rho: Array


class DualFace(NamedTuple):
    """Rows held as equalities: their numbers in `rows`, multipliers in `y`, factor in C (n, n); and x, w (n,), slacks
    s (rows,) and workspace for a vector (rows,). The number of held rows is passed separately."""

    rows: Array
    y: Array
    C: Array
    x: Array
    w: Array
    s: Array
    room: Array


@inner_reducing_kernel
def new_matrices(n: int, r: int, rows: int, me: int, known: Loaded) -> DualMatrices:
    """The matrices of all samples if they are known, or workspace for those of one sample; no row is admitted."""
    Q, R, column, row, L = known.Q, known.R, known.column, known.row, known.L
    if not known.rho.size:
        Q, R, column, row, L = np.empty((n, n)), np.empty((r, n)), np.empty(n), np.empty(rows), np.empty((n, n))
    return DualMatrices(
        Q, R, column, row, L, np.empty((rows, n)), np.empty((rows, rows)), np.empty(rows, np.int64),
        np.zeros(1, np.int64), np.zeros(me, np.bool_),
    )  # fmt: skip


@inner_reducing_kernel
def new_face(n: int, rows: int) -> DualFace:
    """Workspace for the face of a sample."""
    size = max(rows, n) + 1
    return DualFace(
        np.empty(size, np.int64), np.empty(size), np.empty((n, n)), np.empty(n), np.empty(n), np.empty(rows),
        np.empty(size),
    )  # fmt: skip


@inner_reducing_kernel
def power_of_two(squared: float) -> float:
    """The power of two closest to 1 / size, given size^2; 1 for size 0."""
    if not 0.0 < squared < np.inf:
        return 1.0
    _, exponent = math.frexp(squared)
    return math.ldexp(1.0, -(exponent >> 1))


@inner_reducing_kernel
def forget(m: DualMatrices) -> None:
    """Reset: no row is admitted, and no equality known to be dependent."""
    m.admitted[0] = 0
    for i in range(m.slot.size):
        m.slot[i] = -1
    for i in range(m.dependent.size):
        m.dependent[i] = False


@inner_reducing_kernel
def load_matrices(m: DualMatrices) -> float:
    """Scale Q and R in place, factor Q. Returns the weight of the proximal term, 0 if Q is regular; -1 if Q is
    indefinite."""
    column, row, Q, R = m.column, m.row, m.Q, m.R
    n, r = Q.shape[0], R.shape[0]
    top = 0.0
    for j in range(n):
        top = max(top, Q[j, j])
    for j in range(n):
        column[j] = power_of_two(Q[j, j] if Q[j, j] > 0.0 else top)
    for i in range(n):
        for j in range(n):
            Q[i, j] *= column[i] * column[j]
    for i in range(r):
        v = 0.0
        for j in range(n):
            R[i, j] *= column[j]
        for j in range(n):
            v += R[i, j] * R[i, j]
        row[i] = power_of_two(v)
        for j in range(n):
            R[i, j] *= row[i]
    for i in range(r, row.size):
        row[i] = 1.0 / column[(i - r) % n]
    if _factor(m, 0.0):
        return 0.0
    return PROXIMAL if _factor(m, PROXIMAL) else -1.0


@inner_reducing_kernel
def _factor(m: DualMatrices, rho: float) -> bool:
    """L := factor of Q + rho I; False if it is singular to rounding."""
    L, Q = m.L, m.Q
    n = L.shape[0]
    for i in range(n):
        for j in range(i + 1):
            L[i, j] = Q[i, j]
        L[i, i] += rho
    if not cholesky(L, n):
        return False
    for i in range(n):  # noqa: SIM110 - Numba takes no generators
        if not L[i, i] * L[i, i] > SINGULAR * (Q[i, i] + rho):
            return False
    return True


@inner_reducing_kernel
def slacks(m: DualMatrices, h: Array, x: Array, s: Array) -> float:
    """s := h minus the rows times x; returns max |x|."""
    r, n = m.R.shape
    for i in range(h.size):
        s[i] = h[i]
    multiply(m.R, r, n, x, s, -1.0, 1.0)
    size = 0.0
    for j in range(n):
        size = max(size, abs(x[j]))
    if h.size > r:
        for j in range(n):
            s[r + j] -= x[j]
            s[r + n + j] += x[j]
    return size


@inner_reducing_kernel
def add_row(m: DualMatrices, i: int, weight: float, v: Array) -> None:
    """v := v + weight r_i."""
    R = m.R
    r, n = R.shape
    if i < r:
        for j in range(n):
            v[j] += weight * R[i, j]
    elif i < r + n:
        v[i - r] += weight
    else:
        v[i - r - n] -= weight


@inner_reducing_kernel
def admit(m: DualMatrices, rows: Array, first: int, last: int) -> None:
    """Add rows[first:last] to M and S."""
    n = m.L.shape[0]
    start = m.admitted[0]
    end = start
    for a in range(first, last):
        if m.slot[rows[a]] < 0:
            m.slot[rows[a]] = end
            for j in range(n):
                m.M[end, j] = 0.0
            add_row(m, rows[a], 1.0, m.M[end])
            end += 1
    if end > start:
        solve_lower_rows(m.L, n, m.M, start, end)
        row_products(m.M, start, end, n, m.S)
        m.admitted[0] = end


@inner_reducing_kernel
def hold(m: DualMatrices, f: DualFace, k: int) -> int:
    """C := factor of the rows f.rows[:k], all of them admitted here. Rows that depend on those before them are left
    out, and equalities among them recorded. Returns the number of held rows."""
    n = m.L.shape[0]
    admit(m, f.rows, 0, k)
    if k <= n and _hold_all(m, f, k):
        return k
    kept = 0
    for a in range(k):
        i = f.rows[a]
        if append(m, f, kept, i):
            kept += 1
        elif i < m.dependent.size:
            m.dependent[i] = True
    return kept


@inner_reducing_kernel
def _hold_all(m: DualMatrices, f: DualFace, k: int) -> bool:
    """C := factor of all rows; False if some depend on others."""
    S, C, slot, rows = m.S, f.C, m.slot, f.rows
    for a in range(k):
        i = slot[rows[a]]
        for b in range(a + 1):
            j = slot[rows[b]]
            C[a, b] = S[i, j] if i > j else S[j, i]
    if not cholesky(C, k):
        return False
    for a in range(k):
        i = slot[rows[a]]
        if not C[a, a] * C[a, a] > DEPENDENT * S[i, i]:
            return False
    return True


@inner_reducing_kernel
def append(m: DualMatrices, f: DualFace, k: int, i: int) -> bool:
    """Hold the admitted row i in addition to the k held rows; False if it depends on them. f.room[:k] := C^-1 S_i."""
    S, C, slot, rows, step = m.S, f.C, m.slot, f.rows, f.room
    mine = slot[i]
    for a in range(k):
        other = slot[rows[a]]
        step[a] = S[mine, other] if mine > other else S[other, mine]
    solve_lower(C, k, step)
    size = S[mine, mine]
    left = size
    for a in range(k):
        left -= step[a] * step[a]
    if k == C.shape[0] or not left > DEPENDENT * size:
        return False
    for a in range(k):
        C[k, a] = step[a]
    C[k, k] = np.sqrt(left)
    rows[k] = i
    return True


@inner_reducing_kernel
def release(f: DualFace, k: int, a: int) -> None:
    """Release the a-th of k rows; Givens rotations make C lower triangular again."""
    C, rows, y = f.C, f.rows, f.y
    for i in range(a, k - 1):
        rows[i], y[i] = rows[i + 1], y[i + 1]
        for j in range(i + 2):
            C[i, j] = C[i + 1, j]
    for i in range(a, k - 1):  # row i has a surplus entry at i + 1
        length = np.hypot(C[i, i], C[i, i + 1])
        c, d = C[i, i] / length, C[i, i + 1] / length
        C[i, i], C[i, i + 1] = length, 0.0
        for j in range(i + 1, k - 1):
            u, v = C[j, i], C[j, i + 1]
            C[j, i], C[j, i + 1] = c * u + d * v, c * v - d * u


@inner_reducing_kernel
def multipliers(m: DualMatrices, f: DualFace, k: int, h: Array, y: Array) -> float:
    """y[:k] := -S^-1 (h + M w) on the rows held; returns max |y|."""
    M, slot, rows, w = m.M, m.slot, f.rows, f.w
    for a in range(k):
        i = slot[rows[a]]
        v = h[rows[a]]
        for j in range(w.size):
            v += M[i, j] * w[j]
        y[a] = -v
    solve_factored(f.C, k, y)
    force = 0.0
    for a in range(k):
        force = max(force, abs(y[a]))
    return force


@inner_reducing_kernel
def minimiser(m: DualMatrices, f: DualFace, k: int, y: Array) -> None:
    """f.x := -L^-T (w + M'y)."""
    M, slot, rows, w, x = m.M, m.slot, f.rows, f.w, f.x
    n = x.size
    for j in range(n):
        x[j] = -w[j]
    for a in range(k):
        v, i = y[a], slot[rows[a]]
        for j in range(n):
            x[j] -= v * M[i, j]
    solve_upper(m.L, n, x)


@inner_reducing_kernel
def newton_step(m: DualMatrices, f: DualFace, k: int, gradient: Array) -> None:
    """One step of Newton's method on the rows held, from (f.x, f.y) with slacks f.s and Qx + p + R'y = gradient
    (overwritten).

    S dy = (Rx - h) - M L^-1 gradient,   dx = -L^-T (L^-1 gradient + M'dy). Where L is the factor of Q + PROXIMAL I
    it is a step of iterative refinement."""
    M, L, slot, rows, x, y, left, s = m.M, m.L, m.slot, f.rows, f.x, f.y, f.room, f.s
    n = x.size
    solve_lower(L, n, gradient)
    for a in range(k):
        i = slot[rows[a]]
        v = -s[rows[a]]
        for j in range(n):
            v -= M[i, j] * gradient[j]
        left[a] = v
    solve_factored(f.C, k, left)
    for a in range(k):
        v, i = left[a], slot[rows[a]]
        y[a] += v
        for j in range(n):
            gradient[j] += v * M[i, j]
    solve_upper(L, n, gradient)
    for j in range(n):
        x[j] -= gradient[j]
