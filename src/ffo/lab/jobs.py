"""A job: one method on one task with one set of settings, the unit that the runner runs and records."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from ffo.lab.baselines.base import Settings
from ffo.lab.rows import Row
from ffo.lab.tasks.base import TaskSizes

#: fields that limit a job; they do not change what it measures
NOT_MEASURED = ("after", "budget", "time_limit", "repeat_limit")
Kind = Literal["train", "time", "memory", "similarity", "walk", "price"]


@dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        kind: "train": convergence and times; "time": times of single steps; "memory": peaks by phase;
            "similarity": gradients along a training run; "walk" and "price": of the bilevel experiments.
        epochs: of training ("train"); steps: timed ("time") or taken ("similarity").
        every: steps between two comparisons with the reference ("similarity").
        processes: of distributed training.
        timed: whether its times are measured; other jobs may run in parallel.
        label: name in a report if settings vary; empty: the method's own name.
        after: key of an easier job (smaller, or of an earlier seed); if that one hit a limit, this one is not
            tried.
        budget: seconds after which no further step is timed ("time").
        time_limit: seconds after which the job is stopped.
        repeat_limit: the job is run only if `after`, the same on another seed, took at most so many seconds.
    """

    experiment: str
    task: str
    method: str
    seed: int
    sizes: TaskSizes
    batch: int
    kind: Kind
    epochs: int = 0
    steps: int = 0
    every: int = 1
    settings: Settings = field(default_factory=Settings)
    processes: int = 1
    timed: bool = True
    label: str = ""
    after: str = ""
    budget: float = 10.0
    time_limit: float = 3600.0
    repeat_limit: float = math.inf

    @cached_property
    def key(self) -> str:
        """A hash of what is measured, without the limits."""
        spec = {k: v for k, v in asdict(self).items() if k not in NOT_MEASURED}
        if self.sizes.setting == "paper":
            del spec["sizes"]["setting"]  # results from before there was another setting can be resumed
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def fresh(self) -> bool:
        """Whether it needs a fresh process."""
        return self.kind == "memory"

    @property
    def title(self) -> str:
        return f"{self.experiment}: {self.label or self.method}, {self.task}, d_y={self.d_y}, seed {self.seed}"

    @property
    def d_y(self) -> int:
        return {"sudoku4": 64, "sudoku9": 729}.get(self.task, self.sizes.d_y)

    def row(self, **values: Any) -> Row:
        """A row of this job."""
        from ffo.lab.baselines import BASELINES

        given: dict[str, Any] = {
            "experiment": self.experiment,
            "task": self.task,
            "method": self.label or self.method,
            "family": BASELINES[self.method].family,
            "seed": self.seed,
            "d_y": self.d_y,
            "batch": self.batch,
            "job": self.key,
            "tolerance": self.settings.tolerance,
            "delta": self.settings.delta,
            "solver": self.settings.solver,
            "backward_tolerance": self.settings.backward_tolerance,
            "setting": self.sizes.setting,
            "adam_eps": self.sizes.adam_eps if self.kind in ("train", "similarity") else None,
        }
        return Row(**{**given, **values})

    @property
    def too_long(self) -> str:
        """Why a job fails that exceeds its time limit."""
        return f"time limit: longer than {self.time_limit:g} s"

    def failed(self, reason: str) -> Row:
        return self.row(status="failed", reason=reason)

    def skipped(self, reason: str) -> Row:
        return self.row(status="skipped", reason=reason)
