"""How much work it is to factorize the optimality conditions of a program, told from their pattern.

Levels of a breadth-first search order the unknowns so that the matrix is block tridiagonal; elimination in
that order costs about the sum of the cubes of their sizes. Chains and grids have many small levels, random
patterns few large ones, and there no order is much better. Rows and columns with many entries are left out:
eliminated last they cost little, and a search would reach everything through them.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from ffo.program.cone import ConeProgram

#: entries, in units of the root of the number of unknowns, from which a row counts as full
FULL = 10.0


def elimination_work(program: ConeProgram) -> float:
    """Multiplications, to an order of magnitude, of a factorization of [P A'; A .] for one sample."""
    graph = _graph(program)
    _, label = csgraph.connected_components(graph, directed=False)
    largest = np.flatnonzero(label == np.argmax(np.bincount(label))) if len(label) else label
    if len(largest) < 2:
        return float(len(largest))
    graph = graph[largest][:, largest]
    start = 0
    for _ in range(2):  # the second time from one end
        level = csgraph.dijkstra(graph, directed=False, unweighted=True, indices=start)
        start = int(np.argmax(level))
    return float((np.bincount(level.astype(int)).astype(float) ** 3).sum())


def _graph(program: ConeProgram) -> sp.csr_array:
    """Unknowns coupled by P, or by rows of A with several entries."""
    n, P, A = program.n, program.P, program.A
    several = np.bincount(A.indices, minlength=program.m)[A.indices] > 1
    row = np.concatenate([P.indices, n + A.indices[several]])
    col = np.concatenate([P.columns, A.columns[several]])
    apart = row != col
    row, col = row[apart], col[apart]
    size = n + program.m
    count = np.bincount(row, minlength=size) + np.bincount(col, minlength=size)
    few = count <= FULL * np.sqrt(size)
    both = few[row] & few[col]
    return sp.csr_array((np.ones(both.sum()), (row[both], col[both])), shape=(size, size))
