"""A rough estimate of how long a list of jobs will take, before any of them has run.

It uses milliseconds per sample of one step, forward and backward, measured once on two cores of an AMD EPYC with the
versions in constraints.txt, and a power law between sizes and beyond them. Another machine differs by a factor, which
the progress bar estimates as jobs end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ffo.lab.baselines import BASELINES
from ffo.lab.bilevel.jobs import BilevelJob
from ffo.lab.jobs import Job
from ffo.lab.tasks import make_task
from ffo.lab.training import FIRST_STEPS

SIZES = (50, 200, 800)
#: method -> QP at each of SIZES; SOCP at each; Sudoku 4×4 and 9×9
MILLISECONDS: dict[str, tuple[tuple[float, ...], tuple[float, ...], tuple[float, float]]] = {
    "FFOCP": ((0.13, 0.42, 1.1), (2.0, 4.7, 21), (0.53, 200)),
    "FFOCP (paper)": ((0.6, 3.0, 16), (6.0, 25, 120), (12, 450)),
    "FFOQP": ((0.13, 0.35, 1.2), (), (0.21, 26)),
    "FFOQP (paper)": ((1.2, 2.0, 14), (), (2.2, 320)),
    "CvxpyLayer": ((2.9, 12, 51), (5.2, 23, 100), (7.4, 750)),
    "CvxpyLayer (constants)": ((2.7, 5.0, 19), (5.1, 12, 43), (7.4, 750)),
    "LPGD": ((2.4, 14, 60), (4.7, 31, 120), (9.1, 1000)),
    "LPGD (tight)": ((3.6, 19, 80), (6.1, 32, 140), (19, 2000)),
    "Moreau (cvxpylayers)": ((1.7, 67, 3300), (2.7, 190, 8000), (3.4, 1100)),
    "BPQP": ((1.2, 2.5, 17), (1.7, 5.1, 27), (2.8, 670)),
    "dQP": ((1.2, 1.4, 3.6), (), (2.1, 310)),
    "Alt-Diff": ((41, 4000, 300_000), (), (110, 100_000)),
    "QPTH": ((3.7, 170, 4700), (), (5.4, 1800)),
    "QPLayer": ((0.48, 9.5, 120), (), (1.1, 250)),
    "Moreau (direct)": ((0.4, 3.4, 10), (1.2, 6.5, 43), (6.0, 2500)),
}
#: a step on the QP with a dense Q at the largest size, over one with Q = I, for most methods
DENSE = 50.0
#: seconds of a bilevel job for each of its values: the smaller they are, the longer it takes
BILEVEL = 1.0
#: additional seconds of every job, and of a job in a fresh process
OVERHEAD, START = 0.4, 2.5


def estimate(jobs: Sequence[Job], at_once: int, timed_at_once: int = 1) -> float:
    """Seconds for all jobs, `timed_at_once` at a time if times are measured, else `at_once`.

    As in the runner, a method that hits its limit is not tried on harder cases, and a slow one not on further seeds.
    Training that would take longer than its limit is left out after a step or two, or an epoch.
    """
    total, hopeless, took = 0.0, set(), dict[str, float]()
    for job in jobs:
        series = (job.experiment, job.task, job.method, job.settings)
        if took.get(job.after, 0.0) > job.repeat_limit:
            took[job.key] = took[job.after]
            continue
        if isinstance(job, BilevelJob):
            total += (OVERHEAD + BILEVEL * len(job.values)) / at_once
            continue
        if series in hopeless or BASELINES[job.method].why_not(make_task(job.task, job.sizes).inner, job.settings):
            continue
        step = job.batch * seconds_per_sample(job.method, job.task, job.d_y)
        steps = _steps(job)
        refused = job.kind == "train" and steps * step > job.time_limit
        seconds = step * (steps / job.epochs if refused else steps)
        for taken, margin in enumerate(FIRST_STEPS, 1):
            if refused and steps * step > margin * job.time_limit:
                seconds = min(seconds, taken * step)
        if job.kind == "time":
            seconds = max(step, min(seconds, job.budget))
        if refused or seconds > job.time_limit:
            hopeless.add(series)
        seconds = min(seconds, job.time_limit) + (START if job.fresh else OVERHEAD)
        took[job.key] = seconds
        total += seconds / (timed_at_once if job.timed else at_once)
    return total


def seconds_per_sample(method: str, task: str, d_y: int) -> float:
    """Seconds of one step; for a method that was not measured, those of a similar one."""
    like = next((name for name in ("FFOCP", "FFOQP") if method.startswith(name)), "CvxpyLayer (constants)")
    qp, socp, boards = MILLISECONDS.get(method) or MILLISECONDS[like]
    if task.startswith("sudoku"):
        return 1e-3 * boards[task == "sudoku9"]
    known = np.log(socp if task == "socp" else qp)
    at, places = np.log(d_y), np.log(SIZES)
    end = 0 if d_y <= SIZES[1] else 1
    slope = (known[end + 1] - known[end]) / (places[end + 1] - places[end])
    dense = DENSE * d_y / SIZES[-1] if task == "qp_dense" else 1.0
    return 1e-3 * float(np.exp(known[end] + slope * (at - places[end]))) * max(dense, 1.0)


def _steps(job: Job) -> float:
    """Steps of a job; a training run's tests count by their share of the samples."""
    if job.kind == "train":
        return 1.2 * job.epochs * max(1, round(0.8 * job.sizes.samples) // job.batch)
    return {"time": job.steps + 1, "similarity": job.steps}.get(job.kind, 1)
