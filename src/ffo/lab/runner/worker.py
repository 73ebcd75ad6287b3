"""The parent's side of a worker process: send it a job, collect its rows, kill it if it exceeds a limit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ffo.lab.jobs import Job
from ffo.lab.rows import Row
from ffo.lab.stopwatch import Stopwatch
from ffo.lab.store import JobOutcome, Limits

#: seconds between checks of a job's memory, and between searches for its child processes
LOOK, CHILDREN = 0.05, 0.5
START_LIMIT = 120.0
#: seconds that a job has to stop by itself after its time limit, which keeps its process alive
GRACE = 2.0
#: fields that may be known before a job ends
KNOWN_EARLY = ("build_s", "forward_s", "backward_s", "total_s", "processor_s", "cosine", "l2", "linf", "solution")
CHILD = ["-m", "ffo.lab.runner.child"]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """One process at a time: started for the first job, and again after it had to be killed.

    `threads` are OpenMP and BLAS threads; `cores`, if any, those that the process and its descendants may use.
    """

    def __init__(self, log: Path, threads: int, cores: Sequence[int] = ()) -> None:
        self.log, self.threads, self.cores = log, threads, list(cores)
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: Connection | None = None

    def run(self, job: Job, limits: Limits, on_row: Callable[[Row], None]) -> JobOutcome:
        """Run a job to its end; `on_row` gets each row as it arrives, including the reason of a failure."""
        if job.fresh:
            self.close()
        connection = self._connect()
        connection.send(job)
        last: Row | None = None
        reason = ""
        watch = _Watch(self.process, limits.memory_mb, job)
        try:
            connection.recv()  # prepared
            watch = _Watch(self.process, limits.memory_mb, job)
            while not reason:
                if connection.poll(LOOK):
                    row = connection.recv()
                    if row is None:
                        break
                    row = watch.heard.completed(row)
                    if row.record != "progress":
                        on_row(row)
                        last = row if row.record == "result" else last
                else:
                    reason = watch.complaint()
        except (EOFError, ConnectionResetError):
            reason = self._exit_reason()
        seconds = watch.stopwatch.seconds
        if reason:
            last = watch.heard.completed(job.failed(reason))
            on_row(last)
        if reason or job.fresh:
            self.close()
        if last is None:
            return JobOutcome("failed", "no result", seconds)
        if last.reason == job.too_long:  # by the clock of its own process, which the one here lags behind
            seconds = max(seconds, job.time_limit)
        bounds = (last.elapsed_s, last.at_least_s) if last.status == "failed" else (None, None)
        return JobOutcome(last.status, last.reason, seconds, *bounds)

    def kill(self) -> None:
        """Kill the process and its descendants; its current job has failed."""
        if self.process is not None:
            end_tree(self.process.pid)

    def close(self) -> None:
        """End the process; the next job starts another."""
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            self.kill()
            self.process.wait()
        self.process = self.connection = None

    def _connect(self) -> Connection:
        if self.connection is not None:
            return self.connection
        ours, theirs = socket.socketpair()
        chosen = dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        command = [sys.executable, *CHILD, str(theirs.fileno())]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **chosen},
            )
        theirs.close()
        if self.cores:
            psutil.Process(self.process.pid).cpu_affinity(self.cores)
        self.connection = Connection(ours.detach())
        if not self.connection.poll(START_LIMIT):
            self.close()
            raise TimeoutError(f"a worker did not start in {START_LIMIT:g} s: see {self.log}")
        try:
            self.connection.recv()
        except EOFError:
            self.close()
            raise RuntimeError(f"a worker did not start: see {self.log}") from None
        return self.connection

    def _exit_reason(self) -> str:
        assert self.process is not None
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "memory limit: killed by the system (signal 9), probably because memory ran out"
        return f"the process was killed by signal {-code}" if code < 0 else f"the process ended with exit code {code}"


class _Heard:
    """What a job has reported so far, for the row that says why it was stopped."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch
        self.facts: dict[str, Any] = {}
        self.since = 0.0

    def completed(self, row: Row) -> Row:
        """The row; if it says why the job was stopped, completed with what was known before."""
        if row.status != "failed":
            self.facts = {name: getattr(row, name) for name in KNOWN_EARLY}
            if self._in_first_step:
                self.since = self.stopwatch.seconds
            return row
        seconds = self.stopwatch.seconds
        at_least = seconds - self.since if self._in_first_step else None
        return replace(row, elapsed_s=seconds, at_least_s=at_least, **self.facts)

    @property
    def _in_first_step(self) -> bool:
        return self.facts.get("build_s") is not None and self.facts["total_s"] is None


class _Watch:
    """Time and resident memory of a process and its descendants."""

    def __init__(self, process: subprocess.Popen[bytes] | None, limit_mb: float, job: Job) -> None:
        assert process is not None
        self.root = psutil.Process(process.pid)
        self.limit_mb, self.job = limit_mb, job
        self.stopwatch = Stopwatch(self.root)
        self.heard = _Heard(self.stopwatch)
        self.children: list[psutil.Process] = []
        self.looked = 0.0

    def complaint(self) -> str:
        """Why the job must stop; empty if it may continue."""
        try:
            if time.monotonic() - self.looked > CHILDREN:
                self.children, self.looked = self.root.children(recursive=True), time.monotonic()
                if self.stopwatch.seconds > self.job.time_limit + GRACE:
                    return self.job.too_long
        except psutil.NoSuchProcess:
            return ""
        used = sum(_resident(p) for p in (self.root, *self.children)) / 2**20
        if used <= self.limit_mb:
            return ""
        return f"memory limit: more than {self.limit_mb / 2**10:.1f} GB"


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def end_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    try:
        root = psutil.Process(pid)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
