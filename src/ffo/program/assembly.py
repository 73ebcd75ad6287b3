"""The pattern of a block of data, and the map of each parameter into it, from the block's tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from ffo.program.extraction import Tensor, index_type
from ffo.program.pattern import Pattern

Array = np.ndarray


@dataclass(frozen=True)
class Columns:
    """Position of a parameter, or its logarithm, in CVXPY's parameter vector."""

    parameter: int
    log: bool
    start: int
    size: int


@dataclass(frozen=True)
class Stored:
    """A block of the data: its tensors, with positions among its `length` stored entries."""

    length: int
    tensors: list[Tensor]

    def constant(self, column: int) -> Array:
        """(length,) the part for one column of the parameter vector."""
        out = np.zeros(self.length)
        for t in self.tensors:
            part = t.where(t.column == column)
            np.add.at(out, part.position, part.weight)
        return out

    def map(self, c: Columns, parameter: cp.Parameter) -> sp.csc_array | None:
        """(length, size) how the C-order entries of a parameter enter; None: not at all."""
        inside = [t.where((t.column >= c.start) & (t.column < c.start + c.size)) for t in self.tensors]
        t = Tensor.joined([t for t in inside if len(t.position)])
        if not len(t.position):
            return None
        shape = (self.length, parameter.size)
        kept, start = _kept(parameter), t.column.dtype.type(c.start)
        if len(kept) == 1:
            return sp.csc_array((t.value, (t.position, kept[0][t.column - start])), shape=shape)
        halves = sp.csc_array((0.5 * t.value, (t.position, t.column - start)), shape=(self.length, c.size)).tocoo()
        row, local = halves.coords
        both = np.concatenate([k[local] for k in kept])
        return sp.csc_array((np.tile(halves.data, 2), (np.tile(row, 2), both)), shape=shape)


def _kept(parameter: cp.Parameter) -> tuple[Array, ...]:
    """For each entry of a parameter that CVXPY keeps, in its (Fortran) order, the corresponding C-order entries.

    CVXPY keeps one triangle of a symmetric parameter. Both entries are returned and their mean is used, so that the
    gradient is symmetric.
    """
    shape = parameter.shape
    place = np.arange(parameter.size, dtype=index_type(parameter.size)).reshape(shape)
    attributes = parameter.attributes
    if attributes["symmetric"] or attributes["PSD"] or attributes["NSD"]:
        i, j = np.triu_indices(shape[-1])
        return place[..., i, j].ravel(order="F"), place[..., j, i].ravel(order="F")
    if attributes["diag"]:
        return (np.diagonal(place).copy(),)
    if parameter.sparse_idx is not None:
        return (place[parameter.sparse_idx],)
    return (place.ravel(order="F"),)


def placed(tensors: list[Tensor], shape: tuple[int, int]) -> tuple[Pattern, Stored]:
    """The pattern of some tensors, and the tensors with positions in it; empties the list."""
    pattern, places = Pattern.covering([t.position for t in tensors], shape)
    if pattern.nnz == shape[0] * shape[1]:
        return pattern, Stored(pattern.nnz, tensors)
    moved = []
    while tensors:
        t = tensors.pop()
        position = np.searchsorted(places, t.position).astype(index_type(len(places)))
        moved.append(replace(t, position=position))
    return pattern, Stored(pattern.nnz, moved)
