"""The rows of a results folder, and their summary over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ffo.lab.report.raw import CSV, read_csv
from ffo.lab.rows import EXPERIMENTS, LOWER_LEVELS, MACHINE, ROWS, TASKS, Machine, Row, read_machine, read_rows

#: fields that identify a measurement; of rows that agree in them, the last counts
IDENTITY = (
    "experiment task method seed d_y batch record epoch step phase tolerance delta solver backward_tolerance adam_eps "
    "epsilon"
).split()


@dataclass(frozen=True)
class Spread:
    """One number over seeds: its median, smallest and largest value, and the count."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that are not None; None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.median(known), min(known), max(known), len(known))


@dataclass(frozen=True)
class Results:
    """Rows and machine of one folder; of measurements that were repeated, the last counts."""

    folder: Path
    rows: tuple[Row, ...]
    machine: Machine

    @classmethod
    def read(cls, folder: Path) -> Results:
        """The results in `folder`, also after an interruption."""
        if not (folder / MACHINE).exists():
            raise FileNotFoundError(
                f"no {MACHINE} in {folder}: this is not a results folder. Name the folder that `ffo lab` wrote to"
            )
        rows = read_rows(folder) if (folder / ROWS).exists() else read_csv(folder / CSV)
        latest = {tuple(getattr(row, name) for name in IDENTITY): row for row in rows}
        return cls(folder, tuple(latest.values()), read_machine(folder))

    def of(self, *experiments: str, record: str = "result", status: str = "ok", **values: Any) -> list[Row]:
        """Rows of these experiments (all by default) whose fields have these values."""
        return [
            row
            for row in self.rows
            if (not experiments or row.experiment in experiments)
            and row.record == record
            and row.status == status
            and all(getattr(row, name) == value for name, value in values.items())
        ]

    @cached_property
    def trouble(self) -> tuple[Row, ...]:
        """What failed or was skipped, in the order of the report."""
        order = list(EXPERIMENTS)
        troubled = [row for row in self.rows if row.status != "ok"]
        return tuple(sorted(troubled, key=lambda row: (order.index(row.experiment), row.task, row.method, row.seed)))

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Experiments without a single measurement that succeeded."""
        measured = {row.experiment for row in self.rows if row.status == "ok"}
        return tuple(name for name in EXPERIMENTS if name not in measured)

    @cached_property
    def left(self) -> dict[str, tuple[int, int]]:
        """Jobs of the preset that have not been run, and all, of the experiments that have some left."""
        done = {name: len({row.job for row in rows}) for name, rows in by(self.rows, "experiment").items()}
        planned = self.machine.planned.items()
        return {name: (count - done.get(name, 0), count) for name, count in planned if done.get(name, 0) < count}


def distinct(rows: Iterable[Row], field: str) -> list[Any]:
    """The distinct values of a field, sorted, without null."""
    return sorted({getattr(row, field) for row in rows} - {None})


def by(rows: Iterable[Row], *names: str) -> dict[Any, list[Row]]:
    """Rows grouped by one field, or by a tuple of several, in order of appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in names)
        groups.setdefault(key[0] if len(names) == 1 else key, []).append(row)
    return groups


def curve(rows: Sequence[Row], x: str, y: str | Callable[[Row], float | None]) -> tuple[list[float], list[Spread]]:
    """`y` against `x`, each point the spread over the rows that share that `x`."""
    value = y if callable(y) else lambda row: getattr(row, y)
    points = {}
    for at, group in sorted(by((row for row in rows if getattr(row, x) is not None), x).items()):
        spread = Spread.of(value(row) for row in group)
        if spread is not None:
            points[float(at)] = spread
    return list(points), list(points.values())


def task_name(task: str, d_y: int | None = None) -> str:
    """A task at a size, as a title: Sudoku has its size in its name."""
    name = (TASKS | LOWER_LEVELS)[task]
    name = name[0].upper() + name[1:]
    return name if d_y is None or task.startswith("sudoku") else f"{name}, d_y = {d_y}"
