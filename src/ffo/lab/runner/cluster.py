"""Jobs on a Ray cluster: each in a worker process of the node it lands on, under the same limits."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffo.lab.jobs import Job
from ffo.lab.rows import Row
from ffo.lab.runner.progress import Bars
from ffo.lab.runner.schedule import Ended, run_at_once
from ffo.lab.runner.worker import Worker
from ffo.lab.store import JobOutcome, Limits, Store

#: how often a job is started again because the Ray worker or the node that ran it died. A job that fails, or hits a
#: limit, does so in a process of its own and is not started again.
TAKEOVERS = 3


def run_in_process(job: Job, limits: Limits, threads: int) -> Ended:
    """One job in a worker process of its own: all its rows, and how it ended."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder) / "worker.log", threads)
        try:
            return rows, worker.run(job, limits, rows.append)
        finally:
            worker.close()


def run_on_ray(
    jobs: Sequence[Job],
    store: Store,
    limits: Limits,
    bars: Bars,
    threads: int,
    address: str,
    cpus_per_job: float,
) -> None:
    """Run jobs on the cluster at `address` ("auto": the one this machine belongs to; "local": a new one).

    A job starts once the smaller one that it depends on has ended. If the worker or the node that runs it dies,
    another one takes it over. Results are written here, by the driver alone.
    """
    import ray

    ray.init(address=address, log_to_driver=False, include_dashboard=False)
    remote: Any = ray.remote(num_cpus=cpus_per_job, max_retries=TAKEOVERS)(run_in_process)

    def first_ended(running: list[Any]) -> Any:
        return ray.wait(running, num_returns=1)[0][0]

    def result(found: Any, job: Job) -> Ended:
        try:
            return ray.get(found)
        except ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return [job.failed(reason)], JobOutcome("failed", reason)

    try:
        submit = lambda job: remote.remote(job, limits, threads)  # noqa: E731
        run_at_once(jobs, store, limits, bars, submit, first_ended, result, most=len(jobs))
    finally:
        ray.shutdown()
