"""Programs with norm balls of several shapes around a known solution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from problems import Known, with_pair

from ffo.cones import Nonneg, Product, SecondOrder, Zero
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch

Array = np.ndarray

#: norms of variables, of sums of them, of both, and with a coordinate that is constant
BALLS = ("single", "spread", "mixed", "bare")
CASES = ("boundary", "vertex", "interior")
#: constant coordinates cannot be at a vertex
BARE_CASES = ("boundary", "boundary", "interior")
N, EQUAL, ROWS, SIZE = 18, 2, 3, 6


def ball_rows(kind: str, columns: Array, rng: np.random.Generator) -> sp.csr_array:
    """(SIZE, N): a top, and SIZE - 1 rows of A1 that touch these variables."""
    single = np.zeros((SIZE, N))
    single[np.arange(1, SIZE), columns] = rng.uniform(0.5, 1.5, SIZE - 1) * rng.choice([-1, 1], SIZE - 1)
    spread = np.where(rng.random((SIZE, N)) < 0.4, rng.normal(size=(SIZE, N)), 0.0)
    spread[:, :2] = rng.uniform(0.5, 1.5, (SIZE, 2))
    if kind == "spread":
        return sp.csr_array(spread)
    single[0] = spread[0]
    if kind == "mixed":
        single[:3] = spread[:3]
    if kind == "bare":
        single[0] = single[-1] = 0.0
    return sp.csr_array(single)


def ball_program(kind: str, batch: int = 6, *, batched: bool = False, diagonal: bool = True, seed: int = 0) -> Known:
    """Equalities, rows, bounds on both sides and three blocks, one in each case, around a known x."""
    rng = np.random.default_rng([seed, BALLS.index(kind), batch])
    apart = rng.permutation(N).reshape(3, -1)[:, : SIZE - 1]
    rows = sp.random_array((EQUAL + ROWS, N), density=0.6, rng=rng, data_sampler=rng.standard_normal)
    bounds = [2.0 * sp.eye_array(N), -0.5 * sp.eye_array(N)]
    A = sp.vstack([rows, *bounds, *(ball_rows(kind, columns, rng) for columns in apart)])
    cones = Product([(Zero(), EQUAL), (Nonneg(), ROWS + 2 * N), (SecondOrder(SIZE), 3)])
    half = np.diag(rng.uniform(0.5, 2.0, N)) if diagonal else rng.normal(size=(N, N))
    m = A.shape[0]
    program = ConeProgram.from_matrices(half @ half.T, np.zeros((batch, N)), A, np.zeros((batch, m)), cones)
    if batched:
        values = program.A.values * rng.uniform(0.5, 1.5, (batch, program.A.nnz))
        program = replace(program, A=SparseBatch(program.A.indptr, program.A.indices, values, program.A.shape))
    s, y = np.zeros((2, batch, m))
    s[:, EQUAL : m - 3 * SIZE] = rng.uniform(0.5, 1.5, (batch, m - EQUAL - 3 * SIZE))
    y[:, :EQUAL] = rng.normal(size=(batch, EQUAL))
    for k in range(batch):
        order = rng.permutation(3)
        free = np.setdiff1d(np.arange(N), apart[order[1]])  # the variables at the vertex are fixed already
        active = np.concatenate([[EQUAL], EQUAL + ROWS + rng.permutation(free)[:3]])
        s[k, active], y[k, active] = 0.0, rng.uniform(0.5, 1.5, 4)
        for case, j in zip(BARE_CASES if kind == "bare" else CASES, order, strict=True):
            block = slice(m - 3 * SIZE + j * SIZE, m - 3 * SIZE + (j + 1) * SIZE)
            s[k, block], y[k, block] = ball_pair(case, rng)
    return with_pair(Known(program, rng.normal(size=(batch, N)), y, s), s, y)


def ball_pair(case: str, rng: np.random.Generator) -> tuple[Array, Array]:
    v = rng.normal(size=SIZE - 1)
    inside = np.concatenate([[1.7], v / np.linalg.norm(v)])
    if case == "interior":
        return inside, np.zeros(SIZE)
    if case == "vertex":
        return np.zeros(SIZE), inside
    u = v / np.linalg.norm(v)
    return 1.3 * np.concatenate([[1.0], u]), 0.8 * np.concatenate([[1.0], -u])


def decision(n: int, batch: int, seed: int = 0, *, spread: float = 1.0) -> ConeProgram:
    """min 1/2 x'Dx - q'x, 0 <= x <= 1, two rows, |Wx - c| <= 1 and |x| <= t <= 1 as CVXPY writes it: t is a
    variable without curvature."""
    rng = np.random.default_rng([seed, n, batch])
    zero, eye = sp.csr_array((n, 1)), sp.eye_array(n)
    last = sp.csr_array(([1.0], ([0], [n])), shape=(1, n + 1))
    weights = sp.diags_array(rng.uniform(0.5, 1.5, n))
    flat = [sp.hstack([M, zero]) for M in (eye, -eye)]
    A = sp.vstack(
        [
            *flat,
            sp.csr_array(np.hstack([rng.random((2, n)), np.zeros((2, 1))])),
            last,
            -last,
            sp.hstack([-eye, zero]),
            sp.csr_array((1, n + 1)),
            sp.hstack([-weights, zero]),
        ]
    )
    sides = [np.ones(n), np.zeros(n), 0.3 * np.sqrt(n) * np.ones(2), [1.0], np.zeros(n + 1), [1.0]]
    b = np.concatenate([*sides, -0.2 / np.sqrt(n) * rng.random(n)])
    P = np.diag(np.append(rng.uniform(0.5, 2.0, n), 0.0))
    q = np.hstack([spread * rng.normal(size=(batch, n)), np.zeros((batch, 1))])
    cones = Product([(Nonneg(), 2 * n + 3), (SecondOrder(n + 1), 2)])
    return ConeProgram.from_matrices(P, q, A, b, cones)
