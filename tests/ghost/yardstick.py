"""Two references for derivatives of solutions that share nothing with the ghost system.

`tight_differences` solves perturbed programs; `implicit_gradient` differentiates the optimality
conditions, with the derivative of the projection taken by finite differences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from cones.contract import finite_difference
from problems import point

from ffo.cones import Product
from ffo.ghost.direct import newton
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution
from ffo.program.sparse import SparseBatch
from ffo.solvers import get_solver

Array = np.ndarray


@dataclass(frozen=True)
class Loss:
    """L = c_x'x + c_y'y + c_s's, each (batch, ·)."""

    c_x: Array
    c_y: Array
    c_s: Array

    @classmethod
    def random(cls, program: ConeProgram, seed: int = 0) -> Loss:
        rng = np.random.default_rng([seed, 5])
        return cls(*(rng.normal(size=(program.batch, k)) for k in (program.n, program.m, program.m)))

    def __call__(self, x: Array, y: Array, s: Array) -> Array:
        """(batch,) where x, y, s hold the samples of this loss."""
        return (self.c_x * x).sum(1) + (self.c_y * y).sum(1) + (self.c_s * s).sum(1)

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        return self.c_x, self.c_y, self.c_s


@dataclass(frozen=True)
class Entries:
    """A gradient or a change of the data by stored entries: P, A (batch, nnz), q, b (batch, ·)."""

    P: Array
    q: Array
    A: Array
    b: Array

    @classmethod
    def random(cls, program: ConeProgram, seed: int = 0) -> Entries:
        rng = np.random.default_rng([seed, 6])
        sizes = (program.P.nnz, program.n, program.A.nnz, program.m)
        return cls(*(rng.normal(size=(program.batch, k)) for k in sizes))

    @classmethod
    def of_gradient(cls, g: DataGradient, program: ConeProgram) -> Entries:
        """The factored gradient written out; an off-diagonal entry of P counts twice."""
        i, j = program.P.indices, program.P.columns
        row, col = program.A.indices, program.A.columns
        P = g.u[:, i] * g.x[:, j] + np.where(i == j, 0.0, g.u[:, j] * g.x[:, i])
        return cls(P, g.u, g.y[:, row] * g.u[:, col] + g.v[:, row] * g.x[:, col], g.db)

    def only(self, name: str) -> Entries:
        """The change of one block only."""
        return replace(self, **{k: np.zeros_like(v) for k, v in vars(self).items() if k != name})

    def dot(self, other: Entries) -> Array:
        """(batch,) inner products."""
        return sum((a * b).sum(axis=1) for a, b in zip(vars(self).values(), vars(other).values(), strict=True))

    def program(self, base: ConeProgram, of: float = 0.0) -> ConeProgram:
        """This change as a program of the pattern of `base`, added to `of` times it."""
        P, A = base.P, base.A
        return ConeProgram(
            type(P)(P.indptr, P.indices, of * P.values + self.P, P.shape),
            of * base.q + self.q,
            SparseBatch(A.indptr, A.indices, of * A.values + self.A, A.shape),
            of * base.b + self.b,
            base.cones,
        )

    def times(self, factor: float) -> Entries:
        return Entries(*(factor * v for v in vars(self).values()))


def tight(program: ConeProgram) -> Solution:
    """The solution to about 1e-13: an interior-point answer, polished."""
    answer = get_solver("CLARABEL", {"eps": 1e-12}).solve(program)
    done = newton(program, answer.x, answer.y, answer.s)
    assert done.certificate.natural_residual.max() <= 1e-11
    return point(done.x, done.y, done.s)


def tight_differences(program: ConeProgram, loss: Loss, change: Entries, step: float) -> Array:
    """(batch,) derivative of the loss along a change of the data, by fourth-order central differences."""

    def value(t: float) -> Array:
        found = tight(change.times(t).program(program, of=1.0))
        return loss(found.x, found.y, found.s)

    near, far = value(step) - value(-step), value(2 * step) - value(-2 * step)
    return (8 * near - far) / (12 * step)


def implicit_gradient(program: ConeProgram, solution: Solution, loss: Loss, step: float = 1e-4) -> Entries:
    """The gradient of the loss in the data by the implicit function theorem.

    In the unknowns (x, w), with s = Pi(w) and y = Pi(w) - w, the optimality conditions are

        Px + q + A'(Pi(w) - w) = 0,   Ax + Pi(w) - b = 0.
    """
    u, v = np.zeros_like(solution.x), np.zeros_like(solution.y)
    for k in range(program.batch):
        P, A = program.P.full(k).toarray(), program.A.matrix(k).toarray()
        D = projection_jacobian(program.cones, solution.s[k] - solution.y[k], step)
        inner = D - np.eye(program.m)
        jacobian = np.block([[P, A.T @ inner], [A, D]])
        assert np.linalg.cond(jacobian) < 1e7
        c_w = inner.T @ loss.c_y[k] + D.T @ loss.c_s[k]
        multiplier = -np.linalg.solve(jacobian.T, np.concatenate([loss.c_x[k], c_w]))
        u[k], v[k] = multiplier[: program.n], multiplier[program.n :]
    return Entries.of_gradient(DataGradient(solution.x, solution.y, u, v, -v), program)


def projection_jacobian(cones: Product, w: Array, step: float) -> Array:
    """D Pi_K(w), block by block, from projections only."""
    D = np.zeros((len(w), len(w)))
    for group in cones.groups:
        for rows, block in zip(group.index, finite_difference(group.cone, w[group.index], step), strict=True):
            D[np.ix_(rows, rows)] = block
    return D


def relative_error(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def gradient_error(found: Entries, expected: Entries) -> float:
    """The largest error over the blocks, relative to the largest entry of each."""
    pairs = zip(vars(found).values(), vars(expected).values(), strict=True)
    return max(relative_error(f, e) for f, e in pairs if f.size)
