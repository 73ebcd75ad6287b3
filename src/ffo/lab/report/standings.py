"""Comparison of all methods at one setting: a task at one size.

A gradient is right if its cosine to the tight reference is at least 0.9999 on every seed, and wrong below 0.999;
in between it is inexact (one of thousands of variables wrongly taken as active, say), but its time still
counts. At a cosine of 0.9999 a gradient of the right length is off by 1.4%; one that is off by more than 5%
has the right direction and the wrong length (a mean over the batch instead of a sum, say), and is wrong. So
is any gradient at a solution that is off by more than 1%.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ffo.lab.report.looks import is_ours, rank
from ffo.lab.report.results import Results, Spread, by, task_name
from ffo.lab.rows import Row

COSINE, CLOSE = 0.9999, 0.999
LENGTH = 0.05
SOLUTION = 0.01
#: the size at which the paper compares
PAPER_SIZE = 800
#: task -> experiments that time it, the training run first
SOURCES = {
    "qp": ("dfl", "scaling_qp"),
    "qp_dense": ("dense", "scaling_dense"),
    "sudoku4": ("sudoku", "scaling_sudoku"),
    "sudoku9": ("sudoku", "scaling_sudoku"),
    "socp": ("socp", "scaling_socp"),
}

Judgement = Literal["right", "inexact", "wrong direction", "wrong length", "wrong solution", "not measured"]


@dataclass(frozen=True)
class Accuracy:
    """A gradient, and the solution it belongs to, against the tight reference: the worst of all seeds."""

    cosine: float | None
    l2: float | None
    solution: float | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Accuracy:
        cosines = [row.cosine for row in rows if row.cosine is not None]
        lengths = [row.l2 for row in rows if row.l2 is not None]
        solutions = [row.solution for row in rows if row.solution is not None]
        return cls(min(cosines, default=None), max(lengths, default=None), max(solutions, default=None))

    @property
    def judgement(self) -> Judgement:
        if self.solution is not None and self.solution > SOLUTION:
            return "wrong solution"
        if self.cosine is None:
            return "not measured"
        if self.cosine < CLOSE:
            return "wrong direction"
        if self.l2 is not None and self.l2 > LENGTH:
            return "wrong length"
        return "right" if self.cosine >= COSINE else "inexact"

    @property
    def right(self) -> bool:
        return self.judgement == "right"

    @property
    def rival(self) -> bool:
        """Whether its time may be compared with ours."""
        return self.judgement in ("right", "inexact")

    @property
    def wrong(self) -> bool:
        return self.judgement.startswith("wrong")


def reasons(rows: Sequence[Row]) -> str:
    """Why runs failed or were skipped, without reasons that follow from others."""
    found = dict.fromkeys(row.reason or row.status for row in rows)
    own = [reason for reason in found if not reason.startswith(("not tried", "not repeated"))]
    return "; ".join(own or found)


@dataclass(frozen=True)
class Setting:
    """One task at one size, as one experiment measured it."""

    experiment: str
    task: str
    d_y: int | None
    batch: int | None

    @property
    def label(self) -> str:
        return task_name(self.task, self.d_y)


@dataclass(frozen=True)
class Bound:
    """A step takes more than `ratio` times as long; `built`: counted from the first step, else including the build."""

    ratio: float
    built: bool


@dataclass(frozen=True)
class Standing:
    """One method at one setting: a row for each seed that measured something, and the rows of failures.

    A run that was timed and then stopped (at its time limit, say) is among both.
    """

    method: str
    family: str
    rows: tuple[Row, ...]
    trouble: tuple[Row, ...]

    @property
    def total(self) -> Spread | None:
        return Spread.of(row.total_s for row in self.rows)

    @property
    def forward(self) -> Spread | None:
        return Spread.of(row.forward_s for row in self.rows)

    @property
    def backward(self) -> Spread | None:
        return Spread.of(row.backward_s for row in self.rows)

    @property
    def processor(self) -> Spread | None:
        return Spread.of(row.processor_s for row in self.rows)

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy.of(self.rows)

    @property
    def failed(self) -> bool:
        """Whether a seed was tried and gave no time."""
        return any(row.status == "failed" and row.total_s is None for row in self.trouble)

    @property
    def reason(self) -> str:
        """Why there is no measurement, or not on every seed."""
        return reasons(self.trouble)

    def ratio_to(self, other: Standing) -> Spread | None:
        """How many times as long as the other's a step takes, seed by seed."""
        mine, theirs = ({row.seed: row.total_s for row in each.rows if row.total_s} for each in (self, other))
        return Spread.of(mine[seed] / theirs[seed] for seed in mine if seed in theirs)

    def bound_to(self, other: Standing) -> Bound | None:
        """A lower bound on that ratio, if the run was stopped before its first step ended; None if the bound is not
        above one."""
        steps, builds = other.total, Spread.of(row.build_s for row in other.rows)
        if self.total is not None or steps is None:
            return None
        begun = [row.at_least_s for row in self.trouble if row.at_least_s is not None]
        if begun:
            return Bound(min(begun) / steps.high, built=True) if min(begun) > steps.high else None
        building = [row.elapsed_s for row in self.trouble if row.elapsed_s is not None and row.build_s is None]
        if building and builds is not None and min(building) > builds.high + steps.high:
            return Bound(min(building) / (builds.high + steps.high), built=False)
        return None


def settings_of(results: Results, task: str, field: str = "total_s") -> list[Setting]:
    """Every size at which a field was measured (by default: at which the task was timed); a size that two
    experiments share is the training run's."""
    found: dict[int | None, Setting] = {}
    for experiment in SOURCES[task]:
        measured = [row for row in results.of(experiment, task=task) if getattr(row, field) is not None]
        for d_y, group in by(measured, "d_y").items():
            batch = Counter(row.batch for row in group).most_common(1)[0][0]
            found.setdefault(d_y, Setting(experiment, task, d_y, batch))
    return sorted(found.values(), key=lambda setting: setting.d_y or 0)


def timed_settings(results: Results) -> list[Setting]:
    """Every size at which a task was timed."""
    return [setting for task in SOURCES for setting in settings_of(results, task)]


def trained_settings(results: Results) -> list[Setting]:
    """Where models were trained: the paper's size, or the largest."""
    chosen = []
    for task, (training, *_) in SOURCES.items():
        settings = [each for each in settings_of(results, task, "train_loss") if each.experiment == training]
        chosen += [each for each in settings if each.d_y == PAPER_SIZE] or settings[-1:]
    return chosen


def headline_settings(results: Results) -> list[Setting]:
    """For each task that was timed, the paper's size and the largest other one; Sudoku's boards."""
    chosen = []
    for task in SOURCES:
        settings = settings_of(results, task)
        paper = [setting for setting in settings if setting.d_y == PAPER_SIZE]
        others = [setting for setting in settings if setting.d_y is None or setting.d_y < PAPER_SIZE]
        chosen += [*(others or settings if not paper else others)[-1:], *paper]
    return chosen


def standings(results: Results, setting: Setting) -> dict[str, Standing]:
    """Every method that ran or should have run at a setting, ours first."""
    here = [
        row
        for row in results.rows
        if row.experiment == setting.experiment
        and row.task == setting.task
        and row.record == "result"
        and row.d_y in (setting.d_y, None)
        and row.batch in (setting.batch, None)
    ]
    groups = by(here, "method")
    found = {}
    for method in sorted(groups, key=rank):
        rows = groups[method]
        measured = tuple(row for row in rows if row.total_s is not None or row.status == "ok")
        found[method] = Standing(method, rows[0].family, measured, tuple(row for row in rows if row.status != "ok"))
    return found


def peers(standing: dict[str, Standing], family: str | None = None) -> list[Standing]:
    """Those that are not ours, of one family or of all."""
    return [each for each in standing.values() if not is_ours(each.method) and family in (None, each.family)]
