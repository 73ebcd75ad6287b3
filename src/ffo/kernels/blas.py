"""Dense linear algebra for kernels: BLAS and LAPACK without copies, plain loops where matrices are small.

All matrices are row-major (C-contiguous), and the functions work on the leading rows and columns of an array that
may be larger, so that one workspace serves many sizes. Symmetric matrices and triangular factors are their lower
triangles; the upper ones are neither read nor written. Everything is done in place: nothing is allocated.

    cholesky                    A = LL'
    solve_lower, solve_upper    L^-1 x, L^-T x
    solve_lower_rows            L^-1 applied to every row of a matrix
    multiply, multiply_transposed, row_products, subtract_products, add_gram

BLAS is column-major: it sees the transpose of every matrix, hence "upper" below for the lower triangles.

The routines are those of SciPy's `cython_blas` and `cython_lapack`, declared to LLVM by name. A ctypes pointer would
be a constant of this process and prevent caching the compiled code; a name is looked up again when the cache is
loaded. (Numba's own np.linalg has no triangular solve, copies its arguments and allocates its results.) Limit BLAS
to one thread around multithreaded kernels (`ffo.kernels.pool.one_blas_thread`).

Numba does not recompile a cached kernel when a function that it calls in another file has changed: after changing
this file, delete `__pycache__`.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import numpy as np
import scipy.linalg
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from ffo.kernels.jit import inner_kernel, inner_reducing_kernel

Array = np.ndarray

#: Below this size plain loops are used. They are as fast as BLAS in one thread (dense programs of n = 60 and 90), and
#: many small BLAS calls do not scale over threads, because they take locks (n = 30, two threads: 1.3x, loops 1.95x;
#: semidefinite programs of order 8, 16 threads: 15.4 ms a step, loops 12.6).
SMALL = 100


def _external(library: str, name: str, arguments: int) -> Any:
    """A routine of SciPy's BLAS or LAPACK, whose arguments are all addresses."""
    symbol = f"ffo_{name}"
    llvm.add_symbol(symbol, get_cython_function_address(f"scipy.linalg.{library}", name))
    return types.ExternalFunction(symbol, types.void(*[types.intp] * arguments))


_dpotrf = _external("cython_lapack", "dpotrf", 5)
_dtrsv = _external("cython_blas", "dtrsv", 8)
_dtrsm = _external("cython_blas", "dtrsm", 11)
_dgemv = _external("cython_blas", "dgemv", 11)
_dgemm = _external("cython_blas", "dgemm", 13)
_dsyrk = _external("cython_blas", "dsyrk", 10)


def _stack_address(typing: Any, value: Any) -> Any:
    """Address of a scalar, which is put on the stack."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), ir.IntType(types.intp.bitwidth))

    return types.intp(value), generate


_at: Any = intrinsic(_stack_address)

_LEFT, _UPPER, _PLAIN, _TRANSPOSED = (np.uint8(ord(c)) for c in "LUNT")
_ONE = np.int32(1)

# The routines as functions of row-major arrays. Only arrays that are arguments have their addresses taken: the
# caller keeps these alive during the call.

if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]

    @inner_kernel
    def _factor(a: Array, n: int) -> bool:
        info = np.zeros(1, np.int32)
        _dpotrf(_at(_UPPER), _at(np.int32(n)), a.ctypes.data, _at(np.int32(a.shape[1])), info.ctypes.data)
        return info[0] == 0

    @inner_kernel
    def _solve(L: Array, n: int, x: Array, transposed: bool) -> None:
        how = _PLAIN if transposed else _TRANSPOSED
        size, width = np.int32(n), np.int32(L.shape[1])
        _dtrsv(_at(_UPPER), _at(how), _at(_PLAIN), _at(size), L.ctypes.data, _at(width), x.ctypes.data, _at(_ONE))

    @inner_kernel
    def _solve_rows(L: Array, n: int, M: Array, first: int, last: int) -> None:
        _dtrsm(
            _at(_LEFT), _at(_UPPER), _at(_TRANSPOSED), _at(_PLAIN), _at(np.int32(n)), _at(np.int32(last - first)),
            _at(1.0), L.ctypes.data, _at(np.int32(L.shape[1])), M[first].ctypes.data, _at(np.int32(M.shape[1])),
        )  # fmt: skip

    @inner_kernel
    def _times(A: Array, r: int, n: int, x: Array, y: Array, alpha: float, beta: float, transposed: bool) -> None:
        how = _PLAIN if transposed else _TRANSPOSED
        _dgemv(
            _at(how), _at(np.int32(n)), _at(np.int32(r)), _at(np.float64(alpha)), A.ctypes.data,
            _at(np.int32(A.shape[1])), x.ctypes.data, _at(_ONE), _at(np.float64(beta)), y.ctypes.data, _at(_ONE),
        )  # fmt: skip

    @inner_kernel
    def _products(M: Array, first: int, last: int, n: int, S: Array) -> None:
        rows, size, width, wide = np.int32(last - first), np.int32(n), np.int32(M.shape[1]), np.int32(S.shape[1])
        if first:
            _dgemm(
                _at(_TRANSPOSED), _at(_PLAIN), _at(np.int32(first)), _at(rows), _at(size), _at(1.0), M.ctypes.data,
                _at(width), M[first].ctypes.data, _at(width), _at(0.0), S[first].ctypes.data, _at(wide),
            )  # fmt: skip
        _dsyrk(
            _at(_UPPER), _at(_TRANSPOSED), _at(rows), _at(size), _at(1.0), M[first].ctypes.data, _at(width), _at(0.0),
            S[first, first:].ctypes.data, _at(wide),
        )  # fmt: skip

    @inner_kernel
    def _subtract_products(M: Array, first: int, last: int, other: Array) -> None:
        rows, width = np.int32(last - first), np.int32(M.shape[1])
        _dgemm(
            _at(_TRANSPOSED), _at(_PLAIN), _at(rows), _at(rows), _at(np.int32(first)), _at(-1.0), other.ctypes.data,
            _at(np.int32(other.shape[1])), M[first].ctypes.data, _at(width), _at(1.0), M[first, first:].ctypes.data,
            _at(width),
        )  # fmt: skip

    @inner_kernel
    def _rank_update(U: Array, k: int, r: int, S: Array, alpha: float, beta: float) -> None:
        _dsyrk(
            _at(_UPPER), _at(_PLAIN), _at(np.int32(r)), _at(np.int32(k)), _at(np.float64(alpha)), U.ctypes.data,
            _at(np.int32(U.shape[1])), _at(np.float64(beta)), S.ctypes.data, _at(np.int32(S.shape[1])),
        )  # fmt: skip

else:  # the same in SciPy and NumPy: an external function cannot be called from Python

    def _factor(a: Array, n: int) -> bool:
        lower = np.tril_indices(n)
        try:
            a[lower] = scipy.linalg.cholesky(a[:n, :n], lower=True, check_finite=False)[lower]
        except np.linalg.LinAlgError:
            return False
        return True

    def _solve(L: Array, n: int, x: Array, transposed: bool) -> None:
        x[:n] = scipy.linalg.solve_triangular(L[:n, :n], x[:n], lower=True, trans=int(transposed), check_finite=False)

    def _solve_rows(L: Array, n: int, M: Array, first: int, last: int) -> None:
        right = M[first:last, :n].T
        M[first:last, :n] = scipy.linalg.solve_triangular(L[:n, :n], right, lower=True, check_finite=False).T

    def _times(A: Array, r: int, n: int, x: Array, y: Array, alpha: float, beta: float, transposed: bool) -> None:
        value = A[:r, :n].T @ x[:r] if transposed else A[:r, :n] @ x[:n]
        size = len(value)
        y[:size] = alpha * value + (beta * y[:size] if beta != 0.0 else 0.0)

    def _products(M: Array, first: int, last: int, n: int, S: Array) -> None:
        S[first:last, :last] = M[first:last, :n] @ M[:last, :n].T

    def _subtract_products(M: Array, first: int, last: int, other: Array) -> None:
        M[first:last, first:last] -= M[first:last, :first] @ other[: last - first, :first].T

    def _rank_update(U: Array, k: int, r: int, S: Array, alpha: float, beta: float) -> None:
        lower = np.tril_indices(r)
        value = alpha * (U[:k, :r].T @ U[:k, :r])[lower]
        S[lower] = value + (beta * S[lower] if beta != 0.0 else 0.0)


@inner_reducing_kernel
def cholesky(a: Array, n: int) -> bool:
    """Factor the leading n x n block in place; False if a pivot is not positive (or is NaN)."""
    if n >= SMALL:
        # OpenBLAS lets NaN pass; it spreads to the last pivot
        return _factor(a, n) and a[n - 1, n - 1] > 0.0
    for j in range(n):
        for i in range(j, n):
            v = a[i, j]
            for k in range(j):
                v -= a[i, k] * a[j, k]
            if i > j:
                a[i, j] = v / a[j, j]
            elif v > 0.0:
                a[j, j] = np.sqrt(v)
            else:
                return False
    return True


@inner_reducing_kernel
def solve_lower(L: Array, n: int, x: Array) -> None:
    """x := L^-1 x."""
    if n >= SMALL:
        _solve(L, n, x, False)
        return
    for i in range(n):
        v = x[i]
        for k in range(i):
            v -= L[i, k] * x[k]
        x[i] = v / L[i, i]


@inner_reducing_kernel
def solve_upper(L: Array, n: int, x: Array) -> None:
    """x := L^-T x."""
    if n >= SMALL:
        _solve(L, n, x, True)
        return
    for i in range(n - 1, -1, -1):
        v = x[i] / L[i, i]
        x[i] = v
        for k in range(i):
            x[k] -= L[i, k] * v


@inner_kernel
def solve_factored(L: Array, n: int, x: Array) -> None:
    """x := (LL')^-1 x."""
    solve_lower(L, n, x)
    solve_upper(L, n, x)


@inner_kernel
def solve_lower_rows(L: Array, n: int, M: Array, first: int, last: int) -> None:
    """L^-1 m for every row m of M[first:last, :n], in place."""
    if n >= SMALL and last - first > 1:
        _solve_rows(L, n, M, first, last)
        return
    for i in range(first, last):
        solve_lower(L, n, M[i])


@inner_reducing_kernel
def multiply(A: Array, r: int, n: int, x: Array, y: Array, alpha: float, beta: float) -> None:
    """y := alpha A x + beta y for the leading r x n block of A; with beta = 0, y need not be set."""
    if r * n >= SMALL * SMALL:
        _times(A, r, n, x, y, alpha, beta, False)
        return
    for i in range(r):
        v = 0.0
        for j in range(n):
            v += A[i, j] * x[j]
        y[i] = alpha * v + (beta * y[i] if beta != 0.0 else 0.0)


@inner_reducing_kernel
def multiply_transposed(A: Array, r: int, n: int, x: Array, y: Array, alpha: float, beta: float) -> None:
    """y := alpha A'x + beta y for the leading r x n block of A; with beta = 0, y need not be set."""
    if r * n >= SMALL * SMALL:
        _times(A, r, n, x, y, alpha, beta, True)
        return
    for j in range(n):
        y[j] = beta * y[j] if beta != 0.0 else 0.0
    for i in range(r):
        v = alpha * x[i]
        for j in range(n):
            y[j] += v * A[i, j]


@inner_kernel
def row_products(M: Array, first: int, last: int, n: int, S: Array) -> None:
    """S[i, j] := m_i'm_j for the rows m of M, first <= i < last, j <= i."""
    if n >= SMALL and last - first > 1:
        _products(M, first, last, n, S)
        return
    for i in range(first, last):
        multiply(M, i + 1, n, M[i], S[i], 1.0, 0.0)


@inner_reducing_kernel
def subtract_products(M: Array, first: int, last: int, other: Array) -> None:
    """M[i, j] := M[i, j] - m_i'o_j over the first columns of the rows m of M and o of `other` (those of `first` and the
    next), first <= j <= i < last (BLAS fills the square)."""
    if (last - first) * first >= SMALL * SMALL:
        _subtract_products(M, first, last, other)
        return
    for i in range(first, last):
        for j in range(first, i + 1):
            v = M[i, j]
            for k in range(first):
                v -= M[i, k] * other[j - first, k]
            M[i, j] = v


@inner_reducing_kernel
def add_gram(U: Array, k: int, r: int, S: Array, alpha: float, beta: float) -> None:
    """S := alpha U'U + beta S, lower triangle of the leading r x r block, for the leading k x r block of U."""
    if r >= SMALL:
        _rank_update(U, k, r, S, alpha, beta)
        return
    for i in range(r):
        for j in range(i + 1):
            S[i, j] = beta * S[i, j] if beta != 0.0 else 0.0
    for a in range(k):
        for i in range(r):
            v = alpha * U[a, i]
            for j in range(i + 1):
                S[i, j] += v * U[a, j]
