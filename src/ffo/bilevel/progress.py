"""A progress bar on the error stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ffo.errors import InputError

#: called with the oracle calls so far, the best stationarity and the last value
Report = Callable[[int, float, float], None]


@contextmanager
def progress_bar(wanted: bool | None, budget: int, epsilon: float) -> Iterator[Report]:
    """A progress bar; None shows it in a terminal if `rich` is installed."""
    if wanted is None:
        wanted = sys.stderr.isatty() and find_spec("rich") is not None
    if not wanted:
        yield lambda calls, stationarity, value: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        raise InputError("progress=True needs the rich package: pip install rich") from None
    words = TextColumn("|g| {task.fields[best]:.1e}/{task.fields[goal]:.1e} F {task.fields[value]:.6g}")
    columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), words)
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=budget, best=float("inf"), goal=epsilon, value=float("nan"))
        yield lambda calls, stationarity, value: bar.update(task, completed=calls, best=stationarity, value=value)
