"""Training with keys: steps from remembered active sets against cold steps.

The decision-focused QP of the paper through FFOQPLayer, samples shuffled between epochs and identified by
their keys. One epoch fills the memory; after that every batch is solved twice on the same data, cold and
warm. Between epochs q drifts, as predictions do in training.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy import compare, probes
from benchmarks.peers import Step
from benchmarks.problems import Case, decision_qp
from benchmarks.report import Figure, Suite

SIZES, BATCH, BATCHES = (200, 500, 800), 32, 3
#: standard deviation of the change of q from epoch to epoch; the targets are for the first
DRIFTS = (1e-4, 1e-3, 1e-2)
RATIO, GRADIENT_ERROR = 3.0, 1e-6


@dataclass(frozen=True)
class WarmTiming:
    """Seconds of a step, medians and best; `hits`: share of samples solved from their remembered sets."""

    case: str
    drift: float
    cold: float
    warm: float
    cold_best: float
    warm_best: float
    hits: float

    @property
    def ratio(self) -> float:
        """The smaller of the ratios of medians and of best times."""
        return min(self.cold / self.warm, self.cold_best / self.warm_best)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def time_steps(n: int, drift: float, epochs: int, progress: Callable[[str], None] = lambda _: None) -> WarmTiming:
    """Time cold and warm steps, interleaved."""
    from ffo.torch import FFOQPLayer

    case = decision_qp(n, batch=BATCH * BATCHES)
    shared = {name: torch.tensor(value) for name, value in case.shared.items()}
    q, weights = case.draw(0)["q"], torch.tensor(case.weights(0))
    rng = np.random.default_rng(1)
    cold, warm = FFOQPLayer(), FFOQPLayer()
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    hits = []
    for epoch in range(epochs + 1):
        progress(f"warm: n={n}, drift {drift:g}, epoch {epoch}/{epochs}")
        for keys in rng.permutation(len(q)).reshape(BATCHES, BATCH):
            costs, loss = torch.tensor(q[keys]), weights[torch.from_numpy(keys)]
            first = _step(cold, shared, costs, loss, None)
            second = _step(warm, shared, costs, loss, keys)
            if epoch:
                seconds["cold"].append(first)
                seconds["warm"].append(second)
                hits.append(warm.info.warm_hits / BATCH)
        q = q + drift * rng.standard_normal(q.shape)
    found = {name: (float(np.median(v)), min(v)) for name, v in seconds.items()}
    (cold_median, cold_best), (warm_median, warm_best) = found["cold"], found["warm"]
    return WarmTiming(case.name, drift, cold_median, warm_median, cold_best, warm_best, float(np.mean(hits)))


def _step(layer: Any, shared: dict[str, torch.Tensor], q: torch.Tensor, weights: torch.Tensor, keys: Any) -> float:
    gc.collect()
    start = time.perf_counter()
    q.requires_grad_()
    z = layer(shared["Q"], -q, shared["G"], shared["h"], keys=keys)
    torch.autograd.grad((z * weights).sum(), [q])
    return time.perf_counter() - start


def warmed(case: Case) -> Step:
    """A contender whose steps are warm: its layer has seen the data of seed 0 under the same keys."""
    from ffo.torch import FFOQPLayer

    layer = FFOQPLayer()

    def forward(t: dict[str, torch.Tensor]) -> torch.Tensor:
        return layer(t["Q"], -t["q"], t["G"], t["h"], keys=range(len(t["q"])))

    step = Step(forward, case.differentiate)
    step.backward(tensors := step.tensors(case.data(0)), forward(tensors), torch.tensor(case.weights(0)))
    return step


def suite(repeats: int, progress: Callable[[str], None]) -> Suite:
    """Warm steps of all sizes and drifts, and the error of their gradients."""
    figures, rows = [], []
    for n in SIZES:
        timings = [time_steps(n, drift, 2 * repeats, progress) for drift in DRIFTS]
        rows += [t.as_dict() for t in timings]
        figures.append(Figure(f"QP n={n}: warm step against cold step", timings[0].ratio, RATIO))
        progress(f"warm: gradients, n={n}")
        case = decision_qp(n, batch=BATCH)
        found = compare("warm", warmed, case, probes(case))
        name = f"QP n={n}: gradient error of warm steps"
        figures.append(Figure(name, found.error, GRADIENT_ERROR, "", False, found.reason))
    return Suite("warm", figures, rows)
