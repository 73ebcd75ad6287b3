"""The ghost problem at a solution (P2, P3 of the paper), as one linear system for a whole batch.

The ghost problem keeps the Lagrangian objective and holds the linearised active constraints as
equalities. Perturbed by a right-hand side, its optimality conditions are

    [ P   (TA)'  .  ] [u]   [ r_x   ]
    [ TA  -delta C  ] [t] = [ T r_s ]        w = T't
    [ .    C'    .  ] [k]   [ 0     ]

with T, delta, C from the active set. Every derivative of this package is such a solve:

    hypergradient (loss gradients c)   r_x = -c_x + A'c_s,      r_s = -c_y
    Newton step of polish              r_x = -(Px + q + A'y),   r_s = b - Ax - s
    tangent (dP, dq, dA, db)           r_x = -(dP x + dq + dA'y), r_s = db - dA x
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from ffo.ghost.face import ActiveSet
from ffo.program.cone import ConeProgram

Array = np.ndarray


@dataclass(frozen=True)
class Sensitivity:
    """A solution of the ghost system: u (batch, n), w (batch, m), relative residual (batch,)."""

    u: Array
    w: Array
    residual: Array

    def take(self, samples: Array) -> Sensitivity:
        """Those of some samples."""
        return Sensitivity(self.u[samples], self.w[samples], self.residual[samples])


class GhostSolver(ABC):
    """Solves the ghost system of one batch, for any number of right-hand sides."""

    @abstractmethod
    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        """r_x (batch, n), r_s (batch, m).

        Args:
            accuracy: (batch,) relative residuals that are enough (a Newton step need not be exact);
                None: as small as can be, in the least-squares sense where there is no solution.
        """

    def dependent(self) -> Array:
        """(batch,), or (1,) for all: whether active rows, not all of them equalities, depend on each other.

        No, for a solver that is made for independent ones only.
        """
        return np.zeros(1, dtype=bool)


class GhostSystem:
    """The ghost system of a batch; unknowns are ordered (u, t, k), all samples of each."""

    def __init__(self, program: ConeProgram, active: ActiveSet) -> None:
        self.program, self.active = program, active
        self.batch, self.n, self.m = program.batch, program.n, program.m
        self.primal = self.batch * self.n
        self.rows = len(active.delta)
        self.size = self.primal + self.rows + len(active.aux_sample)

    @cached_property
    def sample(self) -> Array:
        """(size,) the sample each unknown belongs to."""
        x = np.repeat(np.arange(self.batch), self.n)
        return np.concatenate([x, self.active.row_sample, self.active.aux_sample])

    @cached_property
    def TA(self) -> sp.csr_array:
        """(rows, batch * n) active rows of the constraint matrix."""
        return sp.csr_array(self.active.T @ self.program.A.block_diagonal_rows(self.batch))

    @cached_property
    def P(self) -> sp.csr_array:
        """(batch * n, batch * n) quadratic terms, both triangles."""
        upper = self.program.P.block_diagonal(self.batch)
        if not upper.nnz or np.array_equal(self.program.P.indices, self.program.P.columns):
            return sp.csr_array(upper)
        return sp.csr_array(upper + sp.triu(upper, 1).T)

    def right_hand_side(self, r_x: Array, r_s: Array) -> Array:
        aux = np.zeros(len(self.active.aux_sample))
        return np.concatenate([r_x.ravel(), self.active.T @ r_s.ravel(), aux])

    def split(self, z: Array) -> tuple[Array, Array, Array]:
        """(u, t, k), flat."""
        return z[: self.primal], z[self.primal : self.primal + self.rows], z[self.primal + self.rows :]

    def dot(self, z: Array) -> Array:
        """K z from products with P, A, A' and T alone; nothing is formed."""
        u, t, k = self.split(z)
        a, p = self.active, self.program
        U = u.reshape(self.batch, self.n)
        top = p.P.dot(U) + p.A.tdot((a.T.T @ t).reshape(self.batch, self.m))
        middle = a.T @ p.A.dot(U).ravel() - a.delta * t + a.C @ k
        return np.concatenate([top.ravel(), middle, a.C.T @ t])

    def formed_dot(self, z: Array) -> Array:
        """K z from the formed matrices P and TA; the faster one where memory allows."""
        u, t, k = self.split(z)
        C = self.active.C
        middle = self.TA @ u - self.active.delta * t
        if not len(k):
            return np.concatenate([self.P @ u + self.TA.T @ t, middle])
        return np.concatenate([self.P @ u + self.TA.T @ t, middle + C @ k, C.T @ t])

    def norms(self, v: Array) -> Array:
        """(batch,) Euclidean norm of each sample's part of a vector of unknowns."""
        return np.sqrt(np.bincount(self.sample, weights=v * v, minlength=self.batch))

    def sensitivity(self, z: Array, residual: Array) -> Sensitivity:
        """Package a vector of unknowns and its relative residual."""
        u, t, _ = self.split(z)
        w = (self.active.T.T @ t).reshape(self.batch, self.m)
        return Sensitivity(u.reshape(self.batch, self.n), w, residual)

    def relative_residual(self, rhs: Array, residual: Array) -> Array:
        size = self.norms(rhs)
        return self.norms(residual) / np.where(size > 0, size, 1.0)
