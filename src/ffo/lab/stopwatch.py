"""Seconds that count against a limit: those of the clock, less what other work on the machine has taken.

A job that keeps its process busy uses a second of processor time in every second of the clock, or more
with several threads. Where the cores are shared with other work it gets less; that is not held against it.
"""

from __future__ import annotations

import math
import time

import psutil


class Stopwatch:
    """Of this process; that of another, with all it has started, by its `psutil.Process`."""

    def __init__(self, process: psutil.Process | None = None) -> None:
        self.process = process
        self.clock, self.processor = time.monotonic(), self._processor()

    @property
    def seconds(self) -> float:
        """Since it was made: by the clock or by the processor, whichever is less."""
        return min(time.monotonic() - self.clock, self._processor() - self.processor)

    def _processor(self) -> float:
        if self.process is None:
            return time.process_time()
        try:
            tree = (self.process, *self.process.children(recursive=True))
        except psutil.NoSuchProcess:  # it is gone: the clock alone tells
            return math.inf
        return sum(_used(p) for p in tree)


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
