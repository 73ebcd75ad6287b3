"""All jobs on this machine: one at a time if times are measured, else one per core; or several, pinned to cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from ffo.kernels.pool import cpus
from ffo.lab.jobs import Job
from ffo.lab.rows import Row
from ffo.lab.runner.progress import Bars
from ffo.lab.runner.schedule import Ended, conclude, hopeless, run_at_once, skip
from ffo.lab.runner.worker import Worker
from ffo.lab.store import Limits, Store

MakeWorker = Callable[..., Worker]


def run_here(
    jobs: Sequence[Job],
    store: Store,
    limits: Limits,
    bars: Bars,
    threads: int,
    make: MakeWorker = Worker,
    at_once: int = 0,
) -> None:
    """Run jobs in their order: those that are timed one at a time, so that none disturbs another's times.

    With `at_once`, so many jobs run at a time, timed or not, each on cores of its own.
    """
    if at_once:
        pinned = [make(store.folder / f"worker-{k}.log", threads, share) for k, share in enumerate(shares(at_once))]
        run_side_by_side(jobs, store, limits, bars, pinned)
        return
    workers = [make(store.folder / f"worker-{k}.log", threads) for k in range(cpus())]
    try:
        run_in_turn([job for job in jobs if job.timed], store, limits, bars, workers[0])
        run_side_by_side([job for job in jobs if not job.timed], store, limits, bars, workers)
    finally:
        for worker in workers:
            worker.close()


def shares(count: int) -> list[list[int]]:
    """The cores of this process in so many equal shares; empty ones if the system does not tell."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    size = len(cores) // count
    return [cores[k * size : (k + 1) * size] for k in range(count)]


def run_in_turn(jobs: Sequence[Job], store: Store, limits: Limits, bars: Bars, worker: Worker) -> None:
    """One at a time; rows are written as they come."""
    for job in jobs:
        bars.started(job)
        reason = hopeless(job, store)
        if reason:
            skip(job, reason, store, limits, bars)
        else:
            conclude(job, worker.run(job, limits, store.add), store, limits, bars)


def run_side_by_side(jobs: Sequence[Job], store: Store, limits: Limits, bars: Bars, workers: Sequence[Worker]) -> None:
    """One job per worker at a time; a job's rows are written when it has ended."""
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run(job: Job) -> Ended:
        worker, rows = free.get(), list[Row]()
        try:
            return rows, worker.run(job, limits, rows.append)
        finally:
            free.put(worker)

    def first_ended(running: list[Future[Ended]]) -> Future[Ended]:
        return next(iter(wait(running, return_when=FIRST_COMPLETED).done))

    pool = ThreadPoolExecutor(len(workers))
    try:
        run_at_once(
            jobs,
            store,
            limits,
            bars,
            lambda job: pool.submit(run, job),
            first_ended,
            lambda f, _: f.result(),
            len(workers),
        )
    finally:
        for worker in workers:
            worker.kill()  # after an interruption this wakes the waiting thread; its rows are dropped
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()
