"""The sizes of the data of a batch, which decide whether it needs scaling."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel, kernel

Array = np.ndarray


@inner_kernel
def _largest(v: Array) -> tuple[float, float]:
    """The smallest and the largest of the rows' largest magnitudes."""
    least, most = np.inf, 0.0
    for k in range(v.shape[0]):
        largest = 0.0
        for j in range(v.shape[1]):
            size = abs(v[k, j])
            largest = size if size > largest else largest
            most = most if size < np.inf else np.inf
        least, most = min(least, largest), max(most, largest)
    return least, most


@kernel
def moderate_shares(q: Array, alone: Array, moderate: float) -> bool:
    """Whether the magnitudes of these entries of q (batch or 1, n), relative to the largest of their sample, are
    moderate, zero, or not finite."""
    for k in range(q.shape[0]):
        force = 0.0
        for j in range(q.shape[1]):
            force = max(force, abs(q[k, j]))
        for j in alone:
            share = abs(q[k, j]) / (force if force > 0.0 else 1.0)
            if 0.0 < share < 1.0 / moderate or moderate < share < np.inf:
                return False
    return True


@kernel
def extent(q: Array, b: Array) -> tuple[float, float, float, float, float]:
    """Over the samples of q (batch or 1, n): the smallest and the largest of their largest magnitudes; the same for b
    (batch or 1, m), and its smallest magnitude other than zero. The largest are infinite if any entry is not finite.
    """
    weakest, strongest = _largest(q)
    lowest, longest = _largest(b)
    shortest = np.inf
    for k in range(b.shape[0]):
        for i in range(b.shape[1]):
            v = abs(b[k, i])
            if 0.0 < v < shortest:
                shortest = v
    return weakest, strongest, lowest, longest, shortest


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


@kernel
def all_moderate(
    Pi: Array, Pj: Array, Pv: Array, Ai: Array, Aj: Array, Av: Array, coupling: Array, coupled: Array,
    q: Array, b: Array, moderate: float, rounding: float, never: float,
) -> bool:  # fmt: skip
    """Whether every sample of a batch needs no scaling, and has no right-hand side that may mean infinity; Pv, Av, q
    and b have one row per sample, or one for all.

    Columns have size max(a, p length / force), so there is a range of moderate lengths. The length is the median of b:
    it is in this range if at most half of the entries are below, and at most half above.
    """
    alone = np.empty(q.shape[1], dtype=np.bool_)
    for k in range(max(Pv.shape[0], Av.shape[0], q.shape[0], b.shape[0])):
        costs, sides = q[k % q.shape[0]], b[k % b.shape[0]]
        most, least, fit = matrix_extent(
            Pi, Pj, Pv[k % Pv.shape[0]], Ai, Aj, Av[k % Av.shape[0]], coupling, coupled, sides.size, moderate, alone
        )
        force, longest, known, below, above = 0.0, 0.0, 0, 0, 0
        for j in range(costs.size):
            fit = fit and abs(costs[j]) < np.inf
            force = max(force, abs(costs[j]))
        for i in range(sides.size):
            longest = max(longest, abs(sides[i]) if abs(sides[i]) < np.inf else np.inf)
        lowest, highest = max(1.0 / moderate, force / (least * moderate)), min(moderate, force * moderate / most)
        for i in range(sides.size):
            size = abs(sides[i])
            if size > rounding * longest:
                known, below, above = known + 1, below + (size < lowest), above + (size > highest)
        if not (fit and 1.0 / moderate <= force <= moderate and max(below, above) <= (known - 1) // 2):
            return False
        if longest >= never * lowest:
            return False
        for j in range(costs.size):
            if alone[j] and 0.0 < abs(costs[j]) < force / moderate:
                return False
    return True
