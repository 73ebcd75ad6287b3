"""Third way: Algorithm 1 of the paper to the letter, with nothing but a black-box solve.

`target="ghost"` hands the perturbed ghost problem (P3), an equality-constrained quadratic program, to
the solver: rows with curvature become a slack e with cost e^2/2,

    minimize  1/2 u'Pu - r_x'u + 1/2 e'e   subject to  TA u + C k - sqrt(delta) e = T r_s,

whose multipliers are t. The ghost is linear in the perturbation, so there is no truncation error and
the step `delta` only has to stand clear of the solver's tolerance.

`target="original"` perturbs the problem itself, q - delta r_x and b + delta r_s, and takes central
differences of its solutions: for solvers whose answer is all one has. Its step balances truncation
delta^2 against the error e of a solution divided by delta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp

from ffo.cones.product import Product
from ffo.cones.zero import Zero
from ffo.errors import Status
from ffo.ghost.iterative import Iterative, IterativeSolver
from ffo.ghost.polish import SteppedWay
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray
BlackBox = Callable[[ConeProgram], Solution]


@dataclass(frozen=True)
class Resolve(SteppedWay):
    """Re-solve with a black box.

    Attributes:
        solve: any function from a cone program to its solution.
        target: perturb the "ghost" problem or the "original" one.
        delta: size of the perturbation, as in the paper; None chooses it: for the ghost the
            perturbation is scaled to unit size, for the original problem to `accuracy` ** (1/3).
        accuracy: relative error to expect of a solution x of the black box.
    """

    solve: BlackBox
    target: Literal["ghost", "original"] = "ghost"
    delta: float | None = None
    accuracy: float = 1e-8

    @property
    def polishes(self) -> bool:
        """The ghost can be re-solved for Newton steps; solutions of the original cannot be improved."""
        return self.target == "ghost"

    def solver(self, system: GhostSystem, previous: GhostSolver | None = None) -> GhostSolver:
        return _GhostResolve(system, self) if self.target == "ghost" else _OriginalResolve(system, self)


class _Resolving(GhostSolver):
    def __init__(self, system: GhostSystem, way: Resolve) -> None:
        self.system, self.way = system, way

    def dependent(self) -> Array:
        """By products with the data alone: nothing is factorized."""
        return IterativeSolver(self.system, Iterative()).dependent()


class _GhostResolve(_Resolving):
    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        system = self.system
        rhs = system.right_hand_side(r_x, r_s)
        z = np.zeros(system.size)
        for k in range(system.batch):
            at = np.flatnonzero(system.sample == k)
            if np.any(rhs[at]):
                z[at] = self._one(k, at, rhs[at])
        return system.sensitivity(z, system.relative_residual(rhs, rhs - system.dot(z)))

    def _one(self, k: int, at: Array, rhs: Array) -> Array:
        system, active = self.system, self.system.active
        n = system.n
        rows = np.flatnonzero(active.row_sample == k)
        aux = np.flatnonzero(active.aux_sample == k)
        delta = active.delta[rows]
        curved = np.flatnonzero(delta > 0)
        TA = (active.T[rows][:, k * system.m : (k + 1) * system.m]) @ system.program.A.matrix(k)
        slack = sp.csc_array((-np.sqrt(delta[curved]), (curved, np.arange(len(curved)))), (len(rows), len(curved)))
        constraint = sp.hstack([TA, active.C[rows][:, aux], slack], format="csc")
        P = sp.block_diag(
            [system.program.P.full(k), sp.csc_array((len(aux), len(aux))), sp.eye_array(len(curved))], format="csc"
        )
        step = self.way.delta or 1.0 / max(np.abs(rhs).max(), 1e-300)
        q = np.concatenate([-rhs[:n], np.zeros(len(aux) + len(curved))])
        program = ConeProgram.from_matrices(
            P, step * q, constraint, step * rhs[n : n + len(rows)], Product([(Zero(), len(rows))])
        )
        answer = self.way.solve(program)
        return np.concatenate([answer.x[0, :n], answer.y[0], answer.x[0, n : n + len(aux)]]) / step


class _OriginalResolve(_Resolving):
    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        program = self.system.program
        step = self._step(r_x, r_s)
        u, w, failed = self._difference(program, r_x, r_s, step)
        # No system is formed whose residual could be measured; what a step of twice the size says instead
        # shows truncation, the solver's noise and kinks alike.
        other, _, failed_too = self._difference(program, r_x, r_s, 2 * step)
        size = np.linalg.norm(u, axis=1)
        doubt = np.linalg.norm(u - other, axis=1) / np.where(size > 0, size, 1.0)
        return Sensitivity(u, w, np.where(failed | failed_too, np.inf, doubt))

    def _difference(self, program: ConeProgram, r_x: Array, r_s: Array, step: Array) -> tuple[Array, Array, Array]:
        """Central differences (u, w), and where a solve failed."""
        plus = self.way.solve(program.with_vectors(program.q - step * r_x, program.b + step * r_s))
        minus = self.way.solve(program.with_vectors(program.q + step * r_x, program.b - step * r_s))
        failed = (plus.status != Status.SOLVED) | (minus.status != Status.SOLVED)
        return (plus.x - minus.x) / (2 * step), (plus.y - minus.y) / (2 * step), failed

    def _step(self, r_x: Array, r_s: Array) -> Array:
        if self.way.delta is not None:
            return np.full((self.system.batch, 1), self.way.delta)
        program = self.system.program
        size = np.maximum(np.abs(r_x).max(axis=1, initial=0.0), np.abs(r_s).max(axis=1, initial=0.0))
        data = np.maximum(np.abs(program.q).max(axis=1, initial=0.0), 1e-3)
        step = self.way.accuracy ** (1 / 3) * data / np.where(size > 0, size, 1.0)
        return step[:, None]
