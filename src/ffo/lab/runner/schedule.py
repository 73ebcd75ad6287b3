"""Which job may start: several at once, each after the easier one that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ffo.lab.baselines import BASELINES
from ffo.lab.jobs import Job
from ffo.lab.rows import Row
from ffo.lab.runner.progress import Bars
from ffo.lab.store import JobOutcome, Limits, Store

#: prefixes of reasons that would recur in a harder case
LIMITS = ("time limit", "memory limit")
#: all rows of a job, and how it ended
Ended = tuple[list[Row], JobOutcome]


def pending(jobs: Sequence[Job], store: Store, limits: Limits) -> list[Job]:
    """The jobs that are not done; their rows from earlier runs are dropped."""
    left = [job for job in jobs if not store.is_done(job, limits)]
    store.forget(left)
    return left


def hopeless(job: Job, store: Store) -> str:
    """Why a job is not tried: an easier one was not tried, or hit a limit. Empty if it is."""
    easier = store.outcome(job.after) if job.after else None
    if easier is None:
        return ""
    if easier.status == "skipped":
        return easier.reason
    if easier.status == "failed" and easier.reason.startswith(LIMITS):
        return f"not tried: in an easier case, {easier.reason}"
    if easier.seconds > job.repeat_limit:
        return f"not repeated: another seed took {easier.seconds:.1f} s"
    return ""


def conclude(job: Job, outcome: JobOutcome, store: Store, limits: Limits, bars: Bars) -> None:
    """Record and show that a job has ended."""
    store.finish(job, limits, outcome)
    bars.ended(job, outcome)


def skip(job: Job, reason: str, store: Store, limits: Limits, bars: Bars) -> None:
    """Write the row of a job that is not tried, with the lower bound on its time from the easier case."""
    easier = store.outcome(job.after) or JobOutcome("skipped")
    store.add(replace(job.skipped(reason), elapsed_s=easier.elapsed_s, at_least_s=easier.at_least_s))
    conclude(job, replace(easier, status="skipped", reason=reason, seconds=0.0), store, limits, bars)


def run_at_once(
    jobs: Sequence[Job],
    store: Store,
    limits: Limits,
    bars: Bars,
    submit: Callable[[Job], Any],
    first_ended: Callable[[list[Any]], Any],
    result: Callable[[Any, Job], Ended],
    most: int,
) -> None:
    """Run jobs, at most `most` at a time: `submit` starts one and returns a handle, `first_ended` waits for one
    of several handles, `result` returns how it ended. A timed job on a device has it to itself.
    Results are written here, by the caller's thread alone."""
    waiting = list(jobs)
    running: dict[Any, Job] = {}
    while waiting or running:
        unsettled = {job.key for job in [*waiting, *running.values()]}
        ready = [job for job in waiting if job.after not in unsettled]
        for job in ready:
            if len(running) == most:
                break
            if _on_device(job) and any(_on_device(other) and (job.timed or other.timed) for other in running.values()):
                continue
            waiting.remove(job)
            reason = hopeless(job, store)
            if reason:
                skip(job, reason, store, limits, bars)
            else:
                bars.started(job)
                running[submit(job)] = job
        if running:
            handle = first_ended(list(running))
            job = running.pop(handle)
            rows, outcome = result(handle, job)
            for row in rows:
                store.add(row)
            conclude(job, outcome, store, limits, bars)


def _on_device(job: Job) -> bool:
    return BASELINES[job.method].on_device
