"""Small tasks on the entries of sparse matrices, in one call instead of several of NumPy's: products with the maps from
parameters to data, and the search for variables that only relax."""

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


@kernel
def single_upper_rows(
    Av: Array, q: Array, b: Array, columns: Array, starts: Array, entries: Array, rows: Array, inequality: Array
) -> Array:
    """(m,) 1 for rows that bound one of some columns of A from above, if nothing else does, the column has no cost, and
    all its other entries, at least one, are negative; in all samples. The entries of column i are
    entries[starts[i] : starts[i + 1]], in these rows, which are inequalities or not."""
    found = np.zeros(b.shape[1], np.uint8)
    for i in range(columns.size):
        relaxes, upper = starts[i + 1] - starts[i] > 1, -1
        for k in range(q.shape[0]):
            relaxes = relaxes and q[k, columns[i]] == 0.0
        for p in range(starts[i], starts[i + 1]):
            positive = negative = relaxes
            for k in range(Av.shape[0]):
                positive, negative = positive and Av[k, entries[p]] > 0.0, negative and Av[k, entries[p]] < 0.0
            if positive and inequality[p] and upper < 0:
                upper = rows[p]
            else:
                relaxes = negative
        for k in range(b.shape[0]):
            relaxes = relaxes and upper >= 0 and abs(b[k, upper]) < np.inf
        if relaxes:
            found[upper] = 1
    return found
