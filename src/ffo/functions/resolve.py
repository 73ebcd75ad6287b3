"""Algorithm 1 taken literally: the perturbed ghost of a problem given by functions, passed to a solver.

At a solution y with multipliers m and held constraints c_I (equalities and active inequalities), the solver gets (P3)

    minimize  g(theta, y') + m'c(theta, y') + d c_y'y'   subject to   B (y' - y) = 0,   B = grad c_I(theta, y),

c_y the loss gradient, and returns y_d and multipliers t_d (recovered if it returns none). The hypergradient is the
paper's difference (eq. finite_diff), with L = g + m'c at fixed multipliers,

    v = ( grad_theta L(theta, y_d) - grad_theta L(theta, y) + grad_theta t_d'c_I(theta, y) ) / d.

It is one-sided: its error is O(d) by truncation, and O(e / d) if solves are accurate to e. Without a given step, d is
the square root of e, in natural units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ffo.functions.active import largest
from ffo.functions.ghost import Local
from ffo.functions.multipliers import recover
from ffo.functions.oracle import Leaves, Pulled
from ffo.functions.polish import Polished
from ffo.functions.problem import Functions, Problem, Tensor, checked
from ffo.functions.solvers import FunctionSolver
from ffo.ghost.certificate import Certificate
from ffo.kernels.point import WEAK

#: accuracy that is assumed of the solver if it is not known
ACCURACY = 1e-8


@dataclass(frozen=True)
class ResolvedGhost:
    """Solutions whose derivatives are computed by one more solve each.

    Attributes:
        local: first-order information at the solutions, as the solver returned them.
        solver: of the ghost problems; accuracy: relative accuracy to expect of it.
    """

    local: Local
    solver: FunctionSolver
    accuracy: float = ACCURACY

    def certificate(self, polished: Polished) -> Certificate:
        """Evidence without further solves: the error of an answer may be the square root of its residual."""
        margin, error = self.local.active.margin, polished.natural.sqrt()
        never = torch.zeros_like(polished.settled)
        fields = {
            "unsettled": never,
            "margin_ratio": error / margin.clamp_min(1e-300),
            "weakly_active": margin <= WEAK,
            "error": error,
            "natural_residual": polished.natural,
        }
        return Certificate.before_backward(**{name: np.asarray(value.cpu()) for name, value in fields.items()})

    def pull(self, c: Tensor, wanted: Sequence[bool], delta: float | None) -> Pulled:
        """Gradients for loss gradients c (batch, n). Their residual is that of the ghost solve or, if larger, the size
        of the perturbation relative to the objective's gradient: the truncation error is of that order."""
        local = self.local
        size, dual = largest(c), local.sizes.dual
        seen = size > 0
        d = self._step(size, dual) if delta is None else torch.full_like(size, delta)
        y, t = local.y.clone(), torch.zeros_like(local.active.multipliers)
        residual = torch.zeros_like(size)
        held = local.active.held.sum(1)
        for count in held[seen].unique().tolist():  # solvers need a batch with equally many constraints
            samples = (seen & (held == count)).nonzero().squeeze(1)
            y[samples], t[samples], residual[samples] = self._solved(samples, count, d[samples], c[samples])
        residual = torch.maximum(residual, torch.where(seen, d * size / dual, 0.0))
        nothing = torch.zeros_like(seen)
        return Pulled(self._difference(y, t, d, wanted), residual, nothing, nothing)

    def _step(self, size: Tensor, dual: Tensor) -> Tensor:
        """(batch,) the square root of the accuracy of the solutions, relative to the objective's gradient."""
        accuracy = self.local.natural.clamp_min(self.accuracy)
        return accuracy.sqrt() * dual / torch.where(size > 0, size, 1.0)

    def _solved(self, samples: Tensor, count: int, d: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y_d, t_d and the relative residual of some samples; unperturbed where the solver gives no answer."""
        local, start = self.local, self.local.y[samples]
        places = local.active.held[samples].nonzero()[:, 1].reshape(len(samples), count)
        rows = self._rows(samples, places)
        ghost = ghost_problem(local.problem.take(samples), local.active.multipliers[samples], rows, start, d, c)
        answer = self.solver.solve(ghost, start.clone(), local.exact)
        y, t = answer.y, answer.multipliers
        finite = y.isfinite().all(1, keepdim=True)
        if t is not None:
            finite &= t.isfinite().all(1, keepdim=True)
        y = torch.where(finite, y, start)
        t = torch.where(finite, recover(ghost, y) if t is None else t, 0.0)
        left = torch.linalg.vector_norm(ghost.gradient(y, t), dim=1)
        left = torch.where(finite.squeeze(1), left, torch.inf)
        whole = y.new_zeros(len(samples), local.active.held.shape[1]).scatter(1, places, t)
        return y, whole, left / torch.linalg.vector_norm(d.unsqueeze(1) * c, dim=1)

    def _rows(self, samples: Tensor, places: Tensor) -> Tensor:
        """B (samples, count, n): the gradients of constraints `places` (samples, count), one backward pass each."""
        constraints, like = self.local.constraints, self.local.active.multipliers
        found = []
        for place in places.T:
            weight = torch.zeros_like(like)
            weight[samples, place] = 1.0
            found.append(constraints.pull(weight)[samples])
        return torch.stack(found, 1) if found else like.new_zeros(len(samples), 0, self.local.y.shape[1])

    def _difference(self, y: Tensor, t: Tensor, d: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        local = self.local
        leaves = Leaves(local.problem, wanted)
        multipliers = local.active.multipliers
        with torch.enable_grad():
            leaves.add((leaves.problem.lagrangian(y, multipliers) / d).sum())
            leaves.add((-leaves.problem.lagrangian(local.y, multipliers) / d).sum())
            if t.shape[1]:
                leaves.add((t / d.unsqueeze(1) * leaves.problem.constraints(local.y)).sum())
        return leaves.gradients()


def ghost_problem(problem: Problem, multipliers: Tensor, rows: Tensor, at: Tensor, d: Tensor, c: Tensor) -> Problem:
    """The perturbed ghost problem as a problem like any other: multipliers (batch, k), rows (batch, held, n), the
    solution `at` (batch, n), steps d (batch,) and loss gradients c (batch, n) are parameters of it."""
    objective, inequality, equality = problem.functions.given

    def ghost(*arguments: Tensor) -> Tensor:
        *theta, m, _, _, tilt, y = arguments
        value = checked(objective(*theta, y), 0) + tilt @ y.reshape(-1)
        parts = [checked(f(*theta, y), k) for k, f in ((1, inequality), (2, equality)) if f is not None]
        return value + m @ torch.cat(parts) if parts else value

    def held(*arguments: Tensor) -> Tensor:
        *_, B, origin, _, y = arguments
        return B @ (y.reshape(-1) - origin)

    functions = Functions(ghost, None, held if rows.shape[1] else None, list(problem.functions.holder.held))
    functions.mapped = problem.functions.mapped
    return replace(
        problem,
        functions=functions,
        theta=(*problem.theta, multipliers, rows, at, d.unsqueeze(1) * c),
        batched=(*problem.batched, True, True, True, True),
        inequalities=0,
        shift=None,
    )
