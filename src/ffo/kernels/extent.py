"""The sizes of the data of a batch, which decide whether it needs scaling."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel, kernel

Array = np.ndarray


@kernel
def matrix_extent(
    Pi: Array, Pj: Array, Pv: Array, Ai: Array, Aj: Array, Av: Array, coupling: Array, coupled: Array,
    m: int, moderate: float, alone: Array,
) -> tuple[float, float, bool]:  # fmt: skip
    """Of the entries of P (its upper triangle) and A: the largest of P; the smallest size of its columns that are lean,
    with a size below 1 / moderate in A; and whether all entries are finite, and all rows and other columns of A of
    moderate size.

    Args:
        coupling: (entries of A,) whether they are in a row with others; coupled: (n,) whether a column has such.
        alone: (n,) written: columns that are neither coupled nor in P.
    """
    n, fit, most, least = alone.size, True, 0.0, np.inf
    p, a, rows = np.zeros(n), np.zeros(n), np.zeros(m)
    for t in range(Pv.size):
        size = abs(Pv[t])
        fit = fit and size < np.inf
        p[Pi[t]], p[Pj[t]] = max(p[Pi[t]], size), max(p[Pj[t]], size)
    for t in range(Av.size):
        size = abs(Av[t])
        fit = fit and size < np.inf
        rows[Ai[t]] = max(rows[Ai[t]], size)
        if coupling[t]:
            a[Aj[t]] = max(a[Aj[t]], size)
    for i in range(m):
        fit = fit and (rows[i] == 0.0 or 1.0 / moderate <= rows[i] <= moderate)
    for j in range(n):
        most = max(most, p[j])
        if a[j] < 1.0 / moderate and p[j] > 0.0:
            least = min(least, p[j])
        else:
            fit = fit and (a[j] == 0.0 or 1.0 / moderate <= a[j] <= moderate)
        alone[j] = not coupled[j] and p[j] == 0.0
    return most, least, fit


@inner_kernel
def _of_sides(sides: Array, rounding: float) -> tuple[float, float, int]:
    """The largest magnitude of the right-hand sides of a sample, infinite if any is not finite; the smallest one beyond
    rounding, and how many there are beyond it."""
    longest, shortest, known = 0.0, np.inf, 0
    for side in sides:
        longest = max(longest, abs(side) if abs(side) < np.inf else np.inf)
    for side in sides:
        if abs(side) > rounding * longest:
            shortest, known = min(shortest, abs(side)), known + 1
    return longest, shortest, known


@inner_kernel
def _fits(
    costs: Array, sides: Array, longest: float, shortest: float, known: int, most: float, least: float, alone: Array,
    moderate: float, rounding: float, never: float,
) -> bool:  # fmt: skip
    """Whether a sample needs no scaling, and has no right-hand side that may mean infinity.

    Columns have size max(a, p length / force), so there is a range of moderate lengths. The length is the median of the
    sides: it is in this range if at most half of them are below, and at most half above. Without sides it is force / p,
    and without costs the force is p length, for the largest p.
    """
    force = 0.0
    for cost in costs:
        force = max(force, abs(cost) if abs(cost) < np.inf else np.inf)
    if not longest < np.inf or not (force == 0.0 or 1.0 / moderate <= force <= moderate):
        return False
    for j in range(costs.size):
        if alone[j] and 0.0 < abs(costs[j]) < force / moderate:
            return False
    if known == 0 or force == 0.0:
        if most > least * moderate or (known == 0 and force == 0.0):
            return False
        most = most if most > 0.0 else 1.0
        if known == 0:
            return max(1.0, most) / moderate <= force <= min(1.0, most) * moderate
        lowest, highest = max(1.0, 1.0 / most) / moderate, min(1.0, 1.0 / most) * moderate
    else:
        lowest, highest = max(1.0 / moderate, force / (least * moderate)), min(moderate, force * moderate / most)
    if longest >= never * lowest:
        return False
    if lowest <= shortest and longest <= highest:
        return True
    below, above = 0, 0
    for side in sides:
        if abs(side) > rounding * longest:
            below, above = below + (abs(side) < lowest), above + (abs(side) > highest)
    return max(below, above) <= (known - 1) // 2


@kernel
def moderate_vectors(
    most: float, least: float, alone: Array, q: Array, b: Array, moderate: float, rounding: float, never: float
) -> bool:
    """Whether no sample of a batch with these sizes of P and A (`matrix_extent`) needs scaling, nor has right-hand
    sides that may mean infinity; q and b have one row per sample, or one for all."""
    longest, shortest, known = 0.0, np.inf, 0
    for k in range(max(q.shape[0], b.shape[0])):
        costs, sides = q[k % q.shape[0]], b[k % b.shape[0]]
        if k < b.shape[0]:
            longest, shortest, known = _of_sides(sides, rounding)
        if not _fits(costs, sides, longest, shortest, known, most, least, alone, moderate, rounding, never):
            return False
    return True


@kernel
def moderate_samples(
    Pi: Array, Pj: Array, Pv: Array, Ai: Array, Aj: Array, Av: Array, coupling: Array, coupled: Array,
    q: Array, b: Array, moderate: float, rounding: float, never: float,
) -> bool:  # fmt: skip
    """The same for matrices that differ between samples; Pv, Av, q and b have one row per sample, or one for all."""
    alone = np.empty(q.shape[1], dtype=np.bool_)
    for k in range(max(Pv.shape[0], Av.shape[0], q.shape[0], b.shape[0])):
        costs, sides = q[k % q.shape[0]], b[k % b.shape[0]]
        most, least, fit = matrix_extent(
            Pi, Pj, Pv[k % Pv.shape[0]], Ai, Aj, Av[k % Av.shape[0]], coupling, coupled, sides.size, moderate, alone
        )
        longest, shortest, known = _of_sides(sides, rounding)
        if not fit or not _fits(
            costs, sides, longest, shortest, known, most, least, alone, moderate, rounding, never
        ):  # fmt: skip
            return False
    return True
