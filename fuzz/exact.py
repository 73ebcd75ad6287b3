"""Quadratic programs in exact rational arithmetic; shares no code with the package.

Lemke's method with the lexicographic rule solves the optimality conditions of a convex program, or proves that they
have no solution. Floating-point data are rational numbers, so nothing is rounded. One-sided derivatives are
differences over a step of 2^-160: a solution is piecewise smooth, and no piece is that short.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

Array = np.ndarray

#: the step of a one-sided difference
STEP = Fraction(1, 2**160)
MATRICES, BOUNDS = ("Q", "G", "A"), ("h", "lb", "ub", "lower")


@dataclass(frozen=True)
class QP:
    """minimize 1/2 z'Qz + p'z, Az = b, lower <= Gz <= h, lb <= z <= ub: one sample, blocks of floats or Fractions.

    The symmetric part of Q is used; infinite bounds are ignored; None: absent.
    """

    p: Array
    Q: Array | None = None
    G: Array | None = None
    h: Array | None = None
    A: Array | None = None
    b: Array | None = None
    lb: Array | None = None
    ub: Array | None = None
    lower: Array | None = None

    @property
    def n(self) -> int:
        return len(self.p)

    @property
    def blocks(self) -> dict[str, Array]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def finite(self) -> bool:
        """Whether only bounds of inequalities are infinite, and only in the direction that means no constraint."""
        allowed = {"h": np.inf, "ub": np.inf, "lower": -np.inf, "lb": -np.inf}
        return all((np.isfinite(v) | (v == allowed.get(name))).all() for name, v in self.blocks.items())

    @property
    def least_bound(self) -> float:
        """The smallest size of a bound of inequalities, other than zero; infinite if there is none."""
        sides = [np.abs(self.blocks[name]) for name in BOUNDS if name in self.blocks]
        return float(min((side[np.isfinite(side) & (side > 0)].min(initial=np.inf) for side in sides), default=np.inf))

    @property
    def bounded(self) -> QP:
        """The program without the rows of G that have no finite bound, which are no constraints."""
        if self.G is None:
            return self
        sides = [side for side in (self.h, self.lower) if side is not None]
        keep = np.any([~np.isinf(side) for side in sides], axis=0) if sides else np.zeros(len(self.G), dtype=bool)
        h, lower = (None if side is None else side[keep] for side in (self.h, self.lower))
        return replace(self, G=self.G[keep], h=h, lower=lower)

    def moved(self, direction: Mapping[str, Array], step: Fraction) -> QP:
        """The program moved along a direction; infinite bounds stay."""
        return replace(self, **{name: _add(getattr(self, name), d, step) for name, d in direction.items()})


def _add(block: Array, d: Array, step: Fraction) -> Array:
    flat = [v if math.isinf(v) else Fraction(v) + step * Fraction(e) for v, e in zip(block.flat, d.flat, strict=True)]
    return np.array(flat, dtype=object).reshape(block.shape)


@dataclass(frozen=True)
class Weights:
    """Weights of multipliers in a loss: nu of Az = b, lam of lower <= Gz <= h, mu of lb <= z <= ub."""

    nu: Array
    lam: Array
    mu: Array

    @classmethod
    def draw(cls, qp: QP, seed: int) -> Weights:
        rng = np.random.default_rng([seed, 2])
        sizes = [0 if block is None else len(block) for block in (qp.b, qp.h, qp.p)]
        return cls(*(rng.integers(-3, 4, size).astype(float) for size in sizes))

    def of(self, rows: Constraints) -> tuple[Array, Array]:
        """Weights of the inequalities and the equalities in the order of `Constraints`."""
        signed = [sign * (self.lam if name in ("h", "lower") else self.mu)[i] for name, i, sign in rows.names]
        return rational(np.array(signed)), rational(self.nu)


@dataclass(frozen=True)
class Constraints:
    """Ez = e and Rz <= r, in Fractions; `names`: (block, row, sign) of each inequality."""

    E: Array
    e: Array
    R: Array
    r: Array
    names: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Answer:
    """status: "solved", "infeasible" or "unbounded"; z (n,), y of the inequalities and nu of the equalities."""

    status: str
    z: Array | None = None
    y: Array | None = None
    nu: Array | None = None


def rational(v: Array) -> Array:
    return np.array([Fraction(x) for x in np.asarray(v).flat], dtype=object).reshape(np.shape(v))


def constraints(qp: QP) -> Constraints:
    n = qp.n
    eye, empty = rational(np.eye(n)), np.zeros((0, n), dtype=object)
    E, e = (rational(qp.A), rational(qp.b)) if qp.A is not None else (empty, empty[:, 0])
    G = rational(qp.G) if qp.G is not None else empty
    rows, sides, names = [], [], []
    for block, matrix, sign in (("h", G, 1), ("lower", G, -1), ("ub", eye, 1), ("lb", eye, -1)):
        for i, side in enumerate(getattr(qp, block) if getattr(qp, block) is not None else ()):
            if not math.isinf(side):
                rows.append(sign * matrix[i])
                sides.append(sign * Fraction(side))
                names.append((block, i, sign))
    R = np.array(rows, dtype=object).reshape(len(rows), n)
    return Constraints(E, e, R, np.array(sides, dtype=object), tuple(names))


def quadratic(qp: QP) -> Array:
    if qp.Q is None:
        return rational(np.zeros((qp.n, qp.n)))
    Q = rational(qp.Q)
    return (Q + Q.T) / 2


def solve(qp: QP) -> Answer:
    """The exact solution of a convex program; one of them if there are several."""
    return minimize(quadratic(qp), rational(qp.p), constraints(qp))


def minimize(Q: Array, p: Array, c: Constraints) -> Answer:
    found = _optimality(Q, p, c)
    if found is not None:
        return found
    nothing = _optimality(0 * Q, 0 * p, c)
    return Answer("infeasible" if nothing is None else "unbounded")


def _optimality(Q: Array, p: Array, c: Constraints) -> Answer | None:
    """Solve the optimality conditions with z = u - v, u, v >= 0, and equalities as pairs of inequalities."""
    n, R, r = len(p), np.vstack([c.R, c.E, -c.E]), np.concatenate([c.r, c.e, -c.e])
    S = np.hstack([R, -R])
    M = np.block([[np.block([[Q, -Q], [-Q, Q]]), S.T], [-S, rational(np.zeros((len(r), len(r))))]])
    v = _lemke(M, np.concatenate([p, -p, r]))
    if v is None:
        return None
    k, me = 2 * n + len(c.r), len(c.e)
    return Answer("solved", v[:n] - v[n : 2 * n], v[2 * n : k], v[k : k + me] - v[k + me :])


def _lemke(M: Array, q: Array) -> Array | None:
    """v >= 0 with Mv + q >= 0 and v'(Mv + q) = 0, or None if there is none (M is positive semidefinite).

    Integer pivoting: rows are scaled to integers (which scales slacks), and every division is exact.
    """
    k = len(q)
    if not (q < 0).any():
        return rational(np.zeros(k))
    T = np.zeros((k, 2 * k + 2), dtype=object)  # columns: slacks, v, the artificial variable, right-hand side
    for i in range(k):
        row = [*(-M[i]), q[i]]
        scale = math.lcm(*(x.denominator for x in row))
        T[i, k : 2 * k] = [int(x * scale) for x in row[:-1]]
        T[i, i], T[i, -2], T[i, -1] = 1, -1, int(row[-1] * scale)
    basis, last = list(range(k)), 1
    leaving = min((i for i in range(k)), key=lambda i: (T[i, -1], *T[i, :k]))
    T[leaving] = -T[leaving]
    entering = 2 * k
    while True:
        pivot, row, column = T[leaving, entering], T[leaving].copy(), T[:, entering].copy()
        T = (T * pivot - np.outer(column, row)) // last
        T[leaving] = row
        last = pivot
        gone, basis[leaving] = basis[leaving], entering
        if gone == 2 * k:
            break
        entering = gone + k if gone < k else gone - k
        rows = [i for i in range(k) if T[i, entering] > 0]
        if not rows:
            return None
        leaving = _smallest_ratio(T, rows, entering, basis, k)
    v = rational(np.zeros(k))
    for i, j in enumerate(basis):
        if k <= j < 2 * k:
            v[j - k] = Fraction(T[i, -1], last)
    return v


def _smallest_ratio(T: Array, rows: list[int], entering: int, basis: list[int], k: int) -> int:
    """The row that blocks first; ties are broken by the slack columns, or in favour of termination."""
    for column in (-1, *range(k)):
        best, kept = None, []
        for i in rows:
            ratio = Fraction(T[i, column], T[i, entering])
            if best is None or ratio < best:
                best, kept = ratio, [i]
            elif ratio == best:
                kept.append(i)
        rows = kept
        ending = [i for i in rows if basis[i] == 2 * k]
        if len(rows) == 1 or ending:
            return (ending or rows)[0]
    return rows[0]


def definite(Q: Array) -> tuple[bool, bool]:
    """Whether a symmetric matrix of Fractions is positive semidefinite, and definite."""
    S, n, positive = Q.copy(), len(Q), True
    for j in range(n):
        if S[j, j] < 0:
            return False, False
        if S[j, j] == 0:
            if any(S[j, i] != 0 for i in range(j + 1, n)):
                return False, False
            positive = False
            continue
        S[j + 1 :, j + 1 :] = S[j + 1 :, j + 1 :] - np.outer(S[j + 1 :, j], S[j, j + 1 :]) / S[j, j]
    return True, positive


def nearly_bounded(qp: QP, size: float) -> bool:
    """Whether a small change of p makes a feasible program bounded: it is with size * max|p| * |z|_1 added."""
    n, Q, p, c = qp.n, quadratic(qp), rational(qp.p), constraints(qp)
    none, eye = rational(np.zeros((n, n))), rational(np.eye(n))
    wide = Constraints(
        np.hstack([c.E, 0 * c.E]),
        c.e,
        np.block([[c.R, 0 * c.R], [eye, -eye], [-eye, -eye]]),
        np.concatenate([c.r, rational(np.zeros(2 * n))]),
    )
    cost = np.full(n, Fraction(size) * (max(abs(p)) or 1))
    return minimize(np.block([[Q, none], [none, none]]), np.concatenate([p, cost]), wide).status == "solved"


def nearly_feasible(qp: QP, size: float, z: Array) -> bool:
    """Whether the program becomes feasible if bounds move by `size` times the terms of their rows at z."""
    n, c, point = qp.n, constraints(qp), np.abs(rational(z))
    R, r = np.vstack([c.R, c.E, -c.E]), np.concatenate([c.r, c.e, -c.e])
    wide = Constraints(c.E[:0], c.e[:0], R, r + Fraction(size) * (np.abs(R) @ point + np.abs(r)))
    return _optimality(rational(np.zeros((n, n))), rational(np.zeros(n)), wide) is not None


def spread(qp: QP, answer: Answer, c: Array) -> Fraction | float:
    """The range of c'z over all solutions."""
    Q, p, rows = quadratic(qp), rational(qp.p), constraints(qp)
    if definite(Q)[1]:
        return Fraction(0)
    flat = Constraints(
        np.vstack([rows.E, Q, p[None]]), np.concatenate([rows.e, Q @ answer.z, [p @ answer.z]]), rows.R, rows.r
    )
    ends = [minimize(0 * Q, sign * rational(c), flat) for sign in (1, -1)]
    if any(end.status != "solved" for end in ends):
        return math.inf
    low, high = (rational(c) @ end.z for end in ends)
    return high - low


def dual_spread(qp: QP, answer: Answer, weights: Weights) -> Fraction | float:
    """The range of a weighted sum of multipliers over all multipliers."""
    Q, p, rows = quadratic(qp), rational(qp.p), constraints(qp)
    d, e = weights.of(rows)
    met = np.array(rows.r == rows.R @ answer.z, dtype=bool).reshape(len(rows.r))
    k, me = int(met.sum()), len(rows.e)
    total, none = k + me, np.zeros((0, k + me), dtype=object)
    if not total:
        return Fraction(0)
    positive = np.hstack([-rational(np.eye(k)), rational(np.zeros((k, me)))]) if k else none
    balance = Constraints(np.vstack([rows.R[met], rows.E]).T, -(Q @ answer.z + p), positive, rational(np.zeros(k)))
    w = np.concatenate([d[met], e])
    ends = [minimize(rational(np.zeros((total, total))), sign * w, balance) for sign in (1, -1)]
    if any(end.status != "solved" for end in ends):
        return math.inf
    low, high = (w @ end.z for end in ends)
    return high - low


def slope(
    qp: QP, direction: Mapping[str, Array], c: Array, answer: Answer, step: Fraction = STEP,
    weights: Weights | None = None,
) -> Fraction | None:  # fmt: skip
    """The one-sided derivative of c'z, and of weighted multipliers; None if the moved program has no solution."""
    there = solve(qp.moved(direction, step))
    if there.status != "solved":
        return None
    change = rational(c) @ (there.z - answer.z)
    if weights is not None:
        d, e = weights.of(constraints(qp))
        change += d @ (there.y - answer.y) + e @ (there.nu - answer.nu)
    return change / step
