"""Coefficients of affine and quadratic expressions in variables and parameters.

An affine expression is a tensor (rows x variables x parameters), written here as triplets. Nearly all of
its entries come from products of a matrix parameter with variables, whose positions are known in advance:
they are written directly, at 8 bytes each. Only the rest goes through CVXPY's backend, with the
parameters that occur in it. CVXPY's own extraction holds an entry several times as four 64-bit numbers, and
a dense (variables x parameters) array for the objective, 24 GB for a dense QP in 1000 variables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from cvxpy.cvxcore.python.canonInterface import get_problem_matrix
from cvxpy.lin_ops import lin_op as lo
from cvxpy.lin_ops.lin_op import LinOp
from cvxpy.lin_ops.lin_utils import neg_expr, sum_expr
from cvxpy.reductions.inverse_data import InverseData
from cvxpy.utilities.replace_quad_forms import replace_quad_forms, restore_quad_forms

Array = np.ndarray

_CONSTANTS = (lo.DENSE_CONST, lo.SPARSE_CONST)
#: fewest entries of a parameter that gets its own tensor
LARGE = 5_000


@dataclass(frozen=True)
class Tensor:
    """Triplets (position, column, weight); repeated ones add up.

    Attributes:
        position: row + rows * variable, in which the constant term counts as the last variable.
        column: place in the parameter vector, whose last entry is 1.
        weight: one for each, or a single one for all.
    """

    position: Array
    column: Array
    weight: Array

    @property
    def value(self) -> Array:
        """One weight for each triplet (read-only)."""
        return np.broadcast_to(self.weight, self.position.shape)

    @classmethod
    def joined(cls, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of some tensors as one."""
        if len(tensors) == 1:
            return tensors[0]
        return cls(
            np.concatenate([np.zeros(0, dtype=np.int32), *(t.position for t in tensors)]),
            np.concatenate([np.zeros(0, dtype=np.int32), *(t.column for t in tensors)]),
            np.concatenate([np.zeros(0), *(t.value for t in tensors)]),
        )

    def where(self, mask: Array) -> Tensor:
        """The triplets where the mask is true; nothing is copied if that is everywhere."""
        return self if mask.all() else self.take(mask)

    def take(self, chosen: Array | slice) -> Tensor:
        return Tensor(self.position[chosen], self.column[chosen], self.value[chosen])


def index_type(limit: int) -> type[np.signedinteger[Any]]:
    """The shortest integers that sparse matrices accept and that hold all indices below `limit`."""
    return np.int32 if limit <= np.iinfo(np.int32).max else np.int64


@dataclass(frozen=True)
class Extractor:
    """Reads expressions over given variables and parameters.

    Attributes:
        offsets: variable id -> place of its first entry, and `length` of all variables together.
        columns: parameter id -> column of its first entry; `sizes` their numbers of entries. CVXPY's id
            of the constant is among them, with the last column.
        backend: CVXPY's canonicalisation backend.
    """

    offsets: Mapping[int, int]
    length: int
    columns: Mapping[int, int]
    sizes: Mapping[int, int]
    backend: str

    @property
    def last(self) -> int:
        """The column of the constant."""
        return self.columns[lo.CONSTANT_ID]

    def affine(self, expressions: Sequence[Any]) -> list[Tensor]:
        """The tensors whose sum is the stack of some expressions."""
        ops = [e.canonical_form[0] for e in expressions]
        rows = sum(map(_size, ops))
        tensors: list[Tensor] = []
        rest: list[tuple[int, LinOp]] = []
        start = 0
        for op in ops:
            others = []
            for sign, term in _terms(op, 1.0):
                found = self._direct(term, sign, start, rows)
                if found is None:
                    others.append(term if sign > 0 else neg_expr(term))
                else:
                    tensors.append(found)
            if others:
                rest.append((start, sum_expr(others)))
            start += _size(op)
        if rest:
            flat, column, value = self._by_backend([op for _, op in rest])
            row = np.concatenate([first + np.arange(_size(op)) for first, op in rest])
            variable, within = np.divmod(flat, len(row))
            tensors.append(Tensor(self._position(row[within] + rows * variable, rows), column, value))
        return tensors

    def quadratic(self, expression: Any) -> tuple[list[Tensor], Tensor]:
        """P and q of an objective 1/2 x'Px + q'x + r.

        Positions in P are row + length * column; r is the last entry of q.
        """
        root = LinOp(lo.NO_OP, expression.shape, [expression], [])
        forms = replace_quad_forms(root, {})
        head = root.args[0]
        variables = head.variables()
        _, offsets, length, _ = InverseData.get_var_offsets(variables)
        linear = Tensor.joined(replace(self, offsets=offsets, length=length).affine([head]))
        linear = linear.take(np.argsort(linear.position, kind="stable"))
        P, q = [], []
        for v in variables:
            start = offsets[v.id]
            first, end = np.searchsorted(linear.position, (start, start + v.size))
            part = linear.take(slice(first, end))
            if v.id in forms:
                P += self._form(forms[v.id][2], replace(part, position=part.position - start))
            else:
                q.append(replace(part, position=part.position + (self.offsets[v.id] - start)))
        constant = linear.where(linear.position == length)
        q.append(replace(constant, position=np.full_like(constant.position, self.length)))
        restore_quad_forms(head, forms)
        return P, Tensor.joined(q)

    def _position(self, position: Array, rows: int) -> Array:
        return position.astype(index_type(rows * (self.length + 1)), copy=False)

    def _column(self, column: Array) -> Array:
        return column.astype(index_type(self.last), copy=False)

    def _direct(self, op: LinOp, sign: float, start: int, rows: int) -> Tensor | None:
        """The tensor of a term whose entries can be written down, in rows from `start` on."""
        if max(map(self.sizes.__getitem__, _parameters(op)), default=0) < LARGE:
            return None
        if op.type == lo.PARAM:
            size = _size(op)
            return self._of_constants(start + np.arange(size), op.data, np.arange(size), np.array([sign]), rows)
        if op.type == lo.MUL and op.data.type in _CONSTANTS and op.args[0].type == lo.PARAM:
            if len(op.data.shape) != 2 or len(op.args[0].shape) > 1:
                return None
            matrix = sp.coo_array(op.data.data)
            i, j = matrix.coords
            return self._of_constants(i + start, op.args[0].data, j, sign * matrix.data, rows)
        if op.type in (lo.MUL, lo.RMUL):
            return self._product(op, sign, start, rows)
        return None

    def _of_constants(self, row: Array, parameter: int, index: Array, weight: Array, rows: int) -> Tensor:
        """Entries of a parameter in the constant term."""
        position = row.astype(np.int64, copy=False) + rows * self.length
        column = index.astype(np.int64, copy=False) + self.columns[parameter]
        return Tensor(self._position(position, rows), self._column(column), weight)

    def _product(self, op: LinOp, sign: float, start: int, rows: int) -> Tensor | None:
        """A matrix parameter C times an expression X without parameters, or X C.

        Entry (r, c) of X meets all entries C[i, r] and goes to (i, c); in X C, entry (a, r) meets all C[r, j]
        and goes to (a, j).
        """
        X = op.args[0]
        matrix = _Matrix.of(op.data)
        if matrix is None or len(X.shape) > 2 or next(_parameters(X), None) is not None:
            return None
        flat, variable, weight = self._entries(X)
        rows_of_C, columns_of_C = matrix.shape
        if op.type == lo.MUL:
            c, r = np.divmod(flat, columns_of_C)
            first, step, count = rows_of_C * c, 1, rows_of_C
            index, stride = r * matrix.strides[1], matrix.strides[0]
        else:
            lead = X.shape[0] if len(X.shape) == 2 else 1
            r, first = np.divmod(flat, lead)
            step, count = lead, columns_of_C
            index, stride = r * matrix.strides[0], matrix.strides[1]
        run = np.arange(count)
        base = self._position(start + first + rows * variable, rows)
        column = self._column(index + self.columns[matrix.parameter])
        return Tensor(
            (base[:, None] + (step * run).astype(base.dtype)).ravel(),
            (column[:, None] + (stride * run).astype(column.dtype)).ravel(),
            sign * matrix.sign * (weight if len(weight) == 1 else np.repeat(weight, count)),
        )

    def _entries(self, op: LinOp) -> tuple[Array, Array, Array]:
        """(row, variable, weight) of an expression without parameters."""
        if op.type == lo.VARIABLE:
            row = np.arange(_size(op))
            return row, self.offsets[op.data] + row, np.ones(1)
        flat, _, value = self._by_backend([op])
        variable, row = np.divmod(flat, _size(op))
        return row, variable, value

    def _by_backend(self, ops: list[LinOp]) -> tuple[Array, Array, Array]:
        """(position, column, value) of stacked expressions, by CVXPY."""
        present = dict.fromkeys(p for op in ops for p in _parameters(op))
        names = [*present, lo.CONSTANT_ID]
        sizes = {p: self.sizes[p] for p in names}
        starts = np.cumsum([0, *sizes.values()]).tolist()
        rows = sum(map(_size, ops))
        found = sp.coo_array(
            get_problem_matrix(
                ops, self.length, dict(self.offsets), sizes, dict(zip(names, starts, strict=False)), rows, self.backend
            )
        )
        keep = found.data != 0
        flat, local = (index[keep] for index in found.coords)
        everywhere = np.concatenate([np.arange(self.columns[p], self.columns[p] + size) for p, size in sizes.items()])
        column = self._column(everywhere)[local]
        return flat.astype(np.int64, copy=False), column, np.asarray(found.data[keep], dtype=float)

    def _form(self, form: Any, head: Tensor) -> list[Tensor]:
        """What c'f(x), with coefficients c = `head` of the quadratic forms f, adds to P (twice x'Px)."""
        start = self.offsets[form.args[0].id]
        k = form.P.shape[0]
        if form.P.parameters():
            assert (head.column == self.last).all(), "a parameter times a parametric quadratic form is not DPP"
            weight = 2 * head.value.sum()
            return [
                Tensor(self._square(t.position % k, t.position // k, start), t.column, weight * t.weight)
                for t in replace(self, offsets={}, length=0).affine([form.P])
            ]
        P = sp.coo_array(form.P.value)
        i, j = P.coords
        if form.size == 1:
            blocks = [np.arange(P.nnz)] * len(head.value)
        elif form.block_indices is None:  # f_j(x) = P_jj x_j^2
            place = head.position
            value = 2 * head.value * P.diagonal()[place]
            return [Tensor(self._square(place, place, start), head.column, value)]
        else:
            members = [form.block_indices[f] for f in head.position]
            blocks = [np.flatnonzero(np.isin(i, own) & np.isin(j, own)) for own in members]
        return [
            Tensor(self._square(i[own], j[own], start), np.full(len(own), column), 2 * value * P.data[own])
            for own, column, value in zip(blocks, head.column, head.value, strict=True)
        ]

    def _square(self, i: Array, j: Array, start: int) -> Array:
        """Positions in P of the entries (i, j) of a variable's block."""
        index = index_type(self.length**2)
        return (i.astype(index) + index(start)) + index(self.length) * (j.astype(index) + index(start))


@dataclass(frozen=True)
class _Matrix:
    """A matrix parameter, maybe transposed or negated: C[i, j] is entry i * strides[0] + j * strides[1] of it."""

    parameter: int
    sign: float
    shape: tuple[int, int]
    strides: tuple[int, int]

    @classmethod
    def of(cls, op: LinOp) -> _Matrix | None:
        if op.type == lo.PARAM and len(op.shape) == 2:
            return cls(op.data, 1.0, op.shape, (1, op.shape[0]))
        if op.type not in (lo.NEG, lo.TRANSPOSE) or len(op.shape) != 2:
            return None
        inner = cls.of(op.args[0])
        if inner is None:
            return None
        if op.type == lo.NEG:
            return cls(inner.parameter, -inner.sign, inner.shape, inner.strides)
        if op.shape != inner.shape[::-1] or op.data[0] not in (None, (1, 0)):
            return None
        return cls(inner.parameter, inner.sign, op.shape, inner.strides[::-1])


def _size(op: LinOp) -> int:
    return math.prod(op.shape)


def _terms(op: LinOp, sign: float) -> Iterator[tuple[float, LinOp]]:
    """The signed terms of a sum; reshaping in CVXPY's order moves no entry."""
    if op.type == lo.SUM:
        for arg in op.args:
            yield from _terms(arg, sign)
    elif op.type == lo.NEG:
        yield from _terms(op.args[0], -sign)
    elif op.type == lo.RESHAPE:
        yield from _terms(op.args[0], sign)
    else:
        yield sign, op


def _parameters(op: LinOp) -> Iterator[int]:
    """Ids of the parameters in an expression, with repeats."""
    if op.type == lo.PARAM:
        yield op.data
    for part in (*op.args, op.data):
        if isinstance(part, LinOp):
            yield from _parameters(part)
