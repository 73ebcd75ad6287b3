"""Oracle calls to a (delta, epsilon)-Goldstein stationary point, against epsilon.

Contenders, all on the hypergradients of one layer (an oracle call is one forward and one backward pass):

- `GoldsteinDescent` with the theory's steps (`ffo.bilevel.plan`) for each epsilon, until a window's mean gradient is
  at most epsilon;
- `minimize`, which chooses a tolerance for each window;
- SGD and Adam at the best step size of a grid for each epsilon. They have no windows: every stretch of iterates within
  delta of its first one counts, at every length (for random gradients: at the theory's length of a window), which
  flatters them.

Runs with different tolerances or step sizes advance in lockstep, so that one batch of the layer serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ffo.bilevel import GoldsteinDescent, minimize, plan
from ffo.lab.bilevel.problems import BilevelProblem, D

#: step sizes of SGD and Adam, in units of delta
RATES = (1.0, 0.3, 0.1, 0.03)
#: oracle calls given to SGD and Adam, and to minimize
BUDGET, PATIENCE = 3000, 15_000


@dataclass(frozen=True)
class Run:
    """A walk from one start.

    Attributes:
        calls: oracle calls until epsilon was certified; None if it was not within the budget.
        distance: the known Goldstein distance of the point that was returned; None if no point is returned.
    """

    epsilon: float
    calls: int | None
    distance: float | None = None


Walk = Callable[[BilevelProblem, int, Sequence[float]], list[Run]]


def start_of(problem: BilevelProblem, seed: int) -> torch.Tensor:
    return torch.tensor(problem.start(np.random.default_rng(seed)), dtype=D)


def gradients_of(problem: BilevelProblem, points: torch.Tensor, epsilons: Sequence[float]) -> torch.Tensor:
    """Hypergradients (rows, d) at points (rows, d)."""
    x = points.clone().requires_grad_()
    values = problem.values(x, torch.tensor(list(epsilons), dtype=D))
    (gradients,) = torch.autograd.grad(values.sum(), x)
    return gradients


def by_theory(problem: BilevelProblem, seed: int, epsilons: Sequence[float]) -> list[Run]:
    """`GoldsteinDescent` with the theory's parameters; twice as many calls as it promises are allowed."""
    live, done, calls = [], [], 0
    for epsilon in epsilons:
        x = start_of(problem, seed).requires_grad_()
        p = plan(problem.delta, epsilon, problem.lipschitz, problem.gap)
        assert p.steps is not None
        random = torch.Generator().manual_seed(seed)
        live.append((epsilon, p.steps, x, GoldsteinDescent([x], p.radius, p.lr, p.window, generator=random)))
    while live:
        calls += 1
        for _, _, _, walk in live:
            walk.to_random_point()
        points = torch.stack([x.detach() for _, _, x, _ in live])
        gradients = gradients_of(problem, points, [epsilon for epsilon, *_ in live])
        left = []
        for (epsilon, most, x, walk), gradient in zip(live, gradients, strict=True):
            x.grad = gradient
            walk.advance()
            window = walk.last if walk.filled == 0 else None
            if window is not None and window.stationarity <= epsilon:
                distance = problem.distance(window.centre[0].numpy(), problem.delta, epsilon)
                done.append(Run(epsilon, calls, distance))
            elif calls >= 2 * most:
                done.append(Run(epsilon, None))
            else:
                left.append((epsilon, most, x, walk))
        live = left
    return done


def by_minimize(problem: BilevelProblem, seed: int, epsilons: Sequence[float]) -> list[Run]:
    """`minimize`, one run after the other."""
    return [_minimized(problem, seed, epsilon) for epsilon in epsilons]


def _minimized(problem: BilevelProblem, seed: int, epsilon: float) -> Run:
    row = torch.tensor([epsilon], dtype=D)
    found = minimize(
        lambda x, y: problem.upper(x[None], y, row)[0],
        lambda x: problem.layer(x[None], row),
        start_of(problem, seed),
        delta=problem.delta,
        epsilon=epsilon,
        budget=PATIENCE,
        stochastic=problem.noisy,
        generator=torch.Generator().manual_seed(seed),
        progress=False,
    )
    assert isinstance(found.x, torch.Tensor)
    distance = problem.distance(found.x.numpy(), problem.delta, epsilon)
    return Run(epsilon, found.calls if found.converged else None, distance)


class Stretches:
    """Goldstein certificates of iterates without windows: stretches within delta of their first point."""

    def __init__(self, x: torch.Tensor, delta: float) -> None:
        self.delta = delta
        self.first, self.mean = x.clone(), torch.zeros_like(x)
        self.length = torch.zeros(len(x), dtype=D)

    def add(self, x: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm of the mean gradient and length of each row's stretch, (rows,) each."""
        gone = (x - self.first).norm(dim=1) > self.delta
        self.first[gone], self.mean[gone], self.length[gone] = x[gone], 0.0, 0.0
        self.length += 1
        self.mean += (gradients - self.mean) / self.length[:, None]
        return self.mean.norm(dim=1), self.length


def by_descent(
    kind: Callable[..., torch.optim.Optimizer], problem: BilevelProblem, seed: int, epsilons: Sequence[float]
) -> list[Run]:
    """SGD or Adam at all step sizes; of each epsilon, the fewest calls."""
    own = tuple(epsilons) if problem.family else (min(epsilons),)  # one walk serves all, unless the problem differs
    parts = [start_of(problem, seed).repeat(len(own), 1).requires_grad_() for _ in RATES]
    groups = [{"params": [p], "lr": r * problem.delta / problem.lipschitz} for p, r in zip(parts, RATES, strict=True)]
    optimizer = kind(groups)
    stretches = Stretches(torch.cat([p.detach() for p in parts]), problem.delta)
    row_epsilons = torch.tensor(own * len(RATES), dtype=D)
    least = {e: plan(problem.delta, e, problem.lipschitz).window if problem.noisy else 1 for e in epsilons}
    calls: dict[float, int] = {}
    for step in range(1, BUDGET + 1):
        x = torch.cat([p.detach() for p in parts])
        gradients = gradients_of(problem, x, row_epsilons.tolist())
        norm, length = stretches.add(x, gradients)
        for epsilon in epsilons:
            rows = row_epsilons == epsilon if problem.family else torch.ones_like(row_epsilons, dtype=torch.bool)
            if bool(((norm <= epsilon) & (length >= least[epsilon]))[rows].any()):
                calls.setdefault(epsilon, step)
        if len(calls) == len(epsilons):
            break
        for p, g in zip(parts, gradients.chunk(len(RATES)), strict=True):
            p.grad = g
        optimizer.step()
    return [Run(epsilon, calls.get(epsilon)) for epsilon in epsilons]


WALKS: dict[str, Walk] = {
    "GoldsteinDescent": by_theory,
    "minimize": by_minimize,
    "SGD": partial(by_descent, torch.optim.SGD),
    "Adam": partial(by_descent, torch.optim.Adam),
}
