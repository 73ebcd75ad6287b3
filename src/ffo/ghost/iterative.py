"""Second way: matrix-free MINRES, for problems whose factors would not fit.

Only products with P, A, A' and T are taken; memory is a few vectors. All samples run together, each
with its own scalars (a batch is one block-diagonal system, but its samples converge separately).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.ghost.polish import SteppedWay
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity
from ffo.probes import PROBE

Array = np.ndarray

#: what may be left of a random right-hand side (entries of size 1) if active rows are independent
LEFT = 1e-2


@dataclass(frozen=True)
class Iterative(SteppedWay):
    """MINRES with a diagonal preconditioner.

    Attributes:
        rtol: relative residual at which a sample is done; 1e-6 would leave 1e-3 in the gradient.
        max_iters: iterations per restart; None: ten times the unknowns of a sample.
        restarts: how often to start again from the true residual.
    """

    rtol: float = 1e-12
    max_iters: int | None = None
    restarts: int = 4

    def solver(self, system: GhostSystem, previous: GhostSolver | None = None) -> IterativeSolver:
        return IterativeSolver(system, self)


class IterativeSolver(GhostSolver):
    def __init__(self, system: GhostSystem, way: Iterative) -> None:
        self.system, self.way = system, way
        self._preconditioner = _diagonal(system)

    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        system = self.system
        rhs = system.right_hand_side(r_x, r_s)
        z, residual = np.zeros_like(rhs), rhs
        target = self.way.rtol if accuracy is None else np.maximum(accuracy, self.way.rtol)
        size = np.where(system.norms(rhs) > 0, system.norms(rhs), 1.0)
        relative = system.norms(rhs) / size
        for _ in range(self.way.restarts):
            step = _minres(system, residual, self._preconditioner, target * size, self._limit)
            candidate = z + step
            left = rhs - system.dot(candidate)
            norm = system.norms(left) / size
            better = (norm < relative)[system.sample]
            z, residual = np.where(better, candidate, z), np.where(better, left, residual)
            stalled = norm > 0.5 * relative
            relative = np.minimum(norm, relative)
            if ((relative <= target) | stalled).all():
                break
        return system.sensitivity(z, relative)

    def dependent(self) -> Array:
        """As in `DirectSolver`: a random right-hand side of the inequalities, of which nothing may be left."""
        system, unit = self.system, np.sqrt(self._preconditioner)
        rows = slice(system.primal, system.primal + system.rows)
        rhs = np.zeros(system.size)
        rhs[rows] = np.random.default_rng(PROBE).standard_normal(system.rows) * system.active.inequality
        rhs /= unit
        # MINRES compares preconditioned residuals with the tolerance in units of those of the right-hand side.
        tolerance = 0.5 * LEFT * system.norms(rhs) / np.maximum(system.norms(rhs * unit), 1e-300)
        z = _minres(system, rhs, self._preconditioner, tolerance, self._limit)
        return system.norms((rhs - system.dot(z)) * unit) > LEFT

    @property
    def _limit(self) -> int:
        return self.way.max_iters or 10 * max(self.system.size // max(self.system.batch, 1), 20)


def _diagonal(system: GhostSystem) -> Array:
    """Inverse of a positive diagonal close to |K|: P and column sizes for u, Schur complement for t."""
    p, a = system.program, system.active
    T2 = a.T.multiply(a.T).tocsr()
    A2 = p.A.__class__(p.A.indptr, p.A.indices, p.A.values**2, p.A.shape)
    used = (T2.T @ np.ones(system.rows)).reshape(system.batch, system.m)
    columns = np.sqrt(A2.tdot(used))  # (batch, n) sizes of the columns of TA
    primal = p.P.diagonal + columns
    primal = np.where(primal > 0, primal, 1.0)
    dual = a.delta + T2 @ A2.dot(1.0 / primal).ravel()
    dual = np.where(dual > 0, dual, 1.0)
    aux = a.C.multiply(a.C).T @ (1.0 / dual)
    return 1.0 / np.concatenate([primal.ravel(), dual, np.where(aux > 0, aux, 1.0)])


def _minres(system: GhostSystem, rhs: Array, inverse: Array, tolerance: Array, limit: int) -> Array:
    """Preconditioned MINRES (Paige and Saunders), started at zero, scalars kept per sample.

    A finished sample is frozen by dividing by one instead of by its vanishing Lanczos scalar.
    """
    sample, batch = system.sample, system.batch

    def inner(a: Array, b: Array) -> Array:
        return np.bincount(sample, weights=a * b, minlength=batch)

    x = np.zeros_like(rhs)
    r1, r2, y = rhs, rhs, inverse * rhs
    beta1 = np.sqrt(inner(rhs, y))
    # The preconditioned residual norm is compared with the tolerance scaled alike.
    target = tolerance * beta1 / np.where(system.norms(rhs) > 0, system.norms(rhs), 1.0)
    alive = beta1 > target
    old_beta, beta = np.zeros(batch), beta1.copy()
    dbar, epsilon, phibar = np.zeros(batch), np.zeros(batch), beta1.copy()
    cosine, sine = -np.ones(batch), np.zeros(batch)
    w, w2 = np.zeros_like(rhs), np.zeros_like(rhs)
    for iteration in range(limit):
        if not alive.any():
            break
        v = y / _safe(beta)[sample]
        y = system.dot(v)
        if iteration:
            y = y - (beta / _safe(old_beta))[sample] * r1
        alpha = inner(v, y)
        y = y - (alpha / _safe(beta))[sample] * r2
        r1, r2 = r2, y
        y = inverse * r2
        old_beta, beta = beta, np.sqrt(np.maximum(inner(r2, y), 0.0))
        # Plane rotation of the tridiagonal matrix.
        old_epsilon, delta = epsilon, cosine * dbar + sine * alpha
        gbar = sine * dbar - cosine * alpha
        epsilon, dbar = sine * beta, -cosine * beta
        gamma = _safe(np.sqrt(gbar**2 + beta**2))
        cosine, sine = gbar / gamma, beta / gamma
        phi, phibar = cosine * phibar, sine * phibar
        w1, w2 = w2, w
        w = (v - old_epsilon[sample] * w1 - delta[sample] * w2) / gamma[sample]
        x = x + np.where(alive, phi, 0.0)[sample] * w
        alive &= (phibar > target) & (beta > 0)
    return x


def _safe(v: Array) -> Array:
    return np.where(v > 1e-300, v, 1.0)
