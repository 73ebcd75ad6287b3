"""Jobs of the bilevel experiments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ffo.lab.jobs import Job
from ffo.lab.rows import LOWER_LEVELS, Row

ALGORITHM_ONE, PENALTY = "Algorithm 1", "penalty method"


@dataclass(frozen=True)
class BilevelJob(Job):
    """One contender, `label`, on the lower level `task`, which the layer `method` solves.

    Attributes:
        values: what is aimed at: epsilons of stationarity; accuracies of Algorithm 1's solves; weights of a penalty.
        deltas: perturbations of Algorithm 1, at the tightest of its accuracies.
    """

    values: tuple[float, ...] = ()
    deltas: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.experiment}: {self.label}, {LOWER_LEVELS[self.task]}, seed {self.seed}"

    def row(self, **values: Any) -> Row:
        return super().row(**{"d_y": None, "batch": None, **values})


def walk(job: BilevelJob) -> Iterator[Row]:
    """A row for each epsilon, then the calls of all."""
    from ffo.lab.bilevel.problems import PROBLEMS
    from ffo.lab.bilevel.walks import WALKS

    runs = WALKS[job.label](PROBLEMS[job.task](), job.seed, job.values)
    for run in runs:
        yield job.row(record="curve", epsilon=run.epsilon, calls=run.calls, distance=run.distance)
    yield job.row(calls=sum(run.calls for run in runs if run.calls is not None))


def price(job: BilevelJob) -> Iterator[Row]:
    """A row for each accuracy or weight, and for each perturbation; then those of the most accurate hypergradient."""
    from ffo.lab.bilevel.hypergradient import LowerLevel, algorithm_one, penalty_method

    lower = LowerLevel.draw(job.task, job.seed)
    expected, best = lower.reference(), job.row()
    for value in job.values:
        if job.label == PENALTY:
            cost, aimed = penalty_method(lower, expected, value), {"epsilon": 1 / value}
        else:
            cost, aimed = algorithm_one(lower, expected, value), {"tolerance": value}
        best = job.row(record="curve", l2=cost.error, calls=cost.calls, **aimed)
        yield best
    for delta in job.deltas:
        cost, tight = algorithm_one(lower, expected, min(job.values), delta), min(job.values)
        yield job.row(record="curve", l2=cost.error, calls=cost.calls, tolerance=tight, delta=delta)
    yield job.row(l2=best.l2, calls=best.calls)
