"""The sizes of the vectors of a batch, which decide whether it needs scaling."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel, kernel

Array = np.ndarray


@inner_kernel
def _largest(v: Array) -> tuple[float, float]:
    """The smallest and the largest of the rows' largest magnitudes."""
    least, most = np.inf, 0.0
    for k in range(v.shape[0]):
        largest = 0.0
        for j in range(v.shape[1]):
            size = abs(v[k, j])
            largest = size if size > largest else largest
            most = most if size < np.inf else np.inf
        least, most = min(least, largest), max(most, largest)
    return least, most


@kernel
def extent(q: Array, b: Array) -> tuple[float, float, float, float, float]:
    """Over the samples of q (batch or 1, n): the smallest and the largest of their largest magnitudes; the same for b
    (batch or 1, m), and its smallest magnitude other than zero. The largest are infinite if any entry is not finite.
    """
    weakest, strongest = _largest(q)
    lowest, longest = _largest(b)
    shortest = np.inf
    for k in range(b.shape[0]):
        for i in range(b.shape[1]):
            v = abs(b[k, i])
            if 0.0 < v < shortest:
                shortest = v
    return weakest, strongest, lowest, longest, shortest
