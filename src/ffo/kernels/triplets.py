"""Batches of matrices in the kernels' layout: one pattern, values per sample or shared.

Samples are made dense one after another in a thread's own workspace: a batch of dense matrices would not fit the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.jit import inner_reducing_kernel

Array = np.ndarray


class Triplets(NamedTuple):
    """rows, cols: (nnz,) int64, a row of -1 for entries to leave out; values: (batch, nnz), or (1, nnz) if shared."""

    rows: Array
    cols: Array
    values: Array


@inner_reducing_kernel
def is_shared(M: Triplets) -> bool:
    return M.values.shape[0] == 1


@inner_reducing_kernel
def scatter(M: Triplets, sample: int, symmetric: bool, out: Array) -> None:
    """out := the matrix of a sample; with `symmetric`, one triangle stands for both."""
    rows, cols, values = M.rows, M.cols, M.values
    b = sample if values.shape[0] > 1 else 0
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 0.0
    for e in range(rows.size):
        i, j = rows[e], cols[e]
        if i >= 0:
            out[i, j] = values[b, e]
            if symmetric:
                out[j, i] = values[b, e]
