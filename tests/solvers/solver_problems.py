"""Random cone programs with known solutions.

A complementary pair comes from one projection: s = Pi_K(w), y = s - w (Moreau). For any x,
b = Ax + s and q = -(Px + A'y) make (x, y, s) optimal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ffo.cones import PSD, Exponential, Nonneg, Power, Product, SecondOrder, Zero
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray

KINDS: dict[str, tuple[int, bool, list]] = {
    # name: variables, quadratic, blocks in an order that no solver requires
    "lp": (5, False, [(Nonneg(), 8), (Zero(), 2), (Nonneg(), 3)]),
    "qp": (6, True, [(Nonneg(), 5), (Zero(), 2), (Nonneg(), 4)]),
    "qp_bounds": (6, True, [(Nonneg(), 14), (Zero(), 1), (Nonneg(), 3)]),
    "separable": (6, True, [(Nonneg(), 12), (Zero(), 2)]),
    "qp_equalities": (6, True, [(Zero(), 3)]),
    "free": (4, True, []),
    "socp": (8, False, [(SecondOrder(3), 2), (Nonneg(), 4), (SecondOrder(4), 1), (Zero(), 2), (Nonneg(), 4)]),
    "qp_soc": (6, True, [(SecondOrder(3), 2), (Nonneg(), 3), (SecondOrder(2), 1), (Zero(), 1)]),
    "sdp": (5, True, [(PSD(3), 1), (Nonneg(), 2), (PSD(2), 2), (Zero(), 1)]),
    "exp": (5, True, [(Exponential(), 2), (Nonneg(), 2), (Zero(), 1)]),
    "pow": (5, True, [(Power(0.3), 1), (Nonneg(), 2), (Power(0.5), 1), (Zero(), 1)]),
    "mixed": (
        10,
        True,
        [(PSD(3), 1), (Exponential(), 1), (Nonneg(), 2), (Power(0.6), 1), (SecondOrder(4), 1), (Zero(), 2)],
    ),
}

#: Coefficients of the singleton rows of "qp_bounds" and "separable": both signs, scaled, several rows per variable.
BOUNDED = ("qp_bounds", "separable")
_BOUND_COLUMNS = (0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 5, 5)
_BOUND_COEFFICIENTS = (1, -1, 2, 0.5, -3, -1, -0.25, 1, -2, 1, 4, -1)


@dataclass(frozen=True)
class Known:
    """A program with the solution it was built from."""

    program: ConeProgram
    x: Array
    unique: bool


def known_program(kind: str, batch: int = 3, batched: bool = False, seed: int = 0) -> Known:
    """A batch of random programs; matrices differ between samples if `batched`."""
    n, quadratic, blocks = KINDS[kind]
    rng = np.random.default_rng([seed, *map(ord, kind)])
    cones = Product(blocks)
    A = _values(_pattern(kind, n, cones.dim, rng), batch if batched else None, rng, kind)
    P = _semidefinite(n, quadratic, batch if batched else None, rng, diagonal=kind == "separable")
    x = rng.normal(size=(batch, n))
    w = rng.normal(size=(batch, cones.dim))
    s = cones.project(w)
    y = s - w
    zeros = np.zeros((batch, n))
    blank = ConeProgram(P, zeros, A, np.zeros((batch, cones.dim)), cones)
    program = blank.with_vectors(q=-blank.stationarity(x, y), b=s - blank.slack(x))
    return Known(program, x, unique=quadratic)


def _pattern(kind: str, n: int, m: int, rng: np.random.Generator) -> Array:
    dense = (rng.random((m, n)) < 0.7).astype(float)
    for row in np.flatnonzero(dense.sum(axis=1) < 2):
        dense[row, rng.permutation(n)[:2]] = 1
    if kind in BOUNDED:
        for row, (column, coefficient) in enumerate(zip(_BOUND_COLUMNS, _BOUND_COEFFICIENTS, strict=True)):
            dense[row] = 0
            dense[row, column] = coefficient
    return dense


def _values(pattern: Array, batch: int | None, rng: np.random.Generator, kind: str) -> SparseBatch:
    base = SparseBatch.from_matrix(sp.csc_array(pattern))
    shape = (base.nnz,) if batch is None else (batch, base.nnz)
    values = rng.normal(size=shape)
    if kind in BOUNDED:  # keep coefficients away from zero, and their signs (at first) the same
        values = np.abs(base.values) * rng.uniform(0.5, 1.5, size=shape) * np.sign(base.values)
    return SparseBatch(base.indptr, base.indices, values, base.shape)


def _semidefinite(
    n: int, quadratic: bool, batch: int | None, rng: np.random.Generator, diagonal: bool
) -> SymmetricBatch:
    if not quadratic:
        empty = np.zeros(0)
        return SymmetricBatch(np.zeros(n + 1, dtype=np.int32), empty.astype(np.int32), empty, (n, n))
    M = rng.normal(size=(batch or 1, n, n))
    P = M @ M.transpose(0, 2, 1) / n + 0.2 * np.eye(n)
    upper = SparseBatch.from_matrix(np.eye(n) if diagonal else np.triu(np.ones((n, n))))
    values = P[:, upper.indices, upper.columns]
    return SymmetricBatch(upper.indptr, upper.indices, values if batch else values[0], (n, n))


def simple(P: Array, q: Array, A: Array, b: Array, blocks: list) -> ConeProgram:
    """A program from dense matrices."""
    return ConeProgram.from_matrices(np.array(P, float), np.array(q, float), np.array(A, float), b, Product(blocks))


def infeasible() -> ConeProgram:
    """x1 + x2 <= -1 and x1 + x2 >= 1."""
    return simple(np.eye(2), [1, 1], [[1, 1], [-1, -1]], [-1, -1], [(Nonneg(), 2)])


def crossed_bounds() -> ConeProgram:
    """x <= -1 and x >= 1."""
    return simple(np.eye(1), [1], [[1], [-1]], [-1, -1], [(Nonneg(), 2)])


def crossed_rows() -> ConeProgram:
    """x1 + x2 = 1 and x1 + x2 = 2."""
    return simple(np.eye(2), [1, 1], [[1, 1], [1, 1]], [1, 2], [(Zero(), 2)])


def unbounded() -> ConeProgram:
    """min -x1 - x2, x >= 0, x1 = x2."""
    return simple(np.zeros((2, 2)), [-1, -1], [[-1, 0], [0, -1], [1, -1]], [0, 0, 0], [(Nonneg(), 2), (Zero(), 1)])
