"""Batched first-order solver: augmented Lagrangian, L-BFGS inside, Newton steps at the end.

With constraints scaled to gradients of unit length and a penalty r per sample, minimize over y

    g + sum_i ( max(0, lam_i + r h_i)^2 - lam_i^2 ) / 2r + nu'e + r/2 |e|^2,

then lam = max(0, lam + r h), nu = nu + r e, and a larger r where the violation does not decrease. Once the
active set is identified, `polish` (projected conjugate gradients on differences of gradients) reaches full
accuracy in a step or two. If it does not, the set was wrong, and the outer loop continues. Everything is a
batch of vectors on any device; memory is a few vectors per pair that L-BFGS keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ffo.errors import Status
from ffo.functions.active import largest, row_norms
from ffo.functions.lbfgs import minimize
from ffo.functions.polish import Polished, polish
from ffo.functions.problem import Problem, Tensor, positive_part, value_and_gradient
from ffo.functions.products import Constraints, Differences
from ffo.functions.units import probe
from ffo.kernels.deadline import expired
from ffo.probes import PROBE

OUTER = 60
#: restarts of L-BFGS within one inner problem
RESTARTS = 5
#: first and last tolerance of the inner problem, relative to the size of gradients
FIRST, LAST = 1e-2, 1e-9
#: relative violation and stationarity at which Newton steps are first tried; a hundredth of it after a failure
READY = 1e-3
#: growth factor of the penalty, reduction of the violation that counts as progress, and limit of the growth
GROWTH, PROGRESS, CEILING = 10.0, 0.3, 1e9


@dataclass(frozen=True)
class LagrangianSettings:
    """eps: natural residual to reach; max_iters: total L-BFGS steps; memory: pairs that L-BFGS keeps."""

    eps: float = 1e-9
    max_iters: int = 20_000
    memory: int = 10


@dataclass(frozen=True)
class Answer:
    """y (batch, n), multipliers (batch, k; None: to be recovered), status and iterations (batch,).

    `detail` holds a solver's own messages about failed samples; `polished` the evidence of the Newton steps that
    ended at these points, if the solver took any.
    """

    y: Tensor
    multipliers: Tensor | None
    status: list[Status]
    iterations: Tensor
    detail: dict[int, str] = field(default_factory=dict)
    polished: Polished | None = None


def solve(problem: Problem, y: Tensor, settings: LagrangianSettings, exact: bool = False) -> Answer:
    """Solve every sample from y (batch, n), at which the functions must be finite."""
    run = _AugmentedRun(problem, y, settings, exact)
    for _ in range(OUTER):
        if not len(run.pending) or expired():
            break
        run.minimize()
        run.update()
        run.finish()
    return run.answer()


class _AugmentedRun:
    """A run of the solver; vectors are those of the pending samples, `final` has those of the whole batch."""

    def __init__(self, problem: Problem, y: Tensor, settings: LagrangianSettings, exact: bool) -> None:
        self.problem, self.settings, self.exact = problem, settings, exact
        self.y = y.clone()
        constraints = Constraints(problem, y)
        zero = torch.zeros_like(constraints.value)
        self.rows = row_norms(constraints, y)
        self.multipliers = zero.clone()  # of the scaled constraints
        gradient = problem.gradient(y, zero)
        self.length = torch.maximum(largest(y), torch.ones_like(y[:, 0]))
        source = torch.Generator(device=y.device).manual_seed(PROBE)
        z = torch.randint(0, 2, y.shape, generator=source, device=y.device).to(y.dtype) * 2 - 1
        mean = (z * Differences(problem, y, zero, torch.ones_like(y))(z)).mean(1).abs()
        self.penalty = 10.0 * torch.maximum(mean, gradient.norm(dim=1) / self.length / y.shape[1] ** 0.5)
        self.penalty = torch.where(self.penalty.isfinite() & (self.penalty > 0), self.penalty, 1.0)
        self.ceiling = CEILING * self.penalty
        self.size = torch.maximum(largest(gradient), largest(self._augmented(y)[1]))
        self.tolerance = torch.full_like(self.size, FIRST)
        self.violation = torch.full_like(self.size, torch.inf)
        self.ready = torch.full_like(self.size, READY)
        self.pending = torch.arange(len(y), device=y.device)
        self.final = Polished.unknown(y, zero)
        self.status = [Status.ITERATION_LIMIT] * len(y)
        self.iterations = torch.zeros(len(y), dtype=torch.long, device=y.device)

    def _augmented(self, y: Tensor) -> tuple[Tensor, Tensor]:
        def lagrangian(at: Tensor) -> Tensor:
            value = self.problem.objective(at)
            if self.rows.shape[1]:
                r = self.penalty.unsqueeze(1)
                moved = self.multipliers + r * (self.problem.constraints(at) / self.rows)
                moved = positive_part(moved, self.problem.inequalities)
                value = value + ((moved**2 - self.multipliers**2) / (2 * r)).sum(1)
            return value

        return value_and_gradient(lagrangian, y)

    def minimize(self) -> None:
        """Solve the inner problem; where L-BFGS is stuck it restarts with a fresh diagonal."""
        target = self.tolerance * self.size
        for _ in range(RESTARTS):
            left = self.settings.max_iters - int(self.iterations[self.pending].max())
            H = Differences(self.problem, self.y, self.multipliers / self.rows, torch.ones_like(self.y))
            _, diagonal = probe(self.y, H)
            found = minimize(self._augmented, self.y, target, max(left, 1), 1.0 / diagonal, self.settings.memory)
            moved = bool((found.y != self.y).any())
            self.y, self.runaway = found.y, found.runaway
            self.iterations[self.pending] += found.iterations
            self.stationary = largest(found.gradient) <= 10 * target
            if bool((self.stationary | self.runaway).all()) or not moved or expired():
                break

    def update(self) -> None:
        """Update multipliers, penalties and tolerances."""
        m = self.problem.inequalities
        with torch.no_grad():
            scaled = self.problem.constraints(self.y) / self.rows
        moved = self.multipliers + self.penalty.unsqueeze(1) * scaled
        moved[:, :m] = moved[:, :m].clamp_min(0.0)
        # Violation, or slack of inequalities that still have a multiplier.
        gap = (moved - self.multipliers) / self.penalty.unsqueeze(1)
        self.multipliers = moved
        self.length = torch.maximum(largest(self.y), 1e-3 * self.length)
        violation = largest(gap) / self.length
        slow = violation > PROGRESS * self.violation
        self.penalty = torch.where(slow, (GROWTH * self.penalty).minimum(self.ceiling), self.penalty)
        self.violation = violation
        gradient = self.problem.gradient(self.y, torch.zeros_like(moved))
        self.size = torch.maximum(torch.maximum(largest(gradient), largest(moved)), 1e-3 * self.size)
        self.tolerance = (0.1 * self.tolerance).clamp_min(LAST)

    def finish(self) -> None:
        """Take Newton steps where they may succeed; remove samples that are done or hopeless."""
        true = self.multipliers / self.rows
        self.final.y[self.pending], self.final.multipliers[self.pending] = self.y, true
        done = self.runaway.clone()
        for k in self.pending[self.runaway].tolist():
            self.status[k] = Status.UNBOUNDED
        ripe = ~done & (self.violation <= self.ready) & (10 * self.tolerance <= self.ready) & self.stationary
        last = ~done & (self.tolerance <= LAST) & (self.violation <= self.settings.eps)
        try_now = (ripe | last).nonzero().squeeze(1)
        if len(try_now):
            polished = polish(self.problem.take(try_now), self.y[try_now], true[try_now], self.exact)
            good = (polished.natural <= self.settings.eps) & (polished.settled | last[try_now])
            kept = good | last[try_now]  # the result of a last try is kept: the caller judges it
            self.final.put(self.pending[try_now[kept]], polished, kept)
            for k in self.pending[try_now[good]].tolist():
                self.status[k] = Status.SOLVED
            done[try_now[good]] = True
            self.ready[try_now[~good]] *= 1e-2
        done |= last
        stuck = (self.penalty >= self.ceiling) & (self.violation > READY)
        done |= stuck | (self.iterations[self.pending] >= self.settings.max_iters)
        if bool(done.any()):
            self._keep((~done).nonzero().squeeze(1))

    def _keep(self, samples: Tensor) -> None:
        self.problem = self.problem.take(samples)
        for name in "y rows multipliers length size penalty ceiling tolerance violation ready pending".split():
            setattr(self, name, getattr(self, name)[samples])

    def answer(self) -> Answer:
        return Answer(self.final.y, self.final.multipliers, self.status, self.iterations, polished=self.final)
