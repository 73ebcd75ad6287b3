"""The ghost matrix of constraints without curvature, laid out once for every active set.

Where all constraints are equalities and inequalities, an active set is a set of rows. Those with a single
entry (bounds) fix their variables, and what is left,

    [ P_FF  A_RF' ]        F free variables, R other active rows
    [ A_RF    .   ]

is a submatrix of one matrix K: equilibrated and regularised once, it is cut down sample by sample. Equal
submatrices have equal factors, which are remembered where active sets are expected to come again. Until a
small pivot is met, K is regularised only slightly.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
import scipy.sparse as sp

from ffo.ghost.factors import REGULARISATION, Factors, factor_blocks
from ffo.program.sparse import SparseBatch, SymmetricBatch, span

Array = np.ndarray

#: memory given to remembered factors, and layouts that are kept
MAX_BYTES, KEPT = 256 * 2**20, 4
#: pivots of rows and of variables (the largest entries of the matrix being 1) up to which it may be singular
ROW_PIVOT, VARIABLE_PIVOT = 1e-4, 1e-6
#: regularisation that is enough where no pivot is small, and leaves less than asks for refinement
SLIGHT = 1e-15


@dataclass(frozen=True)
class BoundRows:
    """One row with a single entry for every variable that has one.

    Attributes:
        columns: the variables that have such a row, rows: these rows (both slices where they can be);
        coefficient: (variables,) or (batch, variables).
    """

    columns: Array | slice
    rows: Array | slice
    coefficient: Array


class Layout:
    """K = [P  A_G'; A_G  .], where G are the rows of A that are not bounds.

    Attributes:
        bounds: the first and the second bound of each variable, where there are any; more of them count as G.
        rows: (g,) the rows G, a slice where it can be.
        K: (n + g, n + g) upper triangle, every diagonal entry stored.
        scale: (batch or 1, n + g) its symmetric equilibration.
        tau: (batch or 1, m) |a_i|^2 / |P|, which makes multipliers comparable with slacks.
        weights: (batch or 1, n + g) of squared residuals: 1 for those of variables, and for those of rows
            |P|^2 / |a_i|^2, which makes them comparable.
        again: whether it was asked for more than once: matrices that are learned are not.
        slight: whether a slight regularisation has been enough so far.
        factors: those of the active sets that were to be remembered.
    """

    def __init__(self, P: SymmetricBatch, A: SparseBatch, slight: bool = True) -> None:
        self.P, self.A, self.slight = P, A, slight
        self.again = False
        self.n, self.m = P.shape[0], A.shape[0]
        first, second, general = self._by_kind()
        self.bounds = tuple(kind for kind in (first, second) if kind.coefficient.size)
        self.rows = span(np.flatnonzero(general))
        self.K = _saddle(P, A, np.flatnonzero(general))
        self.scale = _equilibration(self.K)
        curvature = np.abs(np.atleast_2d(P.values)).max(axis=1, keepdims=True, initial=0.0)
        squared = np.where(A.row_norms_squared > 0, A.row_norms_squared, 1.0)
        self.tau = squared / np.where(curvature > 0, curvature, 1.0)
        units = squared / self.tau**2
        self.weights = np.concatenate([np.ones((len(units), self.n)), units[:, self.rows]], axis=1)
        self.factors = FactorMemory()

    def _by_kind(self) -> tuple[BoundRows, BoundRows, Array]:
        A = self.A
        entry = np.zeros(self.m, dtype=np.intp)
        entry[A.indices] = np.arange(A.nnz)
        alone = np.bincount(A.indices, minlength=self.m) == 1
        if A.nnz:
            alone &= (np.atleast_2d(A.values)[:, entry] != 0).all(axis=0)
        rows = np.flatnonzero(alone)
        order = np.argsort(A.columns[entry[rows]], kind="stable")
        rows, columns = rows[order], A.columns[entry[rows]][order]
        start = np.flatnonzero(np.concatenate([[True], columns[1:] != columns[:-1]])[: len(rows)])
        place = np.arange(len(rows)) - np.repeat(start, np.diff(np.append(start, len(rows))))
        general, found = np.ones(self.m, dtype=bool), []
        for k in (0, 1):
            mine = rows[place == k]
            general[mine] = False
            found.append(BoundRows(span(columns[place == k]), span(mine), A.values[..., entry[mine]]))
        return found[0], found[1], general

    @cached_property
    def _equilibrated(self) -> Array:
        """(batch or 1, nnz)."""
        K, scale = self.K, self.scale
        return np.atleast_2d(K.values) * scale[:, K.indices] * scale[:, K.columns]

    @cached_property
    def _signs(self) -> Array:
        """(nnz,) of what regularisation adds: 1 on the diagonal of variables, -1 on that of rows."""
        signs = np.zeros(self.K.nnz)
        signs[self.K.indptr[1:] - 1] = np.where(np.arange(self.K.shape[0]) < self.n, 1.0, -1.0)
        return signs

    def cut(self, keep: Array) -> tuple[sp.csc_array, Array]:
        """The submatrices of kept unknowns (batch, n + g), along one diagonal, equilibrated and regularised, and
        the sample of each unknown."""
        K, (batch, size) = self.K, keep.shape
        kept = keep[:, K.indices]
        kept &= keep[:, K.columns]
        sample, entry = np.divmod(np.flatnonzero(kept), K.nnz)
        rank = (np.cumsum(keep) - 1).astype(np.int32)
        counts = np.add.reduceat(kept, K.indptr[:-1], axis=1, dtype=np.int32)[keep] if size else np.zeros(0, int)
        values = self._equilibrated
        data = values[0, entry] if len(values) == 1 else values[sample, entry]
        data += (SLIGHT if self.slight else REGULARISATION) * self._signs[entry]
        total = int(keep.sum())
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        matrix = sp.csc_array((data, rank[sample * size + K.indices[entry]], indptr), shape=(total, total))
        return matrix, np.repeat(np.arange(batch), keep.sum(axis=1))


def _saddle(P: SymmetricBatch, A: SparseBatch, rows: Array) -> SymmetricBatch:
    """The upper triangle of [P  A_G'; A_G  .], every diagonal entry stored."""
    n, g = P.shape[0], len(rows)
    place = np.full(A.shape[0], -1)
    place[rows] = np.arange(g)
    mine = np.flatnonzero(place[A.indices] >= 0)
    bare = np.ones(n + g, dtype=bool)
    bare[P.indices[P.indices == P.columns]] = False
    bare = np.flatnonzero(bare)
    row = np.concatenate([P.indices, A.columns[mine], bare])
    col = np.concatenate([P.columns, n + place[A.indices[mine]], bare])
    order = np.lexsort((row, col))
    batch = () if P.shared and A.shared else (len(A.values if P.shared else P.values),)
    parts = (P.values, A.values[..., mine], np.zeros(len(bare)))
    values = np.concatenate([np.broadcast_to(v, (*batch, v.shape[-1])) for v in parts], axis=-1)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(col, minlength=n + g))]).astype(np.int32)
    return SymmetricBatch(indptr, row[order].astype(np.int32), values[..., order], (n + g, n + g))


def _equilibration(K: SymmetricBatch) -> Array:
    """(batch or 1, size) symmetric scaling towards rows of unit largest entry (Ruiz)."""
    values = np.atleast_2d(K.values)
    scale = np.ones((len(values), K.shape[0]))
    for _ in range(3):
        scaled = SymmetricBatch(K.indptr, K.indices, values * scale[:, K.indices] * scale[:, K.columns], K.shape)
        largest = np.maximum(scaled.largest_of_rows, scaled.largest_of_columns)
        scale /= np.sqrt(np.where(largest > 0, largest, 1.0))
    return scale


@dataclass
class Owned:
    """Factors of one submatrix (None where nothing is left), and whether that may be singular."""

    factors: Factors | None
    suspect: bool

    @property
    def bytes(self) -> int:
        return self.factors.bytes if self.factors else 0


class FactorMemory:
    """Factors by the unknowns they were made for; the least recently used are forgotten beyond `max_bytes`.

    Threads may share it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._known: OrderedDict[bytes, Owned] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        with self._lock:
            self._known.clear()
            self.bytes = 0

    def recall(self, names: list[bytes]) -> dict[bytes, Owned]:
        """Those of the names that are known."""
        with self._lock:
            found = {name: self._known[name] for name in names if name in self._known}
            for name in found:
                self._known.move_to_end(name)
        return found

    def remember(self, made: dict[bytes, Owned]) -> None:
        with self._lock:
            for name, owned in made.items():
                if name not in self._known:
                    self._known[name] = owned
                    self.bytes += len(name) + owned.bytes
            while self.bytes > self.max_bytes and len(self._known) > 1:
                name, owned = self._known.popitem(last=False)
                self.bytes -= len(name) + owned.bytes


class Layouts:
    """The layouts used last, found again by the values of P and A. Threads may share it.

    Copies start empty: factors do not travel.
    """

    def __init__(self) -> None:
        self._kept: list[Layout] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Layouts], tuple[()]]:
        return Layouts, ()

    def find(self, P: SymmetricBatch, A: SparseBatch) -> Layout:
        if not (P.shared and A.shared):
            return Layout(P, A, slight=False)
        with self._lock:
            found = next((one for one in self._kept if one.P.same(P) and one.A.same(A)), None)
            if found is not None:
                found.again = True
            else:
                slight = not self._kept or self._kept[0].slight
                found = Layout(P.owned(), A.owned(), slight)  # callers may write into theirs
            others = [one for one in self._kept if one is not found][: KEPT - 1]
            self._kept = [found, *others]
            for one in reversed(others):
                if sum(kept.factors.bytes for kept in self._kept) > MAX_BYTES:
                    one.factors.clear()
        return found


class CutFactors:
    """Factors of the submatrices of a batch.

    Attributes:
        keep: (batch, n + g) the unknowns of each sample's submatrix.
    """

    def __init__(self, layout: Layout, keep: Array, remember: bool) -> None:
        self.layout, self.keep = layout, keep
        self._kept = np.flatnonzero(keep)
        place = self._kept if len(layout.scale) > 1 else self._kept % keep.shape[1]
        self._scale = layout.scale.ravel()[place]
        self._owned: list[Owned] = []
        if remember and layout.K.shared:
            self._owned = self._recalled()
            ends = np.cumsum(keep.sum(axis=1)).tolist()
            spans = zip([0, *ends[:-1]], ends, self._owned, strict=True)
            self._blocks = [(start, end, one.factors) for start, end, one in spans if one.factors]
        else:
            self._blocks, self._suspect = _factorized(layout, keep, gather=True)

    def _recalled(self) -> list[Owned]:
        """One for each sample; new ones are made where none is known."""
        names = [row.tobytes() for row in np.packbits(self.keep, axis=1)]
        memory = self.layout.factors
        known = memory.recall(names)
        new = {name: k for k, name in enumerate(names) if name not in known}
        if new:
            keep = self.keep[list(new.values())]
            blocks, suspect = _factorized(self.layout, keep, gather=False)
            filled = iter([factors for _, _, factors in blocks])
            every = zip(new, keep.sum(axis=1).tolist(), suspect.tolist(), strict=True)
            made = {name: Owned(next(filled) if size else None, doubt) for name, size, doubt in every}
            memory.remember(made)
            known |= made
        return [known[name] for name in names]

    @cached_property
    def suspect(self) -> Array:
        """(batch,) whether the submatrix may be singular: a null vector leaves a pivot of the size of the
        regularisation, but so does a row that is eliminated before its variables."""
        if self._owned:
            return np.array([one.suspect for one in self._owned])
        return self._suspect

    def acquit(self, samples: Array) -> None:
        """Remember of suspect samples that their submatrices are not singular."""
        for k in samples if self._owned else ():
            self._owned[k].suspect = False

    def solve(self, residual: Array) -> Array:
        """(batch, n + g) -> (batch, n + g), zero outside the submatrices; up to the regularisation."""
        rhs = residual.take(self._kept) * self._scale
        z = np.zeros(residual.size)
        inner = np.concatenate([f.solve(rhs[start:end]) for start, end, f in self._blocks] or [rhs])
        z[self._kept] = inner * self._scale
        return z.reshape(residual.shape)


def _factorized(layout: Layout, keep: Array, gather: bool) -> tuple[list[tuple[int, int, Factors]], Array]:
    """Factors of submatrices, and (batch,) whether these may be singular."""
    try:
        blocks = factor_blocks(*layout.cut(keep), gather=gather)
    except RuntimeError:  # exactly singular: rounding has swallowed the slight regularisation
        if not layout.slight:
            raise
        layout.slight = False
        return _factorized(layout, keep, gather)
    sample, unknown = np.divmod(np.flatnonzero(keep), keep.shape[1])
    pivots = np.concatenate([np.abs(factors.pivots) for _, _, factors in blocks] or [np.zeros(0)])
    small = ~(pivots > np.where(unknown < layout.n, VARIABLE_PIVOT, ROW_PIVOT))
    if small.any() and layout.slight:
        layout.slight = False
        return _factorized(layout, keep, gather)
    return blocks, np.bincount(sample[small], minlength=len(keep)) > 0
