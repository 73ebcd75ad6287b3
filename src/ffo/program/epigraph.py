"""Presolve: epigraph variables that only relax.

CVXPY writes |x| <= 1 as |x| <= t, t <= 1, and abs, norm1, norm_inf and max likewise. Where t has no cost, the larger it
is the better: every other row it is in gets slacker. So t <= 1 may be held as an equality. Nothing that a user sees
changes, t is unique where it would be open, and Newton's method does not have to find out which it is. The multiplier
of the equality is that of the inequality: it is not negative, because t is pushed up by nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.program.cone import ConeProgram
from ffo.program.presolve import PresolveStep, Triple

Array = np.ndarray


@dataclass(frozen=True)
class Epigraphs(PresolveStep):
    """Inequalities that are held as equalities.

    Attributes:
        lids: (k,) numbers of these rows.
    """

    lids: Array

    def apply(self, program: ConeProgram) -> ConeProgram:
        return replace(program, cones=_with_equalities(program.cones, frozenset(self.lids.tolist())))

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        s = s.copy()
        s[:, self.lids] = 0.0
        return x, y, s

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        y = y.copy()
        y[:, self.lids] = np.maximum(y[:, self.lids], 0.0)  # negative by rounding only
        return x, y, s


def epigraphs(program: ConeProgram, hidden: Array | None) -> Epigraphs | None:
    """The step for a program; None where there is nothing to do.

    Args:
        hidden: (n,) variables that nobody sees; others are left alone, since a choice among several solutions would
            not show.
    """
    if hidden is None or not hidden.any():
        return None
    P, A = program.P, program.A
    free = hidden & ~program.q.any(axis=0)
    free[P.indices] = free[P.columns] = False
    if not free.any():
        return None
    kind = _kinds(program.cones)[A.indices]
    values = np.atleast_2d(A.values)
    upper = (kind == _INEQUALITY) & (values > 0).all(axis=0)
    slacker = (kind != _OTHER) & (values < 0).all(axis=0)
    count = lambda which: np.bincount(A.columns[which], minlength=program.n)  # noqa: E731
    alone = free & (count(upper) == 1) & (count(upper | slacker) == np.diff(A.indptr)) & (count(slacker) > 0)
    lids = np.unique(A.indices[upper & alone[A.columns]])
    lids = lids[np.isfinite(program.b[:, lids]).all(axis=0)]
    return Epigraphs(lids) if len(lids) else None


_INEQUALITY, _TOP, _OTHER = range(3)


def _kinds(cones: Product) -> Array:
    """(m,) inequalities, first rows of second-order cones, and all other rows."""
    kind = np.full(cones.dim, _OTHER)
    for group in cones.groups:
        if isinstance(group.cone, Nonneg):
            kind[group.index.ravel()] = _INEQUALITY
        elif isinstance(group.cone, SecondOrder):
            kind[group.index[:, 0]] = _TOP
    return kind


def _with_equalities(cones: Product, rows: frozenset[int]) -> Product:
    """The product with some rows of nonnegative rays turned into equalities."""
    blocks: list[tuple[Cone, int]] = []
    start = 0
    for cone, count in cones.blocks:
        if isinstance(cone, Nonneg):
            equal = np.array([start + k in rows for k in range(count)])
            edges = np.concatenate([[0], np.flatnonzero(np.diff(equal)) + 1, [count]])
            blocks += [(Zero() if equal[a] else cone, int(b - a)) for a, b in pairwise(edges)]
        else:
            blocks.append((cone, count))
        start += count * cone.dim
    return Product(blocks)
