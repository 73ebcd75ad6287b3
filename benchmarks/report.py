"""Figures with their targets, printed as tables and kept as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.screen import Screen

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "ffo",
    "cvxpy",
    "cvxpylayers",
    "diffcp",
    "clarabel",
    "piqp",
    "moreau",
    "qpth",
    "proxsuite",
    "torch",
    "jax",
    "numpy",
)


@dataclass(frozen=True)
class Figure:
    """One number with a target, which is a lower or an upper bound."""

    name: str
    value: float
    target: float
    unit: str = "x"
    at_least: bool = True
    reason: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> tuple[str, str, str, str]:
        sign = ">=" if self.at_least else "<="
        if math.isnan(self.value):
            return self.name, "-", f"{sign} {_number(self.target)} {self.unit}", self.reason or "not measured"
        verdict = "[green]met[/]" if self.met else "[bold red]missed[/]"
        return self.name, f"{_number(self.value)} {self.unit}", f"{sign} {_number(self.target)} {self.unit}", verdict


@dataclass(frozen=True)
class Suite:
    """The outcome of one benchmark: its figures, then every number behind them."""

    name: str
    figures: Sequence[Figure]
    rows: Sequence[dict[str, Any]] = field(default_factory=tuple)


def show(screen: Screen, suite: Suite) -> None:
    """Figures first, then the measurements."""
    columns = {name: name in ("measured", "target") for name in ("figure", "measured", "target", "verdict")}
    screen.table(f"{suite.name}: figures", columns, [figure.cells() for figure in suite.figures])
    if not suite.rows:
        return
    names = dict.fromkeys(key for row in suite.rows for key in row)
    columns = {name: name not in ("case", "label", "contender", "reason") for name in names}
    rows = [[_cell(row.get(name, "")) for name in columns] for row in suite.rows]
    screen.table(f"{suite.name}: measurements", columns, rows)


#: load average, per core, above which other work distorts the ratios
BUSY = 0.25


def busy() -> str:
    """A warning if other work is running here, else nothing.

    It does not affect all packages equally: one that uses all cores loses more than one that uses a single
    core, and neither medians nor best times correct for that (seen: a step between 0.3 s and 1.0 s).
    """
    cores, load = machine()["cores"], os.getloadavg()[0]
    if load <= BUSY * cores:
        return ""
    return f"load {load:.1f} on {cores} cores before the start: the machine is busy, do not quote these ratios"


def machine() -> dict[str, Any]:
    """The machine and the packages of the measurement."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": cores, "python": platform.python_version(), "system": platform.system(), "packages": versions}


def save(suites: Sequence[Suite], warning: str) -> Path:
    """One JSON file per run under benchmarks/results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    content = {"machine": machine(), "warning": warning, "suites": [asdict(suite) for suite in suites]}
    path.write_text(json.dumps(content, indent=1, default=str))
    return path


def _number(value: float) -> str:
    return f"{value:.1e}" if value and abs(value) < 1e-2 else f"{value:.3g}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else _number(value)
    return str(value)
