"""Sixteen ordinary CVXPY families against cvxpylayers: times of a step, and errors of both gradients.

Both layers use all cores that the process may use: cvxpylayers through its `n_jobs_forward` and
`n_jobs_backward`, whose default counts the cores of the machine instead. Gradients are judged at default
settings against differences of tight solves (`benchmarks.accuracy`), on the largest batch of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.accuracy import Accuracy, compare, probes
from benchmarks.family_problems import FAMILIES
from benchmarks.peers import Step
from benchmarks.problems import Case
from benchmarks.report import Figure, Suite
from benchmarks.timing import Entry, Timing, measure

OURS, PEER = "ffo", "cvxpylayers"
#: largest gradient error, beyond the uncertainty of the reference
GRADIENT_ERROR = 1e-8
#: assumed error of the reference, in units of its uncertainty
DOUBT = 3.0
#: samples and directions of the reference
SAMPLES, DIRECTIONS = 2, 3


@dataclass(frozen=True)
class Goal:
    """A batch size, with the geometric mean and the smallest single ratio to reach."""

    batch: int
    mean: float
    least: float


#: steps in a row at batch 1: single samples are solved in loops, one after the other. A step after other work, whose
#: data and code have left the caches (column `first`), takes a third longer with this package.
IN_A_ROW = 10

SMALL = (Goal(64, 20.0, 8.0), Goal(1, 8.0, 3.0))
LARGE = (Goal(256, 30.0, 8.0),)


@dataclass(frozen=True)
class Outcome:
    """The result for one family at one batch size; the ratio is the smaller of those of medians and best times."""

    family: str
    batch: int
    ours: Timing
    peer: Timing
    our_error: Accuracy
    peer_error: Accuracy

    @property
    def ratio(self) -> float:
        return min(self.peer.total / self.ours.total, self.peer.best / self.ours.best)

    @property
    def excess(self) -> float:
        """Our gradient error beyond the uncertainty of the reference; NaN if there is none."""
        return float(np.maximum(0.0, self.our_error.error - DOUBT * self.our_error.uncertainty))

    def as_row(self) -> dict[str, Any]:
        reasons = (self.ours.reason, self.our_error.reason, self.peer.reason)
        return {
            "case": self.family,
            "batch": self.batch,
            "ratio": self.ratio,
            "first": self.peer.first / self.ours.first,
            "ffo ms": 1e3 * self.ours.total,
            "forward": 1e3 * self.ours.forward,
            "backward": 1e3 * self.ours.backward,
            "peer ms": 1e3 * self.peer.total,
            "ffo error": self.our_error.error,
            "peer error": self.peer_error.error,
            "uncertain": self.our_error.uncertainty,
            "reason": next(filter(None, reasons), ""),
        }


def cvxpylayers(case: Case) -> Step:
    """cvxpylayers with a thread for every core of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return peers.cvxpylayers(case, solver_args={"n_jobs_forward": cores, "n_jobs_backward": cores})


def suite(goals: Sequence[Goal], repeats: int, progress: Callable[[str], None]) -> Suite:
    """All families at all batch sizes."""
    outcomes = [o for build in FAMILIES for o in _family(build, goals, repeats, progress)]
    figures = [figure for goal in goals for figure in _figures(goal, outcomes)]
    worst = max(outcomes, key=lambda o: np.nan_to_num(o.excess, nan=np.inf))
    name = f"largest gradient error beyond the reference's own ({worst.family})"
    figures.append(Figure(name, worst.excess, GRADIENT_ERROR, "", False, worst.our_error.reason))
    ordered = sorted(outcomes, key=lambda o: -o.batch)  # families keep their order
    return Suite("families", figures, [outcome.as_row() for outcome in ordered])


def _family(
    build: Callable[[int], Case], goals: Sequence[Goal], repeats: int, progress: Callable[[str], None]
) -> list[Outcome]:
    checked = build(max(goal.batch for goal in goals))
    progress(f"{checked.name}: reference")
    reference = probes(checked, samples=SAMPLES, directions=DIRECTIONS)
    progress(f"{checked.name}: gradients")
    errors = [
        compare(label, contender, checked, reference) for label, contender in ((OURS, peers.ffo), (PEER, cvxpylayers))
    ]
    outcomes = []
    for goal in goals:
        case = build(goal.batch)
        entries = [Entry(OURS, peers.ffo, case), Entry(PEER, cvxpylayers, case)]
        words = lambda what, goal=goal: progress(f"{checked.name}, batch {goal.batch}: {what}")  # noqa: E731
        ours, peer = measure(entries, repeats, progress=words, run=IN_A_ROW if goal.batch == 1 else 1)
        outcomes.append(Outcome(checked.name, goal.batch, ours, peer, *errors))
    return outcomes


def _figures(goal: Goal, outcomes: Sequence[Outcome]) -> list[Figure]:
    """The geometric mean and the smallest of the ratios; if a family failed, both are unmeasured."""
    at = [o for o in outcomes if o.batch == goal.batch]
    ratios = np.array([o.ratio for o in at])
    reason = next((f"{t.label}: {t.reason}" for o in at for t in (o.ours, o.peer) if t.reason), "")
    least = at[int(np.argmin(np.nan_to_num(ratios, nan=np.inf)))].family
    name = f"batch {goal.batch}: step against {PEER}"
    mean = float(np.exp(np.log(ratios).mean()))
    return [
        Figure(f"{name}, geometric mean of {len(at)} families", mean, goal.mean, reason=reason),
        Figure(f"{name}, the least ({least})", float(ratios.min()), goal.least, reason=reason),
    ]
