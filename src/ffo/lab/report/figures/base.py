"""The parts of a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ffo.lab.report import words
from ffo.lab.report.drawing import Dots, Line, Mark, Panel
from ffo.lab.report.looks import Look, rank
from ffo.lab.report.results import Results, Spread, by, curve, task_name
from ffo.lab.report.standings import Accuracy, reasons
from ffo.lab.report.tables import Table, plain
from ffo.lab.rows import Row

Looks = Mapping[str, Look]


@dataclass(frozen=True)
class Plot:
    """A figure: panels under one legend, the numbers behind them, and what could not be drawn.

    `name` is its anchor on the page, `short` its entry in the contents, `paper` the figure of the paper
    it redraws ("" if none).
    """

    name: str
    short: str
    title: str
    paper: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, Look], ...]
    tables: tuple[Table, ...]
    gaps: tuple[str, ...] = ()


def method_lines(rows: Sequence[Row], look: Looks, x: str, y: str | Callable[[Row], float | None]) -> list[Line]:
    """A curve for each method that has a point, ours first."""
    groups = by(rows, "method")
    found = [Line(method, look[method], *curve(groups[method], x, y)) for method in sorted(groups, key=rank)]
    return [line for line in found if line.x]


def legend(lines: Sequence[Line | Mark]) -> tuple[tuple[str, Look], ...]:
    """Label and look of each, once: methods in their order, then other lines as they come."""
    in_order = sorted(lines, key=lambda line: rank(line.label.removesuffix(" ✗"))[:2])
    return tuple({line.label: line.look for line in in_order}.items())


def numbers(caption: str, first: str, lines: Sequence[Line], text: Callable[[float], str]) -> Table:
    """The medians of curves, a row for each curve, a column for each place."""
    places = sorted({at for line in lines for at in line.x})
    rows = []
    for line in lines:
        known = dict(zip(line.x, line.y, strict=True))
        rows.append([line.label, *(text(known[at].median) if at in known else words.UNKNOWN for at in places)])
    return plain(caption, (first, *(f"{at:g}" for at in places)), rows)


def dots(label: str, look: Look, rows: Sequence[Row], trouble: Sequence[Row]) -> Dots:
    """One line of a dot plot from the rows of one method."""
    return Dots(
        label,
        look,
        Spread.of(row.total_s for row in rows),
        Spread.of(row.forward_s for row in rows),
        Spread.of(row.backward_s for row in rows),
        note=reasons(trouble) or "no time",
        wrong=Accuracy.of(rows).wrong,
    )


def gaps_of(results: Results, *experiments: str) -> tuple[str, ...]:
    """One sentence for each method and reason that leaves a gap in a figure."""
    rows = [row for row in results.trouble if row.experiment in experiments]
    sentences = []
    for (method, task, status, reason), group in by(rows, "method", "task", "status", "reason").items():
        sizes = sorted({row.d_y for row in group if row.d_y is not None})
        where = task_name(task) + (f" at d_y = {words.listing([str(size) for size in sizes])}" if sizes else "")
        sentences.append(f"{method}, {where}: {status}{f' ({reason})' if reason else ''}")
    return tuple(sentences)
