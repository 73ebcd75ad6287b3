"""One quadratic program at a time: milliseconds of a step through torch, batch 1.

Both layers get the same problems, in which everything but the predicted vectors is constant. The best time
shows the cost of the code, the median what a user gets; the targets are for the median.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch

from benchmarks import peers
from benchmarks.peers import Contender, Step
from benchmarks.problems import Array, Case
from benchmarks.report import Figure, Suite
from benchmarks.timing import time_once

#: median milliseconds by number of variables
TARGETS = {10: 0.5, 30: 0.5, 200: 1.2}
#: number of data sets, rounds over them per repetition, and entries in a row of general inequalities
DRAWS, ROUNDS, PER_ROW = 10, 4, 5
WARMUP = 5


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one step; `reason`: why it did not run."""

    case: str
    label: str
    median: float = np.nan
    best: float = np.nan
    forward: float = np.nan
    backward: float = np.nan
    reason: str = ""


def bounds_and_row(n: int) -> Case:
    """minimize |y|^2 / 2 + p'y subject to 0 <= y <= 1, sum(y) <= n / 5."""
    blocks = {"Q": np.eye(n), "G": np.ones((1, n)), "h": np.array([0.2 * n]), "lb": np.zeros(n), "ub": np.ones(n)}

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        y = cp.Variable(n)
        constraints = [y >= 0, y <= 1, cp.sum(y) <= 0.2 * n]
        return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y) + d["p"] @ y), constraints), y

    draw = lambda seed: {"p": np.random.default_rng(seed).standard_normal((1, n))}  # noqa: E731
    return Case(f"n={n}, bounds and a row", formulate, blocks, draw, ("p",))


def general(n: int, dense: bool = False) -> Case:
    """minimize y'Qy / 2 + p'y subject to Gy <= h, n rows; p and h are predicted.

    Q is diagonal and rows have five entries, or both are dense."""
    rng = np.random.default_rng(n)
    Q, G = np.diag(rng.uniform(0.5, 2.0, n)), np.zeros((n, n))
    for row in G:
        row[rng.permutation(n)[:PER_ROW]] = rng.standard_normal(PER_ROW)
    if dense:
        L, G = rng.standard_normal((n, n)), rng.standard_normal((n, n))
        Q = L @ L.T / n + 0.1 * np.eye(n)

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        y = cp.Variable(n)
        matrices = (Q, G) if dense else (sp.csc_array(Q), sp.csc_array(G))
        energy = cp.quad_form(y, matrices[0], assume_PSD=True)
        return cp.Problem(cp.Minimize(0.5 * energy + d["p"] @ y), [matrices[1] @ y <= d["h"]]), y

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"p": rng.standard_normal((1, n)), "h": rng.uniform(0.1, 1.0, (1, n))}

    return Case(f"n={n}, {'dense' if dense else 'general'} rows", formulate, {"Q": Q, "G": G}, draw, ("p", "h"))


def cvxpy_layer(case: Case) -> Step:
    """FFOLayer; the shared blocks are constants of the problem."""
    from ffo.torch import FFOLayer

    names = tuple(case.draw(0))
    parameters = {name: cp.Parameter(value.shape[1:], name=name) for name, value in case.draw(0).items()}
    problem, y = case.formulate(parameters)
    layer = FFOLayer(problem, parameters=list(parameters.values()), variables=[y])
    return Step(lambda t: layer(*(t[name] for name in names))[0], case.differentiate)


CONTENDERS: dict[str, Contender] = {"FFOLayer": cvxpy_layer, "FFOQPLayer": peers.ffo_qp}


def suite(repeats: int, progress: Callable[[str], None]) -> Suite:
    """Both layers on both kinds of problems, by size."""
    found, figures = [], []
    for n, target in TARGETS.items():
        for case in (bounds_and_row(n), general(n)):
            for label, contender in CONTENDERS.items():
                progress(f"latency: {label}, {case.name}")
                found.append(time_one(label, contender, case, ROUNDS * repeats))
                name = f"{label}, {case.name}: a step"
                figures.append(Figure(name, found[-1].median, target, "ms", False, found[-1].reason))
    found += [time_one(label, c, general(200, dense=True), repeats) for label, c in CONTENDERS.items()]
    keys = ("case", "label", "median", "best", "forward", "backward", "reason")
    return Suite("latency (ms)", figures, [{key: getattr(f, key) for key in keys} for f in found])


def time_one(label: str, contender: Contender, case: Case, rounds: int) -> Latency:
    """Every draw of the data `rounds` times; garbage is collected between the rounds only."""
    try:
        step = contender(case)
        draws = [(step.tensors(case.data(k)), torch.tensor(case.weights(k))) for k in range(DRAWS)]
        for _ in range(WARMUP):
            time_once(step, *draws[0])
        times = []
        for _ in range(rounds):
            gc.collect()
            gc.disable()
            times += [time_once(step, tensors, weights) for tensors, weights in draws]
            gc.enable()
    except Exception as error:
        gc.enable()
        return Latency(case.name, label, reason=f"{type(error).__name__}: {error}".splitlines()[0][:160])
    seconds = 1e3 * np.array(times)  # (steps, 2)
    totals = seconds.sum(axis=1)
    forward, backward = np.median(seconds, axis=0)
    return Latency(case.name, label, float(np.median(totals)), float(totals.min()), float(forward), float(backward))
