"""Progress bars, with the time left estimated from the finished jobs of each experiment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ffo.lab.jobs import Job
from ffo.lab.store import JobOutcome


class TimeLeft:
    """Seconds left: for each remaining job the mean of its experiment so far, else of all jobs so far.

    `timed_at_once` jobs run in parallel if times are measured, else `at_once`.
    """

    def __init__(self, jobs: Sequence[Job], timed_at_once: int = 1, at_once: int = 1) -> None:
        self.remaining = list(jobs)
        self.at_once = {True: timed_at_once, False: at_once}
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def finished(self, job: Job, seconds: float) -> None:
        self.remaining.remove(job)
        self.seconds[job.experiment].append(seconds)

    def estimate(self) -> float | None:
        """None before the first job has ended."""
        everything = [s for group in self.seconds.values() for s in group]
        if not everything:
            return None
        mean = sum(everything) / len(everything)
        means = {name: sum(group) / len(group) for name, group in self.seconds.items()}
        return sum(means.get(job.experiment, mean) / self.at_once[job.timed] for job in self.remaining)


class Bars:
    """Shows which jobs have started and ended."""

    def __init__(self, progress: Progress, jobs: Sequence[Job], left: TimeLeft) -> None:
        self.progress, self.left = progress, left
        self.task = progress.add_task("", total=len(jobs), now="starting", left="")

    def started(self, job: Job) -> None:
        self.progress.update(self.task, now=job.title)

    def ended(self, job: Job, outcome: JobOutcome) -> None:
        self.left.finished(job, outcome.seconds)
        seconds = self.left.estimate()
        left = "" if seconds is None else f"about {duration(seconds)} left"
        self.progress.update(self.task, advance=1, left=left)
        if outcome.status == "failed":
            self.progress.console.print(f"[yellow]{job.title}[/yellow]: {outcome.reason}", highlight=False)


def duration(seconds: float) -> str:
    """A duration in a suitable unit."""
    for most, scale, text in ((90, 1, "{:.0f} s"), (5400, 60, "{:.0f} min"), (172_800, 3600, "{:.1f} h")):
        if seconds < most:
            return text.format(seconds / scale)
    return f"{seconds / 86_400:.1f} days"


@contextmanager
def bars(jobs: Sequence[Job], console: Console, timed_at_once: int = 1, at_once: int = 1) -> Iterator[Bars]:
    """Bars on the console while the jobs run, so many at a time (see `TimeLeft`)."""
    columns = [
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.fields[now]}"),
    ]
    with Progress(*columns, console=console) as progress:
        yield Bars(progress, jobs, TimeLeft(jobs, timed_at_once, at_once))
