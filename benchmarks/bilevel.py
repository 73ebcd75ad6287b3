"""Oracle calls to a (delta, epsilon)-Goldstein stationary point, against epsilon.

Contenders:

- the theory's steps: `GoldsteinDescent` with the parameters of `ffo.bilevel.plan` for each epsilon, until a
  window's mean gradient is at most epsilon;
- `ffo.bilevel.minimize`, which chooses a tolerance for each window;
- SGD and Adam on the same hypergradients, at the best step size of a grid for each epsilon. They have no
  windows: every stretch of iterates within delta of its first one counts, at every length (for random
  gradients: at the theory's length of a window), which flatters them.

Runs advance in lockstep, so that one batch of the layer serves all seeds and tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import hypergradient, pictures
from benchmarks.nonsmooth import PROBLEMS, D, Problem, smoothed_kink
from benchmarks.report import Figure, Suite
from ffo.bilevel import GoldsteinDescent, minimize, plan

Array = np.ndarray
EPSILONS = tuple(float(e) for e in np.geomspace(0.5, 0.125, 5))
SEEDS = tuple(range(4))
#: step sizes of SGD and Adam, in units of delta
RATES = (1.0, 0.3, 0.1, 0.03)
#: oracle calls given to SGD and Adam, and to minimize
BUDGET, PATIENCE = 3000, 15_000
#: tolerance of a fitted exponent: windows are whole numbers of calls
FIT = 0.1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """One contender on one problem from one start.

    Attributes:
        calls: oracle calls until epsilon was certified; NaN if it was not within the budget.
        distance: the known Goldstein distance of the point that was returned.
    """

    contender: str
    problem: str
    seed: int
    epsilon: float
    calls: float
    distance: float = math.nan


def starts(problem: Problem, seeds: Iterable[int]) -> dict[int, torch.Tensor]:
    return {seed: torch.tensor(problem.start(np.random.default_rng(seed)), dtype=D) for seed in seeds}


def by_theory(problem: Problem, progress: Progress) -> list[Run]:
    """`GoldsteinDescent` with the theory's parameters, all seeds and tolerances in lockstep."""
    first, live, done, calls = starts(problem, SEEDS), [], [], 0
    for seed in SEEDS:
        for epsilon in EPSILONS:
            x = first[seed].clone().requires_grad_()
            p = plan(problem.delta, epsilon, problem.lipschitz, problem.gap)
            random = torch.Generator().manual_seed(seed)
            live.append((seed, epsilon, p, x, GoldsteinDescent([x], p.radius, p.lr, p.window, generator=random)))
    while live:
        calls += 1
        if calls % 500 == 0:
            progress(f"{problem.name}: theory, {calls} calls, {len(live)} runs left")
        for _, _, _, _, walk in live:
            walk.to_random_point()
        points = torch.stack([x.detach() for _, _, _, x, _ in live])
        gradients = _gradients(problem, points, [epsilon for _, epsilon, *_ in live])
        left = []
        for (seed, epsilon, p, x, walk), gradient in zip(live, gradients, strict=True):
            x.grad = gradient
            walk.advance()
            if walk.filled == 0 and walk.last.stationarity <= epsilon:
                distance = problem.distance(walk.last.centre[0].numpy(), problem.delta, epsilon)
                done.append(Run("theory", problem.name, seed, epsilon, calls, distance))
            elif calls >= 2 * p.steps:
                done.append(Run("theory", problem.name, seed, epsilon, math.nan))
            else:
                left.append((seed, epsilon, p, x, walk))
        live = left
    return done


def by_minimize(problem: Problem, progress: Progress, seeds: Sequence[int]) -> list[Run]:
    """`minimize`, one run after the other."""
    runs = []
    for seed, x0 in starts(problem, seeds).items():
        for epsilon in EPSILONS:
            progress(f"{problem.name}: minimize, seed {seed}, epsilon {epsilon:.2g}")
            row = torch.tensor([epsilon], dtype=D)
            found = minimize(
                lambda x, y, row=row: problem.upper(x[None], y, row)[0],
                lambda x, row=row: problem.layer(x[None], row),
                x0,
                delta=problem.delta,
                epsilon=epsilon,
                budget=PATIENCE,
                stochastic=problem.noisy,
                generator=torch.Generator().manual_seed(seed),
                progress=False,
            )
            calls = found.calls if found.converged else math.nan
            distance = problem.distance(found.x.numpy(), problem.delta, epsilon)
            runs.append(Run("minimize", problem.name, seed, epsilon, calls, distance))
    return runs


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


def by_descent(name: str, problem: Problem, progress: Progress) -> list[Run]:
    """SGD or Adam at all step sizes, from all starts; the best step size for each epsilon."""
    kind = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[name]
    own = EPSILONS if problem.family else (min(EPSILONS),)
    rows = [(seed, epsilon) for seed in SEEDS for epsilon in own]
    first = starts(problem, SEEDS)
    start = torch.stack([first[seed] for seed, _ in rows])
    parts = [start.clone().requires_grad_() for _ in RATES]
    optimizer = kind(
        [{"params": [p], "lr": r * problem.delta / problem.lipschitz} for p, r in zip(parts, RATES, strict=True)]
    )
    stretches = Stretches(torch.cat([p.detach() for p in parts]), problem.delta)
    row_epsilon = [epsilon for _ in RATES for _, epsilon in rows]
    calls: dict[tuple[int, float], Array] = {}
    for step in range(1, BUDGET + 1):
        x = torch.cat([p.detach() for p in parts])
        gradients = _gradients(problem, x, row_epsilon)
        norm, length = stretches.add(x, gradients)
        for epsilon in EPSILONS:
            least = plan(problem.delta, epsilon, problem.lipschitz).window if problem.noisy else 1
            good = ((norm <= epsilon) & (length >= least)).reshape(len(RATES), len(rows)).numpy()
            for k, (seed, mine) in enumerate(rows):
                if not problem.family or mine == epsilon:
                    reached = calls.setdefault((seed, epsilon), np.full(len(RATES), math.nan))
                    reached[np.isnan(reached) & good[:, k]] = step
        if step % 500 == 0:
            progress(f"{problem.name}: {name}, {step} calls")
        if all(any(~np.isnan([calls[seed, e] for seed in SEEDS]).any(axis=0)) for e in EPSILONS):
            break  # some rate has reached epsilon from every start; a slower one cannot be the best
        for p, g in zip(parts, gradients.chunk(len(RATES)), strict=True):
            p.grad = g
        optimizer.step()
    best = {e: _best_rate([calls[seed, e] for seed in SEEDS]) for e in EPSILONS}
    return [Run(name, problem.name, seed, e, float(reached[best[e]])) for (seed, e), reached in calls.items()]


def _best_rate(reached: Sequence[Array]) -> int:
    """The step size with the fewest calls in the median; one that fails on half of the starts is excluded."""
    medians = np.median(np.where(np.isnan(reached), math.inf, reached), axis=0)
    return int(np.argmin(medians))


def _gradients(problem: Problem, points: torch.Tensor, epsilons: Sequence[float]) -> torch.Tensor:
    x = points.clone().requires_grad_()
    values = problem.values(x, torch.tensor(list(epsilons), dtype=D))
    (gradients,) = torch.autograd.grad(values.sum(), x)
    return gradients


def against_draws(draws: int = 8192) -> tuple[Array, Array]:
    """Root mean square errors of the smoothed gradient at x = 1, where F' = 0, for means over k draws."""
    problem = smoothed_kink()
    gradients = _gradients(problem, torch.ones(draws, 1, dtype=D), [1.0] * draws)[:, 0].numpy()
    counts = 2 ** np.arange(0, int(math.log2(draws)) - 4)
    return counts, np.array([np.sqrt(np.mean(gradients.reshape(-1, k).mean(axis=1) ** 2)) for k in counts])


@dataclass(frozen=True)
class Slope:
    """Fit of log(calls) against log(1 / epsilon), over the runs that reached epsilon.

    Attributes:
        slope: of all runs together; spread: standard deviation of the slopes of single starts.
        reached: share of runs that reached epsilon within their budget.
        calls: median at the smallest epsilon.
        excess: largest amount by which the known distance of a returned point exceeds epsilon.
    """

    contender: str
    problem: str
    slope: float
    spread: float
    reached: float
    calls: float
    excess: float


def fit(runs: Sequence[Run]) -> Slope:
    good = [r for r in runs if not math.isnan(r.calls)]
    by_seed = [[r for r in good if r.seed == seed] for seed in sorted({r.seed for r in good})]
    each = [exponent(own) for own in by_seed if len(own) >= 3]
    least = [r.calls for r in good if r.epsilon == min(EPSILONS)]
    return Slope(
        runs[0].contender,
        runs[0].problem,
        exponent(good) if len({r.epsilon for r in good}) >= 3 else math.nan,
        float(np.std(each, ddof=1)) if len(each) > 1 else math.nan,
        len(good) / len(runs),
        float(np.median(least)) if least else math.nan,
        max((r.distance - r.epsilon for r in good if not math.isnan(r.distance)), default=math.nan),
    )


def exponent(runs: Sequence[Run]) -> float:
    return log_slope([1 / r.epsilon for r in runs], [r.calls for r in runs])


def log_slope(x: Sequence[float] | Array, y: Sequence[float] | Array) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def measure(progress: Progress) -> list[Run]:
    """Every contender on every problem."""
    runs: list[Run] = []
    for make in PROBLEMS:
        problem = make()
        runs += by_theory(problem, progress)
        runs += by_minimize(problem, progress, SEEDS[:3])
        for name in ("SGD", "Adam"):
            runs += by_descent(name, problem, progress)
    return runs


def bilevel(progress: Progress) -> Suite:
    """Everything, with pictures."""
    runs = measure(progress)
    progress("hypergradient errors")
    errors = hypergradient.measure()
    counts, by_draws = against_draws()
    groups = {
        (r.problem, r.contender): [q for q in runs if (q.problem, q.contender) == (r.problem, r.contender)]
        for r in runs
    }
    slopes = [fit(group) for group in groups.values()]
    paths = [pictures.calls(runs, slopes, counts, by_draws), pictures.errors(errors)]
    rows: list[dict[str, object]] = [
        {
            "case": s.problem,
            "contender": s.contender,
            "slope": s.slope,
            "+-": s.spread,
            "theory": 3.0 if s.contender in ("theory", "minimize") else math.nan,
            "reached": s.reached,
            f"calls, epsilon {min(EPSILONS):.3g}": s.calls,
            "distance - epsilon": s.excess,
        }
        for s in slopes
    ]
    rows += [{"case": "picture", "contender": str(path)} for path in paths]
    return Suite("bilevel", _figures(runs, slopes, errors, log_slope(counts, by_draws)), rows)


def _figures(runs: Sequence[Run], slopes: Sequence[Slope], errors: hypergradient.Errors, draws: float) -> list[Figure]:
    figures = []
    for make in PROBLEMS:
        problem = make()
        own = next(s for s in slopes if (s.problem, s.contender) == (problem.name, "theory"))
        figures.append(Figure(f"{problem.name}: slope of the theory's steps", own.slope, 3.0 + FIT, "", False))
        shares = [
            r.calls / plan(problem.delta, r.epsilon, problem.lipschitz, problem.gap).steps
            for r in runs
            if (r.problem, r.contender) == (problem.name, "theory")
        ]
        figures.append(Figure(f"{problem.name}: calls, of the theory's", max(shares), 1.0, "", False))
    certain = [s.excess for s in slopes if not math.isnan(s.excess) and "draw" not in s.problem]
    figures += [
        Figure("known distance - epsilon where answers are certain", max(certain), 0.0, "", False),
        Figure("hypergradient error: exponent of delta", errors.exponent, 1.0 - FIT, ""),
        Figure("log hypergradient error against calls: R^2", errors.linearity, 0.99, ""),
        Figure("smoothed gradient error: exponent of draws", draws, -0.5 + FIT, "", False),
    ]
    return figures
