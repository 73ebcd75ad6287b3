"""The process that runs jobs: `python -m ffo.lab.runner.child FD`.

It takes jobs from the connection with that file descriptor and sends their rows back, None after each
job. What contenders print goes where its output was sent; an interrupt is its parent's business.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from multiprocessing.connection import Connection
from pathlib import Path


def serve(connection: Connection) -> None:
    """Run jobs until the other side closes."""
    import torch  # noqa: F401 - imported before the first job, whose time it is not

    from ffo.lab.work import rows_of

    connection.send("ready")
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            for row in rows_of(connection.recv()):
                connection.send(row)
            connection.send(None)


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
