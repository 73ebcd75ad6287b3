"""Sweeps over the dimension: time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ffo.lab.report import words
from ffo.lab.report.drawing import Axis, Line, Panel, line_panel
from ffo.lab.report.figures.base import Looks, Plot, gaps_of, legend, method_lines, numbers
from ffo.lab.report.results import Results
from ffo.lab.report.tables import Table
from ffo.lab.report.verdicts import peak_rows
from ffo.lab.rows import EXPERIMENTS, Row

SIZE = Axis("d_y, dimension of the decision", "size", log=True)
TIME = Axis("time per step", "seconds", log=True)
MEMORY = Axis("resident memory", "megabytes", log=True)


@dataclass(frozen=True)
class Quantity:
    """What one panel shows against the dimension."""

    name: str
    title: str
    rows: Sequence[Row]
    value: str | Callable[[Row], float | None]


def against_size(
    quantities: Iterable[Quantity], look: Looks, axis: Axis, text: Callable[[float], str]
) -> tuple[tuple[Panel, ...], tuple[Table, ...], list[Line]]:
    """A panel and a table of numbers for each quantity, and all that is drawn."""
    panels, tables, drawn = [], [], []
    for each in quantities:
        lines = method_lines(each.rows, look, "d_y", each.value)
        if lines:
            panels.append(line_panel(each.name, each.title, lines, SIZE, axis))
            tables.append(numbers(f"{each.title}: {axis.label} by d_y (median over seeds)", "Method", lines, text))
            drawn += lines
    return tuple(panels), tuple(tables), drawn


def scaling(results: Results, look: Looks, experiment: str, paper: str) -> Plot:
    rows = results.of(experiment)
    titles = (("total_s", "Total"), ("forward_s", "Forward"), ("backward_s", "Backward"))
    shown = [Quantity(f"{experiment}-{field}", title, rows, field) for field, title in titles]
    panels, tables, drawn = against_size(shown, look, TIME, words.seconds)
    return Plot(
        experiment.replace("_", "-"),
        f"Scaling, {EXPERIMENTS[experiment].split(', ')[-1]}",
        EXPERIMENTS[experiment],
        paper,
        "Seconds of one step by the dimension of the decision, both axes logarithmic: a slope of one is linear "
        "growth. Bands span the seeds.",
        panels,
        legend(drawn),
        tables,
        gaps_of(results, experiment),
    )


def beyond_the_data(row: Row) -> float | None:
    return None if row.peak_mb is None else row.peak_mb - (row.data_mb or 0.0)


def memory_peak(results: Results, look: Looks) -> Plot:
    rows = peak_rows(results.of("memory", record="phase"))
    shown = (
        Quantity("memory-peak", "Peak", rows, "peak_mb"),
        Quantity("memory-beyond", "Peak beyond the data", rows, beyond_the_data),
    )
    panels, tables, drawn = against_size(shown, look, MEMORY, words.megabytes)
    return Plot(
        "memory",
        "Memory",
        "Peak memory",
        "Figure 6",
        "Largest resident memory of a fresh process over building, forward and backward, interpreter and packages "
        "included. Beyond the data: without the tensors passed to the layer and their gradients.",
        panels,
        legend(drawn),
        tables,
        gaps_of(results, "memory"),
    )


def memory_by_phase(results: Results, look: Looks) -> Plot:
    shown = (
        Quantity(f"phase-{p}", f"Up to the end of {p}", results.of("memory", record="phase", phase=p), "peak_mb")
        for p in ("build", "forward", "backward")
    )
    panels, tables, drawn = against_size(shown, look, MEMORY, words.megabytes)
    return Plot(
        "memory-phases",
        "Memory by phase",
        "Peak memory by phase",
        "Figure 7",
        "Peak resident memory up to the end of each phase of one step, in a fresh process.",
        panels,
        legend(drawn),
        tables,
    )
