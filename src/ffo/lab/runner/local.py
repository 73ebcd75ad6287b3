"""All jobs on this machine, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ffo.lab.jobs import Job
from ffo.lab.runner.progress import Bars
from ffo.lab.runner.worker import Worker
from ffo.lab.store import Limits, Outcome, Store

#: how the reasons begin that a harder case would only meet again
LIMITS = ("time limit", "memory limit")


def pending(jobs: Sequence[Job], store: Store, limits: Limits) -> list[Job]:
    """The jobs that are not done; what earlier runs left of them is dropped."""
    left = [job for job in jobs if not store.is_done(job, limits)]
    store.forget(left)
    return left


def hopeless(job: Job, store: Store) -> str:
    """Why a job is not worth trying: an easier one was not, or ran into a limit. Empty if it is."""
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


def conclude(job: Job, outcome: Outcome, store: Store, limits: Limits, bars: Bars) -> None:
    """A job has ended: remember it and show it."""
    store.finish(job, limits, outcome)
    bars.ended(job, outcome)


def skip(job: Job, reason: str, store: Store, limits: Limits, bars: Bars) -> None:
    """A job that is not tried still leaves its row."""
    store.add(job.skipped(reason))
    conclude(job, Outcome("skipped", reason), store, limits, bars)


def run_here(
    jobs: Sequence[Job],
    store: Store,
    limits: Limits,
    bars: Bars,
    threads: int,
    make: Callable[..., Worker] = Worker,
) -> None:
    """Run jobs in their order: one at a time, so that none disturbs another's times."""
    worker = make(store.folder / "worker.log", threads)
    try:
        for job in jobs:
            bars.started(job)
            reason = hopeless(job, store)
            if reason:
                skip(job, reason, store, limits, bars)
            else:
                conclude(job, worker.run(job, limits, store.add), store, limits, bars)
    finally:
        worker.close()
