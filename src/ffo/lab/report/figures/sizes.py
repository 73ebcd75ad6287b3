"""Sweeps over the dimension: time and memory."""

from __future__ import annotations

from ffo.lab.report import words
from ffo.lab.report.drawing import Axis, line_panel
from ffo.lab.report.figures.base import Looks, Plot, gaps_of, legend, method_lines, numbers
from ffo.lab.report.results import Results
from ffo.lab.report.verdicts import peak_rows
from ffo.lab.rows import EXPERIMENTS, Row

SIZE = Axis("d_y, dimension of the decision", "size", log=True)


def scaling(results: Results, look: Looks, experiment: str, paper: str) -> Plot:
    panels, drawn, tables = [], [], []
    for field, title in (("total_s", "Total"), ("forward_s", "Forward"), ("backward_s", "Backward")):
        lines = method_lines(results.of(experiment), look, "d_y", field)
        if lines:
            axis = Axis("time per step", "seconds", log=True)
            panels.append(line_panel(f"{experiment}-{field}", title, lines, SIZE, axis))
            tables.append(numbers(f"{title}: time per step by d_y (median over seeds)", "Method", lines, words.seconds))
            drawn += lines
    return Plot(
        experiment.replace("_", "-"),
        f"Scaling, {EXPERIMENTS[experiment].split()[-1]}",
        EXPERIMENTS[experiment],
        paper,
        "Seconds of one step by the dimension of the decision, both axes logarithmic: a slope of one is linear "
        "growth. Bands span the seeds.",
        tuple(panels),
        legend(drawn),
        tuple(tables),
        gaps_of(results, experiment),
    )


def beyond_the_data(row: Row) -> float | None:
    return None if row.peak_mb is None else row.peak_mb - (row.data_mb or 0.0)


def memory_peak(results: Results, look: Looks) -> Plot:
    rows = peak_rows(results.of("memory", record="phase"))
    panels, drawn, tables = [], [], []
    for key, title, value in (("peak", "Peak", "peak_mb"), ("beyond", "Peak beyond the data", beyond_the_data)):
        lines = method_lines(rows, look, "d_y", value)
        if lines:
            axis = Axis("resident memory", "megabytes", log=True)
            panels.append(line_panel(f"memory-{key}", title, lines, SIZE, axis))
            tables.append(numbers(f"{title} by d_y (median over seeds)", "Method", lines, words.megabytes))
            drawn += lines
    return Plot(
        "memory",
        "Memory",
        "Peak memory",
        "Figure 6",
        "Largest resident memory of a fresh process over building, forward and backward, interpreter and packages "
        "included. Beyond the data: less the tensors handed to the layer and their gradients.",
        tuple(panels),
        legend(drawn),
        tuple(tables),
        gaps_of(results, "memory"),
    )


def memory_by_phase(results: Results, look: Looks) -> Plot:
    panels, drawn, tables = [], [], []
    for phase in ("build", "forward", "backward"):
        lines = method_lines(results.of("memory", record="phase", phase=phase), look, "d_y", "peak_mb")
        if lines:
            axis = Axis("peak resident memory", "megabytes", log=True)
            title = f"Up to the end of {phase}"
            panels.append(line_panel(f"phase-{phase}", title, lines, SIZE, axis))
            tables.append(numbers(f"{title}, by d_y (median over seeds)", "Method", lines, words.megabytes))
            drawn += lines
    return Plot(
        "memory-phases",
        "Memory by phase",
        "Peak memory by phase",
        "Figure 7",
        "Peak resident memory up to the end of each phase of one step, in a fresh process.",
        tuple(panels),
        legend(drawn),
        tuple(tables),
    )
