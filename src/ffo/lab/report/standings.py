"""Who stands where at one setting: a task at one size, all methods side by side.

A gradient is right if its cosine to the tight reference is at least 0.9999 on every seed. At that cosine
a gradient of the right length is off by 1.4%; one that is off by more than 5% has the right direction and
the wrong length (a mean over the batch for a sum, say), and is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ffo.lab.report.looks import is_ours, rank
from ffo.lab.report.results import Results, Spread, by, distinct, task_name
from ffo.lab.rows import Row

COSINE = 0.9999
LENGTH = 0.05
#: the size at which the paper compares
PAPER_SIZE = 800
#: task -> experiments that time it, the training run first
SOURCES = {
    "qp": ("dfl", "scaling_qp"),
    "sudoku4": ("sudoku",),
    "sudoku9": ("sudoku",),
    "socp": ("socp", "scaling_socp"),
}

Judgement = Literal["right", "wrong direction", "wrong length", "not measured"]


@dataclass(frozen=True)
class Accuracy:
    """A gradient against the tight reference, the worst of all seeds."""

    cosine: float | None
    l2: float | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Accuracy:
        cosines = [row.cosine for row in rows if row.cosine is not None]
        lengths = [row.l2 for row in rows if row.l2 is not None]
        return cls(min(cosines, default=None), max(lengths, default=None))

    @property
    def judgement(self) -> Judgement:
        if self.cosine is None:
            return "not measured"
        if self.cosine < COSINE:
            return "wrong direction"
        return "right" if self.l2 is None or self.l2 <= LENGTH else "wrong length"

    @property
    def right(self) -> bool:
        return self.judgement == "right"

    @property
    def wrong(self) -> bool:
        return self.judgement.startswith("wrong")


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
class Standing:
    """One method at one setting: a row for each seed that was timed, and the rows of what went wrong.

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
    def accuracy(self) -> Accuracy:
        return Accuracy.of(self.rows)

    @property
    def failed(self) -> bool:
        """Whether a seed was tried and gave no time."""
        return any(row.status == "failed" and row.total_s is None for row in self.trouble)

    @property
    def reason(self) -> str:
        """Why there is no measurement, or not on every seed."""
        return "; ".join(dict.fromkeys(row.reason or row.status for row in self.trouble))

    def ratio_to(self, other: Standing) -> Spread | None:
        """How many times longer a step takes than the other's, seed by seed."""
        mine, theirs = ({row.seed: row.total_s for row in each.rows if row.total_s} for each in (self, other))
        return Spread.of(mine[seed] / theirs[seed] for seed in mine if seed in theirs)


def settings_of(results: Results, task: str) -> list[Setting]:
    """Every size at which a task was tried; a size that two experiments share is the training run's."""
    found: dict[int | None, Setting] = {}
    for experiment in SOURCES[task]:
        tried = [*results.of(experiment, task=task), *results.of(experiment, task=task, status="failed")]
        for d_y, group in by(tried, "d_y").items():
            batch = Counter(row.batch for row in group).most_common(1)[0][0]
            found.setdefault(d_y, Setting(experiment, task, d_y, batch))
    return sorted(found.values(), key=lambda setting: setting.d_y or 0)


def headline_settings(results: Results) -> list[Setting]:
    """One setting for each task tried: the paper's size if the training run has it, else its largest;
    then the paper's size, where a sweep alone has it."""
    chosen = []
    for task, sources in SOURCES.items():
        settings = settings_of(results, task)
        main = [setting for setting in settings if setting.experiment == sources[0]]
        paper = [setting for setting in settings if setting.d_y == PAPER_SIZE]
        chosen += paper if paper and paper[0] in main else [*main[-1:], *paper]
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
    found = {}
    for method in sorted(distinct(here, "method"), key=rank):
        rows = [row for row in here if row.method == method]
        timed = tuple(row for row in rows if row.total_s is not None)
        found[method] = Standing(method, rows[0].family, timed, tuple(row for row in rows if row.status != "ok"))
    return found


def peers(standing: dict[str, Standing], family: str | None = None) -> list[Standing]:
    """Those that are not ours, of one family or of all."""
    return [each for each in standing.values() if not is_ours(each.method) and family in (None, each.family)]
