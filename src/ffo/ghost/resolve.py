"""Third way: Algorithm 1 of the paper to the letter, with nothing but a black-box solve.

`target="ghost"` hands the perturbed ghost problem (P3), an equality-constrained quadratic program, to
the solver: rows with curvature become a slack e with cost e^2/2,

    minimize  1/2 u'Pu - r_x'u + 1/2 e'e   subject to  TA u - C k - sqrt(delta) e = T r_s,

whose multipliers are t. The ghost is linear in the perturbation, so there is no truncation error and
the step `delta` only has to stand clear of the solver's tolerance.

`target="original"` perturbs the problem itself, q - delta r_x and b + delta r_s, and takes central
differences of its solutions: for solvers whose answer is all one has. Its step balances truncation
delta^2 against the error e of a solution divided by delta.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp

from ffo.cones.product import Product
from ffo.cones.zero import Zero
from ffo.errors import Status
from ffo.ghost.direct import POLISHING, Compiled, newton
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Sensitivity, Way
from ffo.kernels.kkt import KI, KP, part
from ffo.kernels.point import WEAK
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray
BlackBox = Callable[[ConeProgram], Solution]

#: solves of a ghost problem, each for what those before it left, and the relative residual that needs no further one:
#: the first errs by the solver's tolerance, which would stand in derivatives that are zero
RESOLVES, EXACT = 3, 1e-12


@dataclass(frozen=True)
class Resolve(Way):
    """Re-solve with a black box. Nothing is factorized: points are polished with MINRES, if at all.

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
        """Differences of solutions of the original problem are taken at what the solver says."""
        return self.target == "ghost"

    def linearize(self, program: ConeProgram, solution: Solution) -> Resolving:
        full = Iterative().full(program)
        steps = POLISHING if self.polishes else 0
        found = newton(program, solution.x, solution.y, solution.s, steps, full)
        if self.polishes:
            return GhostResolved(**vars(found), way=self)
        # An interior-point answer errs by about the square root of its residual, and differences of such
        # answers by that to the power 2/3.
        residual, margin = found.certificate.natural_residual, found.margin
        certificate = replace(
            found.certificate,
            unsettled=np.zeros(program.batch, dtype=bool),
            margin_ratio=np.sqrt(residual) / np.maximum(margin, 1e-300),
            weakly_active=margin <= WEAK,
            error=np.cbrt(residual),
        )
        return OriginalResolved(**{**vars(found), "certificate": certificate}, way=self)


@dataclass(frozen=True)
class Resolving(Compiled):
    """Solutions whose derivatives are re-solves."""

    way: Resolve

    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        return self._resolve(np.arange(len(self.x)) if samples is None else samples, r_x, r_s)

    @abstractmethod
    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        """The same for some samples."""


class GhostResolved(Resolving):
    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        t, residual = np.zeros_like(r_s), np.zeros(len(samples))
        u, r_t = np.zeros_like(r_x), self.plan.onto_face(self.state, samples, r_s)
        for i, k in enumerate(samples.tolist()):
            if np.any(r_x[i]) or np.any(r_t[i]):
                u[i], t[i], residual[i] = self._one(k, r_x[i], r_t[i])
        w = self.plan.from_face(self.state, samples, t)
        return self.with_evidence(samples, r_x, r_s, u, w, residual)

    def _one(self, k: int, r_x: Array, r_t: Array) -> tuple[Array, Array, float]:
        """u, t and the relative residual of the ghost system of sample k, from the K that Newton's method left."""
        S, n, m = self.state.structure, self.program.n, self.program.m
        Kx, unit, on = self.state.factors[0][k], self.state.factors[4][k], self.state.face[0][k].astype(bool)
        upper = sp.csc_array((Kx, part(S.slim, KI).astype(np.int64), part(S.wide, KP)), shape=(len(unit), len(unit)))
        rows, aux = n + np.flatnonzero(on[:m]), n + m + np.flatnonzero(on[m:])
        delta = -upper.diagonal()[rows]
        curved = np.flatnonzero(delta > 0)
        slack = sp.csc_array((-np.sqrt(delta[curved]), (curved, np.arange(len(curved)))), (len(rows), len(curved)))
        constraint = sp.hstack([upper[:n, rows].T, upper[rows][:, aux], slack], format="csc")
        P = sp.block_diag([upper[:n, :n], sp.csc_array((len(aux), len(aux))), sp.eye_array(len(curved))], format="csc")
        rhs, z, cones = np.concatenate([r_x, r_t, np.zeros(S.aux)]), np.zeros(len(unit)), Product([(Zero(), len(rows))])
        left, residual = rhs, np.inf
        for _ in range(RESOLVES):
            step = self.way.delta or 1.0 / max(np.abs(left).max(), 1e-300)
            q = np.concatenate([-left[:n], -left[aux], np.zeros(len(curved))])
            answer = self.way.solve(ConeProgram.from_matrices(P, step * q, constraint, step * left[rows], cones))
            new, x = z.copy(), answer.x[0]
            for at, v in ((slice(n), x[:n]), (rows, answer.y[0]), (aux, x[n : n + len(aux)])):
                new[at] += v / step
            rest = rhs - upper @ new - sp.triu(upper, 1).T @ new
            relative = float(np.linalg.norm(rest * unit) / np.linalg.norm(rhs * unit))
            if not relative < residual:
                break
            z, left, residual = new, rest, relative
            if residual <= EXACT:
                break
        if not np.isfinite(residual):  # no answer: like a failed sample, no gradient, and the certificate says so
            return np.zeros(n), np.zeros(m), np.inf
        return z[:n], z[n : n + m], residual


class OriginalResolved(Resolving):
    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        # The whole batch: a solver that goes on from sample to sample has other noise where some are left out.
        full_x, full_s = np.zeros_like(self.x), np.zeros_like(self.y)
        full_x[samples], full_s[samples] = r_x, r_s
        return self._differences(full_x, full_s).take(samples)

    def _differences(self, r_x: Array, r_s: Array) -> Sensitivity:
        program = self.program
        step = self._step(program, r_x, r_s)
        u, w, failed = self._difference(program, r_x, r_s, step)
        # No system is formed whose residual could be measured; what a step of twice the size says instead
        # shows truncation, the solver's noise and kinks alike.
        other, _, failed_too = self._difference(program, r_x, r_s, 2 * step)
        size = np.linalg.norm(u, axis=1)
        doubt = np.linalg.norm(u - other, axis=1) / np.where(size > 0, size, 1.0)
        everyone = np.arange(len(self.x))
        found = self.with_evidence(everyone, r_x, r_s, u, w, np.where(failed | failed_too, np.inf, doubt))
        return found._replace(kinked=self.certificate.weakly_active)

    def _difference(self, program: ConeProgram, r_x: Array, r_s: Array, step: Array) -> tuple[Array, Array, Array]:
        """Central differences (u, w), and where a solve failed."""
        plus = self.way.solve(program.with_vectors(program.q - step * r_x, program.b + step * r_s))
        minus = self.way.solve(program.with_vectors(program.q + step * r_x, program.b - step * r_s))
        failed = (plus.status != Status.SOLVED) | (minus.status != Status.SOLVED)
        u, w = (plus.x - minus.x) / (2 * step), (plus.y - minus.y) / (2 * step)
        lost = ~np.isfinite(np.concatenate([u, w], axis=1)).all(axis=1)
        u[lost], w[lost] = 0.0, 0.0
        return u, w, failed | lost

    def _step(self, program: ConeProgram, r_x: Array, r_s: Array) -> Array:
        if self.way.delta is not None:
            return np.full((program.batch, 1), self.way.delta)
        size = np.maximum(np.abs(r_x).max(axis=1, initial=0.0), np.abs(r_s).max(axis=1, initial=0.0))
        data = np.maximum(np.abs(program.q).max(axis=1, initial=0.0), 1e-3)
        step = self.way.accuracy ** (1 / 3) * data / np.where(size > 0, size, 1.0)
        return step[:, None]
