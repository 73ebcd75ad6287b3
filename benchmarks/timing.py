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

from benchmarks.peers import Contender, Step
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
    """Seconds, medians over the repetitions (`best`: the fastest step); `reason`: why it did not run."""

    label: str
    build: float = np.nan
    forward: float = np.nan
    backward: float = np.nan
    total: float = np.nan
    best: float = np.nan
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    entries: Sequence[Entry], repeats: int = 7, warmup: int = 2, progress: Callable[[str], None] = lambda _: None
) -> list[Timing]:
    """Time every entry; failures are reported with their reason."""
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
                seconds = _time_once(steps[entry.label], entry.case, repeat + warmup, threads)
            except Exception as error:
                failures[entry.label] = _reason(error)
                continue
            if repeat >= 0:
                samples[entry.label].append(seconds)
    gc.unfreeze()
    return [_summary(entry.label, builds, samples, failures) for entry in entries]


def _time_once(step: Step, case: Case, seed: int, threads: int) -> tuple[float, float]:
    tensors = step.tensors(case.data(seed))
    weights = torch.tensor(case.weights(seed))
    gc.collect()
    torch.set_num_threads(threads)
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
) -> Timing:
    if label in failures:
        return Timing(label, reason=failures[label])
    times = np.array(samples[label])
    forward, backward = np.median(times, axis=0)
    totals = times.sum(axis=1)
    return Timing(label, builds[label], float(forward), float(backward), float(np.median(totals)), float(totals.min()))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
