"""Dense quadratic programs by pivoting on the dual, one sample at a time.

    minimize 1/2 x'Qx + p'x   subject to  Rx + s = h,  lb <= x <= ub,  s_i = 0 for i < me, s_i >= 0 otherwise

Block principal pivoting (Júdice and Pires 1994) holds a set of rows as equalities, computes the solution on them, and
exchanges all rows with a wrong sign at once: three to six factorizations of the size of the active set. If it cycles, a
dual active-set method (Goldfarb and Idnani 1983) continues with one row at a time. A singular Q gets a proximal term:
the method is repeated around the last point until the rows settle, followed by Newton's method with the true Q.
Every answer is verified on the data: stationarity, rows and signs in natural units (see `dual.py`).
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.blas import solve_lower, solve_upper
from ffo.kernels.bundle import refer
from ffo.kernels.dual import (
    DualFace,
    DualMatrices,
    Loaded,
    admit,
    append,
    forget,
    hold,
    load_matrices,
    minimiser,
    multipliers,
    new_face,
    new_matrices,
    power_of_two,
    release,
    slacks,
)
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel, kernel
from ffo.kernels.sides import OneSample, QPAnswer, SideRows, load_sides, new_sides, store_sides
from ffo.kernels.triplets import Triplets, is_shared, scatter
from ffo.kernels.verify import polish, proves_infeasible, proves_unbounded

Array = np.ndarray

#: Codes of results. STALLED: cycling, out of steps, or not verified.
SOLVED, STALLED, INFEASIBLE, UNBOUNDED, INDEFINITE = 0, 1, 2, 3, 4

#: Violation at which a row enters, and negative multiplier at which it leaves, relative to their natural sizes. If ten
#: times smaller, degenerate rows enter and leave by rounding and pivoting cycles; if ten times larger, a row may be
#: missed.
VIOLATED, NEGATIVE = 1e-10, 1e-11
#: The one-row method changes one row per step, so smaller multipliers do no harm.
NEGATIVE_ALONE = 1e-13
#: Coefficient, for rows of norm 1, above which a row counts as part of a combination.
DEPENDS = 1e-12
#: Block pivoting ends after so many exchanges without fewer wrong rows, or so many in total.
PATIENCE, EXCHANGES = 4, 30
#: If more rows are violated than can be active, only those above this fraction of the largest violation enter.
LARGE = 0.5
#: Most proximal points for a singular Q; a few are usual. With a fifth of this limit twice as many programs are left
#: unsolved, those with little curvature along the active rows.
PROXIMAL_STEPS = 300
#: Steps of polishing by the factor of Q, and by that of Q + PROXIMAL I, which is iterative refinement. The residual
#: that ends the proximal steps.
POLISH, POLISH_PROXIMAL, VERIFIED = 4, 30, 1e-11


@inner_reducing_kernel
def _block(m: DualMatrices, f: DualFace, k: int, h: Array, me: int, mark: Array, limit: int) -> tuple[bool, int, int]:
    """Block principal pivoting from the rows f.rows[:k]: (whether it ended, rows held, steps)."""
    best, tries = h.size + 1, PATIENCE
    for step in range(min(limit, EXCHANGES)):
        k = hold(m, f, k)
        force = multipliers(m, f, k, h, f.y)
        minimiser(m, f, k, f.y)
        size = slacks(m, h, f.x, f.s)
        if _broken_equality(m, f, h, me, size) >= 0:
            return False, k, step + 1
        wrong = _exchange(f, k, h, me, force, size, mark)
        if wrong == 0:
            return True, k, step + 1
        tries = PATIENCE if wrong < best else tries - 1
        best = min(best, wrong)
        if tries == 0:
            return False, k, step + 1
        k = 0
        for i in range(h.size):
            if (i < me and not m.dependent[i]) or (i >= me and mark[i] == 1):
                f.rows[k], f.y[k] = i, 0.0
                k += 1
    return False, k, min(limit, EXCHANGES)


@inner_reducing_kernel
def _exchange(f: DualFace, k: int, h: Array, me: int, force: float, size: float, mark: Array) -> int:
    """mark := 1 for the inequalities to hold next, 2 for those that leave. Returns how many change."""
    wrong, s = 0, f.s
    for i in range(mark.size):
        mark[i] = 0
    for a in range(k):
        i = f.rows[a]
        leaves = i >= me and f.y[a] < -NEGATIVE * force
        mark[i] = 2 if leaves else 1
        wrong += leaves
    worst, come = 0.0, 0
    for i in range(me, h.size):
        if mark[i] == 0 and s[i] < -VIOLATED * (size + abs(h[i])):
            mark[i] = 3
            come += 1
            worst = min(worst, s[i])
    crowded = k - wrong + come > f.x.size
    for i in range(me, h.size):
        if mark[i] == 3:
            mark[i] = 0 if crowded and s[i] > LARGE * worst else 1
    return wrong + come


@inner_reducing_kernel
def _broken_equality(m: DualMatrices, f: DualFace, h: Array, me: int, size: float) -> int:
    """An equality that was left out as dependent but does not hold; -1 if there is none."""
    for i in range(me):
        if m.dependent[i] and abs(f.s[i]) > VIOLATED * (size + abs(h[i])):
            return i
    return -1


@inner_reducing_kernel
def _single(m: DualMatrices, f: DualFace, k: int, h: Array, me: int, mark: Array, limit: int) -> tuple[int, int]:
    """Dual active-set method from the rows f.rows[:k] with multipliers f.y: (rows held, steps); rows -1 if it does not
    terminate, less if it proves the problem infeasible (see `_enter`)."""
    k = _restart(m, f, k, me)
    target = np.empty(f.y.size)
    for step in range(limit):
        force = multipliers(m, f, k, h, target)
        length, out = _longest(f, k, me, target, NEGATIVE_ALONE * force)
        for a in range(k):
            f.y[a] += length * (target[a] - f.y[a])
        if out >= 0:
            release(f, k, out)
            k -= 1
            continue
        minimiser(m, f, k, f.y)
        size = slacks(m, h, f.x, f.s)
        new = _broken_equality(m, f, h, me, size)
        if new < 0:
            new = _most_violated(f, k, h, me, size, mark)
        if new < 0:
            return k, step + 1
        k = _enter(m, f, k, h, me, new, size)
        if k < 0:
            return k, step + 1
    return -1, limit


@inner_reducing_kernel
def _restart(m: DualMatrices, f: DualFace, k: int, me: int) -> int:
    """Hold the equalities and the rows with positive multipliers that are independent; returns their number."""
    admit(m, f.rows, 0, k)
    kept = 0
    for a in range(k):
        i, y = f.rows[a], f.y[a]
        if (i < me or y > 0.0) and append(m, f, kept, i):
            f.y[kept] = y
            kept += 1
        elif i < me:
            m.dependent[i] = True
    return kept


@inner_reducing_kernel
def _longest(f: DualFace, k: int, me: int, target: Array, zero: float) -> tuple[float, int]:
    """The longest step (at most 1) to the target that keeps multipliers nonnegative, and the row that stops it."""
    length, out = 1.0, -1
    for a in range(k):
        if f.rows[a] >= me and target[a] < -zero:
            step = max(f.y[a], 0.0) / (max(f.y[a], 0.0) - target[a])
            if step < length or out < 0:
                length, out = step, a
    return length, out


@inner_reducing_kernel
def _most_violated(f: DualFace, k: int, h: Array, me: int, size: float, mark: Array) -> int:
    """The inequality with the largest violation; -1 if there is none."""
    for i in range(mark.size):
        mark[i] = 0
    for a in range(k):
        mark[f.rows[a]] = 1
    worst, new, s = 0.0, -1, f.s
    for i in range(me, h.size):
        if mark[i] == 0 and s[i] < min(worst, -VIOLATED * (size + abs(h[i]))):
            worst, new = s[i], i
    return new


@inner_reducing_kernel
def _enter(m: DualMatrices, f: DualFace, k: int, h: Array, me: int, new: int, size: float) -> int:
    """Hold one more row, and release rows on which it depends. Returns the number of held rows; -1 if the new row does
    not help, and less by the number of rows that prove that there is no solution: these are in f."""
    f.rows[k] = new
    admit(m, f.rows, k, k + 1)
    gain = 0.0
    while not append(m, f, k, new):
        combination = f.room  # the new row, as a combination of the rows held
        solve_upper(f.C, k, combination)
        length, out = np.inf, -1
        if new >= me:
            for a in range(k):
                if f.rows[a] >= me and combination[a] > DEPENDS and f.y[a] < length * combination[a]:
                    length, out = max(f.y[a], 0.0) / combination[a], a
        if out < 0:
            return -2 - k if proves_infeasible(m, f, k, h, me, new, size) else -1
        for a in range(k):
            f.y[a] -= length * combination[a]
        gain += length
        release(f, k, out)
        k -= 1
    if new < me:
        m.dependent[new] = False
    f.y[k] = gain
    return k + 1


@inner_reducing_kernel
def _solve(
    m: DualMatrices, rho: float, p: Array, h: Array, me: int, f: DualFace, mark: Array, limit: int
) -> tuple[int, int, int, float]:
    """One sample in natural units, from f.x = 0: (code, rows held, steps, residual); the answer is in f."""
    n = p.size
    before, held = np.empty(n), np.empty(n)
    k, steps, alone, left = _equalities(m, f, me), 0, False, np.inf
    for point in range(PROXIMAL_STEPS if rho > 0.0 else 1):
        for j in range(n):
            before[j] = f.x[j]
            f.w[j] = p[j] - rho * f.x[j]
        solve_lower(m.L, n, f.w)
        taken = 0
        if not alone:
            ended, k, taken = _block(m, f, k, h, me, mark, limit - steps)
            steps += taken
            alone = not ended
        if alone:
            k, taken = _single(m, f, k, h, me, mark, limit - steps)
            steps += taken
        if k < 0:
            return (STALLED, 0, steps, np.inf) if k == -1 else (INFEASIBLE, -1 - k, steps, np.inf)
        if rho > 0.0 and taken > 1 and point < PROXIMAL_STEPS - 1:
            continue  # the rows still change
        for j in range(n):
            before[j] = f.x[j] - before[j]
        if rho > 0.0 and proves_unbounded(m, p, h, me, before):
            return UNBOUNDED, k, steps, np.inf
        for j in range(n):
            before[j] = f.x[j]
        for a in range(k):
            held[a] = f.y[a]
        left = polish(m, p, h, me, f, k, POLISH_PROXIMAL if rho > 0.0 else POLISH)
        if left < VERIFIED:
            break
        if rho > 0.0 and point < PROXIMAL_STEPS - 1:  # these rows are not the right ones yet
            for j in range(n):
                f.x[j] = before[j]
            for a in range(k):
                f.y[a] = held[a]
    return (SOLVED if left < np.inf else STALLED), k, steps, left


@inner_reducing_kernel
def _equalities(m: DualMatrices, f: DualFace, me: int) -> int:
    """f.rows := the independent equalities, with multipliers 0."""
    k = 0
    for i in range(me):
        if not m.dependent[i]:
            f.rows[k], f.y[k] = i, 0.0
            k += 1
    return k


@inner_reducing_kernel
def _load_vectors(
    m: DualMatrices, p: Array, h: Array, lb: Array, ub: Array, linear: bool, p_out: Array, h_out: Array
) -> float:
    """Scale the vectors; returns the factor of the cost (not 1 for linear programs only, where nothing else relates
    the cost to the proximal term)."""
    n, r = p.size, h.size
    top = 0.0
    for j in range(n):
        p_out[j] = p[j] * m.column[j]
        top = max(top, abs(p_out[j]))
    factor = power_of_two(top * top) if linear else 1.0
    for j in range(n):
        p_out[j] *= factor
    for i in range(r):
        h_out[i] = h[i] * m.row[i]
    for j in range(lb.size):
        h_out[r + j] = ub[j] * m.row[r + j]
        h_out[r + n + j] = -lb[j] * m.row[r + n + j]
    return factor


@inner_reducing_kernel
def _is_zero(Q: Array) -> bool:
    for i in range(Q.shape[0]):
        for j in range(Q.shape[1]):
            if Q[i, j] != 0.0:
                return False
    return True


@inner_reducing_kernel
def _unload(m: DualMatrices, f: DualFace, k: int, factor: float, x: Array, one: OneSample) -> None:
    """Write the answer of a sample, in the units of the data."""
    column, row, s, y = m.column, m.row, one.slacks, one.multipliers
    for j in range(x.size):
        x[j] = f.x[j] * column[j]
    for i in range(s.size):
        s[i] = f.s[i] / row[i]
    for i in range(y.size):
        y[i] = 0.0
    for a in range(k):
        y[f.rows[a]] = f.y[a] * row[f.rows[a]] / factor


@kernel
def load_shared(P: Triplets, A: Triplets, out: Loaded) -> None:
    """Load the matrices that all samples of a batch share; `out` has arrays of the right shapes."""
    n, r = out.R.shape[1], out.R.shape[0]
    out.rho[0] = _load_first(refer(P), refer(A), new_matrices(n, r, out.row.size, 0, refer(out)))


@inner_kernel
def _load_first(P: Triplets, A: Triplets, m: DualMatrices) -> float:
    return _load(0, P, A, refer(m))


@inner_kernel
def _load(sample: int, P: Triplets, A: Triplets, m: DualMatrices) -> float:
    """`load_matrices` of a sample."""
    scatter(P, sample, True, m.Q)
    scatter(A, sample, False, m.R)
    return load_matrices(m)


@kernel
def solve_chunk(
    start: int, stop: int, P: Triplets, p: Array, A: Triplets, b: Array, sides: SideRows, me: int, limit: int,
    known: Loaded, out: QPAnswer,
) -> None:  # fmt: skip
    """Solve the samples start..stop-1 of a batch.

    Args:
        P: upper triangle of Q; p: (batch or 1, n).
        A: the rows that are not bounds, equalities first; b: (batch or 1, m).
        me: number of equalities. limit: most steps for a sample. known: the result of `load_shared`, or empty arrays.
    """
    n, r = p.shape[1], sides.rows.size
    one = new_sides(refer(sides), n)
    rows = one.multipliers.size
    m, f = new_matrices(n, r, rows, me, refer(known)), new_face(n, rows)
    _solve_samples(start, stop, m, f, one, refer(P), p, refer(A), b, refer(sides), me, limit, known.rho, refer(out))


@inner_kernel
def _solve_samples(
    start: int, stop: int, m: DualMatrices, f: DualFace, one: OneSample, P: Triplets, p: Array, A: Triplets, b: Array,
    sides: SideRows, me: int, limit: int, known_rho: Array, out: QPAnswer,
) -> None:  # fmt: skip
    n, rows = p.shape[1], one.multipliers.size
    m, f, one = refer(m), refer(f), refer(one)
    mark, cost, side = np.empty(rows, np.int8), np.empty(n), np.empty(rows)
    rho, linear = 0.0, False
    for i in range(start, stop):
        if i == start or not is_shared(P) or not is_shared(A):
            forget(m)
            rho = known_rho[0] if known_rho.size else _load(i, P, A, m)
            linear = rho > 0.0 and _is_zero(m.Q)
        mine = b[i if b.shape[0] > 1 else 0]
        crossed = load_sides(sides, mine, i, one)
        factor = _load_vectors(m, p[i if p.shape[0] > 1 else 0], one.h, one.lb, one.ub, linear, cost, side)
        k, out.code[i], out.steps[i], out.residual[i], out.rho[i] = 0, INDEFINITE, 0, np.inf, rho
        for j in range(n):
            f.x[j] = 0.0
        if rho >= 0.0:
            out.code[i], k, out.steps[i], out.residual[i] = _solve(m, rho, cost, side, me, f, mark, limit)
        if crossed:
            out.code[i] = INFEASIBLE
        slacks(m, side, f.x, f.s)
        _unload(m, f, k, factor, out.x[i], one)
        out.meets[i] = store_sides(sides, mine, i, me, one, out.x[i], out.y[i], out.s[i])
