"""Training by several processes with `DistributedDataParallel` (gloo)."""

from __future__ import annotations

import multiprocessing as mp
import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

from ffo.lab.jobs import Job
from ffo.lab.rows import Row


def train_distributed(job: Job) -> Iterator[Row]:
    """`training.train` in `job.processes` processes, each with its share of every batch.

    Gradients are averaged over the processes, so that the result is that of one process with the whole
    batch. Times are those of the first process, on its share.
    """
    context = mp.get_context("spawn")
    queue: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "store").as_uri()
        processes = [
            context.Process(target=_rank, args=(rank, job, meeting, queue), daemon=True)
            for rank in range(job.processes)
        ]
        for process in processes:
            process.start()
        try:
            yield from _received(queue, processes)
        finally:
            for process in processes:
                process.terminate()
                process.join()


def _received(queue: Any, processes: list[Any]) -> Iterator[Row]:
    while True:
        try:
            message = queue.get(timeout=1.0)
        except Empty:
            broken = [p for p in processes if p.exitcode not in (None, 0)]
            if broken:
                raise RuntimeError(f"a training process ended with exit code {broken[0].exitcode}") from None
            continue
        if message is None:
            return
        if isinstance(message, str):
            raise RuntimeError(message)
        yield message


def _rank(rank: int, job: Job, meeting: str, queue: Any) -> None:
    import torch.distributed as dist

    from ffo.lab.training import train

    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=job.processes)
    try:
        for row in train(job):
            if rank == 0:
                queue.put(row)
        dist.barrier()
        if rank == 0:
            queue.put(None)
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")
    finally:
        dist.destroy_process_group()
