"""Training runs: loss curves, cost of a step, accuracy of its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffo.lab.report import words
from ffo.lab.report.drawing import Axis, Line, Mark, Panel, dot_panel, line_panel, scatter_panel
from ffo.lab.report.figures.base import Looks, Plot, dots, gaps_of, legend, method_lines
from ffo.lab.report.looks import rank
from ffo.lab.report.results import Results, Spread, by, distinct, task_name
from ffo.lab.report.standings import CLOSE, Accuracy, headline_settings, reasons, standings
from ffo.lab.report.tables import Table, accuracy_table, plain
from ffo.lab.rows import EXPERIMENTS, Row

TRAINING = ("dfl", "sudoku", "socp", "dense")
TIMED = (*TRAINING, "scaling_qp", "scaling_sudoku", "scaling_socp", "scaling_dense")
EPOCH = Axis("epoch", "size")
LOSS = {"train_loss": "training loss"}
#: of Sudoku: shares of wrong digits
CELLS = {"train_cells": "wrong cells, training", "test_cells": "wrong cells, test"}
#: what a training run ends with
FINAL = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "train_cells": "wrong cells, training",
    "test_cells": "test",
    "train_error": "wrong boards, training",
    "test_error": "test",
}
PER_STEP = Axis("time per step", "seconds", log=True)
#: what may be wrong with a method other than the direction of its gradient
BESIDE = ("wrong length", "wrong solution")
ERROR = Axis("1 − cosine to the reference", "error", log=True)


def convergence(results: Results, look: Looks) -> Plot:
    rows = [row for experiment in TRAINING for row in results.of(experiment, record="curve")]
    panels, lines = curves("convergence", rows, look, LOSS | CELLS)
    eps = words.listing([words.power(each) for each in distinct(rows, "adam_eps")])
    return Plot(
        "convergence",
        "Convergence",
        "Training convergence",
        "Figure 3",
        "Median over seeds, with a band from the smallest to the largest. Thick lines are ours; a peer that lies on "
        "them has the same loss. ✗ marks a run whose gradient or solution was wrong from its first step. For Sudoku, "
        "also the share of cells with a wrong digit; the share of boards that are not solved exactly is among the "
        f"numbers. Adam's ε is {eps or 'not recorded'}; the effect of another is shown under “The epsilon of Adam”.",
        panels,
        legend(lines),
        tuple(final_losses(results, experiment) for experiment in TRAINING if results.of(experiment)),
        gaps_of(results, *TRAINING),
    )


def curves(
    name: str, rows: Sequence[Row], look: Looks, fields: Mapping[str, str] = LOSS
) -> tuple[tuple[Panel, ...], list[Line]]:
    """Fields by epoch, for each task and size."""
    panels, drawn = [], []
    for (task, d_y), group in by(rows, "task", "d_y").items():
        title = task_name(task, d_y)
        for field, label in fields.items():
            lines = [judged(line, group) for line in method_lines(group, look, "epoch", field)]
            if lines:
                key, what = f"{name}-{task}-{d_y}-{field}", title if field == "train_loss" else f"{title}: {label}"
                panels.append(line_panel(key, what, lines, EPOCH, Axis(label)))
                drawn += lines
    return tuple(panels), drawn


def judged(line: Line, rows: Sequence[Row]) -> Line:
    """The curve of a method; its label is marked if its gradient or solution is wrong."""
    wrong = Accuracy.of([row for row in rows if row.method == line.label]).wrong
    return replace(line, label=f"{line.label} ✗") if wrong else line


def final_losses(results: Results, experiment: str) -> Table:
    """Losses and errors after the last epoch, the median over seeds."""
    rows = []
    groups = by(results.of(experiment), "task", "d_y", "adam_eps", "method")
    for (task, d_y, eps, method), group in groups.items():
        columns = [Spread.of(getattr(row, field) for row in group) for field in FINAL]
        steps = words.listing([str(step) for step in distinct(group, "step")])
        right = Accuracy.of(group).judgement
        numbers = [words.number(c.median if c else None) for c in columns]
        rows.append([method, task_name(task, d_y), words.power(eps) if eps else "", steps, *numbers, right])
    rows.sort(key=lambda row: (row[1:3], rank(row[0])))
    header = ("Method", "task", "Adam's ε", "steps", *FINAL.values(), "judgement")
    return plain("After the last epoch (median over seeds)", header, rows)


def costs(results: Results, look: Looks) -> Plot:
    panels = []
    for setting in headline_settings(results):
        table = standings(results, setting)
        here = [dots(each.method, look[each.method], each.rows, each.trouble) for each in table.values()]
        key = f"costs-{setting.experiment}-{setting.task}-{setting.d_y}"
        panels.append(dot_panel(key, setting.label, here, PER_STEP))
    return Plot(
        "costs",
        "Costs",
        "What a step costs",
        "Figure 4",
        "Filled marker: forward and backward together, with the range over seeds. Hollow triangles: forward ▷ and "
        "backward ◁. A method whose gradient is wrong (cosine below 0.999, or a wrong length), or "
        "whose solution is off by more than 1%, is marked ✗: its time is not comparable.",
        tuple(panels),
        (),
        (),
        gaps_of(results, *TIMED),
    )


def trade_off(results: Results, look: Looks) -> Plot:
    panels, drawn, tables = [], [], []
    for setting in headline_settings(results):
        points = []
        table = standings(results, setting)
        tables.append(accuracy_table(setting, table))
        for each in table.values():
            cosine, total = each.accuracy.cosine, each.total
            if cosine is not None and total is not None:
                note = each.accuracy.judgement if each.accuracy.judgement in BESIDE else ""
                points.append(Mark(each.method, look[each.method], total.median, max(0.0, 1 - cosine), note))
        if points:
            key = f"trade-{setting.experiment}-{setting.task}-{setting.d_y}"
            panels.append(scatter_panel(key, setting.label, points, PER_STEP, ERROR, 1 - CLOSE, "wrong gradient"))
            drawn += points
    return Plot(
        "trade-off",
        "Accuracy",
        "Accuracy against speed",
        "",
        "Lower left is better: fast and accurate. In the shaded part the gradient is wrong, however fast. The error is "
        "the worst over seeds and over the tensors that are differentiated; errors below 10⁻¹⁶ are drawn there.",
        tuple(panels),
        legend(drawn),
        tuple(tables),
    )


def comparison(results: Results, look: Looks, name: str, rows: Sequence[Row]) -> tuple[tuple[Panel, ...], list[Line]]:
    """Convergence, then time in all and backward alone, of a few methods."""
    panels, lines = curves(name, [row for row in rows if row.record == "curve"], look)
    timed = [row for row in rows if row.record == "result" and row.total_s is not None]
    costs_of = []
    for (task, d_y), group in by(timed, "task", "d_y").items():
        entries = [dots(method, look[method], rows, ()) for method, rows in by(group, "method").items()]
        costs_of.append(dot_panel(f"{name}-cost-{task}-{d_y}", f"{task_name(task, d_y)}: a step", entries, PER_STEP))
    return (*panels, *costs_of), lines


def lpgd_tolerance(results: Results, look: Looks) -> Plot:
    """Two comparisons with ours: LPGD at several tolerances with one perturbation, and the other way round."""
    rows = [*results.of("lpgd", record="curve"), *results.of("lpgd")]
    ours = [row for row in rows if row.tolerance is None]
    swept = [row for row in rows if row.tolerance is not None]
    panels: list[Panel] = []
    lines: list[Line] = []
    caption = []
    for fixed, varies in (("delta", "tolerance"), ("tolerance", "delta")):
        # the value of the fixed setting is the one at which the other takes several
        groups = by(swept, fixed)
        at = max(groups, key=lambda value: len(distinct(groups[value], varies)), default=None)
        if at is not None:
            more, drawn = comparison(results, look, f"lpgd-{varies}", [*ours, *groups[at]])
            panels += more
            lines += drawn
            caption.append(f"{'τ' if fixed == 'delta' else 'the tolerance'} is {words.power(at)}")
    return Plot(
        "lpgd",
        "LPGD",
        EXPERIMENTS["lpgd"],
        "Figure 8",
        "Beside ours: loss by epoch, and time per step with its forward ▷ and backward ◁ parts; ✗ marks a wrong "
        "gradient." + (f" In the first panels {', in the others '.join(caption)}." if caption else ""),
        tuple(panels),
        legend(lines),
        (final_losses(results, "lpgd"),) if results.of("lpgd") else (),
        gaps_of(results, "lpgd"),
    )


def adam_epsilon(results: Results, look: Looks) -> Plot:
    """How far the losses of exact methods differ from FFOCP's with each epsilon, in curves and in words."""
    panels, drawn, differences = [], [], []
    ended = by(results.of("adam"), "adam_eps")
    for eps, rows in sorted(by(results.of("adam", record="curve"), "adam_eps").items()):
        ours = {(row.seed, row.epoch): row.train_loss for row in rows if row.method == "FFOCP"}
        others = [row for row in rows if row.method != "FFOCP" and ours.get((row.seed, row.epoch))]

        def gap(row: Row, ours: Mapping[Any, float | None] = ours) -> float | None:
            mine = ours[row.seed, row.epoch]
            return None if row.train_loss is None or not mine else abs(row.train_loss / mine - 1)

        lines = method_lines(others, look, "epoch", gap)
        title = f"{task_name(rows[0].task, rows[0].d_y)}: ε = {words.power(eps)}"
        if lines:
            axis = Axis("gap of the loss to FFOCP's", "error", log=True)
            panels.append(line_panel(f"adam-{eps:g}", title, lines, EPOCH, axis))
            drawn += lines
        ends = Spread.of(row.train_loss for row in ended.get(eps, []))
        if ends is not None and ends.count > 1:
            differences.append(f"{(ends.high - ends.low) / abs(ends.median):.2%} at ε = {words.power(eps)}")
    return Plot(
        "adam",
        "Adam's ε",
        EXPERIMENTS["adam"],
        "",
        "Where all samples are at a bound, the exact gradient is zero, and that of a method that solves to a "
        "tolerance is tiny instead. Adam divides a gradient by its own size plus ε: with torch's ε = 10⁻⁸, the "
        "default here, it turns rounding errors into full steps, and methods diverge although all of them are "
        "accurate to their tolerance; with ε = 10⁻⁵ it does not."
        + (f" The methods' final losses differ by {words.listing(differences)}." if differences else ""),
        tuple(panels),
        legend(drawn),
        (final_losses(results, "adam"),) if results.of("adam") else (),
        gaps_of(results, "adam"),
    )


def qpth_on_a_gpu(results: Results, look: Looks) -> Plot:
    on_device = ("QPTH (GPU)", "FFOQP (GPU)")
    rows = [row for row in results.rows if row.method in ("QPTH", "FFOQP", *on_device) and row.experiment in TIMED]
    panels, lines = comparison(results, look, "qpth", [row for row in rows if row.status == "ok"])
    return Plot(
        "qpth",
        "QPTH",
        "FFOQP and QPTH, on the CPU and on a GPU",
        "Figure 9",
        "Loss by epoch, and time per step, from tensors on the host to gradients on the host. The GPU: "
        f"{results.machine.device or 'none'}.",
        panels,
        legend(lines),
        (),
        tuple(why_not_measured(rows, method) for method in on_device if not timed(rows, method)),
    )


def timed(rows: Sequence[Row], method: str) -> bool:
    return any(row.total_s is not None for row in rows if row.method == method)


def why_not_measured(rows: Sequence[Row], method: str) -> str:
    """A sentence on a method without a time."""
    troubled = [row for row in rows if row.method == method and row.status != "ok"]
    return f"{method}: {reasons(troubled) or 'left out of this run'}"


def similarity(results: Results, look: Looks) -> Plot:
    panels, drawn = [], []
    rows = results.of("similarity", record="curve")
    metrics = (
        ("1 − cosine", lambda row: None if row.cosine is None else max(0.0, 1 - row.cosine)),
        ("relative ℓ₂ distance", lambda row: row.l2),
        ("relative ℓ∞ distance", lambda row: row.linf),
    )
    for (task, d_y), group in sorted(by(rows, "task", "d_y").items()):
        for order, (label, value) in enumerate(metrics):
            lines = method_lines(group, look, "step", value)
            if lines:
                title = task_name(task, d_y)
                axes = Axis("step of training", "size"), Axis(label, "error", log=True)
                panels.append(line_panel(f"similarity-{task}-{d_y}-{order}", title, lines, *axes))
                drawn += lines
    return Plot(
        "similarity",
        "Gradients",
        "Gradients during training, against a tight reference",
        "Figure 11",
        "Distance of each method's gradient from the reference, step by step: the cosine as its distance from one, so "
        "that lower is better everywhere. In the first column a right gradient stays below 10⁻⁴; a wrong one is above "
        "10⁻³.",
        tuple(panels),
        legend(drawn),
        (worst_of_training(rows),) if rows else (),
        gaps_of(results, "similarity"),
    )


def worst_of_training(rows: Sequence[Row]) -> Table:
    """The largest distance from the reference of each method during training."""
    cells = []
    for (task, d_y, method), group in sorted(by(rows, "task", "d_y", "method").items()):
        known = {
            field: [v for row in group if (v := getattr(row, field)) is not None] for field in ("cosine", "l2", "linf")
        }
        cells.append(
            [
                method,
                task_name(task, d_y),
                words.cosine(min(known["cosine"], default=None)),
                words.number(max(known["l2"], default=None)),
                words.number(max(known["linf"], default=None)),
            ]
        )
    header = ("Method", "task", "cosine", "relative ℓ₂ distance", "relative ℓ∞ distance")
    return plain("Worst over all steps and seeds", header, cells)
