"""Dense LDL' of the last unknowns of a sparse factorization, where its factor is full anyway.

Inactive unknowns (rows that are switched off) are left out: M is the matrix of the others, at positions `at` among the
last ones, and is overwritten by their L, a unit lower triangle.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.blas import solve_lower, solve_lower_rows, solve_upper, subtract_products
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel

Array = np.ndarray

#: rows that are factorized by plain loops; for larger matrices, processed in such blocks, BLAS does most of the work
BLOCK = 32


@inner_kernel
def pivot(d: float, sign: float, shift: float) -> float:
    """In exact arithmetic no pivot is smaller than the regularisation or of another sign: one that is, by rounding, is
    set to it."""
    return d if d * sign > 0.5 * shift else shift * sign


@inner_kernel
def factor(M: Array, at: Array, sign: Array, shift: float, Dinv: Array) -> float:
    """Factor the lower triangle of M, whose unknowns stand at `at`, in place; returns the smallest pivot."""
    smallest, scaled = np.inf, np.empty((min(at.size, BLOCK), at.size))
    for first in range(0, at.size, BLOCK):
        last = min(at.size, first + BLOCK)
        if first:
            solve_lower_rows(M, first, M, first, last)
            for i in range(first, last):
                for k in range(first):
                    scaled[i - first, k] = M[i, k] * Dinv[at[k]]
            subtract_products(M, first, last, scaled)
            for i in range(first, last):
                for k in range(first):
                    M[i, k] = scaled[i - first, k]
        smallest = min(smallest, _factor_rows(M, at, first, last, sign, shift, Dinv))
    return smallest


@inner_reducing_kernel
def _factor_rows(
    M: Array, at: Array, first: int, last: int, sign: Array, shift: float, Dinv: Array
) -> float:  # fmt: skip
    """Factor a block on the diagonal, row by row: LD first, then L; L's own diagonal is written too."""
    smallest = np.inf
    for i in range(first, last):
        for j in range(first, i):
            v = M[i, j]
            for k in range(first, j):
                v -= M[i, k] * M[j, k]
            M[i, j] = v
        d = M[i, i]
        for k in range(first, i):
            d -= M[i, k] * M[i, k] * Dinv[at[k]]
        for k in range(first, i):
            M[i, k] *= Dinv[at[k]]
        d = pivot(d, sign[at[i]], shift)
        M[i, i], Dinv[at[i]], smallest = 1.0, 1.0 / d, min(smallest, abs(d))
    return smallest


@inner_kernel
def solve(M: Array, at: Array, Dinv: Array, x: Array) -> None:
    """x := (LDL')^-1 x."""
    z = np.empty(at.size)
    for r in range(at.size):
        z[r] = x[at[r]]
    solve_lower(M, at.size, z)
    for i in range(x.size):
        x[i] *= Dinv[i]
    for r in range(at.size):
        z[r] *= Dinv[at[r]]
    solve_upper(M, at.size, z)
    for r in range(at.size):
        x[at[r]] = z[r]
