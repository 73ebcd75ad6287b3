"""The process that runs jobs: `python -m ffo.lab.runner.child FD`.

It receives jobs from the connection with that file descriptor, reports when a job's time starts, and sends its
rows back, with None after the last. Output of the methods goes to the process's own output. Interrupts are
handled by the parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from ffo.lab.imports import import_light
from ffo.lab.stopwatch import Stopwatch


def serve(connection: Connection) -> None:
    """Run jobs until the other side closes."""
    import_light()  # before the first job, whose time it is not
    from ffo.lab.work import prepare, rows_of

    connection.send("ready")
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = connection.recv()
            prepare(job)
            connection.send("prepared")
            alarm = Alarm(job.time_limit)
            try:
                with alarm:
                    for row in rows_of(job):
                        with _alarm_blocked():
                            # a method may have swallowed it with a bare except and gone on
                            if alarm.rang:
                                raise OutOfTime
                            connection.send(row)
            except OutOfTime:
                connection.send(job.failed(job.too_long))
            connection.send(None)


class OutOfTime(BaseException):
    """Not an Exception, because methods catch those."""


class Alarm:
    """Raises `OutOfTime` inside the block after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.limit, self.rang = seconds, False

    def __enter__(self) -> None:
        self.watch = Stopwatch()
        self.before = signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, self.limit)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def _on_alarm(self, *_: object) -> None:
        left = self.limit - self.watch.seconds
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.01))
            return
        self.rang = True
        raise OutOfTime


@contextlib.contextmanager
def _alarm_blocked() -> Iterator[None]:
    """Blocks the alarm: a message must not be interrupted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with(parent: int) -> None:
    """Exit when the parent has exited for any reason: a job may have hours to run."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _killed_first() -> None:
    """If the system runs out of memory, this process is killed before the one that keeps the results."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("once")
    _killed_first()
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
