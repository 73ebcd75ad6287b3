"""Calls of inner kernels from tests: they have no entry point for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from ffo.kernels.jit import _KERNEL


def outer(function: Callable[..., Any]) -> Callable[..., Any]:
    """An inner kernel as Python can call it."""
    return numba.njit(**_KERNEL | {"cache": False})(lambda *arguments: function(*arguments))
