"""Median times of a training step, with interleaved measurements.

Machines are noisy: every repetition runs all packages one after the other on the same freshly drawn data, and
a speed-up counts only if both medians and best times show it. Constant load from other work still distorts
ratios; `report.busy` warns about it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.peers import Contender, Step, Tensors
from benchmarks.problems import Case


@dataclass(frozen=True)
class Entry:
    """One row: a package on its formulation of the problem."""

    label: str
    contender: Contender
    case: Case
    skip: str = ""  # why it is left out of this run


@dataclass(frozen=True)
class Timing:
    """Seconds, medians over the repetitions (`best`: the fastest step; `first`: of the first steps of runs, after other
    packages have used the caches); `reason`: why it did not run."""

    label: str
    build: float = np.nan
    forward: float = np.nan
    backward: float = np.nan
    total: float = np.nan
    best: float = np.nan
    first: float = np.nan
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    entries: Sequence[Entry],
    repeats: int = 7,
    warmup: int = 2,
    progress: Callable[[str], None] = lambda _: None,
    run: int = 1,
) -> list[Timing]:
    """Time every entry; failures are reported with their reason.

    Args:
        run: how many steps in a row a package takes, each on other data, before it is another one's turn.
    """
    steps: dict[str, Step] = {}
    builds: dict[str, float] = {}
    failures: dict[str, str] = {}
    for entry in entries:
        progress(f"building {entry.label}")
        start = time.perf_counter()
        try:
            if entry.skip:
                raise MemoryError(entry.skip)
            steps[entry.label] = entry.contender(entry.case)
        except Exception as error:
            failures[entry.label] = _reason(error)
        builds[entry.label] = time.perf_counter() - start
    samples: dict[str, list[tuple[float, float]]] = {label: [] for label in steps}
    threads = torch.get_num_threads()  # some packages change it for the whole process
    gc.collect()
    gc.freeze()  # collecting long-lived objects before every step would take longer than many steps
    for repeat in range(-warmup, repeats):
        for entry in entries:
            if entry.label in failures:
                continue
            progress(f"{entry.label}: repetition {repeat + 1}/{repeats}" if repeat >= 0 else f"{entry.label}: warm-up")
            try:
                seeds = range((repeat + warmup) * run, (repeat + warmup + 1) * run)
                seconds = _time_run(steps[entry.label], entry.case, seeds, threads)
            except Exception as error:
                failures[entry.label] = _reason(error)
                continue
            if repeat >= 0:
                samples[entry.label] += seconds
    gc.unfreeze()
    return [_summary(entry.label, builds, samples, failures, run) for entry in entries]


def _time_run(step: Step, case: Case, seeds: Sequence[int], threads: int) -> list[tuple[float, float]]:
    """Forward and backward pass of one step per seed."""
    data = [(step.tensors(case.data(seed)), torch.tensor(case.weights(seed))) for seed in seeds]
    gc.collect()
    torch.set_num_threads(threads)
    return [time_once(step, *each) for each in data]


def time_once(step: Step, tensors: Tensors, weights: torch.Tensor) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass of a step."""
    start = time.perf_counter()
    solution = step.forward(tensors)
    middle = time.perf_counter()
    step.backward(tensors, solution, weights)
    return middle - start, time.perf_counter() - middle


def _summary(
    label: str,
    builds: Mapping[str, float],
    samples: Mapping[str, list[tuple[float, float]]],
    failures: Mapping[str, str],
    run: int,
) -> Timing:
    if label in failures:
        return Timing(label, reason=failures[label])
    times = np.array(samples[label])
    forward, backward = np.median(times, axis=0)
    totals = times.sum(axis=1)
    whole = np.median(totals), totals.min(), np.median(totals[::run])
    return Timing(label, builds[label], float(forward), float(backward), *map(float, whole))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
