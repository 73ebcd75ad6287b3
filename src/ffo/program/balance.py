"""Presolve: other coordinates for curved cones, in which the slack of a point close to the solution has unit size.

Coordinates of a block share their units: an error of 1e-6 of the largest counts as small in all of them. The slack
(18, 1, 1e8) of an exponential cone, for the utility 18 = log(1e8), may thus be off by 100 in its first coordinate, and
(1e4, 2, 1e4 - 1e-4) of a second-order cone, for 1 / 1e4, in all digits. A cone has linear maps onto itself, which take
these to points of unit size:

    exponential     (s1, s2, s3) -> (s1 + s2 log a, s2, a s3)
    power           (s1, s2, s3) -> (a s1, c s2, a^alpha c^(1 - alpha) s3)
    second-order    s0 + sj -> (s0 + sj) / a,  s0 - sj -> a (s0 - sj)
    semidefinite    S_ij -> a_i a_j S_ij

With s' = T s, and a factor for each block that makes slack and multiplier equally large, the program has the data
A' = TA, b' = Tb, and y' = T^-T y. Variables get the units of these rows, and other rows those of the variables.

For second-order cones T has three factors: to the sum and the difference of s0 and sj, their scaling, and back. In
the sums of data such as x + t and x - t, the other variable cancels exactly; in a product with (a + 1/a) / 2 and
(a - 1/a) / 2, the smaller one would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ffo.cones import PSD, Exponential, Power, Product, SecondOrder
from ffo.cones.base import Cone
from ffo.cones.psd import smat, triangle
from ffo.program.cone import ConeProgram
from ffo.program.pattern import Pattern
from ffo.program.plan import KEPT
from ffo.program.presolve import Presolve, PresolveStep, Triple
from ffo.program.scaling import Scaling
from ffo.program.sparse import SparseBatch

Array = np.ndarray

#: largest size of blocks whose coordinates are changed, since their rows of A become dense
LARGEST = 64
#: largest factors of maps
MOST = 1e30
#: factors within which blocks are balanced
BALANCED = 1e2
#: rounding errors; share of a slack that they may be in the new coordinates, for answers to be judged there: in
#: (1, 1 - 1e-13), 1 - s2 has three digits
EPS, KNOWN = 2.2e-16, 1e-8


@dataclass(frozen=True)
class Balance(PresolveStep):
    """T for the rows of every block, (batch, entries) row by row (`_places`), and its inverse."""

    cones: Product
    T: Array
    inverse: Array

    @classmethod
    def none(cls, cones: Product, batch: int) -> Balance:
        """Coordinates as they are."""
        rows, columns, _ = _places(cones)
        T = np.where(rows == columns, 1.0, np.zeros((batch, 1)))
        return cls(cones, T, T.copy())

    def take(self, samples: Array) -> Balance:
        return Balance(self.cones, self.T[samples], self.inverse[samples])

    def apply(self, program: ConeProgram) -> ConeProgram:
        rows, columns, _ = _places(self.cones)
        A = program.A.pattern
        # every entry of A meets all entries of its column of T
        order = np.argsort(columns, kind="stable")
        first = np.searchsorted(columns[order], np.arange(program.m + 1))
        count = np.diff(first)[A.rows]
        source = np.repeat(np.arange(A.nnz), count)
        within = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
        factor = order[first[A.rows[source]] + within]
        flat = rows[factor] + program.m * A.columns[source]
        pattern, places = Pattern.covering([flat], (program.m, program.n))
        to = np.searchsorted(places, flat)
        add = sp.csr_array((np.ones(len(to)), (to, np.arange(len(to)))), shape=(pattern.nnz, len(to)))
        values = np.broadcast_to(program.A.values, (program.batch, A.nnz))
        found = (add @ (self.T[:, factor] * values[:, source]).T).T
        return replace(program, A=SparseBatch.on(pattern, found), b=self._times(self.T, program.b)).pruned()

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        return x, self._times(self.inverse, y, transposed=True), self._times(self.T, s)

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        return x, self._times(self.T, y, transposed=True), self._times(self.inverse, s)

    def reduce(self, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return r_x, self._times(self.T, r_s)

    def restore(self, u: Array, w: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return u, self._times(self.T, w, transposed=True)

    def _times(self, T: Array, v: Array, transposed: bool = False) -> Array:
        rows, columns, _ = _places(self.cones)
        rows, columns = (columns, rows) if transposed else (rows, columns)
        out = np.zeros((len(v), self.cones.dim))
        np.add.at(out.T, rows, (T * v[:, columns]).T)
        return out


def units_of_blocks(program: ConeProgram) -> Scaling:
    """Units of variables in which the largest entry of their rows in curved blocks is one, and of other rows."""
    A, curved = program.A, ~program.cones.scalar_rows
    values = np.abs(A.values if A.values.ndim > 1 else A.values[None])
    D, E = np.zeros((len(values), program.n)), np.zeros((len(values), program.m))
    np.maximum.at(D.T, A.columns, np.where(curved[A.indices], values, 0.0).T)
    D = 1.0 / np.where(D > 0, D, 1.0)
    np.maximum.at(E.T, A.indices, (values * D[:, A.columns]).T)
    E = np.where(curved | (E == 0), 1.0, 1.0 / np.where(E > 0, E, 1.0))
    one = np.ones((program.batch, 1))
    return Scaling(D, E, one, one)


@lru_cache(maxsize=KEPT)
def _places(cones: Product) -> tuple[Array, Array, dict[int, int]]:
    """Rows and columns of the entries of T, and where those of a block begin, by its first row."""
    rows, columns, begin, at = [], [], {}, 0
    changed = {int(i[0]): len(i) for g in cones.groups if _suited(g.cone) for i in g.index}
    row = 0
    while row < cones.dim:
        d = changed.get(row, 1)
        i, j = np.divmod(np.arange(d * d), d)
        rows.append(row + i)
        columns.append(row + j)
        begin[row] = at
        at, row = at + d * d, row + d
    return np.concatenate(rows), np.concatenate(columns), begin


def _suited(cone: Cone) -> bool:
    return type(cone) in _MAPS and 1 < cone.dim <= LARGEST


class Balanced(NamedTuple):
    """Coordinates in which the slacks of some points have unit size.

    Attributes:
        steps: into these coordinates.
        skewed: (batch,) whether coordinates of a block change by very different factors, and s is known in all of them.
        uneven: (batch,) whether these, or units of blocks, change much.
    """

    steps: Presolve
    skewed: Array
    uneven: Array


def balance(program: ConeProgram, x: Array, y: Array, s: Array, kept: Array) -> Balanced:
    """Coordinates for points x (batch, n), y and s (batch, m); blocks with rows `kept` (batch, m) keep theirs."""
    sums = _sums(program.cones, s)
    program = sums.apply(program)
    with np.errstate(all="ignore"):  # points may be of any kind
        x, y, s = sums.inward(x, y, s)
        given, noise = program.slack(x), EPS * (np.abs(program.b) + program.A.magnitudes.dot(np.abs(x)))
    step, begin = Balance.none(program.cones, len(s)), _places(program.cones)[2]
    stretches = [np.full((program.batch, 1), np.nan)]
    skewed = uneven = np.zeros(program.batch, dtype=bool)
    for g in program.cones.groups:
        if _suited(g.cone):
            block = (given if isinstance(g.cone, SecondOrder) else s)[:, g.index]
            maps, back, stretch = _maps_of(g.cone, block, y[:, g.index])
            at = np.array([begin[int(i[0])] for i in g.index])[:, None] + np.arange(g.cone.dim**2)
            stay = kept[:, g.index[:, 0], None, None]
            maps, back = (np.where(stay, np.eye(g.cone.dim), v) for v in (maps, back))
            step.T[:, at], step.inverse[:, at] = (v.reshape(*stretch.shape, -1) for v in (maps, back))
            size = np.abs(np.einsum("bkii->bki", maps))
            change = size.max(axis=2) > BALANCED * size.min(axis=2)
            lost = np.einsum("bkij,bkj->bki", np.abs(maps), noise[:, g.index]).max(axis=2)
            known = lost <= KNOWN * np.abs(np.einsum("bkij,bkj->bki", maps, block)).max(axis=2)
            skewed = skewed | (change & known).any(axis=1)
            uneven = uneven | change.any(axis=1)
            stretches.append(np.where(stay[..., 0, 0], np.nan, stretch))
    stretch = np.concatenate(stretches, axis=1)
    least, most = np.fmin.reduce(stretch, axis=1), np.fmax.reduce(stretch, axis=1)
    steps = Presolve.of(sums, step, replace(sums, T=sums.inverse, inverse=sums.T))
    return Balanced(steps, skewed, uneven | (most > BALANCED * least))


def along_same_axes(cones: Product, s: Array, t: Array) -> Array:
    """(batch, m) false in rows of second-order cones whose largest entries are at different places in s and t: each is
    on the boundary along its own axis."""
    same = np.ones(s.shape, dtype=bool)
    for g in cones.groups:
        if _suited(g.cone) and isinstance(g.cone, SecondOrder):
            equal = _axis(s[:, g.index])[0] == _axis(t[:, g.index])[0]
            same[:, g.index] = equal[..., None]
    return same


def _sums(cones: Product, s: Array) -> Balance:
    """From (s0, s1, ..) to (s0 + |sj|, s0 - |sj|, ..) for second-order cones, sj the largest, whose place s1 takes."""
    step, begin = Balance.none(cones, len(s)), _places(cones)[2]
    for g in cones.groups:
        if _suited(g.cone) and isinstance(g.cone, SecondOrder):
            d, (j, sign) = g.cone.dim, _axis(s[:, g.index])
            k, b = np.indices(j.shape)
            T = np.broadcast_to(np.eye(d), (*j.shape, d, d)).copy()
            T[k, b, j] = T[k, b, 1]
            T[k, b, :2] = 0.0
            T[k, b, :2, 0], T[k, b, 0, j], T[k, b, 1, j] = 1.0, sign, -sign
            at = np.array([begin[int(i[0])] for i in g.index])[:, None] + np.arange(d * d)
            step.T[:, at] = T.reshape(*j.shape, -1)
            back = T.swapaxes(2, 3) / np.array([2.0, 2.0] + [1.0] * (d - 2))  # rows of T are orthogonal
            step.inverse[:, at] = back.reshape(*j.shape, -1)
    return step


def _axis(s: Array) -> tuple[Array, Array]:
    """The number of the largest entry besides the first, and its sign."""
    j = 1 + np.abs(s[..., 1:]).argmax(axis=-1)
    return j, np.where(np.take_along_axis(s, j[..., None], -1)[..., 0] < 0, -1.0, 1.0)


def _maps_of(cone: Cone, s: Array, y: Array) -> tuple[Array, Array, Array]:
    """(batch, count, d, d) maps of blocks with these slacks and multipliers (batch, count, d), and their inverses; and
    by how much they stretch the slacks, NaN where there is none."""
    with np.errstate(all="ignore"):
        maps, back = _MAPS[type(cone)](cone, s)
        length = np.abs(np.einsum("bkij,bkj->bki", maps, s)).max(axis=2)
        size = np.sqrt(np.abs(np.einsum("bkji,bkj->bki", back, y)).max(axis=2) / length)
        size = np.where((size >= 1 / MOST) & (size <= MOST), size, np.nan)
        stretch, size = size * length / np.abs(s).max(axis=2), np.where(np.isnan(size), 1.0, size)[..., None, None]
    return size * maps, back / size, stretch


def _limited(a: Array) -> Array:
    """Factors up to a limit; one where a slack has no sign or is zero."""
    return np.where((a > 0) & (a < np.inf), np.clip(a, 1 / MOST, MOST), 1.0)


def _at_least(v: Array, demanded: Array) -> Array:
    """Coordinates, or what the others demand of them: a small one may have lost its digits."""
    return np.where(demanded < np.inf, np.fmax(v, demanded), v)


def _diagonal(v: Array) -> Array:
    return v[..., None] * np.eye(v.shape[-1])


def _exponential(cone: Exponential, s: Array) -> tuple[Array, Array]:
    a = _limited(s[..., 1] / s[..., 2])
    one = np.ones_like(a)
    maps, back = (_diagonal(np.stack([one, one, v], -1)) for v in (a, 1 / a))
    maps[..., 0, 1], back[..., 0, 1] = np.log(a), -np.log(a)
    return maps, back


def _power(cone: Power, s: Array) -> tuple[Array, Array]:
    (a, b, c), rest = np.moveaxis(s, -1, 0), 1 - cone.alpha
    demanded = (np.abs(c) / b**rest) ** (1 / cone.alpha), (np.abs(c) / a**cone.alpha) ** (1 / rest)
    v = _limited(1 / _at_least(s[..., :2], np.stack(demanded, -1)))
    v = np.concatenate([v, v[..., :1] ** cone.alpha * v[..., 1:] ** rest], -1)
    return _diagonal(v), _diagonal(1 / v)


def _second_order(cone: SecondOrder, s: Array) -> tuple[Array, Array]:
    """Of sum and difference."""
    v = np.ones_like(s)
    difference = _at_least(s[..., 1], (s[..., 2:] ** 2).sum(axis=-1) / s[..., 0])
    v[..., 1] = _limited(np.sqrt(s[..., 0] / difference))
    v[..., 0] = 1 / v[..., 1]
    return _diagonal(v), _diagonal(1 / v)


def _semidefinite(cone: PSD, s: Array) -> tuple[Array, Array]:
    X, (i, j, _) = smat(s, cone.order), triangle(cone.order)
    size = X[..., np.arange(cone.order), np.arange(cone.order)]
    demanded = np.where(np.eye(cone.order, dtype=bool), 0.0, X**2 / size[..., None, :])
    v = np.sqrt(_limited(1 / _at_least(size, np.fmax.reduce(demanded, axis=-1))))
    scaled = v[..., i] * v[..., j]
    return _diagonal(scaled), _diagonal(1 / scaled)


_MAPS: dict[type, Callable[..., tuple[Array, Array]]] = {
    Exponential: _exponential,
    Power: _power,
    SecondOrder: _second_order,
    PSD: _semidefinite,
}
