"""Threads of the linear algebra libraries, kept out of work too small for them."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    # Looking the libraries up takes a millisecond; what is loaded later is left alone. SciPy's BLAS, which compiled
    # kernels call, is another one than NumPy's: it must be there.
    importlib.import_module("scipy.linalg.cython_blas")
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS and LAPACK run in the calling thread inside; what was set before is restored.

    Matrices of a few hundred rows gain nothing from a second thread and lose a factor of ten to it when
    the cores are busy, since waiting threads spin.
    """
    return _controller().limit(limits=1, user_api="blas")
