"""How kernels are compiled.

`nogil`: chunks of a batch run on threads. `cache`: compiled once per environment; Numba keeps the code beside the
source, or in the user's cache directory where that cannot be written. `error_model="numpy"`: a division by zero
gives inf, as in NumPy; an exception would take the batch down. With NUMBA_DISABLE_JIT=1 the same code runs as
Python, for debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function on first call."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def reducing_kernel(function: F) -> F:
    """The same where sums may be reordered: loops over long vectors are vectorised (about 3x), and the result
    differs by rounding from that of the loop as written."""
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
    return cast(F, compiled(function))


def inner_kernel(function: F) -> F:
    """A `reducing_kernel` that only kernels call: without the wrapper for calls from Python, which takes longer to
    compile than the function itself where arguments are tuples of arrays."""
    njit: Any = numba.njit  # whose stubs do not know these two options
    compiled = njit(
        nogil=True,
        cache=True,
        error_model="numpy",
        fastmath={"reassoc", "contract"},
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )
    return cast(F, compiled(function))
