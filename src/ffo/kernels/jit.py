"""How kernels are compiled.

`nogil`: chunks of a batch run on threads. `cache`: compiled once per environment; Numba keeps the code beside the
source, or in the user's cache directory where that cannot be written. `error_model="numpy"`: a division by zero
gives inf, as in NumPy; an exception would take the batch down. With NUMBA_DISABLE_JIT=1 the same code runs as
Python, for debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Changes with any kernel: compiled code contains the functions it calls, also those of other files."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


_STAMP = _stamp()


def _compiled(function: F, **options: Any) -> F:
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    # Numba compares the time stamp of the function's own file alone. There is no public way to add others; without
    # these attributes (another release of Numba, JIT disabled) its own rule holds.
    index: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _STAMP
    return cast(F, compiled)


def kernel(function: F) -> F:
    """Compile a function on first call."""
    return _compiled(function)


def reducing_kernel(function: F) -> F:
    """The same where sums may be reordered: loops over long vectors are vectorised (about 3x), and the result
    differs by rounding from that of the loop as written."""
    return _compiled(function, fastmath={"reassoc", "contract"})
