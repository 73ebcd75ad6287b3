"""Algorithm 1: the hypergradient as a finite difference along the perturbed ghost solution.

Let u and t be the rates of change of the ghost solution when its objective is perturbed by d c'y (`ghost`). With the
Lagrangian L(theta, y) = g + lam'h + nu'e at fixed multipliers (the ghost objective),

    v = ( grad_theta L(theta, y + d u) - grad_theta L(theta, y - d u) ) / 2d + grad_theta t'c(theta, y),

the paper's difference (eq. finite_diff) taken centrally. It uses only gradients of the functions, with an error
of O(d^2). With exact Hessian products the difference is a derivative, grad_theta of u'grad_y L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from ffo.functions.active import generator, largest
from ffo.functions.ghost import GhostStep, GhostSystem
from ffo.functions.polish import Polished, certificate
from ffo.functions.problem import Problem, Tensor, pull
from ffo.functions.products import SHORTER, difference_step
from ffo.ghost.certificate import Certificate

#: derivative of dependent rows with respect to a parameter, relative to its terms, that counts as rounding
TURNED = 1e-6


@dataclass(frozen=True)
class Pulled:
    """Gradients in theta and weights, None where not wanted; and (batch,) evidence about them: the relative residual of
    the ghost solve, whether negative curvature was found, whether parameters make dependent constraints independent."""

    gradients: list[Tensor | None]
    residual: Tensor
    indefinite: Tensor
    dependent: Tensor


class SolvedGhost(Protocol):
    """The ghost problems of solved samples, ready for loss gradients."""

    def certificate(self, polished: Polished) -> Certificate: ...

    def pull(self, c: Tensor, wanted: Sequence[bool], delta: float | None) -> Pulled: ...


@dataclass(frozen=True)
class LinearGhost:
    """The ghost as a linear system, solved by projected conjugate gradients."""

    system: GhostSystem

    def certificate(self, polished: Polished) -> Certificate:
        return certificate(polished, self.system)

    def pull(self, c: Tensor, wanted: Sequence[bool], delta: float | None) -> Pulled:
        """Gradients for loss gradients c (batch, n)."""
        step = self.system.solve(-c)
        found = hypergradient(self.system, step, wanted, delta)
        return Pulled(found, step.residual, step.indefinite, turns_dependent_rows(self.system, step, wanted))


class Leaves:
    """A problem whose wanted parameters collect gradients.

    `wanted` marks theta, then weights in the order of their names.
    """

    def __init__(self, problem: Problem, wanted: Sequence[bool]) -> None:
        count = len(problem.theta)
        theta = tuple(_leaf(t, w) for t, w in zip(problem.theta, wanted[:count], strict=True))
        names = list(problem.weights)
        weights = {k: _leaf(problem.weights[k], w) for k, w in zip(names, wanted[count:], strict=True)}
        self.problem = replace(problem, theta=theta, weights=weights)
        self.leaves = [t for t, w in zip([*theta, *weights.values()], wanted, strict=True) if w]
        self._total = [torch.zeros_like(t) for t in self.leaves]
        self._wanted = wanted

    def add(self, value: Tensor) -> None:
        """Add the gradient of a number."""
        if not value.requires_grad:
            return
        for total, part in zip(self._total, torch.autograd.grad(value, self.leaves, allow_unused=True), strict=True):
            if part is not None:
                total += part

    def gradients(self) -> list[Tensor | None]:
        """The collected gradients, None for parameters that were not wanted."""
        found = iter(self._total)
        return [next(found) if w else None for w in self._wanted]


def _leaf(t: Tensor, wanted: bool) -> Tensor:
    return t.detach().requires_grad_() if wanted else t


def hypergradient(
    system: GhostSystem, step: GhostStep, wanted: Sequence[bool], delta: float | None
) -> list[Tensor | None]:
    """Gradients in theta and weights, (batch, ...), or summed over the batch for shared ones."""
    local = system.local
    y, multipliers = local.y, local.active.multipliers
    leaves = Leaves(local.problem, wanted)
    with torch.enable_grad():
        if local.exact:
            at = y.detach().clone().requires_grad_()
            slope = pull(leaves.problem.lagrangian(at, multipliers).sum(), at, graph=True)
            leaves.add((slope * step.u).sum())
        else:
            d = _delta(system, step.u, delta)
            for sign in (1.0, -1.0):
                value = leaves.problem.lagrangian(y + sign * d.unsqueeze(1) * step.u, multipliers)
                leaves.add((sign * value / (2 * d)).sum())
        if multipliers.shape[1]:
            leaves.add((step.t * leaves.problem.constraints(y)).sum())
    return leaves.gradients()


def turns_dependent_rows(system: GhostSystem, step: GhostStep, wanted: Sequence[bool]) -> Tensor:
    """(batch,) whether wanted parameters make dependent held rows independent, and the loss sees their forces.

    With w'J = 0 the multipliers are not determined along w, and the derivative of w'J in theta must vanish: else the
    rows become independent, and the solution jumps. The derivative of w'c need not vanish: right-hand sides are assumed
    to move so that equalities stay consistent.
    """
    problem, y = system.local.problem, system.local.y
    dependent = system.projection.dependent
    if not bool(dependent.any()):
        return dependent
    source = generator(y)
    v, random = (torch.rand(like.shape, generator=source, dtype=y.dtype, device=y.device) + 0.5 for like in (y, step.t))
    w, t = system.projection.null(random), difference_step(y, v, torch.ones_like(v)).unsqueeze(1)

    def derivative(weight: Tensor) -> list[Tensor | None]:
        leaves = Leaves(problem, wanted)
        with torch.enable_grad():
            for sign in (1.0, -1.0):
                leaves.add((sign * weight * leaves.problem.constraints(y + sign * t * v)).sum())
        return leaves.gradients()

    turned = torch.zeros_like(dependent)
    batched = [*problem.batched, *[False] * len(problem.weights)]
    for own, moved, terms in zip(batched, derivative(w), derivative(random * w), strict=True):
        if moved is not None and terms is not None:
            sizes = [part.abs().reshape(problem.batch if own else 1, -1).amax(1) for part in (moved, terms)]
            turned = turned | (sizes[0] > TURNED * sizes[1])
    return dependent & turned & ((largest(step.u) > 0) | (step.t * w != 0).any(1))


def _delta(system: GhostSystem, u: Tensor, delta: float | None) -> Tensor:
    """(batch,) the step of the difference: given, or as in `products`; reduced to stay inside the functions' domain."""
    problem, y, multipliers = system.local.problem, system.local.y, system.local.active.multipliers
    d = difference_step(y, u, system.local.diagonal)
    if delta is not None:
        d = torch.full_like(d, delta)
    with torch.no_grad():
        for _ in range(SHORTER):
            ends = [problem.lagrangian(y + sign * d.unsqueeze(1) * u, multipliers) for sign in (1.0, -1.0)]
            inside = ends[0].isfinite() & ends[1].isfinite()
            if bool(inside.all()):
                break
            d = torch.where(inside, d, 0.1 * d)
    return d
