"""Seconds that count against a limit: wall-clock time without the time taken by other work on the machine.

A busy job uses a second of processor time per second of wall-clock time, or more with several threads. If it has to
share the cores with other work it gets less, and the difference does not count.
"""

from __future__ import annotations

import math
import time

import psutil


class Stopwatch:
    """Stopwatch of this process, or of another `psutil.Process` with its descendants."""

    def __init__(self, process: psutil.Process | None = None) -> None:
        self.process = process
        self.clock, self.processor = time.monotonic(), self._processor()

    @property
    def seconds(self) -> float:
        """Seconds since it was made: wall-clock or processor time, whichever is less."""
        return min(time.monotonic() - self.clock, self._processor() - self.processor)

    def _processor(self) -> float:
        if self.process is None:
            return time.process_time()
        try:
            tree = (self.process, *self.process.children(recursive=True))
        except psutil.NoSuchProcess:  # the process is gone: only the clock is left
            return math.inf
        return sum(_used(p) for p in tree)


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
