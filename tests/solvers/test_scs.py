"""SCS on samples that share their matrices: none suffers from the sample before."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ffo.cones import Nonneg, Product
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch, SymmetricBatch
from ffo.solvers.scs import SCSSolver


def budget(batch: int, n: int = 200) -> ConeProgram:
    """minimize |x|^2 / 2 + q'x subject to 0 <= x <= 1, 1'x <= n / 5."""
    q = 1.2 * np.random.default_rng(0).normal(size=(batch, n))
    A = sp.csc_array(sp.vstack([sp.eye(n), -sp.eye(n), np.ones((1, n))]))
    b = np.tile(np.concatenate([np.ones(n), np.zeros(n), [n / 5]]), (batch, 1))
    P = sp.csc_array(sp.eye(n))
    return ConeProgram(
        SymmetricBatch.from_matrix(P), q, SparseBatch.from_matrix(A), b, Product([(Nonneg(), 2 * n + 1)])
    )


def test_a_scale_adapted_to_one_sample_is_not_kept_for_the_next() -> None:
    program = budget(12)
    assert program.shared_matrices
    solver = SCSSolver({"eps": 1e-6})
    alone = [int(solver.solve(program.take(np.array([k]))).iterations[0]) for k in range(program.batch)]
    together = solver.solve(program).iterations
    assert together.sum() <= 1.2 * sum(alone)
