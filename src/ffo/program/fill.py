"""Work and memory needed to factorize the optimality conditions of a program, estimated from their pattern.

Levels of a breadth-first search order the unknowns so that the matrix is block tridiagonal; elimination in
that order costs about the sum of the cubes of their sizes, and fills about the sum of their squares. Chains and grids
have many small levels, random patterns a few large ones, for which no order is much better. Rows and columns with many
entries are left out: eliminated last they cost little, and a search would reach everything through them.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from ffo.cones import PSD, Exponential, Power, Product, SecondOrder
from ffo.errors import TooLargeError
from ffo.program.cone import ConeProgram
from ffo.program.pattern import Pattern

Array = np.ndarray

#: entries, in units of the square root of the number of unknowns, above which a row counts as full
FULL = 10.0
#: bytes per entry of the pattern while it is built, and per entry of the factors (including their ordering)
PATTERN, FACTOR = 110, 24
#: most unknowns for which factors always fit, and bytes below which the available memory is not checked
FEW, LITTLE = 6000, 2**30
#: on grids, a breadth-first order gives up to this many times the fill-in of a good one
BETTER = 8.0
GB = 1e9


def elimination_work(program: ConeProgram) -> float:
    """Order of magnitude of the multiplications to factorize [P A'; A .] for one sample."""
    sizes, _ = _levels(program.P.pattern, program.A.pattern)
    return float((sizes**3).sum())


@lru_cache(maxsize=32)
def needed_bytes(cones: Product, P: Pattern, A: Pattern, factors: bool) -> float:
    """Approximate bytes of the structure of a program, plus a low estimate for the factors of one sample."""
    size = sum(A.shape)
    fanned = float((A.row_counts * _spread(cones)).sum())
    filled = 0.0
    if factors:
        filled = 2.0 * fanned
        if size > FEW:
            levels, full = _levels(P, A)
            block = (levels**2).sum() / 2 + (levels[1:] * levels[:-1]).sum()
            filled = max(filled, float(block) / BETTER + full * size)
    return PATTERN * (fanned + P.nnz) + FACTOR * filled


def check_memory(cones: Product, P: Pattern, A: Pattern, factors: bool) -> None:
    """Raise before more memory is allocated than is available."""
    needed = needed_bytes(cones, P, A, factors)
    if needed > LITTLE and needed > (there := available()):
        order = max((cone.order for cone, _ in cones.blocks if isinstance(cone, PSD)), default=0)
        blocks = f", with semidefinite blocks of order up to {order}" if order else ""
        way = "" if blocks else "; backward='iterative' needs no factors"
        raise TooLargeError(
            f"the optimality conditions of this problem ({A.shape[1]} variables, {A.shape[0]} rows{blocks}) would take "
            f"about {needed / GB:.1f} GB, but only {there / GB:.1f} GB are available: split it, or make its blocks "
            f"smaller{way}"
        )


def is_small(program: ConeProgram) -> bool:
    """Whether a program is so small that its factors fit whatever memory is available."""
    return program.n + program.m + program.A.nnz <= FEW


def fits(program: ConeProgram) -> bool:
    """Whether the factors of one sample fit into memory."""
    if is_small(program):
        return True
    needed = needed_bytes(program.cones, program.P.pattern, program.A.pattern, True)
    return needed <= LITTLE or needed <= available()


def check_batch(batch: int, each: float) -> None:
    """Raise before a batch allocates more memory than is available; `each`: bytes of one sample."""
    if batch * each > LITTLE and batch * each > (there := available()):
        raise TooLargeError(
            f"the factors of a batch of {batch} samples would take about {batch * each / GB:.1f} GB, but "
            f"only {there / GB:.1f} GB are available: use batches of {max(int(0.5 * there / each), 1)}, or use "
            "backward='iterative', which needs no factors"
        )


def available() -> float:
    """Bytes of memory still available to this process; infinite if the system does not report it."""
    found = [np.inf]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        found.append(1024.0 * int(lines["MemAvailable"].split()[0]))
    elif "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():  # container limits
        found.append(float(int(limit.read_text()) - int(used.read_text())))
    return max(min(found), 0.0)


def _spread(cones: Product) -> Array:
    """(m,) number of ghost-system rows that an entry of each row spreads to."""
    counts = []
    for cone, count in cones.blocks:
        rotated = isinstance(cone, PSD | Exponential | Power) and cone.dim > 1
        each = cone.dim if rotated else 2 if isinstance(cone, SecondOrder) else 1
        counts.append(np.full(cone.dim * count, each))
    return np.concatenate(counts) if counts else np.zeros(0)


def _levels(P: Pattern, A: Pattern) -> tuple[Array, int]:
    """Sizes of the levels of the largest component, and the number of full rows and columns."""
    graph, full = _graph(P, A)
    _, label = csgraph.connected_components(graph, directed=False)
    largest = np.flatnonzero(label == np.argmax(np.bincount(label))) if len(label) else label
    if len(largest) < 2:
        return np.ones(len(largest)), full
    graph = graph[largest][:, largest]
    start = 0
    for _ in range(2):  # the second time from an end of the graph
        level = csgraph.dijkstra(graph, directed=False, unweighted=True, indices=start)
        start = int(np.argmax(level))
    return np.bincount(level.astype(int)).astype(float), full


def _graph(P: Pattern, A: Pattern) -> tuple[sp.csr_array, int]:
    """Unknowns coupled by P, or by rows of A with several entries; and the number left out."""
    m, n = A.shape
    several = np.bincount(A.indices, minlength=m)[A.indices] > 1
    row = np.concatenate([P.indices, n + A.indices[several]])
    col = np.concatenate([P.columns, A.columns[several]])
    off_diagonal = row != col
    row, col = row[off_diagonal], col[off_diagonal]
    size = n + m
    count = np.bincount(row, minlength=size) + np.bincount(col, minlength=size)
    few = count <= FULL * np.sqrt(size)
    both = few[row] & few[col]
    graph = sp.csr_array((np.ones(both.sum()), (row[both], col[both])), shape=(size, size))
    return graph, int(size - few.sum())
