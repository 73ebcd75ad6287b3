"""The cost of one hypergradient: gradients of the lower level's functions against the error.

The lower level is not quadratic, so that the paper's finite difference has a truncation error:

    g(x, y) = y'Qy / 2 - (Bx)'y + sum exp(y - Cx),    h(x, y) <= 0,    f = c'y

with linear constraints (`box`: -0.6 <= y <= 0.3 + Ex) or a second-order cone (`ball`: |y| <= 0.8 + e'x).

Algorithm 1 is `FFOFunctionLayer(backward="resolve")` with a first-order solver of the user: projected gradient descent,
which converges linearly, so that an error of epsilon takes O(log 1/epsilon) gradients.

The penalty method has no projection and no active set. It minimizes, by gradient descent,

    p(x, y) = g(x, y) + w/2 |max(h(x, y), 0)|^2    and    p(x, y) + c'y / w

and takes the difference of the gradients in x. Its error is O(1/w), and its condition number O(w): it takes
O(1/epsilon) gradients, up to a logarithm. Penalty methods for constrained bilevel problems are of this kind.

The reference is the implicit function theorem: Newton's method on the active set, and a dense KKT system.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ffo.errors import GradientWarning
from ffo.torch import FFOFunctionLayer

D = torch.float64
Function = Callable[[torch.Tensor], torch.Tensor]
#: dimensions of y and x
VARIABLES, PARAMETERS = 10, 4
LOW, HIGH, RADIUS = -0.6, 0.3, 0.8
#: bounds on the norms of the Hessians: of the (ghost) Lagrangian, and of the penalty per unit of its weight
CURVATURE, PENALTY_CURVATURE = 25.0, 1.5
#: gradients that one solve may take
MOST = 200_000
#: least slack or multiplier of a constraint: the methods assume that the active set can be identified
MARGIN = 0.1


@dataclass(frozen=True)
class Cost:
    """Relative error of a hypergradient, and gradients of functions that it took, those of both solves."""

    error: float
    calls: int


@dataclass(frozen=True)
class LowerLevel:
    """A problem "box" or "ball", and the x at which its hypergradient is computed."""

    kind: str
    Q: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    E: torch.Tensor
    c: torch.Tensor
    x: torch.Tensor

    @classmethod
    def draw(cls, kind: str, seed: int) -> LowerLevel:
        """The first random problem whose active set is clear, and not empty."""
        rng = np.random.default_rng(seed)
        while not (drawn := cls._random(kind, rng)).clear:
            continue
        return drawn

    @classmethod
    def _random(cls, kind: str, rng: np.random.Generator) -> LowerLevel:
        n, d = VARIABLES, PARAMETERS
        V = np.linalg.qr(rng.standard_normal((n, n)))[0]
        Q = (V * np.geomspace(1.0, 10.0, n)) @ V.T
        B, C, E = (rng.standard_normal((n, d)) for _ in range(3))
        drawn = (Q, 4.0 * B, 0.3 * C, 0.1 * E, rng.standard_normal(n), 0.5 * rng.standard_normal(d))
        return cls(kind, *(torch.tensor(each, dtype=D) for each in drawn))

    def objective(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.5 * y @ self.Q @ y - (self.B @ x) @ y + (y - self.C @ x).exp().sum()

    def constraints(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.kind == "box":
            return torch.cat([y - self._high(x), LOW - y])
        return 0.5 * (y @ y - self._radius(x) ** 2).reshape(1)

    def project(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.kind == "box":
            return torch.minimum(y, self._high(x)).clamp_min(LOW)
        return y * (self._radius(x) / y.norm()).clamp_max(1.0)

    def _high(self, x: torch.Tensor) -> torch.Tensor:
        return HIGH + self.E @ x

    def _radius(self, x: torch.Tensor) -> torch.Tensor:
        return RADIUS + self.E[0] @ x

    def solved(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The solution y, its active constraints (boolean), and their multipliers."""
        x = self.x
        y = Descent(self, 1e-11)(lambda y: self.objective(x, y), None, None, torch.zeros(VARIABLES, dtype=D))
        slope = _gradient(lambda y: self.objective(x, y), y)
        held = self.constraints(x, y) >= -1e-9
        rows = torch.autograd.functional.jacobian(lambda y: self.constraints(x, y)[held], y)
        return y, held, torch.linalg.lstsq(rows.T, -slope[:, None]).solution[:, 0]

    @property
    def clear(self) -> bool:
        y, held, multipliers = self.solved()
        slack = -self.constraints(self.x, y)[~held]
        return len(multipliers) > 0 and float(torch.cat([multipliers, slack]).min()) >= MARGIN

    def reference(self) -> torch.Tensor:
        """(dy/dx)'c (d,)."""
        y, held, multipliers = self.solved()
        n = VARIABLES
        for _ in range(4):
            K, residual, _ = self._kkt(y, multipliers, held)
            step = torch.linalg.solve(K, -residual)
            y, multipliers = y + step[:n], multipliers + step[n:]
        K, _, mixed = self._kkt(y, multipliers, held)
        right = torch.cat([self.c, torch.zeros(len(multipliers), dtype=D)])
        return -mixed.T @ torch.linalg.solve(K, right)

    def _kkt(self, y: torch.Tensor, multipliers: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The KKT matrix, its residual, and the derivative of the residual in x."""

        def residual(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            at, m = z[: len(y)], z[len(y) :]
            if not at.requires_grad:
                at = at.requires_grad_()
            value = self.objective(x, at) + m @ self.constraints(x, at)[held]
            (slope,) = torch.autograd.grad(value, at, create_graph=True)
            return torch.cat([slope, self.constraints(x, at)[held]])

        z = torch.cat([y, multipliers])
        mixed, K = torch.autograd.functional.jacobian(residual, (self.x, z))
        return K, residual(self.x, z).detach(), mixed


class Descent:
    """A first-order solver of the user, for both solves: projected gradient descent on the constraints of a lower
    level, and on a plane where it gets equalities (those of a ghost problem). It counts its gradients."""

    def __init__(self, lower: LowerLevel, accuracy: float) -> None:
        self.lower, self.accuracy, self.calls = lower, accuracy, 0

    def __call__(self, g: Function, h: Any, e: Function | None, y: torch.Tensor) -> torch.Tensor:
        if e is None:
            return self.descend(g, y, lambda at, step: self.lower.project(self.lower.x, at - step))
        rows = torch.autograd.functional.jacobian(e, torch.zeros_like(y))
        plane = torch.eye(len(y), dtype=D) - torch.linalg.pinv(rows) @ rows
        return self.descend(g, y, lambda at, step: at - plane @ step)

    def descend(
        self,
        g: Function,
        y: torch.Tensor,
        move: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        curvature: float = CURVATURE,
    ) -> torch.Tensor:
        """Gradient descent until a step is that of a gradient of size `accuracy`."""
        for _ in range(MOST):
            self.calls += 1
            before, y = y, move(y, _gradient(g, y) / curvature).detach()
            if float((y - before).abs().max()) <= self.accuracy / curvature:
                return y
        raise RuntimeError(f"not solved to {self.accuracy:g} with {MOST} gradients")


def algorithm_one(lower: LowerLevel, expected: torch.Tensor, accuracy: float, delta: float | None = None) -> Cost:
    """Algorithm 1 with solves to `accuracy`; without a perturbation, that of the theory: its square root."""
    solver = Descent(lower, accuracy)
    layer = FFOFunctionLayer(
        lower.objective,
        lower.constraints,
        shape=VARIABLES,
        dims=(1,),
        solver=solver,
        backward="resolve",
        delta=accuracy**0.5 if delta is None else delta,
    )
    x = lower.x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the certificate doubts one-sided differences
        (found,) = torch.autograd.grad(layer(x) @ lower.c, x)
    return Cost(relative(found, expected), solver.calls)


def penalty_method(lower: LowerLevel, expected: torch.Tensor, weight: float) -> Cost:
    """The difference of the penalty's gradients in x at its minimizers with and without c'y / weight."""
    delta, curvature = 1 / weight, CURVATURE + PENALTY_CURVATURE * weight
    solver = Descent(lower, 1e-2 * delta**2)

    def penalty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return lower.objective(x, y) + 0.5 * weight * lower.constraints(x, y).clamp_min(0.0).square().sum()

    def solved(tilt: float, start: torch.Tensor) -> torch.Tensor:
        def tilted(y: torch.Tensor) -> torch.Tensor:
            return penalty(lower.x, y) + tilt * (lower.c @ y)

        return solver.descend(tilted, start, lambda at, step: at - step, curvature)

    y = solved(0.0, torch.zeros(VARIABLES, dtype=D))
    perturbed = solved(delta, y)
    difference = _gradient(lambda x: penalty(x, perturbed) - penalty(x, y), lower.x) / delta
    return Cost(relative(difference, expected), solver.calls)


def _gradient(function: Function, at: torch.Tensor) -> torch.Tensor:
    at = at.detach().requires_grad_()
    (slope,) = torch.autograd.grad(function(at), at)
    return slope


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
