"""Products with the sparse maps from parameters to data, of small batches: one call instead of several of NumPy's."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import kernel

Array = np.ndarray


@kernel
def product(indptr: Array, indices: Array, data: Array, v: Array, out: Array) -> None:
    """out (batch, rows) := M v for every row of v (batch or 1, columns); M by rows."""
    for k in range(out.shape[0]):
        here = v[k if v.shape[0] > 1 else 0]
        for i in range(out.shape[1]):
            total = 0.0
            for p in range(indptr[i], indptr[i + 1]):
                total += data[p] * here[indices[p]]
            out[k, i] = total


@kernel
def add_sampled(
    indptr: Array, indices: Array, data: Array, rows: Array, cols: Array, batch: int, left: Array, right: Array,
    out: Array,
) -> None:  # fmt: skip
    """out += M g for the entries g, at these rows and columns, of left right', left (batch or 1, ·) and right likewise;
    out (1, ·): summed over the batch."""
    for k in range(batch):
        a, b = left[k if left.shape[0] > 1 else 0], right[k if right.shape[0] > 1 else 0]
        here = out[k if out.shape[0] > 1 else 0]
        for i in range(out.shape[1]):
            for p in range(indptr[i], indptr[i + 1]):
                e = indices[p]
                here[i] += data[p] * a[rows[e]] * b[cols[e]]
