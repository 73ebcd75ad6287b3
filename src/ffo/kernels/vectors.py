"""Vector operations of NumPy as loops, which compile several times faster."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel

Array = np.ndarray


@inner_kernel
def fill(v: Array, value: float) -> None:
    """v := value in every entry."""
    for i in range(v.size):
        v[i] = value


@inner_kernel
def copy(target: Array, source: Array) -> None:
    """target := source, vectors of one size."""
    for i in range(source.size):
        target[i] = source[i]


@inner_kernel
def positions(v: Array) -> Array:
    """Where v is not zero."""
    found, count = np.empty(v.size, np.int64), 0
    for i in range(v.size):
        if v[i] != 0.0:
            found[count] = i
            count += 1
    return found[:count]
