"""The results folder: rows appended one by one, and the record of finished jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from ffo.lab.jobs import Job
from ffo.lab.rows import DONE, MACHINE, ROWS, Machine, Row, read_lines

#: times as much memory as before counts as a looser limit: its default depends on what is free
MORE = 1.25


@dataclass(frozen=True)
class Limits:
    """Limits of one job: megabytes of all its processes; its time limit is in the job itself."""

    memory_mb: float


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: status of its result row, reason, and seconds, without those taken by other work on the machine;
    and `elapsed_s` and `at_least_s` of that row, which are lower bounds for a harder case."""

    status: Literal["ok", "failed", "skipped"]
    reason: str = ""
    seconds: float = 0.0
    elapsed_s: float | None = None
    at_least_s: float | None = None


class Store:
    """Writes one results folder; open it with `with`.

    A job is done once it is in `done.jsonl`. A job that met a tighter limit than the current one, or was skipped, is
    tried again. Rows of jobs that are not done are dropped before those jobs run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._done = {entry["job"]: entry for entry in read_lines(folder / DONE)}
        self._rows: IO[str] | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def outcome(self, key: str) -> JobOutcome | None:
        """How the job of this key ended, if it did."""
        entry = self._done.get(key)
        return JobOutcome(**{field.name: entry[field.name] for field in fields(JobOutcome)}) if entry else None

    def is_done(self, job: Job, limits: Limits) -> bool:
        entry = self._done.get(job.key)
        if entry is None or entry["status"] == "skipped":
            return False
        slower, larger = job.time_limit > entry["time_limit"], limits.memory_mb > MORE * entry["memory_mb"]
        looser = {"time limit": slower, "memory limit": larger}.get(entry["reason"].split(":")[0], slower or larger)
        return entry["status"] == "ok" or not looser

    def forget(self, jobs: Iterable[Job]) -> None:
        """Drop rows of these jobs from earlier runs."""
        keys = {job.key for job in jobs}
        self._done = {key: entry for key, entry in self._done.items() if key not in keys}
        self._replace(DONE, self._done.values())
        self._replace(ROWS, (entry for entry in read_lines(self.folder / ROWS) if entry["job"] not in keys))

    def add(self, row: Row) -> None:
        """Append a row; it is in the file when this returns."""
        if self._rows is None:
            self._rows = (self.folder / ROWS).open("a", encoding="utf-8")
        self._rows.write(row.as_json() + "\n")
        self._rows.flush()

    def finish(self, job: Job, limits: Limits, outcome: JobOutcome) -> None:
        """Record that a job has ended."""
        entry = {"job": job.key, **asdict(outcome), "time_limit": job.time_limit, **asdict(limits)}
        self._done[job.key] = entry
        with (self.folder / DONE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def describe(self, machine: Machine) -> None:
        """Write machine.json. A resumed run keeps the date of the first one and the largest load, and must have its
        setting: a report compares all rows of a folder."""
        path = self.folder / MACHINE
        entry = asdict(machine)
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            known = before.get("setting", "paper")
            if known != machine.setting:
                raise ValueError(
                    f"{self.folder} has results of the setting {known!r}, which cannot be compared with those of "
                    f"{machine.setting!r}: choose another folder with --out"
                )
            entry |= {"date": before["date"], "load": max(machine.load, before.get("load", 0.0))}
        _write(path, json.dumps(entry, indent=1, ensure_ascii=False) + "\n")

    def _replace(self, name: str, entries: Iterable[dict]) -> None:
        _write(self.folder / name, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def _write(path: Path, text: str) -> None:
    """Replace a file atomically."""
    beside = path.with_suffix(path.suffix + ".new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
