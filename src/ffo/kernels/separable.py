"""Newton's method on the dual of programs with diagonal Q > 0, equality rows and bounds, one sample at a time.

    minimize 1/2 x'Qx + p'x   subject to  Ax = b,  lb <= x <= ub

In the units w = Q^(1/2) x, with the rows of A Q^(-1/2) scaled to unit length as the columns of U (n, r),

    minimize 1/2 |w|^2 + c'w   subject to  U'w = b,  lo <= w <= hi

has the convex, piecewise quadratic dual  phi(lam) = b'lam - min over the box of 1/2 |w|^2 + (c + U lam)'w, whose
inner minimiser is w = clip(-c - U lam) and whose gradient is b - U'w. Newton's matrix U_F'U_F sums over the variables
F not at their bounds. It is updated for variables that change, and starts from U'U with all variables free, which
together with its factor is shared by a batch that shares Q and A. Five to ten steps reach the solution, to rounding,
unless nearly all variables are at bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.blas import add_gram, cholesky, multiply, multiply_transposed, solve_factored
from ffo.kernels.bundle import refer
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel, kernel
from ffo.kernels.sides import OneSample, QPAnswer, SideRows, load_sides, new_sides, store_sides
from ffo.kernels.triplets import Triplets, scatter

Array = np.ndarray

#: Codes of results, as in `pivoting`.
SOLVED, STALLED, INFEASIBLE = 0, 1, 2

HALVINGS = 12
#: Residual of the rows, in natural units, at which the method stops, and that at which it stops after a step that
#: reduces it by less than half.
EXACT, CLOSE = 1e-14, 1e-10
#: Fraction of the predicted decrease of phi that a step must achieve, and relative rounding of phi.
DECREASE, ROUNDING = 1e-4, 1e-13
#: Added to Newton's matrix, whose diagonal is 1 with all variables free: dependent rows make it singular. If ten times
#: smaller, its factorization may fail; if ten times larger, it sometimes costs a step.
REGULARISATION = 1e-12
#: Damping in proportion to the residual keeps steps short if too few variables are free to determine them; below
#: UNDAMPED the free variables have settled, and damping would only slow the last step.
DAMPING, UNDAMPED = 3e-2, 1e-9
#: Against division by zero.
TINY = 1e-300


class SeparableSample(NamedTuple):
    """One sample in natural units: c, lo, hi (n,), b (r,)."""

    c: Array
    b: Array
    lo: Array
    hi: Array


class DualIterate(NamedTuple):
    """lam, gradient U'w - b (r,); w, its value before clipping (n,), and which variables are free (n,)."""

    lam: Array
    gradient: Array
    w: Array
    raw: Array
    free: Array


@kernel
def prepare(q: Array, A: Array, root: Array, length: Array, U: Array, S: Array, L: Array) -> bool:
    """The matrices of a sample, or those that all share: U (n, r), S = U'U and its factor L (r, r), from q (n,) and
    A (r, n); x = w / root, and the multipliers of Ax = b are lam / length. False if q is not positive."""
    r, n = A.shape
    for j in range(n):
        if not 0.0 < q[j] < np.inf:
            return False
        root[j] = np.sqrt(q[j])
    for i in range(r):
        v = 0.0
        for j in range(n):
            U[j, i] = A[i, j] / root[j]
            v += U[j, i] * U[j, i]
        length[i] = np.sqrt(v) if v > 0.0 else 1.0
    for j in range(n):
        for i in range(r):
            U[j, i] /= length[i]
    add_gram(U, n, r, S, 1.0, 0.0)
    return _factor(S, 0.0, L)


@inner_reducing_kernel
def _factor(S: Array, damping: float, L: Array) -> bool:
    """L := factor of S + (REGULARISATION + damping) I."""
    r = S.shape[0]
    for i in range(r):
        for j in range(i + 1):
            L[i, j] = S[i, j]
        L[i, i] += REGULARISATION + damping
    return cholesky(L, r)


@inner_reducing_kernel
def _evaluate(U: Array, sample: SeparableSample, it: DualIterate) -> tuple[float, float]:
    """w, the free variables and the gradient at it.lam; returns phi and the residual of the rows."""
    n, r = U.shape
    c, b, lo, hi = sample.c, sample.b, sample.lo, sample.hi
    lam, gradient, w, raw, free = it.lam, it.gradient, it.w, it.raw, it.free
    multiply(U, n, r, lam, raw, -1.0, 0.0)
    phi, size = 0.0, 0.0
    for j in range(n):
        value = raw[j] - c[j]
        w[j] = min(max(value, lo[j]), hi[j])
        free[j] = lo[j] < value < hi[j]
        size = max(size, abs(w[j]))
        raw[j] = value
    for j in range(n):
        phi -= w[j] * (0.5 * w[j] - raw[j])
    multiply_transposed(U, n, r, w, gradient, 1.0, 0.0)
    left = 0.0
    for i in range(r):
        phi += b[i] * lam[i]
    for i in range(r):
        gradient[i] -= b[i]
        left = max(left, abs(gradient[i]) / (abs(b[i]) + size + TINY))
    return phi, left if np.isfinite(phi) else np.inf


@inner_reducing_kernel
def _update(U: Array, S: Array, part: Array, now: Array, then: Array) -> None:
    """S := U_F'U_F for the free variables `then`, from that for `now`: updated for the variables that changed, or
    recomputed if these are more than the free ones. now := then."""
    n, r = U.shape
    changed, stay = 0, 0
    for j in range(n):
        changed += then[j] != now[j]
        stay += then[j]
    anew = stay < changed
    if anew:
        add_gram(part, 0, r, S, 1.0, 0.0)
    for sign in (1.0, -1.0):
        k = 0
        for j in range(n):
            came, went = then[j] and (anew or not now[j]), now[j] and not then[j] and not anew
            if (came and sign > 0.0) or (went and sign < 0.0):
                for i in range(r):
                    part[k, i] = U[j, i]
                k += 1
        if k > 0:
            add_gram(part, k, r, S, sign, 1.0)
    for j in range(n):
        now[j] = then[j]


@inner_reducing_kernel
def _search(
    U: Array, sample: SeparableSample, it: DualIterate, step: Array, phi: float, left: float
) -> tuple[float, float]:
    """Go along the step as far as phi decreases; returns phi and the residual there."""
    r = step.size
    start = it.lam.copy()
    slope, length, value, now = 0.0, 1.0, phi, left
    for i in range(r):
        slope -= it.gradient[i] * step[i]
    for _ in range(HALVINGS):
        for i in range(r):
            it.lam[i] = start[i] + length * step[i]
        value, now = _evaluate(U, sample, it)
        if value <= phi + DECREASE * length * slope + ROUNDING * abs(phi) or now < 0.1 * left:
            break
        length *= 0.5
    return value, now


@inner_reducing_kernel
def _newton(
    U: Array,
    S0: Array,
    L0: Array,
    sample: SeparableSample,
    it: DualIterate,
    S: Array,
    L: Array,
    part: Array,
    limit: int,
) -> tuple[int, int, float]:
    """One sample: (code, steps, residual); the answer is in `it`."""
    n, r = U.shape
    step, now = np.empty(r), np.empty(n, np.bool_)
    for i in range(r):
        it.lam[i] = -sample.b[i]
        for j in range(i + 1):
            S[i, j] = S0[i, j]
    for j in range(n):
        now[j] = True
    multiply_transposed(U, n, r, sample.c, it.lam, -1.0, 1.0)
    solve_factored(L0, r, it.lam)  # the solution without the bounds
    phi, left = _evaluate(U, sample, it)
    last = np.inf
    for k in range(1, limit):
        if left <= EXACT or (left <= CLOSE and left > 0.5 * last):
            return SOLVED, k, left
        _update(U, S, part, now, it.free)
        if not _factor(S, DAMPING * left if left > UNDAMPED else 0.0, L):
            return STALLED, k, left
        for i in range(r):
            step[i] = it.gradient[i]
        solve_factored(L, r, step)
        last = left
        phi, left = _search(U, sample, it, step, phi, left)
    return (SOLVED if left <= CLOSE else STALLED), limit, left


class Shared(NamedTuple):
    """The result of `prepare` if the batch shares q and A; else arrays of size 0."""

    root: Array
    length: Array
    U: Array
    S: Array
    L: Array


@inner_reducing_kernel
def _unload(it: DualIterate, root: Array, length: Array, x: Array, one: OneSample) -> None:
    """Write the answer of a sample, in the units of the data."""
    y, w, raw, lam, lb, ub = one.multipliers, it.w, it.raw, it.lam, one.lb, one.ub
    n, r, bounded = w.size, lam.size, one.lb.size > 0
    for j in range(n):
        x[j] = w[j] / root[j]
        if bounded:
            x[j] = min(max(x[j], lb[j]), ub[j])
            z = (raw[j] - w[j]) * root[j]
            y[r + j], y[r + n + j] = max(z, 0.0), max(-z, 0.0)
    for i in range(r):
        y[i] = lam[i] / length[i]


@kernel
def solve_chunk(
    start: int, stop: int, q: Array, p: Array, A: Triplets, b: Array, sides: SideRows, shared: Shared, limit: int,
    out: QPAnswer,
) -> None:  # fmt: skip
    """Solve the samples start..stop-1 of a batch.

    Args:
        q: (batch or 1, n) diagonal of Q; p: (batch or 1, n).
        A: the rows that are not bounds, all of them equalities; b: (batch or 1, m).
        limit: most steps for a sample.
        out: the residual is that of the rows, in natural units; x is in the box, and stationary to rounding, by
            construction.
    """
    n, r = p.shape[1], sides.rows.size
    one = new_sides(refer(sides), n)
    sample = SeparableSample(np.empty(n), np.empty(r), np.empty(n), np.empty(n))
    it = DualIterate(np.zeros(r), np.empty(r), np.zeros(n), np.zeros(n), np.empty(n, np.bool_))
    _solve_samples(start, stop, q, p, refer(A), b, refer(sides), shared, limit, refer(out), one, sample, it)


@inner_kernel
def _solve_samples(
    start: int, stop: int, q: Array, p: Array, A: Triplets, b: Array, sides: SideRows, shared: Shared, limit: int,
    out: QPAnswer, one: OneSample, sample: SeparableSample, it: DualIterate,
) -> None:  # fmt: skip
    n, r = p.shape[1], sides.rows.size
    own = shared.U.shape[0] < n
    root, length, U, S0, L0 = shared
    if own:
        root, length, U, S0, L0 = np.empty(n), np.empty(r), np.empty((n, r)), np.empty((r, r)), np.empty((r, r))
    rows, one, sample, it = np.empty((r if own else 0, n)), refer(one), refer(sample), refer(it)
    S, L, part = np.empty((r, r)), np.empty((r, r)), np.empty((n, r))
    for k in range(start, stop):
        mine, cost, good = b[k if b.shape[0] > 1 else 0], p[k if p.shape[0] > 1 else 0], True
        crossed = load_sides(sides, mine, k, one)
        if own:
            scatter(A, k, False, rows)
            good = prepare(q[k if q.shape[0] > 1 else 0], rows, root, length, U, S0, L0)
        bounded = one.lb.size > 0
        for j in range(n):
            sample.c[j] = cost[j] / root[j]
            sample.lo[j] = one.lb[j] * root[j] if bounded else -np.inf
            sample.hi[j] = one.ub[j] * root[j] if bounded else np.inf
        for i in range(r):
            sample.b[i] = one.h[i] / length[i]
        out.code[k], out.steps[k], out.residual[k], out.rho[k] = STALLED, 0, np.inf, 0.0
        if good:
            out.code[k], out.steps[k], out.residual[k] = _newton(U, S0, L0, sample, it, S, L, part, limit)
        if crossed:
            out.code[k] = INFEASIBLE
        _unload(it, root, length, out.x[k], one)
        out.meets[k] = store_sides(sides, mine, k, r, one, out.x[k], out.y[k], out.s[k])
