"""The ghost problem at a solution, and its perturbed solution by projected conjugate gradients.

The ghost of a solution (y, lam, nu) with active inequalities I is (the paper's P2)

    minimize g + lam'h + nu'e   subject to   B (y' - y) = 0,   B = [grad h_I; grad e],

and its solution moves, when the objective is perturbed along c and the constraints by b, like (u, t) in

    H u + B't = -c,      B u = b,

H the Hessian of the ghost objective. u is the shortest solution of B u = b plus a vector of the null
space of B, found by conjugate gradients on H there. Every residual r is replaced by r - B't, the part not
explained by multipliers; this keeps it small and accumulates t (the residual update of Gould, Hribar and
Nocedal).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from ffo.functions.active import ActiveSet, Scale, active_set, largest, scale
from ffo.functions.problem import Problem, Tensor
from ffo.functions.products import Constraints, Curvature, Differences, Exact
from ffo.functions.projection import Projection
from ffo.functions.units import metric

#: relative residuals at which conjugate gradients stop, with exact products and with differences
EXACT, DIFFERENCES = 1e-13, 1e-10
#: most runs of conjugate gradients, each from the true residual that the one before left, as long as it is above the
#: second number; fraction of the residual that a run may leave to count
RUNS, ENOUGH, PROGRESS = 3, 1e-9, 0.5
#: iterations without progress after which the accuracy is taken to be limited by rounding
STALLED = 40
#: curvature along a direction, relative to the largest so far, that counts as zero: exact, by differences
FLAT, FLAT_DIFFERENCES = 1e-14, 1e-10
#: and below which it counts as negative
NEGATIVE = -1e-8


class Local:
    """First-order information at a point, in natural units.

    Attributes:
        y: (batch, n); constraints: at y, with their Jacobian; active: the classified point.
        stationarity: (batch, n) gradient of the Lagrangian with the cleaned multipliers.
        defect: (batch, k) values of held constraints, and violations of the others.
        natural: (batch,) largest of both, in natural units; where variables differ in scale, in their units and in the
            given ones, whichever is larger.
        diagonal: (batch, n) positive diagonal used as a preconditioner.
        unlike: (batch,) whether variables differ in scale.
    """

    def __init__(self, problem: Problem, y: Tensor, multipliers: Tensor, exact: bool = False) -> None:
        self.problem, self.y, self.exact = problem, y, exact
        self.constraints = Constraints(problem, y)
        gradient = problem.gradient(y, torch.zeros_like(multipliers))
        found = metric(y, self.constraints, partial(self._products, multipliers))
        self.diagonal, self.unlike = found.diagonal, found.unlike
        self.sizes: Scale = scale(y, gradient, self.constraints, multipliers, found.size, found.units)
        self.active: ActiveSet = active_set(self.constraints.value, multipliers, problem.inequalities, self.sizes)
        self.stationarity = gradient + self.constraints.pull(self.active.multipliers)
        value = self.constraints.value
        self.defect = torch.where(self.active.held, value, value.clamp_min(0.0))
        self.natural = self._residual(self.sizes)
        if bool(self.unlike.any()):
            given = scale(y, gradient, self.constraints, multipliers, found.given, torch.ones_like(y))
            self.natural = torch.maximum(self.natural, self._residual(given))

    def _residual(self, sizes: Scale) -> Tensor:
        """(batch,) relative residual of the optimality conditions."""
        primal = largest(self.defect / sizes.rows) / sizes.primal
        return torch.maximum(primal, largest(sizes.units * self.stationarity) / sizes.dual)

    def _products(self, multipliers: Tensor, diagonal: Tensor) -> Curvature:
        if self.exact:
            return Exact(self.problem, self.y, multipliers)
        return Differences(self.problem, self.y, multipliers, diagonal)

    def curvature(self, multipliers: Tensor) -> Curvature:
        """Products with the Hessian of the Lagrangian here."""
        return self._products(multipliers, self.diagonal)


@dataclass(frozen=True)
class GhostStep:
    """u (batch, n) and t (batch, k) of a ghost system.

    Attributes:
        residual: (batch,) relative residual of the first equation.
        indefinite: (batch,) whether a direction of negative curvature was found.
        iterations: of conjugate gradients.
        left: (batch, n) what is left of the first equation.
    """

    u: Tensor
    t: Tensor
    residual: Tensor
    indefinite: Tensor
    iterations: int
    left: Tensor

    def or_better(self, other: GhostStep) -> GhostStep:
        """For each sample the other, if its residual is clearly smaller: along null vectors of H, u may grow without
        any progress."""
        better = other.residual < PROGRESS * self.residual
        pairs = ((self.u, other.u), (self.t, other.t), (self.left, other.left))
        u, t, left = (torch.where(better.unsqueeze(1), b, a) for a, b in pairs)
        residual = torch.where(better, other.residual, self.residual)
        return GhostStep(u, t, residual, other.indefinite, other.iterations, left)


class GhostSystem:
    """The ghost system at a point, ready for right-hand sides."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.H = local.curvature(local.active.multipliers)
        self.inverse = 1.0 / local.diagonal
        self.projection = Projection(local.constraints, local.active.held, self.inverse, local.sizes.rows)

    def solve(self, r: Tensor, b: Tensor | None = None, rtol: float | None = None) -> GhostStep:
        """H u + B't = r (batch, n), B u = b (batch, k; None: zero)."""
        stop = rtol if rtol is not None else (EXACT if self.local.exact else DIFFERENCES)
        start = torch.zeros_like(r) if b is None else self.projection.particular(b)
        run = _ConjugateGradients(self, r if b is None else r - self.H(start), r)
        found = self._after(run, start, torch.zeros_like(run.t), r, b, stop)
        for _ in range(RUNS - 1):
            again = (found.residual > max(stop, ENOUGH)) & ~run.flat
            if not bool(again.any()):
                break
            run.restart(found.left, again)
            found = found.or_better(self._after(run, found.u, found.t, r, b, stop))
        return found

    def _after(
        self, run: _ConjugateGradients, start: Tensor, t: Tensor, r: Tensor, b: Tensor | None, stop: float
    ) -> GhostStep:
        """The step after a run of conjugate gradients from a start with multipliers t."""
        limit = run.iterations + 4 * r.shape[1] + 100
        while run.iterations < limit and run.unfinished(stop):
            run.step()
        u, t = self.projection.onto_rows(start + run.u, b), t + run.t
        left, more = self.projection.reduce(r - self.H(u) - self.projection.pull(t))
        return GhostStep(u, t + more, run.relative(left), run.indefinite, run.iterations, left)


class _ConjugateGradients:
    """Projected conjugate gradients for a batch, each sample with its own scalars."""

    def __init__(self, system: GhostSystem, left: Tensor, reference: Tensor) -> None:
        self.H, self.inverse, self.projection = system.H, system.inverse, system.projection
        self.threshold = FLAT if system.local.exact else FLAT_DIFFERENCES
        sizes = [(self.inverse * v * v).sum(1) for v in (reference, left)]
        self.reference = torch.maximum(*sizes)
        self.steepest = torch.zeros_like(self.reference)
        self.indefinite = torch.zeros_like(self.reference, dtype=torch.bool)
        self.flat = torch.zeros_like(self.indefinite)
        self.iterations = 0
        self.restart(left, ~self.flat)

    def restart(self, left: Tensor, wanted: Tensor) -> None:
        """Start on what is left (batch, n), for the samples wanted (batch,); what is known about H stays known."""
        self.wanted, self.u = wanted, torch.zeros_like(left)
        self.r, self.t = self.projection.reduce(left)
        self.p = self.inverse * self.r
        self.rz = (self.r * self.p).sum(1)
        self.best, self.since = self.rz.clone(), 0

    def unfinished(self, rtol: float) -> bool:
        self.alive = self.wanted & (self.rz > rtol**2 * self.reference) & ~self.flat
        return bool(self.alive.any()) and self.since < STALLED

    def step(self) -> None:
        Hp = self.H(self.p)
        along, length = (self.p * Hp).sum(1), (self.p * self.p / self.inverse).sum(1)
        rate = along / length.clamp_min(1e-300)
        self.steepest = torch.maximum(self.steepest, rate.abs())
        self.flat |= self.alive & (rate.abs() <= self.threshold * self.steepest)
        self.alive &= ~self.flat
        self.indefinite |= self.alive & (rate < NEGATIVE * self.steepest)
        alpha = torch.where(self.alive, self.rz / torch.where(along == 0, torch.ones_like(along), along), 0.0)
        self.u += alpha.unsqueeze(1) * self.p
        self.r, t = self.projection.reduce(self.r - alpha.unsqueeze(1) * Hp)
        self.t += t
        z = self.inverse * self.r
        new = (self.r * z).sum(1)
        beta = torch.where(self.alive, new / self.rz.clamp_min(1e-300), 0.0)
        self.p = z + beta.unsqueeze(1) * self.p
        self.rz = torch.where(self.alive, new, self.rz)
        progress = self.alive & (self.rz < 0.8 * self.best)
        self.best = torch.where(progress, self.rz, self.best)
        self.since = 0 if bool(progress.any()) else self.since + 1
        self.iterations += 1

    def relative(self, r: Tensor) -> Tensor:
        """(batch,) size of a residual relative to the right-hand side."""
        return ((r * self.inverse * r).sum(1) / self.reference.clamp_min(1e-300)).sqrt()
