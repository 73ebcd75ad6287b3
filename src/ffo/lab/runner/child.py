"""The process that runs jobs: `python -m ffo.lab.runner.child FD`.

It takes jobs from the connection with that file descriptor and sends their rows back, None after each
job. What contenders print goes where its output was sent; an interrupt is its parent's business.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffo.lab.rows import Row


def serve(connection: Connection) -> None:
    """Run jobs until the other side closes."""
    import torch  # noqa: F401 - imported before the first job, whose time it is not

    from ffo.lab.work import rows_of

    connection.send("ready")
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = connection.recv()
            try:
                with _limited(job.time_limit):
                    _send(rows_of(job), connection)
            except TimeoutError as error:  # it rang between two rows
                connection.send(job.failed(f"time limit: {error}"))
            connection.send(None)


def _send(rows: Iterator[Row], connection: Connection) -> None:
    for row in rows:
        with _undisturbed():
            connection.send(row)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """A TimeoutError inside after so many seconds, wherever Python code runs then."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No alarm inside: a message must not be cut in two."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_first() -> None:
    """If the system runs out of memory, this process goes, not the one that keeps the results."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("once")
    _die_first()
    serve(Connection(int(sys.argv[1])))
