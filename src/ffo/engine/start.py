"""A user's initial guess as a point of the cone program, from which its active set can be read off.

A guess consists of values of the layer's outputs. What is missing for a point (x, y, s) is filled in:

- auxiliary variables, which CVXPY introduces as bounds on expressions, get the value at which the bound is tight;
- multipliers that are not given are small positive numbers on the constraints that are tight at the guess (slack below
  `TIGHT`, in natural units) or violated by it. Their sizes do not matter: the first step of Newton's method replaces
  them.

With e in the interior of a block's cone K, a step s - eta e leaves K exactly where s is nearly on the boundary. The
projection back onto K and the remainder, which is in the dual cone, are then a complementary pair on the face of s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.cones import Exponential, Nonneg, Power, SecondOrder
from ffo.program.cone import ConeProgram
from ffo.program.magnitudes import largest

Array = np.ndarray

#: slack, relative to the sizes of the point, below which a constraint counts as active; a guess in single precision
#: has errors of 1e-7, and ten times more would hold constraints that are merely near
TIGHT = 1e-6
#: most rounds in which auxiliary variables are raised: the depth to which expressions are nested
ROUNDS = 6


@dataclass(frozen=True)
class Start:
    """Guesses x (batch, n) and y (batch, m), NaN where nothing is known; a sample with no known x has no guess."""

    x: Array
    y: Array

    def repeat(self, times: int) -> Start:
        """Every sample `times` times, copies of a sample next to each other."""
        return Start(np.repeat(self.x, times, axis=0), np.repeat(self.y, times, axis=0))

    def complete(self, program: ConeProgram) -> tuple[Array, Array, Array, Array] | None:
        """Numbers of the samples with a guess, and their points x, y, s; None if there is none."""
        samples = np.flatnonzero(np.isfinite(self.x).any(axis=1))
        if not len(samples):
            return None
        mine = program if len(samples) == program.batch else program.take(samples)
        x, given = _with_auxiliary(mine, self.x[samples]), self.y[samples]
        s, y = _pair(mine, x)
        known = np.isfinite(given)
        if known.any():
            y = mine.cones.project_dual(np.where(known, given, y))
        return samples, x, y, s


def _with_auxiliary(program: ConeProgram, guess: Array) -> Array:
    """x (batch, n) with values for its unknown entries: the smallest that the rows allow which bound them from below.
    Without such rows, or without a cost but with an upper bound, the largest that the others allow; else zero."""
    unknown = ~np.isfinite(guess)
    x = np.where(unknown, 0.0, guess)
    if not unknown.any():
        return x
    bounds = _Bounds.of(program, unknown.all(axis=0))
    for _ in range(ROUNDS):
        before = x.copy()
        x[:, bounds.columns] = bounds.tight(program, x)
        if np.array_equal(x, before):
            break
    return x


@dataclass(frozen=True)
class _Bounds:
    """Entries of A that bound unknown variables, all from below or all from above.

    Attributes:
        rows, values: (k,) and (batch or 1, k) the entries, by columns; first: where each column starts; columns: their
            numbers; lower: (columns,) whether they bound from below.
    """

    rows: Array
    values: Array
    first: Array
    columns: Array
    lower: Array

    @classmethod
    def of(cls, program: ConeProgram, unknown: Array) -> _Bounds:
        values, rows, columns = np.atleast_2d(program.A.values), program.A.indices, program.A.columns
        force = _sense(program)[rows] * values
        below, above = (force < 0).all(axis=0), (force > 0).all(axis=0)
        alone = above & (np.bincount(rows[unknown[columns]], minlength=program.m)[rows] == 1)
        free = np.asarray(~program.q.any(axis=0))
        held = np.zeros(program.n, dtype=bool)
        held[columns[below]] = True
        held[columns[alone & free[columns]]] = False  # nothing pushes it down: see `program.epigraph`
        kept = np.flatnonzero(unknown[columns] & np.where(held[columns], below, above))
        first = np.flatnonzero(np.diff(columns[kept], prepend=-1))
        found = columns[kept][first]
        return cls(rows[kept], values[:, kept], first, found, held[found])

    def tight(self, program: ConeProgram, x: Array) -> Array:
        """(batch, columns) values at which one of the rows is tight, and no other is violated."""
        if not len(self.columns):
            return x[:, :0]
        each = np.repeat(np.arange(len(self.columns)), np.diff(self.first, append=len(self.rows)))
        with np.errstate(all="ignore"):
            found = x[:, self.columns[each]] + _room(program, program.slack(x))[:, self.rows] / self.values
        low, high = (f.reduceat(found, self.first, axis=1) for f in (np.maximum, np.minimum))
        found = np.where(self.lower, low, high)
        return np.where(np.isfinite(found), found, 0.0)


def _sense(program: ConeProgram) -> Array:
    """(m,) 1 for rows whose slack has a lower end given the rest of their block, -1 for an upper end, 0 for others."""
    found = np.zeros(program.m)
    for group in program.cones.groups:
        match group.cone:
            case Nonneg() | SecondOrder():
                found[group.index[:, 0]] = 1.0
            case Exponential():
                found[group.index[:, [0, 2]]] = -1.0, 1.0
            case Power():
                found[group.index[:, :2]] = 1.0
    return found


def _room(program: ConeProgram, slack: Array) -> Array:
    """(batch, m) the slack of these rows beyond that end; anything on others."""
    found = slack.copy()
    for group in program.cones.groups:
        first, others = group.index[:, 0], slack[:, group.index[:, 1:]]
        match group.cone:
            case SecondOrder():
                found[:, first] -= np.linalg.norm(others, axis=2)
            case Exponential():
                y, z = others[..., 0], others[..., 1]
                found[:, first] -= y * np.log(z / y)
                found[:, group.index[:, 2]] -= y * np.exp(slack[:, first] / y)
            case Power(alpha):
                y, z = others[..., 0], np.abs(others[..., 1])
                found[:, first] -= (z / y ** (1 - alpha)) ** (1 / alpha)
                found[:, group.index[:, 1]] -= (z / slack[:, first] ** alpha) ** (1 / (1 - alpha))
    return found


def _pair(program: ConeProgram, x: Array) -> tuple[Array, Array]:
    """s in K and y in the dual cone, complementary, on the face of the slack at x."""
    slack, norms = program.slack(x), program.cones.block_means(program.A.row_sizes)
    finite = np.where(np.isfinite(slack), slack, 0.0)
    length = np.maximum(largest(x), largest(finite / norms))
    force = np.maximum(largest(program.q), largest(program.P.dot(x)))
    inside = finite - TIGHT * norms * np.where(length > 0, length, 1.0) * program.cones.interior
    s = program.cones.project(np.ascontiguousarray(inside))
    rest = s - inside
    size = program.cones.block_means(np.abs(rest))
    y = np.where(force > 0, force, 1.0) / norms * rest / np.where(size > 0, size, 1.0)
    y[:, program.cones.equalities] = 0.0
    return np.where(np.isfinite(slack), s, slack), y
