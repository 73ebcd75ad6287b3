"""The data of a batch as kernels take it."""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_FLOAT = np.dtype(np.float64)


class Values:
    """Pv, q, Av, b (batch or 1, ·)."""

    def __init__(self, Pv: Array, q: Array, Av: Array, b: Array) -> None:
        self.arrays = ready(Pv), ready(q), ready(Av), ready(b)


def ready(v: Array) -> Array:
    """(batch, ·) or (·) -> (batch or 1, ·), C-contiguous and writable: kernels would be compiled anew for others."""
    if v.ndim == 1:
        v = v[None]
    elif v.strides[0] == 0 and len(v):
        v = v[:1]  # one row for all samples
    return v if v.dtype is _FLOAT and v.flags.carray else np.array(v, dtype=_FLOAT, order="C")
