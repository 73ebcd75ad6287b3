"""Families of dense quadratic programs for the compiled solvers, and their optimality conditions."""

from __future__ import annotations

import numpy as np

from ffo.cones import Nonneg, Product, Zero
from ffo.program.cone import ConeProgram, Solution
from ffo.program.sparse import SparseBatch, SymmetricBatch
from ffo.solvers.split import rows_by_kind

Array = np.ndarray


def stacked(Q: Array, p: Array, R: Array, h: Array, me: int) -> ConeProgram:
    """A batch from dense arrays: Q (batch or 1, n, n), p (batch, n), R (batch or 1, r, n), h (batch, r)."""
    upper = SparseBatch.from_matrix(np.triu(np.abs(Q).max(axis=0) > 0).astype(float))
    rows = SparseBatch.from_matrix((np.abs(R).max(axis=0) > 0).astype(float))
    values = Q[:, upper.indices, upper.columns], R[:, rows.indices, rows.columns]
    P_values, A_values = (v[0] if len(v) == 1 else np.ascontiguousarray(v) for v in values)
    return ConeProgram(
        SymmetricBatch(upper.indptr, upper.indices, P_values, upper.shape),
        p,
        SparseBatch(rows.indptr, rows.indices, A_values, rows.shape),
        h,
        Product([(Zero(), me), (Nonneg(), h.shape[1] - me)]),
    )


def random_qp(batch: int, n: int, rows: int, me: int = 0, seed: int = 0) -> tuple[Array, Array, Array, Array, int]:
    rng = np.random.default_rng([seed, n, rows, me])
    F = rng.normal(size=(batch, n, n))
    Q, p = F @ F.transpose(0, 2, 1) / n + np.eye(n), rng.normal(size=(batch, n))
    h = np.concatenate([0.1 * rng.normal(size=(batch, me)), 0.5 * rng.uniform(size=(batch, rows))], axis=1)
    return Q, p, rng.normal(size=(batch, me + rows, n)), h, me


def boxed(batch: int, n: int, rows: int, me: int = 0) -> tuple[Array, Array, Array, Array, int]:
    """With bounds on both sides of every variable, as scaled rows."""
    Q, p, R, h, me = random_qp(batch, n, rows, me)
    scale = np.random.default_rng(n).uniform(0.5, 3.0, size=n)
    box = np.concatenate([np.diag(scale), -np.diag(scale)])
    R = np.concatenate([R, np.broadcast_to(box, (batch, 2 * n, n))], axis=1)
    return Q, 3 * p, R, np.concatenate([h, np.full((batch, 2 * n), 0.4)], axis=1), me


def scaled(batch: int, n: int, rows: int, columns: float, heights: float) -> tuple[Array, Array, Array, Array, int]:
    """A well-behaved program in other units: columns and rows times powers of ten up to these."""
    Q, p, R, h, me = random_qp(batch, n, rows, 2)
    rng = np.random.default_rng(1)
    d, e = 10.0 ** rng.uniform(-columns, columns, (batch, n)), 10.0 ** rng.uniform(-heights, heights, h.shape)
    return Q * d[:, :, None] * d[:, None], p * d, R * d[:, None] * e[:, :, None], h * e, me


def repeated(batch: int, n: int, rows: int) -> tuple[Array, Array, Array, Array, int]:
    """Every equality twice (once times -3), every inequality twice."""
    Q, p, R, h, me = random_qp(batch, n, rows, 3)
    R = np.concatenate([R[:, :me], -3 * R[:, :me], R[:, me:], R[:, me:]], axis=1)
    return Q, p, R, np.concatenate([h[:, :me], -3 * h[:, :me], h[:, me:], h[:, me:]], axis=1), 2 * me


def lasso(batch: int, m: int = 40, n: int = 30) -> tuple[Array, Array, Array, Array, int]:
    """As CVXPY writes it: x, residuals r = Ax - b, |x| <= t; Q is singular and shared."""
    rng = np.random.default_rng(0)
    A, b, eye, zero = rng.normal(size=(m, n)), rng.normal(size=(batch, m)), np.eye(n), np.zeros((n, m))
    Q, p = np.zeros((1, 2 * n + m, 2 * n + m)), np.zeros((batch, 2 * n + m))
    Q[0, n : n + m, n : n + m], p[:, n + m :] = np.eye(m), 2.0
    R = np.block([[A, -np.eye(m), zero.T], [eye, zero, -eye], [-eye, zero, -eye]])
    return Q, p, R[None], np.concatenate([b, np.zeros((batch, 2 * n))], axis=1), m


def max_min(batch: int, n: int = 20, k: int = 30) -> tuple[Array, Array, Array, Array, int]:
    """Largest minimum of k linear functions less |x|^2 / 2, with sum x = 1; Q is singular."""
    rng = np.random.default_rng(0)
    Q, p = np.zeros((1, n + 1, n + 1)), np.zeros((batch, n + 1))
    Q[0, :n, :n], p[:, n] = np.eye(n), -1.0
    R, h = np.zeros((batch, 1 + k, n + 1)), np.zeros((batch, 1 + k))
    R[:, 0, :n], R[:, 1:, :n], R[:, 1:, n], h[:, 0] = 1.0, -rng.normal(size=(batch, k, n)), 1.0, 1.0
    return Q, p, R, h, 1


def transport(batch: int, k: int = 5) -> tuple[Array, Array, Array, Array, int]:
    """Quadratic transport between k sources and k sinks: the last equality follows from the others."""
    rng = np.random.default_rng(0)
    ones, eye = np.ones((1, k)), np.eye(k)
    rows = np.concatenate([np.kron(eye, ones), np.kron(ones, eye), -np.eye(k * k)])
    supply, demand = (rng.uniform(0.5, 1.5, size=(batch, k)) for _ in range(2))
    demand *= supply.sum(axis=1, keepdims=True) / demand.sum(axis=1, keepdims=True)
    h = np.concatenate([supply, demand, np.zeros((batch, k * k))], axis=1)
    return 0.1 * np.eye(k * k)[None], rng.uniform(size=(batch, k * k)), rows[None], h, 2 * k


def optimality(program: ConeProgram, solution: Solution) -> Array:
    """(batch,) largest residual of the optimality conditions, each entry relative to its own terms."""
    worst = np.zeros(program.batch)
    is_equal = np.zeros(program.m, dtype=bool)
    is_equal[rows_by_kind(program).equal] = True
    for k in range(program.batch):
        Q, R = program.P.full(k).toarray(), program.A.matrix(k).toarray()
        x, y, s, p, h = solution.x[k], solution.y[k], solution.s[k], program.q[k], program.b[k]
        d = 1.0 / np.sqrt(np.where(np.diag(Q) > 0, np.diag(Q), max(np.diag(Q).max(), 1e-300)))  # natural units
        d = d if np.diag(Q).any() else np.ones_like(d)
        force = np.max(np.abs(d * p)) + np.max(np.abs(d * (Q @ x))) + np.max(np.abs(d[:, None] * R.T * y), initial=0.0)
        dual = np.abs(d * (Q @ x + p + R.T @ y)) / force
        length = np.linalg.norm(R * d, axis=1)
        terms = length * np.abs(x / d).max() + np.abs(h) + 1e-300
        primal = np.abs(R @ x + s - h) / terms
        signs = np.where(is_equal, np.abs(s), -np.minimum(s, 0.0)) / terms
        negative = np.where(is_equal, 0.0, -np.minimum(y, 0.0)) * length / force
        complementary = np.where(is_equal, 0.0, np.minimum(np.abs(s) / terms, np.abs(y) * length / force))
        worst[k] = max(v.max(initial=0.0) for v in (dual, primal, signs, negative, complementary))
    return worst
