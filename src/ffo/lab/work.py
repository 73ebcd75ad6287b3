"""Runs a job and yields its rows; failures become rows too."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

from ffo.lab.baselines import BASELINES
from ffo.lab.bilevel.jobs import BilevelJob, price, walk
from ffo.lab.distributed import train_distributed
from ffo.lab.jobs import Job, Kind
from ffo.lab.memory import measure_memory
from ffo.lab.reference import NoReferenceError
from ffo.lab.rows import Row
from ffo.lab.step import first_batch, first_reference, take_step
from ffo.lab.tasks import TaskSizes, make_task
from ffo.lab.training import follow_gradients, time_steps, train

KINDS: dict[Kind, Callable[[Any], Iterator[Row]]] = {
    "train": train,
    "time": time_steps,
    "memory": measure_memory,
    "similarity": follow_gradients,
    "walk": walk,
    "price": price,
}
LONGEST_REASON = 300


def prepare(job: Job) -> None:
    """Import what a job uses, and make what all methods share, data and reference, before any time is measured."""
    if job.kind not in ("train", "time", "similarity", "memory") or _why_not(job):
        return
    for package in BASELINES[job.method].packages:
        with contextlib.suppress(Exception):  # the job itself will say what is wrong
            importlib.import_module(package)
    if job.kind in ("train", "similarity"):
        torch.optim.Adam([torch.zeros(1)])  # the first optimizer imports torch.compile
    if job.kind in ("train", "time") and job.processes == 1:
        with contextlib.suppress(NoReferenceError):
            first_reference(job.task, job.sizes, job.seed, job.batch)
        if BASELINES[job.method].ours:
            warm_up(job.method, "sudoku4" if job.task.startswith("sudoku") else job.task)


@lru_cache
def warm_up(method: str, task: str) -> None:
    """One small step of a method of this package, which compiles its kernels: that happens once per environment, and
    is no part of a job."""
    small = make_task(task, TaskSizes(d_y=20, samples=10, d_x=5, hidden=4))
    with contextlib.suppress(Exception), warnings.catch_warnings():  # the job itself will say what is wrong
        warnings.simplefilter("ignore")
        take_step(small, BASELINES[method].build(small.inner), *first_batch(small, 0, 4))


def _why_not(job: Job) -> str:
    return BASELINES[job.method].why_not(make_task(job.task, job.sizes).inner, job.settings)


def rows_of(job: Job) -> Iterator[Row]:
    """The rows of a job. If a method cannot run, or fails, the last row says so."""
    reason = "" if isinstance(job, BilevelJob) else _why_not(job)
    if reason:
        yield job.skipped(reason)
        return
    run = train_distributed if job.kind == "train" and job.processes > 1 else KINDS[job.kind]
    try:
        yield from run(job)
    except TimeoutError as error:
        yield job.failed(f"time limit: {error}")
    except Exception as error:
        yield job.failed(f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST_REASON])
