"""From parameters to cone program data, and back: an affine map and its adjoint.

The data of the canonical program is stacked into one vector z = (P, q, A, b), P and A as the stored
entries of fixed patterns. Each parameter theta_i enters linearly (a geometric program's enters
through its logarithm):

    z = z_0 + sum_i M_i f_i(theta_i)

Unbatched parameters are mapped once, not once per sample. A block of z without batched parameters is shared
by the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from ffo.cones.product import Product
from ffo.program.cone import ConeProgram
from ffo.program.entering import EntryMap
from ffo.program.factor import Factor
from ffo.program.pattern import Pattern
from ffo.program.sparse import SparseBatch, SymmetricBatch, equal_rows, repeated

Array = np.ndarray
Block = Literal["P", "q", "A", "b"]
BLOCKS: tuple[Block, ...] = ("P", "q", "A", "b")
#: most entries of a parameter whose zeros are not exploited
SMALL = 64
#: a gradient below this fraction of its terms' magnitudes has cancelled; below this fraction of the largest, rounding
CANCELLED, ROUNDING = 1e-6, 1e-10


@dataclass(frozen=True)
class Entry:
    """How one parameter enters each block: through `log` or unchanged.

    Attributes:
        parameter: position in the user's parameter list.
        maps: block name -> (length of block, size of parameter) sparse map; parameters are
            flattened in C order.
        factor: through a factor of the parameter (see there), where that is a matrix of quadratic forms.
    """

    parameter: int
    log: bool
    maps: dict[Block, sp.csc_array]
    factor: Factor | None = None

    @cached_property
    def into(self) -> dict[Block, EntryMap]:
        """The maps, prepared for products."""
        return {name: EntryMap(M) for name, M in self.maps.items()}


@dataclass(frozen=True)
class DataGradient:
    """Gradient of a loss in the data of every sample, in factored form (see `ghost.oracle`).

    dL/dq = u, dL/db = -v (or other_q and other_b, if these are known otherwise), dL/dP = sym(u x'),
    dL/dA = y u' + v x'; all (batch, ·).
    """

    x: Array
    y: Array
    u: Array
    v: Array
    other_b: Array | None = None
    other_q: Array | None = None

    @property
    def dq(self) -> Array:
        return self.u if self.other_q is None else self.other_q

    @property
    def db(self) -> Array:
        return -self.v if self.other_b is None else self.other_b

    def reaches(self, name: Block) -> bool:
        """Whether the gradient in a block is not zero."""
        if name == "q" or name == "b":
            return bool((self.dq if name == "q" else self.db).any())
        if name == "P":
            return bool(self.u.any() and self.x.any())
        return bool((self.y.any() and self.u.any()) or (self.v.any() and self.x.any()))

    @property
    def magnitudes(self) -> DataGradient:
        x, y, u, v, db = (np.abs(a) for a in (self.x, self.y, self.u, self.v, self.db))
        return DataGradient(x, y, u, v, db, None if self.other_q is None else np.abs(self.other_q))


class _Known:
    """A parameter given earlier: its nonzeros if they are few, else all of it, as bytes: comparing ten numbers takes a
    tenth of a microsecond instead of one."""

    def __init__(self, theta: Array) -> None:
        few: Array | None = None
        if len(theta) > SMALL:
            nonzero = theta != 0
            few = np.flatnonzero(nonzero) if 8 * np.count_nonzero(nonzero) <= len(theta) else None
        self.shape, self.few = theta.shape, few
        self.values = theta[:0] if few is None else theta[few]
        self.all = theta.tobytes() if few is None else b""

    def matches(self, theta: Array) -> bool:
        if theta.shape != self.shape:
            return False
        if self.few is None:
            return theta.tobytes() == self.all
        if np.count_nonzero(theta != 0) != len(self.few):
            return False
        return not np.count_nonzero(theta[self.few] != self.values)


#: the blocks made last, and the parameters they were made from
Made = dict[Block, tuple[list[_Known], Any]]


class AffineMap:
    """The parametrisation of a cone program. Immutable, and so shared by layers and threads.

    Args:
        sizes: number of entries of each parameter.
        entries: how the parameters enter.
        constants: block name -> z_0 of that block.
        P, A: patterns of the matrices (P: upper triangle).
        cones: the product cone.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        entries: Sequence[Entry],
        constants: dict[Block, Array],
        P: Pattern,
        A: Pattern,
        cones: Product,
    ) -> None:
        self.sizes = tuple(sizes)
        self.entries = tuple(entries)
        self.constants = constants
        self.P, self.A = P, A
        self.cones = cones

    def apply(self, values: Sequence[Array], last: Made | None = None) -> ConeProgram:
        """Data for parameter values of shape (size,) (shared) or (batch, size).

        Matrices are returned on the pattern of their nonzeros if these are known to be few. Blocks in `last` are
        reused if the same parameters are given again; new ones are added to it.
        """
        last = {} if last is None else last
        batch = 1
        for v in values:
            if v.ndim == 2:
                batch = len(v)
                break
        if self._of_matrices:  # matrix parameters that were expanded over the batch cost no more than shared ones
            values = [equal_rows(v) if v.ndim == 2 and k in self._of_matrices else v for k, v in enumerate(values)]
        logs = {i: np.log(_positive(values[i])) for i in self.logged}
        P, q, A, b = [self._once(name, values, logs, last) for name in BLOCKS]
        return ConeProgram(P, _rows(q, batch), A, _rows(b, batch), self.cones)

    def _once(self, name: Block, values: Sequence[Array], logs: dict[int, Array], last: Made) -> Any:
        """A block from the parameters that enter it; the last one if the parameters are the same."""
        entering, before = self._entering[name], last.get(name)
        if before is not None and not entering:
            return before[1]
        thetas = [logs[e.parameter] if e.log else values[e.parameter] for e in entering]
        if self.forms and name == "A":
            pairs = zip(entering, thetas, strict=True)
            thetas = [theta if e.factor is None else e.factor.matrix(theta) for e, theta in pairs]
        if before is not None and all(map(_Known.matches, before[0], thetas)):
            return before[1]
        batched = [theta for theta in thetas if theta.ndim > 1]
        known = None if batched else [_Known(theta) for theta in thetas]
        made = self._matrix(name, thetas, known) if name in ("P", "A") else self._block(name, thetas)
        if known is not None:
            last[name] = known, made
        return made

    def _matrix(self, name: Block, thetas: list[Array], known: list[_Known] | None) -> SparseBatch:
        """On the pattern of its nonzeros if all its parameters have many zeros: a dense (n x n) parameter is often
        filled with sparse values (an identity)."""
        kind, pattern = (SymmetricBatch, self.P) if name == "P" else (SparseBatch, self.A)
        if known is None:
            return kind.on(pattern, self._block(name, thetas))
        if not all(one.few is not None for one in known):  # a sum, and so a new array
            return kind.on(pattern, self._block(name, thetas), own=True)
        constant = self._constant_places[name]
        pairs = zip(self._entering[name], known, strict=True)
        columns = [_few_columns(entry.maps[name], one.few, one.values) for entry, one in pairs if one.few is not None]
        where = np.concatenate([constant, *(c[0] for c in columns)])
        what = np.concatenate([self.constants[name][constant], *(c[1] for c in columns)])
        places, at = np.unique(where, return_inverse=True)
        total = np.bincount(at, weights=what, minlength=len(places)).astype(float)
        held = np.zeros(pattern.nnz, dtype=bool)
        held[places] = True
        return kind.on(pattern.part(held), total, own=True)

    @cached_property
    def _entering(self) -> dict[Block, list[Entry]]:
        """The entries that touch each block."""
        return {name: [e for e in self.entries if name in e.maps] for name in BLOCKS}

    @cached_property
    def entering(self) -> frozenset[int]:
        """The parameters that enter at all."""
        return frozenset(e.parameter for e in self.entries)

    @cached_property
    def forms(self) -> list[Entry]:
        """The entries that are factors of matrices of quadratic forms."""
        return [e for e in self.entries if e.factor is not None]

    @cached_property
    def _of_matrices(self) -> frozenset[int]:
        """The parameters that enter P or A."""
        return frozenset(e.parameter for name in ("P", "A") for e in self._entering[name])

    @cached_property
    def logged(self) -> frozenset[int]:
        """The parameters that enter through their logarithm; where one is not positive, data are NaN."""
        return frozenset(e.parameter for e in self.entries if e.log)

    @cached_property
    def parametric_P(self) -> bool:
        """Whether any parameter enters P, so that it may be indefinite."""
        return self.touches("P")

    @cached_property
    def _constant_places(self) -> dict[Block, Array]:
        return {name: np.flatnonzero(v) for name, v in self.constants.items()}

    def touches(self, *names: Block, wanted: Sequence[bool] | None = None) -> bool:
        """Whether any parameter, or any of the wanted ones, enters one of these blocks."""
        return any(wanted is None or wanted[e.parameter] for name in names for e in self._entering[name])

    def _block(self, name: Block, thetas: list[Array]) -> Array:
        shared, zero = self.constants[name], not len(self._constant_places[name])
        batched, fresh = None, False
        for entry, theta in zip(self._entering[name], thetas, strict=True):
            into = entry.into[name]
            term = into.apply(theta)
            if term.ndim == 1:
                shared, zero = shared + term, False
            else:
                batched, fresh = (term, not into.identity) if batched is None else (batched + term, True)
        if batched is None:
            return shared
        if not zero:
            return batched + shared
        return batched if fresh else batched.copy()

    def adjoint(self, gradient: DataGradient, values: Sequence[Array], wanted: Sequence[bool]) -> list[Array | None]:
        """dL/dtheta_i, shaped like the parameter's value, for the wanted parameters.

        The gradient may hold several copies of each sample, next to each other (smoothing); their
        contributions are added.
        """
        out: list[Array | None] = [None] * len(self.sizes)
        for entry in self.entries:
            i = entry.parameter
            if not wanted[i]:
                continue
            shared = values[i].ndim == 1
            for name, into in entry.into.items():
                if entry.factor is None:
                    term = self._entry_gradient(name, into, gradient, shared)
                else:
                    each = entry.factor.gradient(gradient)
                    term = each.sum(axis=0) if shared else each
                if not shared and len(term) > len(values[i]):
                    term = term.reshape(len(values[i]), len(term) // len(values[i]), self.sizes[i]).sum(axis=1)
                if entry.log:
                    term = np.where(values[i] > 0.0, term / _positive(values[i]), 0.0)
                before = out[i]
                out[i] = term if before is None else before + term
        return [np.zeros(v.shape) if w and g is None else g for g, v, w in zip(out, values, wanted, strict=True)]

    def feels(self, gradient: DataGradient, wanted: Sequence[bool]) -> Array:
        """(batch,) whether a gradient in the data makes that in any wanted parameter larger than rounding."""
        found = np.zeros(len(gradient.x), dtype=bool)
        asked = [e for e in self.entries if wanted[e.parameter]]
        touched = {name for e in asked for name in (BLOCKS if e.factor is not None else e.into)}
        if not any(map(gradient.reaches, touched)):
            return found
        ones = [np.ones((len(gradient.x), size)) for size in self.sizes]
        magnitudes = gradient.magnitudes
        for g, size in zip(
            self.adjoint(gradient, ones, wanted), self._magnitudes.adjoint(magnitudes, ones, wanted), strict=True
        ):
            if g is not None and size is not None:
                least = ROUNDING * size.max(axis=1, keepdims=True, initial=0.0)
                found |= (np.abs(g) > CANCELLED * size + least).any(axis=1)
        return found

    @cached_property
    def _magnitudes(self) -> AffineMap:
        """The map with magnitudes of its entries, so that nothing cancels."""
        entries = [
            Entry(e.parameter, e.log, {name: abs(M) for name, M in e.maps.items()}, e.factor and e.factor.magnitude)
            for e in self.entries
        ]
        return AffineMap(self.sizes, entries, self.constants, self.P, self.A, self.cones)

    def _entry_gradient(self, name: Block, into: EntryMap, g: DataGradient, summed: bool) -> Array:
        """Gradient in a parameter through one block: (size,) summed over the batch, or (batch, size)."""
        if name == "A":
            return into.back_sampled([(g.y, g.u), (g.v, g.x)], self.A, False, summed)
        if name == "P":  # only the upper triangle is stored: an off-diagonal entry counts twice
            return into.back_sampled([(g.u, g.x), (g.x, g.u)], self.P, True, summed)
        vector = g.dq if name == "q" else g.db
        return into.back(vector.sum(axis=0) if summed else vector)

    def tangent(self, tangents: Sequence[Array | None], values: Sequence[Array], batch: int) -> ConeProgram:
        """The derivative of the data along parameter tangents, as a program of the same pattern.

        What factors change is left to `along_forms`, since it depends on the solution.
        """
        blocks = []
        for name in BLOCKS:
            total = np.zeros((1, len(self.constants[name])))
            for entry in self.entries:
                tangent = tangents[entry.parameter]
                if name not in entry.maps or tangent is None or entry.factor is not None:
                    continue
                if entry.log:
                    theta = values[entry.parameter]
                    tangent = np.where(theta > 0.0, tangent / _positive(theta), 0.0)
                total = total + entry.into[name].apply(np.atleast_2d(tangent))
            blocks.append(np.broadcast_to(total, (batch, total.shape[1])))
        dP, dq, dA, db = blocks
        return ConeProgram(
            SymmetricBatch.on(self.P, np.ascontiguousarray(dP)),
            dq,
            SparseBatch.on(self.A, np.ascontiguousarray(dA)),
            db,
            self.cones,
        )

    def along_forms(self, change: ConeProgram, tangents: Sequence[Array | None], x: Array, y: Array) -> ConeProgram:
        """A change of the data with what quadratic forms in constraints add to it at (x, y); copies of samples next to
        each other."""
        q, b = np.array(change.q), np.array(change.b)
        for entry in self.forms:
            tangent, factor = tangents[entry.parameter], entry.factor
            if tangent is None or factor is None:
                continue
            if tangent.ndim == 2:
                tangent = np.repeat(tangent, len(x) // len(tangent), axis=0)
            dq, db = factor.change(tangent, x, y)
            q[:, factor.columns] += dq
            b[:, factor.rows] += db
        return change.with_vectors(q=q, b=b)


def _positive(v: Array) -> Array:
    return v if (v > 0.0).all() else np.where(v > 0.0, v, np.nan)


def _rows(v: Array, batch: int) -> Array:
    """(batch, length) of a block that may be shared by the samples."""
    return v if v.ndim == 2 else repeated(v, batch)


def _few_columns(M: sp.csc_array, columns: Array, weights: Array) -> tuple[Array, Array]:
    """Rows and values of the weighted columns of M."""
    counts = M.indptr[columns + 1] - M.indptr[columns]
    ends = np.cumsum(counts)
    where = np.arange(ends[-1] if len(ends) else 0) + np.repeat(M.indptr[columns] - (ends - counts), counts)
    return M.indices[where], M.data[where] * np.repeat(weights, counts)
