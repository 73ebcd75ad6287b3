"""The JAX front end beside the torch front end, and against cvxpylayers' JAX layer.

All contenders take the same data in turn, in double precision. The step of this package is compiled (`jax.jit` of the
gradient); cvxpylayers' layer cannot be compiled with its default solver, and runs as its documentation shows it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch

from benchmarks import peers
from benchmarks.latency import bounds_and_row
from benchmarks.problems import Array, Case, decision_qp, semidefinite, small_least_squares
from benchmarks.report import Figure, Suite

#: seed -> gradients of the linear loss, by name
Run = Callable[[int], Mapping[str, Array]]
#: milliseconds at batch 1, percent at batch 512; the largest difference of gradients; ratios to the peer: mean, least
OVERHEAD, SHARE, DIFFERENCE, MEAN, LEAST = 1.0, 10.0, 1e-12, 10.0, 5.0
SINGLE, LARGE = 12, 512  # repetitions of a small step for each of a large one; samples of a large batch


@dataclass(frozen=True)
class Contest:
    """Seconds of a step in JAX and of another contender, medians and best, and how their gradients differ."""

    case: str
    label: str
    jax: float = np.nan
    other: float = np.nan
    jax_best: float = np.nan
    other_best: float = np.nan
    difference: float = np.nan
    reason: str = ""

    @property
    def ratio(self) -> float:
        """How many times longer the other takes: the smaller of the ratios of medians and of best times."""
        return min(self.other / self.jax, self.other_best / self.jax_best)

    @property
    def overhead(self) -> float:
        """Milliseconds that JAX takes longer: the larger of the differences of medians and of best times."""
        return 1e3 * max(self.jax - self.other, self.jax_best - self.other_best)

    @property
    def share(self) -> float:
        """The same as percent of the other's step."""
        return 100 * max(self.jax / self.other - 1, self.jax_best / self.other_best - 1)


def suite(repeats: int, progress: Callable[[str], None]) -> Suite:
    """Overhead over torch, and speed beside cvxpylayers."""
    with double_precision():
        ones = [
            contest(bounds_and_row(n), with_torch, "torch", SINGLE * repeats, progress, constant=True)
            for n in (10, 200)
        ]
        large = contest(decision_qp(200, batch=LARGE), with_torch, f"torch, batch {LARGE}", repeats, progress)
        beside = [contest(case, with_cvxpylayers, "cvxpylayers", repeats, progress) for case in peer_cases()]
        ours = [contest(case, with_torch, "torch", 1, progress) for case in peer_cases()]
    against_torch = [*ones, large, *ours]
    worst = max(c.difference for c in against_torch)
    ratios = [c.ratio for c in beside]
    failed = "; ".join(f"{c.case}: {c.reason}" for c in (*against_torch, *beside) if c.reason)
    figures = [
        *(Figure(f"{c.case}, batch 1: JAX over torch", c.overhead, OVERHEAD, "ms", False, c.reason) for c in ones),
        Figure(f"{large.case}, batch {LARGE}: JAX over torch", large.share, SHARE, "%", False, large.reason),
        Figure("gradients: difference from torch's", worst, DIFFERENCE, "", False, failed),
        Figure("against cvxpylayers' JAX layer, geometric mean", math.exp(np.log(ratios).mean()), MEAN, reason=failed),
        Figure("against cvxpylayers' JAX layer, least", min(ratios), LEAST, reason=failed),
    ]
    return Suite("jax", figures, [{**asdict(c), "ratio": c.ratio} for c in (*against_torch, *beside)])


def peer_cases() -> list[Case]:
    """As cvxpylayers accepts them, batch 32."""
    return [
        small_least_squares(batch=32),
        decision_qp(200, quad_form=False),
        decision_qp(200, quad_form=False, norm_ball=True),
        semidefinite(6, batch=32),
    ]


def contest(
    case: Case,
    other: Callable[..., Run],
    label: str,
    repeats: int,
    progress: Callable[[str], None],
    warmup: int = 2,
    **options: Any,
) -> Contest:
    """Both contenders in turn on the same data."""
    progress(f"jax: {case.name} beside {label}")
    try:
        runs = [with_jax(case, **options), other(case, **options)]
        times: list[list[float]] = [[], []]
        difference = 0.0
        for repeat in range(-warmup, repeats):
            found = []
            for run, seconds in zip(runs, times, strict=True):
                gc.collect()
                start = time.perf_counter()
                found.append(run(repeat + warmup))
                if repeat >= 0:
                    seconds.append(time.perf_counter() - start)
            difference = max(difference, _difference(*found))
    except Exception as error:
        return Contest(case.name, label, reason=f"{type(error).__name__}: {error}".splitlines()[0][:160])
    medians, best = [float(np.median(t)) for t in times], [min(t) for t in times]
    return Contest(case.name, label, *medians, *best, difference)


def _difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest one, relative to the size of the gradient."""
    pairs = [(np.asarray(found[k]), np.asarray(expected[k])) for k in expected]
    return max(float(np.abs(f - e).max() / max(np.abs(e).max(), 1e-300)) for f, e in pairs)


def with_jax(case: Case, constant: bool = False) -> Run:
    """This package, compiled."""
    from ffo.jax import FFOLayer

    return _run_jax(case, FFOLayer, constant, compiled=True)


def with_cvxpylayers(case: Case, constant: bool = False) -> Run:
    """cvxpylayers' JAX layer with its default solver."""
    from cvxpylayers.jax import CvxpyLayer

    return _run_jax(case, CvxpyLayer, constant, compiled=False)


def _run_jax(case: Case, make: Callable[..., Any], constant: bool, compiled: bool) -> Run:
    import jax
    import jax.numpy as jnp

    problem, parameters, variable = _problem(case, constant)
    layer, names = make(problem, parameters=parameters, variables=[variable]), [p.name() for p in parameters]

    def loss(chosen: dict[str, Any], rest: dict[str, Any], weights: Any) -> Any:
        values = {**rest, **chosen}
        return (layer(*(values[name] for name in names))[0] * weights).sum()

    grad = jax.jit(jax.grad(loss)) if compiled else jax.grad(loss)
    data = _cached(case, names, jnp.asarray)

    def run(seed: int) -> Mapping[str, Array]:
        values, weights = data(seed)
        chosen = {name: values[name] for name in case.differentiate}
        rest = {name: v for name, v in values.items() if name not in chosen}
        return jax.block_until_ready(grad(chosen, rest, weights))

    return run


def with_torch(case: Case, constant: bool = False) -> Run:
    """This package's torch front end."""
    from ffo.torch import FFOLayer

    problem, parameters, variable = _problem(case, constant)
    layer, names = FFOLayer(problem, parameters, [variable]), [p.name() for p in parameters]
    step = peers.Step(lambda t: layer(*(t[name] for name in names))[0], case.differentiate)
    data = _cached(case, names, torch.tensor)

    def run(seed: int) -> Mapping[str, Array]:
        values, weights = data(seed)
        tensors = {k: v.requires_grad_(k in case.differentiate) for k, v in values.items()}
        return step.backward(tensors, step.forward(tensors), weights)

    return run


def _problem(case: Case, constant: bool) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    """The problem of a case; `constant`: its shared blocks are constants of the problem."""
    if not constant:
        return case.parametrised()
    parameters = {name: cp.Parameter(value.shape[1:], name=name) for name, value in case.draw(0).items()}
    problem, variable = case.formulate(parameters)
    return problem, list(parameters.values()), variable


def _cached(
    case: Case, names: Sequence[str], convert: Callable[[Array], Any]
) -> Callable[[int], tuple[dict[str, Any], Any]]:
    """Data of eight seeds, made ahead: drawing takes longer than a small step."""
    made = []
    for seed in range(8):
        values = case.data(seed)
        made.append(({name: convert(values[name]) for name in names}, convert(case.weights(seed))))
    return lambda seed: made[seed % len(made)]


@contextmanager
def double_precision() -> Iterator[None]:
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
