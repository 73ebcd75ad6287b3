"""Newton steps on the ghost system: a more accurate solution, and evidence about its derivative.

At a point whose active inequalities have been identified, one step solves the ghost system for the residual
of the optimality conditions,

    H dy + B'dm = -(grad g + J'm),     B dy = -c,

and the active set is identified again. A sample is done when a step does not change the active set and its
natural residual cannot decrease further. The best point is kept, so polishing never makes a point worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ffo.functions.active import generator, largest
from ffo.functions.ghost import GhostSystem, Local
from ffo.functions.multipliers import recover
from ffo.functions.problem import Problem, Tensor
from ffo.functions.products import difference_step
from ffo.functions.units import signs
from ffo.ghost.certificate import Certificate
from ffo.kernels.deadline import expired
from ffo.kernels.point import WEAK
from ffo.kernels.system import EPS

STEPS = 12
#: natural residuals at which a point counts as exact, with exact Hessian products and with differences
EXACT, DIFFERENCES = 1e-13, 1e-12
#: size of y from which on it is not tried to be zero
NOTHING = 1e-8
#: reduction of the natural residual by a step; a weaker one ends the steps
PROGRESS = 0.3
#: error of multipliers, relative to the residual, times the square of the smallest angle between rows
AMPLIFIED = 10.0
#: multiple of the step of differences over which the curvature should be constant, and relative change from which on it
#: is not: differences themselves then have a hundredth of this error (if ten times smaller, rounding errors count)
REACH, BENT = 10.0, 0.1
#: fraction of a step that is rounding after its projection onto the held constraints
NEGLIGIBLE = 1e-10
#: relative violation above which constraints that count as dependent contradict each other
CONTRADICTED = 1e-10


@dataclass
class Polished:
    """Points y (batch, n) with multipliers (batch, k), and per sample the evidence of the certificate.

    Attributes:
        natural: (batch,) relative residual of the optimality conditions.
        error: (batch,) estimated relative error of y: the residual times the amplification of the last step.
        settled: (batch,) whether the last step did not change the active set.
        step: (batch, n) the last step, taken or not; zero if there was none.
        last: first-order information of the whole batch at exactly these points, if available.
    """

    y: Tensor
    multipliers: Tensor
    natural: Tensor
    error: Tensor
    settled: Tensor
    indefinite: Tensor
    step: Tensor
    last: Local | None = None

    @classmethod
    def unknown(cls, y: Tensor, multipliers: Tensor) -> Polished:
        """Points without evidence."""
        infinite = torch.full_like(y[:, 0], torch.inf)
        never = torch.zeros_like(infinite, dtype=torch.bool)
        return cls(y.clone(), multipliers.clone(), infinite, infinite.clone(), never, never.clone(), 0.0 * y)

    def put(self, samples: Tensor, other: Polished, chosen: Tensor) -> None:
        """Copy the `chosen` samples of another batch to `samples` of this one."""
        for name in ("y", "multipliers", "natural", "error", "settled", "indefinite", "step"):
            getattr(self, name)[samples] = getattr(other, name)[chosen]
        self.last = other.last if len(samples) == len(self.y) == len(other.y) else None


def polish(problem: Problem, y: Tensor, multipliers: Tensor, exact: bool) -> Polished:
    """Take Newton steps from approximate solutions; at least one, so that there is evidence."""
    run = _PolishRun(problem, y, multipliers, exact)
    for _ in range(STEPS):
        run.step()
        if not len(run.pending) or expired():
            break
    return run.best


def at_origin(problem: Problem, points: Polished, failed: Tensor, accepted: float, exact: bool) -> np.ndarray:
    """Try y = 0 for failed samples that are about zero: with nothing but rounding errors to measure it, no such point
    holds. Returns which samples (batch,) this solves, to the accepted natural residual."""
    tried = (failed & (largest(points.y) <= NOTHING)).nonzero().squeeze(1)
    if len(tried):
        mine, origin = problem.take(tried), torch.zeros_like(points.y[tried])
        found = polish(mine, origin, recover(mine, origin), exact)
        solved = found.natural <= accepted
        points.put(tried[solved], found, solved)
        tried = tried[solved]
    return np.isin(np.arange(problem.batch), tried.cpu().numpy())


class _PolishRun:
    def __init__(self, problem: Problem, y: Tensor, multipliers: Tensor, exact: bool) -> None:
        self.problem, self.exact = problem, exact
        self.target = EXACT if exact else DIFFERENCES
        self.pending = torch.arange(len(y), device=y.device)
        self.local = Local(problem, y, multipliers, exact)
        self.best = Polished.unknown(y, self.local.active.multipliers)
        self.best.natural, self.best.last = self.local.natural.clone(), self.local

    def step(self) -> None:
        """One Newton step for the pending samples."""
        before, samples, best = self.local, self.pending, self.best
        rtol = float((self.target / before.natural.clamp_min(self.target)).min().clamp(1e-12, 1e-3))
        found = GhostSystem(before).solve(-before.stationarity, -before.defect * before.active.held, rtol)
        y, multipliers = before.y + found.u, before.active.multipliers + found.t
        after = Local(self.problem.take(samples), y, multipliers, self.exact)
        same = (after.active.held == before.active.held).all(1)
        moved = largest(found.u / before.sizes.units) / before.sizes.primal
        amplified = (moved / before.natural.clamp_min(1e-300)).clamp_min(1.0)
        better = after.natural < before.natural
        # If rounding keeps the residual from decreasing, the point before the step was as good as this one.
        done = same & (~better | (after.natural <= self.target) | (after.natural > PROGRESS * before.natural))
        mine = samples[better]
        best.y[mine], best.multipliers[mine] = y[better], after.active.multipliers[better]
        best.natural[mine] = after.natural[better]
        best.error[samples] = best.natural[samples] * torch.where(amplified.isfinite(), amplified, torch.inf)
        best.settled[samples], best.step[samples] = same, found.u
        best.indefinite[samples] |= found.indefinite
        whole = len(samples) == self.problem.batch
        best.last = after if whole and bool(better.all()) else (best.last if not bool(better.any()) else None)
        keep = ~done & after.natural.isfinite()
        self.pending = samples[keep]
        if not len(self.pending):
            return
        self.local = after
        if not bool(keep.all()):
            self.local = Local(self.problem.take(self.pending), y[keep], multipliers[keep], self.exact)


def certificate(polished: Polished, system: GhostSystem) -> Certificate:
    """Evidence about derivatives at polished points; `system` is their ghost system."""
    margin, held = system.local.active.margin, system.local.active.held
    inequality = held[:, : system.local.problem.inequalities].any(1)
    defect = largest(held * system.local.defect / system.local.sizes.rows) / system.local.sizes.primal
    projection, residual = system.projection, polished.natural.clamp_min(EPS)
    fields = {
        "unsettled": ~polished.settled,
        "margin_ratio": polished.error / margin.clamp_min(1e-300),
        "weakly_active": margin <= torch.clamp(AMPLIFIED * residual / projection.least, min=WEAK),
        "error": torch.maximum(polished.error, unknown_within(system, polished.step)),
        "natural_residual": polished.natural,
        "dependent": (projection.dependent & (inequality | (defect > CONTRADICTED))) | projection.inexact,
        "indefinite": polished.indefinite,
    }
    return Certificate.before_backward(**{name: np.asarray(value.cpu()) for name, value in fields.items()})


def unknown_within(system: GhostSystem, step: Tensor) -> Tensor:
    """(batch,) relative distance over which the curvature along the last step (batch, n) changes much; else by how
    much it does over REACH steps of differences.

    A residual bounds the error of a minimum only where the curvature is about constant. At a flat one, such as that of
    (y - a)^4, it is the third power of the error, and every point within the distance is as good as the answer.
    """
    local, y = system.local, system.local.y
    own, random = (_free(system, v) for v in (step, local.sizes.units * signs(y, generator(y))))
    stepped = largest(own) > 0
    v = torch.where(stepped.unsqueeze(1), own, random)
    near = difference_step(y, v, local.diagonal)
    far = torch.where(stepped, torch.clamp(REACH * near, min=1.0), REACH * near)
    rates = [_along(local, v, t.unsqueeze(1)) for t in (near, far)]
    change = (rates[1] - rates[0]).abs() / torch.minimum(rates[0].abs(), rates[1].abs())
    change = torch.where(rates[0].isfinite() & rates[1].isfinite(), change, torch.inf)  # steps leave the domain
    error = torch.where(stepped | change.isnan(), 0.0, change)  # of rounding, if steps are as short as they may be
    return torch.where(change > BENT, far * largest(v) / largest(y).clamp_min(1e-300), error)


def _free(system: GhostSystem, v: Tensor) -> Tensor:
    """The part of v (batch, n) along the held constraints; zero where it is rounding, as at a vertex."""
    along = system.projection.onto_rows(v, None)
    return torch.where((largest(along) > NEGLIGIBLE * largest(v)).unsqueeze(1), along, 0.0)


def _along(local: Local, v: Tensor, t: Tensor) -> Tensor:
    """(batch,) v'Hv by a central difference of length t (batch, 1)."""
    ends = [local.problem.gradient(local.y + sign * t * v, local.active.multipliers) for sign in (1.0, -1.0)]
    return (v * (ends[0] - ends[1]) / (2 * t)).sum(1)
