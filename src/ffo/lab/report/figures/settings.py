"""Sweeps over settings: batch size, tolerance, perturbation, solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ffo.lab.report import words
from ffo.lab.report.drawing import Axis, Dots, Line, Panel, dot_panel, line_panel
from ffo.lab.report.figures.base import Looks, Plot, dots, gaps_of, legend, method_lines, numbers
from ffo.lab.report.figures.training import ERROR, PER_STEP
from ffo.lab.report.looks import ordinal
from ffo.lab.report.results import Results, Spread, by, curve, distinct, task_name
from ffo.lab.report.standings import Accuracy
from ffo.lab.report.tables import Table, plain
from ffo.lab.rows import EXPERIMENTS, Row

BATCH = Axis("batch size", "size", log=True)


def throughput(row: Row) -> float | None:
    return row.batch / row.total_s if row.batch and row.total_s else None


def per_sample(row: Row) -> float | None:
    return row.total_s / row.batch if row.batch and row.total_s else None


def gradient_error(row: Row) -> float | None:
    return None if row.cosine is None else max(0.0, 1 - row.cosine)


def batches(results: Results, look: Looks) -> Plot:
    panels, drawn, tables = [], [], []
    shown: tuple[tuple[str, Axis, Callable[[Row], float | None], Callable[[float], str]], ...] = (
        ("throughput", Axis("samples per second", log=True), throughput, words.number),
        ("time per step", PER_STEP, lambda row: row.total_s, words.seconds),
        ("cost of a sample", Axis("time per sample", "seconds", log=True), per_sample, words.seconds),
    )
    for task, rows in by(results.of("batch"), "task").items():
        for order, (title, axis, value, text) in enumerate(shown):
            lines = method_lines(rows, look, "batch", value)
            if lines:
                panels.append(line_panel(f"batch-{task}-{order}", f"{task_name(task)}: {title}", lines, BATCH, axis))
                tables.append(numbers(f"{task_name(task)}: {title}, by batch size", "Method", lines, text))
                drawn += lines
    return Plot(
        "batch",
        "Batch size",
        EXPERIMENTS["batch"],
        "Figure 12",
        "Samples per second, seconds of a step and seconds of a sample as the batch grows.",
        tuple(panels),
        legend(drawn),
        tuple(tables),
        gaps_of(results, "batch"),
    )


def swept(
    rows: Sequence[Row],
    look: Looks,
    setting: str,
    values: Sequence[tuple[str, Axis, Callable[[Row], float | None]]],
    label: str,
    name: str,
) -> tuple[list[Panel], list[Line]]:
    """Panels of several quantities against one setting, for each task."""
    panels, drawn = [], []
    axis = Axis(label, "error", log=True)
    for task, group in by(rows, "task").items():
        for order, (title, y, value) in enumerate(values):
            lines = method_lines(group, look, setting, value)
            if lines:
                panels.append(line_panel(f"{name}-{task}-{order}", f"{task_name(task)}: {title}", lines, axis, y))
                drawn += lines
    return panels, drawn


COST_AND_ERROR: tuple[tuple[str, Axis, Callable[[Row], float | None]], ...] = (
    ("backward time", Axis("backward per step", "seconds", log=True), lambda row: row.backward_s),
    ("error of the gradient", ERROR, gradient_error),
)


def tolerances(results: Results, look: Looks) -> Plot:
    panels, drawn = swept(
        results.of("tolerance"), look, "tolerance", COST_AND_ERROR, "tolerance asked for", "tolerance"
    )
    curves: list[Line] = []
    trained = results.of("tolerance", record="curve")
    labels = {value: f"tolerance {words.power(value)}" for value in distinct(trained, "tolerance")}
    shades = ordinal(labels.values())
    for (task, method), rows in by(trained, "task", "method").items():
        groups = by(rows, "tolerance")
        lines = [
            Line(text, shades[text], *curve(groups.get(value, []), "epoch", "train_loss"))
            for value, text in labels.items()
        ]
        lines = [line for line in lines if len(line.x) > 1]
        if lines:
            title = f"{task_name(task)}: training with {method}"
            panels.append(
                line_panel(
                    f"tolerance-loss-{task}-{method}", title, lines, Axis("epoch", "size"), Axis("training loss")
                )
            )
            curves += lines
    return Plot(
        "tolerance",
        "Tolerance",
        EXPERIMENTS["tolerance"],
        "Figure 13",
        "Time saved by a looser solve of the perturbed problem, its effect on the gradient, and whether training "
        "notices.",
        tuple(panels),
        legend([*drawn, *curves]),
        sweep_tables(results, look, "tolerance"),
        gaps_of(results, "tolerance"),
    )


def perturbations(results: Results, look: Looks) -> Plot:
    panels, drawn = swept(results.of("delta"), look, "delta", COST_AND_ERROR, "δ asked for", "delta")
    return Plot(
        "delta",
        "Perturbation",
        EXPERIMENTS["delta"],
        "",
        "The finite difference of the hypergradient by its step δ: too large is biased, too small is lost in the "
        "tolerance of the solver.",
        tuple(panels),
        legend(drawn),
        sweep_tables(results, look, "delta"),
        gaps_of(results, "delta"),
    )


def sweep_tables(results: Results, look: Looks, setting: str) -> tuple[Table, ...]:
    """Backward time and gradient error by the value of a setting."""
    tables = []
    for task, rows in by(results.of(setting), "task").items():
        for title, _, value in COST_AND_ERROR:
            lines = method_lines(rows, look, setting, value)
            text = words.seconds if title == "backward time" else words.number
            if lines:
                tables.append(numbers(f"{task_name(task)}: {title}, by {setting}", "Method", lines, text))
    return tuple(tables)


def solvers(results: Results) -> Plot:
    panels, tables = [], []
    every = [row for row in results.rows if row.experiment == "solvers" and row.record == "result" and row.solver]
    look = ordinal(distinct(every, "solver"))
    for (task, method), rows in by(every, "task", "method").items():
        entries: list[Dots] = []
        for solver, group in by(rows, "solver").items():
            ok = [row for row in group if row.status == "ok"]
            entries.append(dots(solver, look[solver], ok, [row for row in group if row.status != "ok"]))
        title = f"{task_name(task)}: {method}"
        panels.append(dot_panel(f"solvers-{task}-{method}", title, entries, PER_STEP))
        tables.append(solver_table(title, rows))
    return Plot(
        "solvers",
        "Solvers",
        EXPERIMENTS["solvers"],
        "",
        "Time of a step by the solver of the forward pass; the backward pass is the same. Filled: total; "
        "▷ forward, ◁ backward.",
        tuple(panels),
        (),
        tuple(tables),
        gaps_of(results, "solvers"),
    )


def solver_table(title: str, rows: Sequence[Row]) -> Table:
    """Times by solver, with the accuracy of the gradient at its solutions."""
    cells = []
    for solver, group in by((row for row in rows if row.status == "ok"), "solver").items():
        times = [Spread.of(getattr(row, field) for row in group) for field in ("total_s", "forward_s", "backward_s")]
        accuracy = Accuracy.of(group)
        seconds = [words.seconds(each.median if each else None) for each in times]
        cells.append([solver, *seconds, words.cosine(accuracy.cosine), accuracy.judgement])
    return plain(title, ("Solver", "per step", "forward", "backward", "cosine", "gradient"), cells)
