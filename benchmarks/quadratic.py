"""Quadratic programs read from files, and their derivatives by differences.

minimize 1/2 x'Qx + p'x   subject to   Ax = b,  lower <= Gx <= h,  lb <= x <= ub
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

Array = np.ndarray
#: steps of the differences, relative to the size of the data
STEPS = tuple(1e-4 * 8.0**-k for k in range(12))
#: relative disagreement of neighbouring steps below which no smaller step is tried
AGREED = 1e-6
#: and above which the difference decides nothing
DECIDED = 2e-4
#: relative disagreement of forward and backward differences above which there is no derivative
KINK = 2e-2


@dataclass(frozen=True)
class QuadraticProblem:
    """Q, G, A are sparse; missing bounds are infinite."""

    name: str
    Q: sp.csr_array
    p: Array
    G: sp.csr_array
    h: Array
    A: sp.csr_array
    b: Array
    lb: Array
    ub: Array
    lower: Array

    @property
    def values(self) -> dict[str, Array]:
        """What may move: nonzeros of the matrices, and the vectors."""
        matrices = {name: getattr(self, name).data for name in ("Q", "G", "A")}
        return {**matrices, **{name: getattr(self, name) for name in ("p", "h", "b", "lb", "ub", "lower")}}

    def tensors(self, values: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Arguments of `FFOQPLayer` for these values, all of them leaves that require gradients."""
        found = {name: torch.tensor(v, dtype=torch.float64) for name, v in values.items()}
        for name in ("Q", "G", "A"):
            found[name] = _sparse(getattr(self, name), values[name])
        return {name: t.requires_grad_() for name, t in found.items() if t.numel() and name not in self.absent}

    @property
    def absent(self) -> set[str]:
        """Blocks without which the problem is the same."""
        empty = {"G": ("G", "h", "lower"), "A": ("A", "b")}
        found = {part for name, parts in empty.items() if not getattr(self, name).shape[0] for part in parts}
        return found | {side for side in ("lower", "lb", "ub") if not np.isfinite(getattr(self, side)).any()}

    def residual(self, x: Array, nu: Array, lam: Array, mu: Array) -> float:
        """Worst residual of the optimality conditions, each relative to its largest term (at least 1).

        lam and mu are negative where the lower bound is active. Infinite if there is no point.
        """
        if not all(np.isfinite(v).all() for v in (x, nu, lam, mu)):
            return np.inf
        Qx, Ax, Gx = self.Q @ x, self.A @ x, self.G @ x
        up, down = np.maximum(lam, 0), np.maximum(-lam, 0)
        above, below = np.maximum(mu, 0), np.maximum(-mu, 0)
        outside = [Ax - self.b]
        outside += [np.maximum(v, 0) for v in (Gx - self.h, self.lower - Gx, x - self.ub, self.lb - x)]
        primal = max(_norm(v) for v in outside) / max(1.0, _norm(Ax), _norm(Gx), _norm(x))
        terms = (Qx, self.p, self.A.T @ nu, self.G.T @ lam, mu)
        dual = _norm(np.sum(terms, axis=0)) / max(1.0, *(_norm(t) for t in terms))
        sides = ((up, self.h), (-down, self.lower), (above, self.ub), (-below, self.lb))
        value = nu @ self.b + sum(float(y[y != 0] @ side[y != 0]) for y, side in sides)
        products = (x @ Qx, self.p @ x, value)
        return max(primal, dual, abs(sum(products)) / max(1.0, *map(abs, products)))


def read(path: Path) -> QuadraticProblem:
    """A problem whose bounds and two-sided rows are stored as rows Gx <= h."""
    stored = np.load(path)
    G, A = _matrix(stored, "G"), _matrix(stored, "A")
    n, h, rows = G.shape[1], stored["h"], _Rows([], [], [])
    lb, ub = np.full(n, -np.inf), np.full(n, np.inf)
    count = np.diff(G.indptr)
    single = np.flatnonzero(count == 1)
    entry = G.indptr[single]
    column, bound = G.indices[entry], h[single] / G.data[entry]
    above = G.data[entry] > 0
    np.minimum.at(ub, column[above], bound[above])
    np.maximum.at(lb, column[~above], bound[~above])
    fixed = np.flatnonzero(lb == ub)
    equal = [A, sp.csr_array((np.ones(len(fixed)), (np.arange(len(fixed)), fixed)), shape=(len(fixed), n))]
    right = [stored["b"], lb[fixed]]
    lb[fixed], ub[fixed] = -np.inf, np.inf
    for group in _parallel(G, np.flatnonzero(count != 1)):
        rows.add(G, h, group)
    pairs = np.array([h[i] == -h[j] for i, j in zip(rows.upper, rows.opposite, strict=True) if j >= 0], dtype=bool)
    both = np.flatnonzero(np.array(rows.opposite) >= 0)[pairs] if len(pairs) else np.zeros(0, int)
    equal.append(G[np.array(rows.upper, int)[both]])
    right.append(h[np.array(rows.upper, int)[both]])
    keep = np.setdiff1d(np.arange(len(rows.upper)), both)
    upper, lower = np.array(rows.upper, int)[keep], np.array(rows.lower)[keep]
    A = sp.csr_array(sp.vstack(equal))
    return QuadraticProblem(
        path.stem, _matrix(stored, "Q"), stored["q"], G[upper], h[upper], A, np.concatenate(right), lb, ub, lower
    )


@dataclass
class _Rows:
    """Remaining rows: the row of their upper bound, the opposite row (-1: none), their lower bound."""

    upper: list[int]
    opposite: list[int]
    lower: list[float]

    def add(self, G: sp.csr_array, h: Array, group: list[int]) -> None:
        signs = [np.sign(G.data[G.indptr[i]]) if G.indptr[i] < G.indptr[i + 1] else 1.0 for i in group]
        if len(group) == 2 and signs[0] != signs[1]:
            first, second = sorted(group)
            self._put(first, second, -h[second])
        else:
            for i in group:
                self._put(i, -1, -np.inf)

    def _put(self, upper: int, opposite: int, lower: float) -> None:
        self.upper.append(upper)
        self.opposite.append(opposite)
        self.lower.append(lower)


def _parallel(G: sp.csr_array, rows: Array) -> list[list[int]]:
    """Groups of rows that are equal up to their sign."""
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    for i in rows:
        at = slice(G.indptr[i], G.indptr[i + 1])
        sign = np.sign(G.data[at.start]) if at.start < at.stop else 1.0
        groups.setdefault((G.indices[at].tobytes(), (sign * G.data[at]).tobytes()), []).append(int(i))
    return list(groups.values())


@dataclass(frozen=True)
class Difference:
    """A derivative along a direction: central differences, extrapolated.

    Attributes:
        value: where neighbouring steps agree best; NaN if the problem could not be solved around there.
        doubt: their disagreement; kink: that of forward and backward differences.
    """

    value: float
    doubt: float
    kink: float

    @property
    def decided(self) -> bool:
        return self.doubt <= DECIDED

    @property
    def smooth(self) -> bool:
        return self.decided and self.kink <= KINK


def difference(loss: Callable[[float], float], floor: float) -> Difference:
    """The derivative of `loss` at 0 (NaN where it cannot be told). Differences below `floor` are zero."""
    middle = loss(0.0)
    best = Difference(np.nan, np.inf, np.inf)
    before = np.nan
    for t in STEPS:
        forward, backward = (loss(t) - middle) / t, (middle - loss(-t)) / t
        central = (forward + backward) / 2
        value = central + (central - before) / 63  # steps shrink by 8, errors by 64
        size = max(abs(value), floor)
        doubt, kink = abs(central - before) / size, abs(forward - backward) / size
        if doubt < best.doubt:
            best = Difference(float(value), float(doubt), float(kink))
        if best.smooth and (best.doubt < AGREED or doubt > 10 * best.doubt):  # beyond, rounding takes over
            break
        before = central
    return best


def directions(problem: QuadraticProblem, x: Array, rng: np.random.Generator) -> dict[str, dict[str, Array]]:
    """Random directions by the block that moves, in proportion to the data.

    Where rows of A depend on each other, an arbitrary change of A or b leaves no feasible point; here
    columns of A are scaled and b moves within the range of A. Q moves by congruence: it stays convex.
    """
    draw = rng.standard_normal
    length = np.maximum(np.abs(x), np.abs(x).mean() or 1.0)
    typical = float(length.mean())
    Q, G, A = problem.Q, problem.G, problem.A
    force = np.abs(problem.p) + np.abs(Q @ x)
    row = np.sqrt(np.asarray(G.multiply(G).sum(axis=1)).ravel()) * typical
    by_column = draw(Q.shape[0])
    Q_rows = np.repeat(np.arange(Q.shape[0]), np.diff(Q.indptr))
    found = {
        "p": {"p": draw(len(x)) * np.maximum(force, force.mean() or 1.0)},
        "sides": {
            **{k: draw(len(row)) * np.maximum(row, _finite(getattr(problem, k))) for k in ("h", "lower")},
            **{k: draw(len(x)) * length for k in ("lb", "ub")},
        },
        "b": {"b": A @ (draw(len(x)) * length)},
        "Q": {"Q": Q.data * (by_column[Q_rows] + by_column[Q.indices])},
        "G": {"G": G.data * draw(G.nnz)},
        "A": {"A": A.data * by_column[A.indices]},
    }
    there = {name: {k: v for k, v in d.items() if k not in problem.absent} for name, d in found.items()}
    return {name: d for name, d in there.items() if any(np.any(v) for v in d.values())}


def _finite(v: Array) -> Array:
    return np.where(np.isfinite(v), np.abs(v), 0.0)


def _matrix(stored: Mapping[str, Any], name: str) -> sp.csr_array:
    parts = tuple(stored[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    matrix = sp.csr_array(sp.csc_array(parts, shape=tuple(stored[f"{name}_shape"])))
    matrix.sum_duplicates()
    return matrix


def _sparse(matrix: sp.csr_array, values: Array) -> torch.Tensor:
    coo = matrix.tocoo()
    index = torch.tensor(np.stack([coo.coords[0], coo.coords[1]]), dtype=torch.int64)
    return torch.sparse_coo_tensor(index, torch.tensor(values), matrix.shape, is_coalesced=True)


def _norm(v: Array) -> float:
    return float(np.abs(v).max(initial=0.0))
