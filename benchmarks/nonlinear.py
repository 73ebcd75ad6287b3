"""Ten problems given by functions, and reference derivatives: finite differences of tight solves.

The reference shares no code with the package. It runs Newton's method on the optimality conditions, with dense second
derivatives and the active set of a first solve, and then checks the signs of the multipliers and of the slacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

Tensor = torch.Tensor
Function = Callable[..., Tensor]
#: relative step of the fourth-order differences
STEP = 1e-4


@dataclass(frozen=True)
class FunctionCase:
    """g, h and e for one sample, values of theta without a batch dimension, and a starting point."""

    name: str
    objective: Function
    theta: Sequence[Tensor]
    start: Tensor
    inequality: Function | None = None
    equality: Function | None = None
    modules: Sequence[torch.nn.Module] = field(default_factory=tuple)

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(t.ndim for t in self.theta)

    @property
    def differentiated(self) -> list[Tensor]:
        """All tensors that have a gradient: theta, then the parameters of the modules."""
        return [*self.theta, *(p for module in self.modules for p in module.parameters())]


def cases(condition: float = 1e4, n: int = 24, seed: int = 0) -> list[FunctionCase]:
    """One problem of each of ten kinds; `condition` is the condition number of the matrices in them."""
    source = torch.Generator().manual_seed(seed)
    make = _Make(source, condition, n)
    return [
        make.quadratic(),
        make.entropy(),
        make.logistic_in_a_ball(),
        make.log_utility(),
        make.log_sum_exp(),
        make.convex_network(),
        make.smooth_norm(),
        make.quartic(),
        make.on_a_sphere(),
        make.geometric(),
    ]


@dataclass(frozen=True)
class _Make:
    source: torch.Generator
    condition: float
    n: int

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.source, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.source, dtype=torch.float64)

    def matrix(self) -> Tensor:
        """A symmetric matrix with eigenvalues from 1 to the condition number, evenly spaced on a logarithmic scale."""
        vectors, _ = torch.linalg.qr(self.normal(self.n, self.n))
        top = float(np.log10(self.condition))
        return (vectors * torch.logspace(0, top, self.n, dtype=torch.float64)) @ vectors.T

    def quadratic(self) -> FunctionCase:
        Q, q, A = self.matrix(), 10 * self.normal(self.n), self.normal(2, self.n)
        G, h, b = self.normal(self.n // 2, self.n), 0.05 * self.uniform(self.n // 2), 0.1 * self.normal(2)
        return FunctionCase(
            "quadratic program",
            lambda d, q, G, h, b, y: 0.5 * (d * y) @ (Q @ (d * y)) + q @ y,
            [1 + self.uniform(self.n), q, G, h, b],
            torch.zeros(self.n, dtype=torch.float64),
            lambda d, q, G, h, b, y: G @ y - h,
            lambda d, q, G, h, b, y: A @ y - b,
        )

    def entropy(self) -> FunctionCase:
        cost, caps = self.normal(self.n), torch.full((self.n,), 2.5 / self.n, dtype=torch.float64)
        temperature = torch.tensor(0.25, dtype=torch.float64)
        return FunctionCase(
            "entropy on a capped simplex",
            lambda c, t, u, y: c @ y + t * torch.special.xlogy(y, y).sum(),
            [cost, temperature, caps],
            torch.full((self.n,), 1.0 / self.n, dtype=torch.float64),
            lambda c, t, u, y: y - u,
            lambda c, t, u, y: y.sum().reshape(1) - 1,
        )

    def logistic_in_a_ball(self) -> FunctionCase:
        X, r = self.normal(3 * self.n, self.n), torch.tensor(0.2, dtype=torch.float64)
        ridge = self.matrix() / 10
        return FunctionCase(
            "logistic regression in a ball",
            lambda X, r, y: torch.nn.functional.softplus(-(X @ y) - X[:, 0]).sum() + y @ (ridge @ y),
            [X, r],
            torch.zeros(self.n, dtype=torch.float64),
            lambda X, r, y: (y @ y - r**2).reshape(1),
        )

    def log_utility(self) -> FunctionCase:
        R, floor = 1 + self.uniform(2 * self.n, self.n), torch.full((self.n,), 0.01, dtype=torch.float64)
        risk = self.matrix()
        return FunctionCase(
            "log utility of a portfolio",
            lambda R, floor, y: -torch.log(R @ y).mean() + 0.5 * y @ (risk @ y),
            [R, floor],
            torch.full((self.n,), 1.0 / self.n, dtype=torch.float64),
            lambda R, floor, y: floor - y,
            lambda R, floor, y: y.sum().reshape(1) - 1,
        )

    def log_sum_exp(self) -> FunctionCase:
        A, b, Q = self.normal(2 * self.n, self.n), self.normal(2 * self.n), self.matrix()
        G, h = self.normal(self.n // 2, self.n), 0.02 * self.uniform(self.n // 2)
        return FunctionCase(
            "softmax cost on a polytope",
            lambda A, b, G, h, y: torch.logsumexp(A @ y + b, 0) + 0.5 * y @ (Q @ y),
            [A, b, G, h],
            torch.zeros(self.n, dtype=torch.float64),
            lambda A, b, G, h, y: G @ y - h,
        )

    def convex_network(self) -> FunctionCase:
        with torch.random.fork_rng():
            torch.manual_seed(int(self.source.initial_seed()))
            network = torch.nn.Sequential(torch.nn.Linear(self.n, 16), torch.nn.Softplus()).double()
        Q, weight = self.matrix() / 10, 1 + self.uniform(16)
        return FunctionCase(
            "convex network in a box",
            lambda a, w, y: w @ network(y) + 0.5 * y @ (Q @ y) - a @ y,
            [30 * self.normal(self.n), weight],
            torch.zeros(self.n, dtype=torch.float64),
            lambda a, w, y: torch.cat([y - 0.1, -0.1 - y]),
            modules=[network],
        )

    def smooth_norm(self) -> FunctionCase:
        a, A, r = self.normal(self.n), self.matrix() / self.condition, torch.tensor(0.2, dtype=torch.float64)
        Q = self.matrix()
        return FunctionCase(
            "smooth second-order cone",
            lambda a, A, r, y: 0.5 * (y - a) @ (Q @ (y - a)),
            [a, A, r],
            torch.zeros(self.n, dtype=torch.float64),
            lambda a, A, r, y: (torch.sqrt((A @ y).square().sum() + 1e-4) - r).reshape(1),
        )

    def quartic(self) -> FunctionCase:
        a, Q = self.normal(self.n), self.matrix()
        E, r = self.matrix() / self.condition**0.5, torch.tensor(0.5, dtype=torch.float64)
        return FunctionCase(
            "quartic in an ellipsoid",
            lambda a, r, y: (y - a).pow(4).sum() + 0.5 * y @ (Q @ y),
            [a, r],
            torch.zeros(self.n, dtype=torch.float64),
            lambda a, r, y: (y @ (E @ y) - r).reshape(1),
        )

    def on_a_sphere(self) -> FunctionCase:
        Q, b = self.matrix(), self.normal(self.n)
        start = -b / b.norm()
        return FunctionCase(
            "quadratic on a sphere (not convex)",
            lambda b, r, y: 0.5 * y @ (Q @ y) + b @ y,
            [b, torch.tensor(1.0, dtype=torch.float64)],
            start,
            equality=lambda b, r, y: (y @ y - r**2).reshape(1),
        )

    def geometric(self) -> FunctionCase:
        A, C, b = self.normal(3 * self.n, self.n), 0.3 * self.normal(4, 5, self.n), self.normal(3 * self.n)
        ridge = self.matrix()
        limit = torch.full((4,), 1.5, dtype=torch.float64)
        return FunctionCase(
            "geometric program",
            lambda A, b, limit, y: torch.exp(0.3 * A @ y + b).sum() + 0.5 * y @ (ridge @ y),
            [A, b, limit],
            torch.zeros(self.n, dtype=torch.float64),
            lambda A, b, limit, y: torch.logsumexp(C @ y, 1) - limit,
        )


class Reference:
    """Tight solutions of a case, computed from a first solution y, and finite differences of them."""

    def __init__(self, case: FunctionCase, y: Tensor) -> None:
        self.case, self.y = case, y.detach().clone()
        self.active = torch.zeros(0, dtype=torch.bool)
        if case.inequality is not None:
            slack = -case.inequality(*case.theta, self.y).detach()
            self.active = slack <= 1e-7 * (1 + slack.abs().max())

    def _constraints(self, theta: Sequence[Tensor], y: Tensor) -> Tensor:
        parts = []
        if self.case.inequality is not None:
            parts.append(self.case.inequality(*theta, y)[self.active])
        if self.case.equality is not None:
            parts.append(self.case.equality(*theta, y))
        return torch.cat([*parts, y.new_zeros(0)])

    def solve(self, theta: Sequence[Tensor]) -> Tensor:
        """Newton's method on the optimality conditions; raises if it does not converge to a solution."""
        y = self.y.clone()
        objective = self.case.objective
        gradient = torch.func.grad(lambda y: objective(*theta, y))(y)
        J = torch.func.jacrev(lambda y: self._constraints(theta, y))(y)
        multipliers = torch.linalg.lstsq(J.T, -gradient.unsqueeze(1)).solution.squeeze(1)
        for _ in range(30):
            last = multipliers

            def lagrangian(y: Tensor, multipliers: Tensor = last) -> Tensor:
                return objective(*theta, y) + multipliers @ self._constraints(theta, y)

            slope, H = (
                torch.func.grad(lagrangian)(y).detach(),
                torch.func.jacrev(torch.func.grad(lagrangian))(y).detach(),
            )
            c, J = self._constraints(theta, y), torch.func.jacrev(lambda y: self._constraints(theta, y))(y)
            c, J = c.detach(), J.detach()
            corner = J.new_zeros(len(c), len(c))
            K = torch.cat([torch.cat([H, J.T], 1), torch.cat([J, corner], 1)])
            step = torch.linalg.solve(K, -torch.cat([slope, c]))
            y, multipliers = y + step[: len(y)], multipliers + step[len(y) :]
            if float(step[: len(y)].abs().max()) <= 1e-14 * float(y.abs().max()):
                break
        count = int(self.active.sum())
        assert (multipliers[:count] > 0).all(), f"{self.case.name}: an inequality is not active"
        if self.case.inequality is not None:
            assert (self.case.inequality(*theta, y)[~self.active] < 0).all(), f"{self.case.name}: violated"
        assert float(step[: len(y)].abs().max()) <= 1e-11 * float(y.abs().max()), f"{self.case.name}: not tight"
        return y

    def condition(self) -> float:
        """Condition number of the Hessian of the Lagrangian on the tangent space of the active constraints."""
        theta, y = self.case.theta, self.solve(self.case.theta)
        slope = torch.func.grad(lambda y: self.case.objective(*theta, y))(y)
        J = torch.func.jacrev(lambda y: self._constraints(theta, y))(y)
        multipliers = torch.linalg.lstsq(J.T, -slope.unsqueeze(1)).solution.squeeze(1)

        def lagrangian(y: Tensor) -> Tensor:
            return self.case.objective(*theta, y) + multipliers @ self._constraints(theta, y)

        H = torch.func.jacrev(torch.func.grad(lagrangian))(y)
        tangent = torch.linalg.qr(J.T, mode="complete").Q[:, len(J) :]
        values = torch.linalg.eigvalsh(tangent.T @ H.detach() @ tangent)
        return float(values[-1] / values[0])

    def differences(self, weights: Tensor, count: int = 4, seed: int = 1) -> tuple[list[list[Tensor]], np.ndarray]:
        """Random directions, `count` for each tensor in turn, and the derivative of weights'y along each."""
        source = torch.Generator().manual_seed(seed)
        directions, found = [], []
        for which, tensor in enumerate(self.case.differentiated):
            for _ in range(count):
                d = torch.randn(tensor.shape, generator=source, dtype=torch.float64) * float(
                    tensor.detach().abs().mean()
                )
                directions.append(
                    [d if k == which else torch.zeros_like(t) for k, t in enumerate(self.case.differentiated)]
                )
                values = [float(weights @ self._moved(directions[-1], s * STEP)) for s in (1, -1, 2, -2)]
                found.append((8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * STEP))
        return directions, np.array(found)

    def _moved(self, direction: Sequence[Tensor], step: float) -> Tensor:
        count = len(self.case.theta)
        theta = [t + step * d for t, d in zip(self.case.theta, direction, strict=False)]
        parameters = self.case.differentiated[count:]
        with torch.no_grad():
            for p, d in zip(parameters, direction[count:], strict=True):
                p += step * d
        try:
            return self.solve(theta)
        finally:
            with torch.no_grad():
                for p, d in zip(parameters, direction[count:], strict=True):
                    p -= step * d


def gradient_error(case: FunctionCase, layer: torch.nn.Module) -> tuple[float, Reference]:
    """Relative error of a layer's gradients, compared with finite differences along random directions."""
    theta = [t.clone().requires_grad_() for t in case.theta]
    parameters = [p for module in case.modules for p in module.parameters()]
    for p in parameters:
        p.grad = None
    y = layer(*theta, y0=case.start)
    reference = Reference(case, y)
    weights = torch.cos(1.7 * torch.arange(len(y), dtype=torch.float64))
    (weights * y).sum().backward()
    directions, expected = reference.differences(weights)
    gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in (*theta, *parameters)]
    got = np.array([sum(float((g * d).sum()) for g, d in zip(gradients, ds, strict=True)) for ds in directions])
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected)), reference
