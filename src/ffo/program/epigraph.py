"""Presolve: epigraph variables that only relax.

CVXPY writes |x| <= 1 as |x| <= t, t <= 1, and abs, norm1, norm_inf and max likewise. If t has no cost, a larger t only
relaxes every other row it is in. So t <= 1 may be held as an equality. Nothing that a user sees changes, t becomes
unique, and Newton's method does not have to decide whether the row is active. The multiplier of the equality is that of
the inequality: it is nonnegative, because nothing else pushes t up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.program.cone import ConeProgram
from ffo.program.pattern import Pattern
from ffo.program.plan import KEPT, values_of
from ffo.program.presolve import PresolveStep, Triple

Array = np.ndarray


@dataclass(frozen=True)
class Epigraphs(PresolveStep):
    """Inequalities that are held as equalities.

    Attributes:
        rows: (k,) numbers of these rows.
    """

    rows: Array

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(self.rows.tolist())

    def apply(self, program: ConeProgram) -> ConeProgram:
        return program.with_cones(_with_equalities(program.cones, self._numbers))

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        s = s.copy()
        s[:, self.rows] = 0.0
        return x, y, s

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        y = y.copy()
        y[:, self.rows] = np.maximum(y[:, self.rows], 0.0)  # negative by rounding only
        return x, y, s


def epigraphs(program: ConeProgram, hidden: Array | None) -> Epigraphs | None:
    """The step for a program; None if there is nothing to do.

    Args:
        hidden: (n,) variables that are not outputs. Others are left alone, since the certificate would not see a
            choice among several solutions.
    """
    if hidden is None:
        return None
    may = _candidates(program.cones, program.P.pattern, program.A.pattern, hidden.tobytes())
    if not len(may.columns):
        return None
    from ffo.kernels.entries import single_upper_rows  # loads compiled code

    _, q, Av, b = values_of(program).arrays
    rows = single_upper_rows(Av, q, b, *may).nonzero()[0]
    return Epigraphs(rows) if len(rows) else None


class _Candidates(NamedTuple):
    """Hidden variables that may only relax, as far as the sparsity pattern of a program determines it: arguments of
    `single_upper_rows`."""

    columns: Array
    starts: Array
    entries: Array
    rows: Array
    inequality: Array


@lru_cache(maxsize=KEPT)
def _candidates(cones: Product, P: Pattern, A: Pattern, hidden: bytes) -> _Candidates:
    """Variables without a quadratic cost whose rows, at least two, can all relax."""
    kind = _kinds(cones)[A.indices]
    free = np.frombuffer(hidden, dtype=bool).copy()
    free[P.indices] = free[P.columns] = False
    free[A.columns[kind == _OTHER]] = False
    sizes = np.diff(A.indptr)
    columns = np.flatnonzero(free & (sizes > 1))
    starts = np.concatenate([[0], np.cumsum(sizes[columns])])
    entries = np.flatnonzero(np.isin(A.columns, columns))
    return _Candidates(columns, starts, entries, A.indices[entries].astype(np.int64), kind[entries] == _INEQUALITY)


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


@lru_cache(maxsize=KEPT)
def _with_equalities(cones: Product, rows: tuple[int, ...]) -> Product:
    """The product with some rows of nonnegative rays turned into equalities."""
    blocks: list[tuple[Cone, int]] = []
    start, turned = 0, np.isin(np.arange(cones.dim), rows)
    for cone, count in cones.blocks:
        if isinstance(cone, Nonneg):
            equal = turned[start : start + count]
            edges = np.concatenate([[0], np.flatnonzero(np.diff(equal)) + 1, [count]])
            blocks += [(Zero() if equal[a] else cone, int(b - a)) for a, b in pairwise(edges)]
        else:
            blocks.append((cone, count))
        start += count * cone.dim
    return Product(blocks)
