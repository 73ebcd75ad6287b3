"""Problems that are not DPP beside the DPP problems that one would write by hand: time to build, and of a step.

The step of the hand-written problem includes the computation of its parameters in torch. Times are CPU seconds, the
best of several; the two take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch

from benchmarks.report import Figure, Suite
from ffo.torch import FFOLayer

#: how much longer a build, and a step, may take
BUILD, STEP = 2.0, 1.3
BATCHES = (1, 64)
Tensor = torch.Tensor


@dataclass(frozen=True)
class Written:
    """A problem, its parameters and its variable."""

    problem: cp.Problem
    parameters: Sequence[cp.Parameter]
    x: cp.Variable

    def layer(self) -> FFOLayer:
        return FFOLayer(self.problem, parameters=list(self.parameters), variables=[self.x])


@dataclass(frozen=True)
class Pair:
    """Both ways of writing a problem, and how the parameters of the second are computed, a batch at a time."""

    name: str
    lifted: Callable[[], Written]
    by_hand: Callable[[], Written]
    values: Callable[..., tuple[Tensor, ...]]
    draw: Callable[[np.random.Generator, int], list[np.ndarray]]


def weighted_lasso(n: int = 20, m: int = 40) -> Pair:
    def written(residual: bool) -> Written:
        x, r = cp.Variable(n), cp.Variable(m)
        weight, A, b = cp.Parameter(nonneg=True), cp.Parameter((m, n)), cp.Parameter(m)
        loss, rows = (cp.sum_squares(r), [r == A @ x - b]) if residual else (cp.sum_squares(A @ x - b), [])
        return Written(cp.Problem(cp.Minimize(weight * loss + cp.norm1(x)), [x >= -0.2, *rows]), [weight, A, b], x)

    def draw(rng: np.random.Generator, batch: int) -> list[np.ndarray]:
        return [rng.uniform(0.5, 1.5, batch), rng.normal(size=(batch, m, n)), rng.normal(size=(batch, m))]

    return Pair("weighted lasso", lambda: written(False), lambda: written(True), lambda *v: v, draw)


def portfolio(n: int = 20, k: int = 4) -> Pair:
    def lifted() -> Written:
        x, g, F = cp.Variable(n), cp.Parameter(nonneg=True), cp.Parameter((n, k))
        s, mu = cp.Parameter(n), cp.Parameter(n)
        risk = cp.quad_form(x, cp.psd_wrap(F @ F.T + cp.diag(cp.square(s))))
        return Written(cp.Problem(cp.Minimize(g * risk - mu @ x), [cp.sum(x) == 1, x >= 0]), [g, F, s, mu], x)

    def by_hand() -> Written:
        x, Q, mu = cp.Variable(n), cp.Parameter((n, n), PSD=True), cp.Parameter(n)
        objective = cp.Minimize(cp.quad_form(x, Q) - mu @ x)
        return Written(cp.Problem(objective, [cp.sum(x) == 1, x >= 0]), [Q, mu], x)

    def values(g: Tensor, F: Tensor, s: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
        return g[:, None, None] * (F @ F.mT + torch.diag_embed(s**2)), mu

    def draw(rng: np.random.Generator, batch: int) -> list[np.ndarray]:
        return [rng.uniform(0.5, 1.5, batch), *(rng.normal(size=(batch, *s)) for s in ((n, k), (n,), (n,)))]

    return Pair("portfolio", lifted, by_hand, values, draw)


def ellipsoid(n: int = 20) -> Pair:
    def lifted() -> Written:
        x, c, Q = cp.Variable(n), cp.Parameter(n), cp.Parameter((n, n), PSD=True)
        return Written(cp.Problem(cp.Minimize(c @ x + cp.sum_squares(x)), [cp.quad_form(x, Q) <= 0.3]), [c, Q], x)

    def by_hand() -> Written:
        x, c, L = cp.Variable(n), cp.Parameter(n), cp.Parameter((n, n))
        return Written(cp.Problem(cp.Minimize(c @ x + cp.sum_squares(x)), [cp.sum_squares(L.T @ x) <= 0.3]), [c, L], x)

    def draw(rng: np.random.Generator, batch: int) -> list[np.ndarray]:
        F = rng.normal(size=(batch, n, n))
        return [rng.normal(size=(batch, n)), F @ F.swapaxes(1, 2) / n + 0.5 * np.eye(n)]

    return Pair("ellipsoid", lifted, by_hand, lambda c, Q: (c, torch.linalg.cholesky(Q)), draw)


def prices(n: int = 20) -> Pair:
    def written(count: int) -> Written:
        x, p = cp.Variable(n), [cp.Parameter(n) for _ in range(count)]
        price = cp.multiply(cp.exp(p[0]), p[1]) if count == 2 else p[0]
        return Written(cp.Problem(cp.Minimize(cp.sum_squares(x - 1) + price @ x), [cp.sum(x) == 1]), p, x)

    def draw(rng: np.random.Generator, batch: int) -> list[np.ndarray]:
        return [rng.normal(size=(batch, n)) for _ in range(2)]

    return Pair("prices", lambda: written(2), lambda: written(1), lambda a, b: (a.exp() * b,), draw)


PAIRS = (weighted_lasso, portfolio, ellipsoid, prices)


def suite(repeats: int, progress: Callable[[str], None]) -> Suite:
    """Both ways of writing each problem: builds, and steps in batches."""
    figures, rows = [], []
    for make in PAIRS:
        pair = make()
        progress(f"lift: {pair.name}")
        build = best(builds(pair), repeats)
        figures.append(Figure(f"{pair.name}: build", build[0] / build[1], BUILD, at_least=False))
        rows.append({"case": f"{pair.name}, build", "lifted": build[0], "by hand": build[1]})
        for batch in BATCHES:
            step = best(steps(pair, batch), 5 * repeats)
            figures.append(Figure(f"{pair.name}: a step, batch {batch}", step[0] / step[1], STEP, at_least=False))
            rows.append({"case": f"{pair.name}, batch {batch}", "lifted": step[0], "by hand": step[1]})
    return Suite("lift (CPU seconds)", figures, rows)


def builds(pair: Pair) -> list[Callable[[], object]]:
    return [lambda: pair.lifted().layer(), lambda: pair.by_hand().layer()]


def steps(pair: Pair, batch: int) -> list[Callable[[], object]]:
    """A forward and a backward pass through each of the two."""
    lifted, by_hand = pair.lifted().layer(), pair.by_hand().layer()
    drawn = [torch.tensor(v) for v in pair.draw(np.random.default_rng(0), batch)]

    def step(layer: FFOLayer, values: Callable[..., Sequence[Tensor]]) -> list[Tensor]:
        params = [v.clone().requires_grad_() for v in drawn]
        (x,) = layer(*values(*params))
        x.sum().backward()
        return [x.detach(), *(p.grad for p in params if p.grad is not None)]

    return [lambda: step(lifted, lambda *v: v), lambda: step(by_hand, pair.values)]


def best(contenders: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """CPU seconds of each, the least of several; they take turns."""
    found = [np.inf] * len(contenders)
    for _ in range(repeats):
        for k, run in enumerate(contenders):
            start = time.process_time()
            run()
            found[k] = min(found[k], time.process_time() - start)
    return found
