"""Sweeps over settings: batch size, tolerance, perturbation, solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ffo.lab.report import words
from ffo.lab.report.drawing import Axis, Dots, Line, Panel, dot_panel, line_panel
from ffo.lab.report.figures.base import Looks, Plot, dots, gaps_of, legend, method_lines, numbers
from ffo.lab.report.figures.training import PER_STEP
from ffo.lab.report.looks import ordinal, rank
from ffo.lab.report.results import Results, Spread, by, curve, distinct, task_name
from ffo.lab.report.standings import Accuracy
from ffo.lab.report.tables import Table, plain
from ffo.lab.rows import EXPERIMENTS, Row

BATCH = Axis("batch size", "size", log=True)


def throughput(row: Row) -> float | None:
    return row.batch / row.total_s if row.batch and row.total_s else None


def per_sample(row: Row) -> float | None:
    return row.total_s / row.batch if row.batch and row.total_s else None


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


COST_AND_ERROR: tuple[tuple[str, Axis, Callable[[Row], float | None], Callable[[float], str]], ...] = (
    ("backward time", Axis("backward per step", "seconds", log=True), lambda row: row.backward_s, words.seconds),
    ("gradient error", Axis("relative error of the gradient", "error", log=True), lambda row: row.l2, words.number),
)


@dataclass
class Sweep:
    """Cost and error of some rows against one setting, for each task: panels, what is drawn, and the numbers.

    `title` is added to those of the panels; `beside` are rows of methods that do not have the setting, drawn level.
    """

    setting: str
    label: str
    title: str = ""
    panels: list[Panel] = field(default_factory=list)
    drawn: list[Line] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def draw(self, rows: Sequence[Row], look: Looks, beside: Sequence[Row] = ()) -> Sweep:
        axis, level = Axis(self.label, "error", log=True), by(beside, "task")
        for task, group in by(rows, "task").items():
            for order, (what, y, value, text) in enumerate(COST_AND_ERROR):
                lines = method_lines(group, look, self.setting, value)
                if not lines:
                    continue
                lines += level_lines(level.get(task, ()), look, [at for line in lines for at in line.x], value)
                title = f"{task_name(task)}: {what}" + (f", {self.title}" if self.title else "")
                name = f"sweep-{self.setting}-{task}-{order}-{len(self.panels)}-{self.title}"
                self.panels.append(line_panel(name, title, lines, axis, y))
                self.tables.append(numbers(f"{title}, by {self.label}", "Method", lines, text))
                self.drawn += lines
        return self


def level_lines(
    rows: Sequence[Row], look: Looks, places: Sequence[float], value: Callable[[Row], float | None]
) -> list[Line]:
    """A level line for each method over all places: it does not have the setting that varies."""
    lines, x = [], sorted(set(places))
    for method, group in sorted(by(rows, "method").items(), key=lambda item: rank(item[0])):
        spread = Spread.of(value(row) for row in group)
        if spread is not None:
            lines.append(Line(f"{method} (no such setting)", look[method], x, [spread] * len(x)))
    return lines


def lpgd_sweeps(results: Results, look: Looks) -> tuple[Sweep, Sweep]:
    """LPGD with its perturbation fixed while its tolerance varies, and the other way round."""
    by_tolerance = [row for row in results.of("tolerance") if row.tolerance is not None]
    by_tau = [row for row in results.of("delta") if row.tolerance is not None]
    fixed = [
        words.listing([words.power(value) for value in distinct(rows, name)])
        for rows, name in ((by_tolerance, "delta"), (by_tau, "tolerance"))
    ]
    return (
        Sweep("tolerance", f"tolerance of both solves, τ = {fixed[0]}", "LPGD").draw(by_tolerance, look),
        Sweep("delta", f"τ, tolerance {fixed[1]}", "LPGD").draw(by_tau, look),
    )


def tolerances(results: Results, look: Looks) -> Plot:
    rows = results.of("tolerance")
    backward = [row for row in rows if row.backward_tolerance is not None]
    direct = [row for row in rows if row.backward_tolerance is None and row.tolerance is None]
    own = Sweep("backward_tolerance", "tolerance of the backward solve").draw(backward, look, direct)
    lpgd = lpgd_sweeps(results, look)
    panels, curves = loss_curves(results.of("tolerance", record="curve"))
    return Plot(
        "tolerance",
        "Tolerance",
        EXPERIMENTS["tolerance"],
        "Figure 13",
        "Time saved by a looser solve of the perturbed problem alone, its effect on the gradient, and whether training "
        "notices; the forward solve stays as it is. Methods without a backward solve to a tolerance are level lines. "
        "LPGD has one tolerance for both solves: it varies with the perturbation τ fixed, then τ with the tolerance "
        "fixed. Errors of gradients are distances to the reference, relative to its length.",
        (*own.panels, *lpgd[0].panels, *lpgd[1].panels, *panels),
        legend([*own.drawn, *lpgd[0].drawn, *lpgd[1].drawn, *curves]),
        (*own.tables, *lpgd[0].tables, *lpgd[1].tables),
        gaps_of(results, "tolerance"),
    )


def loss_curves(rows: Sequence[Row]) -> tuple[list[Panel], list[Line]]:
    """Training with each tolerance, for each task and method that has one."""

    def tolerance(row: Row) -> float | None:
        return row.tolerance if row.backward_tolerance is None else row.backward_tolerance

    known = sorted({value for row in rows if (value := tolerance(row)) is not None})
    labels = {value: f"tolerance {words.power(value)}" for value in known}
    shades, panels, curves = ordinal(labels.values()), [], []
    for (task, method), group in by(rows, "task", "method").items():
        lines = [
            Line(text, shades[text], *curve([row for row in group if tolerance(row) == value], "epoch", "train_loss"))
            for value, text in labels.items()
        ]
        lines = [line for line in lines if len(line.x) > 1]
        if lines:
            name, title = f"tolerance-loss-{task}-{method}", f"{task_name(task)}: training with {method}"
            panels.append(line_panel(name, title, lines, Axis("epoch", "size"), Axis("training loss")))
            curves += lines
    return panels, curves


def perturbations(results: Results, look: Looks) -> Plot:
    own = Sweep("delta", "δ").draw([row for row in results.of("delta") if row.tolerance is None], look)
    return Plot(
        "delta",
        "Perturbation",
        EXPERIMENTS["delta"],
        "",
        "The finite difference of the hypergradient by its step δ, in absolute units: too small is lost in the "
        "tolerance of the solver, and with it the gradient's length. The ghost of a cone program is linear in δ, so "
        "that a large one is not biased. The error is the distance to the reference, relative to its length.",
        tuple(own.panels),
        legend(own.drawn),
        tuple(own.tables),
        gaps_of(results, "delta"),
    )


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
        "Time of a step by the solver of the forward pass. FFOCP (paper) re-solves with the same solver; the backward "
        "pass of FFOCP does not depend on it. Filled: total; ▷ forward, ◁ backward.",
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
