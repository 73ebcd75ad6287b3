"""Presolve: substitute variables that are defined by an equality.

CVXPY writes |Fx - g|^2 as |r|^2 with a variable r and rows Fx - r = g. Such an r is in no other row, and has no
products with other variables in the objective. With C r + A_r v = b_r, D the diagonal of P at r, and M = C^-1 A_r,

    r = C^-1 b_r - M v,     P' = P + M'DM,     q' = q - M'(q_r + D C^-1 b_r),     y_r = -C^-1 (q_r + D r).

The same unknowns are eliminated from the ghost system.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy.sparse as sp

from ffo.cones import Product
from ffo.program.cone import ConeProgram
from ffo.program.pattern import Pattern, span
from ffo.program.presolve import PresolveStep, Triple
from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray

#: structures whose plans are cached
KEPT = 32
#: a row with at most so many other entries is always substituted: it adds no more entries to P than it removes from A
FEW = 2
#: most products of entries, per entry of A, examined to determine how full P would be
PRODUCTS = 30
#: fewest variables, as a share of all, whose substitution saves more time than it takes (MPC, one sample: 4 of 84 cost
#: a tenth of a step)
WORTH = 0.1
#: largest coefficient of M: above, the variable is defined by a small entry of its row, which amplifies rounding
LARGEST = 1e2


@dataclass(frozen=True)
class Places:
    """Index arrays for one structure.

    Attributes:
        gone, kept: eliminated and remaining variables; rows, rest: rows of A that define the former, and all others.
        pivots: entries of A that define them; d: entries of P on the diagonal of these variables (-1: none).
        M, A: patterns of M and of the reduced A; in_M, in_A: where their entries are in the program's A.
        P: pattern of the reduced P; in_P, to: entries of the program's P that stay, and where; product: (3, products)
            row of M and two of its entries; add: adds up products to entries of P.
        cones: of the remaining rows.
    """

    gone: Array | slice
    kept: Array | slice
    rows: Array | slice
    rest: Array | slice
    pivots: Array
    d: Array
    M: Pattern
    in_M: Array
    A: Pattern
    in_A: Array
    P: Pattern
    in_P: Array
    to: Array
    product: Array
    add: sp.csr_array
    cones: Product


@dataclass(frozen=True)
class Definitions:
    """The matrices of the substitution: C, D (batch or 1, k), M, and the reduced matrices P and A."""

    places: Places
    C: Array
    D: Array
    M: SparseBatch
    P: SymmetricBatch
    A: SparseBatch

    @classmethod
    def of(cls, program: ConeProgram) -> Definitions | None:
        """The definitions of a program; None if no variable should be substituted."""
        return cls.at(program, _places(program.cones, program.P.pattern, program.A.pattern))

    @classmethod
    def at(cls, program: ConeProgram, at: Places | None) -> Definitions | None:
        """The definitions at some places, unless the values speak against it."""
        if at is None:
            return None
        P, A = np.atleast_2d(program.P.values), np.atleast_2d(program.A.values)
        C, D = A[:, at.pivots], np.zeros((len(P), len(at.d)))
        D[:, at.d >= 0] = P[:, at.d[at.d >= 0]]
        with np.errstate(all="ignore"):
            M = A[:, at.in_M] / C[:, at.M.rows]
        if not (np.abs(M) <= LARGEST).all() or not (D >= 0).all():
            return None
        k, i, j = at.product
        found = np.zeros((max(len(P), len(A)), at.P.nnz))
        found[:, at.to] = P[:, at.in_P]
        found += (at.add @ (D[:, k] * M[:, i] * M[:, j]).T).T
        shared = program.A.shared, program.P.shared and program.A.shared
        return cls(
            at, C, D,
            SparseBatch.on(at.M, M[0] if shared[0] else M),
            SymmetricBatch.on(at.P, found[0] if shared[1] else found, own=True),
            SparseBatch.on(at.A, A[0, at.in_A] if shared[0] else A[:, at.in_A], own=True),
        )  # fmt: skip

    def take(self, samples: Array) -> Definitions:
        C, D = (v if len(v) == 1 else v[samples] for v in (self.C, self.D))
        return replace(self, C=C, D=D, M=self.M.take(samples), P=self.P.take(samples), A=self.A.take(samples))


@dataclass(frozen=True)
class Substitution(PresolveStep):
    """Substitution of some variables, in programs with these vectors q and b."""

    of: Definitions
    q: Array
    b: Array

    def apply(self, program: ConeProgram) -> ConeProgram:
        r_x, b = self.reduce(-program.q, program.b)
        return ConeProgram(self.of.P, -r_x, self.of.A, b, self.of.places.cones)

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        at = self.of.places
        return x[:, at.kept], y[:, at.rest], s[:, at.rest]

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        full_s = np.zeros(self.b.shape)
        full_s[:, self.of.places.rest] = s
        return *self.restore(x, y, -self.q, self.b), full_s

    def reduce(self, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        at, C, D = self.of.places, self.of.C, self.of.D
        pull = r_x[:, at.gone] - D * (r_s[:, at.rows] / C)
        return r_x[:, at.kept] - self.of.M.tdot(pull), r_s[:, at.rest]

    def restore(self, u: Array, w: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        at, C, D = self.of.places, self.of.C, self.of.D
        full_u, full_w = np.empty(r_x.shape), np.empty(r_s.shape)
        gone = r_s[:, at.rows] / C - self.of.M.dot(u)
        full_u[:, at.kept], full_u[:, at.gone] = u, gone
        full_w[:, at.rest], full_w[:, at.rows] = w, (r_x[:, at.gone] - D * gone) / C
        return full_u, full_w

    def take(self, samples: Array) -> Substitution:
        return Substitution(self.of.take(samples), self.q[samples], self.b[samples])


@lru_cache(maxsize=KEPT)
def _places(cones: Product, P: Pattern, A: Pattern) -> Places | None:
    columns, rows = definable(cones, P, A)
    return chosen(cones, P, A, columns, rows) if len(columns) >= WORTH * A.shape[1] else None


def chosen(cones: Product, P: Pattern, A: Pattern, columns: Array, rows: Array) -> Places | None:
    """The index arrays for these definable variables, or for those that leave P sparse; None if there are none."""
    if not len(columns):
        return None
    curved = np.full(P.shape[0], -1)
    curved[P.rows[P.on_diagonal]] = np.flatnonzero(P.on_diagonal)
    full = _made(cones, P, A, columns, rows, curved)
    few = A.row_counts[rows] - 1 <= FEW
    if full is not None and full.P.nnz <= P.nnz + int(A.row_counts[rows].sum()):
        return full
    return _made(cones, P, A, columns[few], rows[few], curved) if few.any() else None


def definable(cones: Product, P: Pattern, A: Pattern) -> tuple[Array, Array]:
    """Variables defined by an equality, and these equalities, at most one variable each."""
    equal = cones.equalities
    alone = np.diff(A.indptr) == 1
    off = ~P.on_diagonal
    alone[P.rows[off]] = alone[P.columns[off]] = False
    columns = np.flatnonzero(alone)
    defining = A.rows[A.indptr[columns]]
    columns, defining = columns[equal[defining]], defining[equal[defining]]
    rows, first = np.unique(defining, return_index=True)
    return (columns[first], rows) if len(rows) < A.shape[1] else (columns[:0], rows[:0])


def _made(cones: Product, P: Pattern, A: Pattern, gone: Array, rows: Array, curved: Array) -> Places | None:
    """The index arrays for a choice of variables and the rows that define them; None if P would get too full."""
    n, m = A.shape[1], A.shape[0]
    kept, rest = np.setdiff1d(np.arange(n), gone), np.setdiff1d(np.arange(m), rows)
    variable, row = np.full(n, -1), np.full(m, -1)
    variable[kept] = np.arange(len(kept))
    defining = row.copy()
    row[rest], defining[rows] = np.arange(len(rest)), np.arange(len(rows))
    stays = variable[A.columns] >= 0
    in_M, in_A = np.flatnonzero(stays & (defining[A.rows] >= 0)), np.flatnonzero(stays & (row[A.rows] >= 0))
    M = _pattern(defining[A.rows[in_M]], variable[A.columns[in_M]], (len(rows), len(kept)))
    d = curved[gone]
    count = np.where(d >= 0, M.row_counts, 0)
    if (count**2).sum() > PRODUCTS * A.nnz:
        return None
    product = _products(M, d >= 0)
    in_P = np.flatnonzero((variable[P.rows] >= 0) & (variable[P.columns] >= 0))
    i, j = M.columns[product[1]], M.columns[product[2]]
    size = len(kept)
    flat = [variable[P.rows[in_P]] + size * variable[P.columns[in_P]], np.minimum(i, j) + size * np.maximum(i, j)]
    pattern, places = Pattern.covering(flat, (size, size))
    to, at = (np.searchsorted(places, f) for f in flat)
    add = sp.csr_array((np.ones(len(at)), (at, np.arange(len(at)))), shape=(pattern.nnz, len(at)))
    left = _pattern(row[A.rows[in_A]], variable[A.columns[in_A]], (len(rest), len(kept)))
    return Places(
        span(gone), span(kept), span(rows), span(rest), A.indptr[gone], d, M, in_M, left, in_A, pattern, in_P, to,
        product, add, cones.only(row >= 0),
    )  # fmt: skip


def _pattern(rows: Array, columns: Array, shape: tuple[int, int]) -> Pattern:
    """The pattern of entries given in CSC order."""
    indptr = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=shape[1]))])
    return Pattern.of(indptr.astype(np.int32), rows.astype(np.int32), shape)


def _products(M: Pattern, curved: Array) -> Array:
    """(3, products) row and two entries, the first not after the second, of all rows with curvature."""
    indptr, _, order = M.by_rows
    found = [np.zeros((3, 0), dtype=np.int64)]
    for k in np.flatnonzero(curved).tolist():
        entries = order[indptr[k] : indptr[k + 1]]
        i, j = np.triu_indices(len(entries))
        found.append(np.stack([np.full(len(i), k), entries[i], entries[j]]))
    return np.concatenate(found, axis=1)
