"""Peak memory of a process, phase by phase."""

from __future__ import annotations

import gc
import importlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from ffo.lab.baselines import BASELINES
from ffo.lab.jobs import Job
from ffo.lab.rows import Row
from ffo.lab.step import first_batch
from ffo.lab.tasks import make_task

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_mb() -> float:
    """Current memory of the process (its peak so far, if the system does not report it)."""
    return _status("VmRSS")


def peak_mb() -> float:
    """Peak since the last `reset_peak`, or since the start if the system cannot reset it."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the current memory (Linux)."""
    if CLEAR.exists():
        CLEAR.write_text("5")


def _status(field: str) -> float:
    if STATUS.exists():
        line = next(x for x in STATUS.read_text().splitlines() if x.startswith(field))
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def measure_memory(job: Job) -> Iterator[Row]:
    """Peak memory of building the layer, the forward and the backward pass; run in a fresh process."""
    baseline = BASELINES[job.method]
    for package in (*baseline.packages, "cvxpy"):
        importlib.import_module(package)
    base = resident_mb()
    task = make_task(job.task, job.sizes)
    values, targets = first_batch(task, job.seed, job.batch)
    learnt = task.inner.learnt
    leaves = {name: v.detach().requires_grad_(name in learnt) for name, v in values.items()}
    known = {**task.inner.fixed, **leaves}
    data = sum(t.nbytes * (2 if name in learnt else 1) for name, t in known.items()) / 2**20
    common = {"base_mb": base, "data_mb": data}
    peaks = []

    def phase(name: str) -> Row:
        peaks.append(peak_mb())
        gc.collect()
        reset_peak()
        return job.row(record="phase", phase=name, peak_mb=peaks[-1], **common)

    gc.collect()
    reset_peak()
    layer = baseline.build(task.inner, job.settings)
    yield phase("build")
    y = layer(leaves)
    yield phase("forward")
    torch.autograd.grad(task.loss(y, targets), [leaves[name] for name in learnt])
    yield phase("backward")
    yield job.row(peak_mb=max(peaks), **common)
