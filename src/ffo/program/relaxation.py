"""Slack on some constraints: a program that always has a solution, in place of one that may have none.

    minimize 1/2 x'Px + q'x + weight/2 |r|^2   subject to  Ax + s - Er = b,  s in K

E selects the rows that may be violated. At a solution, weight r = E'y. The other optimality conditions are unchanged:
x and y of the relaxed program, and solutions of its ghost system, are used like the program's own, and the gradient in
the data is the same bilinear form (`ghost.oracle`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.program.cone import ConeProgram
from ffo.program.presolve import PresolveStep, Triple
from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray


@dataclass(frozen=True)
class Relaxation(PresolveStep):
    """Slack on `rows` (k,), with a quadratic penalty; the reduced program has k more variables, r."""

    rows: Array
    weight: float

    def apply(self, program: ConeProgram) -> ConeProgram:
        P, A, n, k = program.P, program.A, program.n, len(self.rows)
        return ConeProgram(
            SymmetricBatch(*_with_columns(P, n + np.arange(k), self.weight), (n + k, n + k)),
            _padded(program.q, k),
            SparseBatch(*_with_columns(A, self.rows, -1.0), (program.m, n + k)),
            program.b,
            program.cones,
        )

    def inward(self, x: Array, y: Array, s: Array) -> Triple:
        return np.concatenate([x, y[:, self.rows] / self.weight], axis=1), y, s

    def outward(self, x: Array, y: Array, s: Array) -> Triple:
        return x[:, : x.shape[1] - len(self.rows)], y, s

    def reduce(self, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return _padded(r_x, len(self.rows)), r_s

    def restore(self, u: Array, w: Array, r_x: Array, r_s: Array) -> tuple[Array, Array]:
        return u[:, : r_x.shape[1]], w


def _with_columns(M: SparseBatch, rows: Array, value: float) -> tuple[Array, Array, Array]:
    """indptr, indices and values of a matrix with an extra column for each of some rows, with a single entry there."""
    indptr = np.concatenate([M.indptr, M.indptr[-1] + 1 + np.arange(len(rows))])
    indices = np.concatenate([M.indices, rows])
    values = _padded(M.values, len(rows), value)
    return indptr.astype(M.indptr.dtype), indices.astype(M.indices.dtype), values


def _padded(v: Array, count: int, value: float = 0.0) -> Array:
    """(..., n) -> (..., n + count), padded with `value`."""
    return np.concatenate([v, np.full((*v.shape[:-1], count), value)], axis=-1)
