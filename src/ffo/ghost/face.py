"""Identify the active set: which face of each cone block the solution lies on.

A block is classified by where w = s - tau y projects, with tau chosen row by row so that s and
tau y are comparable whatever the scaling of the data (DESIGN: identification):

    tau_i = |a_i|^2 l / f,   l = max(|x|, |s_i| / |a_i|),   f = max(|q|, |Px|, |y_i| |a_i|)

Where a solution vanishes (x = 0 at the vertex of homogeneous constraints, no multipliers and no gradient
at an interior optimum) only noise would be left to measure with: a share of the sizes that the data
implies, l of |b_i| / |a_i| and f / |P|, f of |P| l, bounds them from below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from ffo.cones.base import Faces
from ffo.cones.zero import Zero
from ffo.program.cone import ConeProgram
from ffo.program.sparse import distinct

Array = np.ndarray

#: how much of the sizes that the data implies the solution is taken to have at least
VANISHING = 1e-3


@dataclass(frozen=True)
class Scale:
    """Natural sizes of a sample: rows (batch, m) norms of A's rows, primal l and dual f (batch,)."""

    rows: Array
    primal: Array
    dual: Array
    tau: Array

    def take(self, samples: Array) -> Scale:
        return Scale(self.rows[samples], self.primal[samples], self.dual[samples], self.tau[samples])


def scale(program: ConeProgram, x: Array, y: Array, s: Array) -> Scale:
    """The sizes that make primal and dual quantities comparable at a point."""
    squared, rows = program.A.row_sizes_squared, program.A.row_sizes  # (batch or 1, m)
    primal = np.maximum(_max(x), _max(s / rows))
    gradient = _max(program.q)
    dual = np.maximum.reduce([gradient, _max(program.P.dot(x)), _max(y * rows)])
    curvature = np.broadcast_to(program.P.largest, primal.shape)
    length = np.divide(dual, curvature, out=np.zeros_like(dual), where=curvature > 0)
    length = VANISHING * np.maximum(length, _max(distinct(program.b) / rows))
    force = VANISHING * np.maximum(gradient, curvature * primal)
    primal = np.maximum(primal, np.where(length > 0, length, 1.0))  # b = 0, P = 0: any length will do
    dual = np.maximum(dual, np.where(force > 0, force, 1.0))
    tau = program.cones.block_means(squared) * (primal / dual)[:, None]
    return Scale(np.broadcast_to(rows, tau.shape), primal, dual, tau)


def _max(v: Array) -> Array:
    return np.abs(v).max(axis=1, initial=0.0)


class ActiveSet:
    """The active structure of a batch at w = s - tau y, and its rows of the ghost system.

    Attributes:
        w, tau: (batch, m).
        s, y: (batch, m) cleaned pair: s in K, y in K*, complementary.
        case, margin: (batch, blocks), see `cones.Faces`.
    """

    def __init__(self, program: ConeProgram, w: Array, tau: Array) -> None:
        batch, m = w.shape
        self.w, self.tau = w, tau
        self._groups = program.cones.groups
        self._faces = program.cones.faces(w, tau)
        self.s, self.y = np.zeros((batch, m)), np.zeros((batch, m))
        for f, g in zip(self._faces, self._groups, strict=True):
            shape = (batch, g.count, g.cone.dim)
            self.s[:, g.index], self.y[:, g.index] = f.s.reshape(shape), f.y.reshape(shape)
        none = [np.zeros((batch, 0))]
        self.case = np.concatenate([f.case.reshape(batch, -1) for f in self._faces] or none, axis=1)
        self.margin = np.concatenate([f.margin.reshape(batch, -1) for f in self._faces] or none, axis=1)

    @cached_property
    def _parts(self) -> list[_Part]:
        return [_Part(f, g.index, len(self.w)) for f, g in zip(self._faces, self._groups, strict=True)]

    @cached_property
    def delta(self) -> Array:
        """(rows,) weights: 0 for normal rows, 1/h for rows of curvature h."""
        return _join([f.delta for f in self._faces])

    @cached_property
    def row_sample(self) -> Array:
        """(rows,) the sample of each row."""
        return _join([p.row_sample for p in self._parts], int)

    @cached_property
    def inequality(self) -> Array:
        """(rows,) false for rows of equalities."""
        kinds = [np.full(p.rows, not isinstance(g.cone, Zero)) for p, g in zip(self._parts, self._groups, strict=True)]
        return _join(kinds, bool)

    @cached_property
    def aux_sample(self) -> Array:
        """(aux,) the sample of each auxiliary unknown."""
        return _join([p.aux_sample for p in self._parts], int)

    @cached_property
    def T(self) -> sp.csr_array:
        """(rows, batch * m)."""
        triplets = [p.T(self.w.shape[1]) for p in self._parts]
        return _stack(triplets, self._row_offset, None, (len(self.delta), self.w.size))

    @cached_property
    def C(self) -> sp.csr_array:
        """(rows, aux)."""
        aux = np.cumsum([0, *(p.aux for p in self._parts)])
        return _stack([p.C() for p in self._parts], self._row_offset, aux, (len(self.delta), aux[-1]))

    @cached_property
    def _row_offset(self) -> Array:
        return np.cumsum([0, *(p.rows for p in self._parts)])


class _Part:
    """The faces of one group of blocks, numbered within the group."""

    def __init__(self, faces: Faces, index: Array, batch: int) -> None:
        self.faces, self.index = faces, index
        sample = np.repeat(np.arange(batch), len(index))
        self.row_sample = np.repeat(sample, faces.rows)
        self.aux_sample = np.repeat(sample, faces.aux)
        self.rows, self.aux = len(self.row_sample), len(self.aux_sample)

    def T(self, m: int) -> tuple[Array, Array, Array]:
        f = self.faces
        first = np.cumsum(f.rows) - f.rows
        sample, place = np.divmod(f.t_block, len(self.index))
        return first[f.t_block] + f.t_row, sample * m + self.index[place, f.t_col], f.t_value

    def C(self) -> tuple[Array, Array, Array]:
        f = self.faces
        first = np.cumsum(f.rows) - f.rows
        first_aux = np.cumsum(f.aux) - f.aux
        return first[f.c_block] + f.c_row, first_aux[f.c_block] + f.c_col, f.c_value


def _stack(
    triplets: list[tuple[Array, Array, Array]], rows: Array, cols: Array | None, shape: tuple[int, int]
) -> sp.csr_array:
    if not triplets:
        return sp.csr_array(shape)
    row = np.concatenate([t[0] + r for t, r in zip(triplets, rows[:-1], strict=True)])
    shift = np.zeros(len(triplets), int) if cols is None else cols[:-1]
    col = np.concatenate([t[1] + c for t, c in zip(triplets, shift, strict=True)])
    return sp.csr_array((np.concatenate([t[2] for t in triplets]), (row, col)), shape=shape)


def _join(arrays: list[Array], dtype: type = float) -> Array:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
