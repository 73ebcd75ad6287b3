"""From a canonical solution (x, y) back to the requested variables and duals, and the adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from ffo.program.entering import EntryMap
from ffo.program.sparse import repeated

Array = np.ndarray
#: relative change of the solution that counts as rounding
ROUNDING = 1e-10


@dataclass(frozen=True)
class Output:
    """One requested quantity: `select` times x (primal) or y (dual), flattened in C order.

    Attributes:
        select: (size, n) for a primal variable, (size, m) for a dual one.
        dual: which of the two.
        exponential: whether the quantity is exp of that (variables of geometric programs).
        shape: the user's shape.
    """

    select: sp.csr_array
    dual: bool
    exponential: bool
    shape: tuple[int, ...]

    @cached_property
    def _map(self) -> EntryMap:
        return EntryMap(sp.csc_array(self.select))

    def of(self, v: Array) -> Array:
        """(batch, n or m) -> (batch, size), always a new array."""
        return np.array(v) if self._map.identity else self._map.apply(v)

    @cached_property
    def _sources(self) -> tuple[Array, Array, Array, Array]:
        """Entries of the quantity that determine entries of x or y: (entry, place, factor, whether it is one of two
        multipliers whose difference is shown)."""
        rows = np.repeat(np.arange(self.select.shape[0]), np.diff(self.select.indptr))
        several = np.diff(self.select.indptr)[rows] > 1
        kept = ~several | self.dual
        return rows[kept], self.select.indices[kept], self.select.data[kept], several[kept]

    def guess(self, values: Array, into: Array) -> None:
        """Write what values (batch, size) of the quantity say about x or y (batch, n or m) into it."""
        rows, places, factor, several = self._sources
        if self.exponential:
            with np.errstate(all="ignore"):
                values = np.log(values)
        found = values[:, rows] / factor
        into[:, places] = np.where(several, np.maximum(found, 0.0), found)

    def to(self, gradient: Array) -> Array:
        """The adjoint: (batch, size) -> (batch, n or m), always a new array."""
        return self._map.back(gradient)


class Recovery:
    """The requested outputs, in the user's order."""

    def __init__(self, outputs: Sequence[Output], n: int, m: int) -> None:
        self.outputs = tuple(outputs)
        self.n, self.m = n, m

    @cached_property
    def hidden(self) -> Array:
        """(n,) variables that are in no output."""
        seen = np.zeros(self.n, dtype=bool)
        for out in self.outputs:
            if not out.dual:
                seen[out.select.indices] = True
        return ~seen

    def apply(self, x: Array, y: Array) -> list[Array]:
        """(batch, n), (batch, m) -> one (batch, *shape) array per output."""
        values = []
        for out in self.outputs:
            value = out.of(y if out.dual else x)
            if out.exponential:
                value = np.exp(value)
            values.append(value.reshape(len(x), *out.shape))
        return values

    def guess(self, values: Sequence[Array | None], batch: int) -> tuple[Array, Array]:
        """x (batch, n) and y (batch, m) that have these outputs, each (batch, *shape); NaN where they do not say."""
        x, y = np.full((batch, self.n), np.nan), np.full((batch, self.m), np.nan)
        for out, value in zip(self.outputs, values, strict=True):
            if value is not None:
                out.guess(value.reshape(batch, -1), y if out.dual else x)
        return x, y

    def adjoint(self, gradients: Sequence[Array | None], x: Array) -> tuple[Array, Array]:
        """Loss gradients in the outputs -> gradients in x and y."""
        batch = len(x)
        found: dict[bool, Array] = {}
        for out, gradient in zip(self.outputs, gradients, strict=True):
            if gradient is None:
                continue
            flat = gradient.reshape(batch, -1)
            if out.exponential:
                flat = flat * np.exp(out.of(x))
            part = out.to(flat)
            found[out.dual] = found[out.dual] + part if out.dual in found else part
        c_x, c_y = found.get(False), found.get(True)
        return (
            repeated(np.zeros(self.n), batch) if c_x is None else c_x,
            repeated(np.zeros(self.m), batch) if c_y is None else c_y,
        )

    def shows(self, dx: Array, dy: Array) -> Array:
        """(batch,) whether a change (dx, dy) changes any output by more than rounding."""
        found = np.zeros(len(dx), dtype=bool)
        for out in self.outputs:
            d = dy if out.dual else dx
            found |= (np.abs(out.of(d)) > ROUNDING * np.abs(d).max(axis=1, keepdims=True, initial=0.0)).any(axis=1)
        return found

    def tangent(self, dx: Array, dy: Array, x: Array) -> list[Array]:
        """Derivatives of the outputs along (dx, dy)."""
        values = []
        for out in self.outputs:
            value = out.of(dy if out.dual else dx)
            if out.exponential:
                value = value * np.exp(out.of(x))
            values.append(value.reshape(len(dx), *out.shape))
        return values


def selection(index: Array, size: int, scale: Array | None = None) -> sp.csr_array:
    """Rows e_index (times scale); a negative index gives a zero row."""
    keep = index >= 0
    data = np.ones(len(index)) if scale is None else scale
    indptr = np.concatenate([[0], np.cumsum(keep)])
    return sp.csr_array((data[keep], index[keep], indptr), shape=(len(index), size))
