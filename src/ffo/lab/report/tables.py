"""Tables of the report: the same cells become HTML and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ffo.lab.baselines import BASELINES, Baseline
from ffo.lab.report import words
from ffo.lab.report.looks import is_ours, rank
from ffo.lab.report.results import Results, by, distinct, task_name
from ffo.lab.report.standings import Setting, Standing, headline_settings, peers, standings
from ffo.lab.report.verdicts import ClaimVerdict
from ffo.lab.rows import EXPERIMENTS

Tone = Literal["", "good", "bad", "muted"]

SETTINGS = {"paper": "as in the paper's text", "authors": "as in the authors' code"}
#: other runnable processes above which the lab's times are called noisy
QUIET = 0.5
FAMILIES = {"conic": "general convex", "qp": "quadratic programs"}


@dataclass(frozen=True)
class Cell:
    """Text, its judgement, a second line, and the mark of a footnote."""

    text: str
    tone: Tone = ""
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the first cell of a row names the row. `notes` are its numbered footnotes."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


class Footnotes:
    """Collects the footnotes of a table; the same text has the same number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        """The number of a footnote; empty without text."""
        return str(self._numbers.setdefault(text, len(self._numbers) + 1)) if text else ""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def plain(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of bare text."""
    return Table(caption, tuple(header), tuple(tuple(Cell(text) for text in row) for row in rows))


MARKS: dict[str, tuple[str, Tone]] = {
    "reached": ("✓ ", "good"),
    "not reached": ("✗ ", "bad"),
    "not measured": ("? ", "muted"),
}


def figures_table(verdicts: Sequence[ClaimVerdict]) -> Table:
    """Every figure to reach: a column for each with its target, a row for each setting it is judged at."""
    places = list(dict.fromkeys(check.where for verdict in verdicts for check in verdict.checks))
    rows = []
    for where in places:
        cells = []
        for verdict in verdicts:
            check = next((check for check in verdict.checks if check.where == where), None)
            mark, tone = MARKS[check.state if check else "not measured"]
            cells.append(Cell(mark + check.measured, tone, check.note) if check else Cell(""))
        rows.append((Cell(where), *cells))
    header = ("Where", *(f"{verdict.figure}: {verdict.target}" for verdict in verdicts))
    return Table("The figures to reach: ✓ reached, ✗ missed, ? not measured", header, tuple(rows))


def ratio_tables(results: Results) -> list[Table]:
    """How many times longer a step of each peer takes than ours, with its range over seeds."""
    tables = []
    for ours, family in (("FFOCP", "conic"), ("FFOQP", "qp")):
        columns = [(setting, standings(results, setting)) for setting in headline_settings(results)]
        columns = [(setting, table) for setting, table in columns if ours in table and table[ours].rows]
        notes = Footnotes()
        names = sorted({peer.method for _, table in columns for peer in peers(table)}, key=rank)
        families = {peer.method: peer.family for _, table in columns for peer in peers(table)}
        rows = [
            (
                Cell(name, note=FAMILIES[families[name]]),
                *(ratio_cell(table[ours], table.get(name), notes) for _, table in columns),
            )
            for name in sorted(names, key=lambda name: (families[name] != family, rank(name)))
        ]
        own = [table[ours].total for _, table in columns]
        rows.append((Cell(f"{ours}, per step"), *(Cell(words.seconds(each.median if each else None)) for each in own)))
        header = ("Peer", *(setting.label for setting, _ in columns))
        if columns:
            caption = f"Time of one step, forward and backward, as a multiple of {ours}'s"
            tables.append(Table(caption, header, tuple(rows), notes.notes))
    return tables


def ratio_cell(ours: Standing, peer: Standing | None, notes: Footnotes) -> Cell:
    """A ratio with the judgement on the gradient; the reason why there is none is a footnote."""
    if peer is None:
        return Cell(words.UNKNOWN, "muted")
    ratio, bound = peer.ratio_to(ours), peer.bound_to(ours)
    if bound is not None:
        mark = notes.mark(words.bound_note(bound.built, peer.reason))
        return Cell(words.bound(bound.ratio), "good", mark=mark)
    if ratio is None:
        return Cell(words.UNKNOWN, "muted", mark=notes.mark(peer.reason))
    text, span = words.ratio(ratio.median), words.range_of(ratio)
    if peer.accuracy.wrong:
        return Cell(f"{text} ✗", "bad", span, notes.mark(peer.accuracy.judgement))
    text += " ≈" if peer.accuracy.judgement == "inexact" else ""
    return Cell(text, "good" if ratio.median > 1 else "bad", span, notes.mark(peer.reason))


def accuracy_table(setting: Setting, table: dict[str, Standing]) -> Table:
    """Speed and accuracy of every method at one setting, the fastest right one first."""

    def order(each: Standing) -> tuple[bool, bool, float]:
        return each.total is None, each.accuracy.wrong, each.total.median if each.total else 0.0

    rows, notes = [], Footnotes()
    for each in sorted(table.values(), key=order):
        if each.total is None:
            nothing = Cell(words.UNKNOWN, "muted", mark=notes.mark(each.reason or "no time"))
            rows.append((Cell(each.method), nothing, *[Cell(words.UNKNOWN, "muted")] * 7))
            continue
        accuracy = each.accuracy
        tone: Tone = "good" if accuracy.right else "bad" if accuracy.wrong else "muted"
        mark = "✓ " if accuracy.right else "✗ " if accuracy.wrong else "≈ " if accuracy.rival else ""
        rows.append(
            (
                Cell(each.method),
                Cell(words.seconds_spread(each.total)),
                Cell(words.seconds(each.forward.median if each.forward else None)),
                Cell(words.seconds(each.backward.median if each.backward else None)),
                Cell(words.seconds(each.processor.median if each.processor else None)),
                Cell(words.cosine(accuracy.cosine)),
                Cell(words.number(accuracy.l2)),
                Cell(words.number(accuracy.solution)),
                Cell(mark + accuracy.judgement, tone),
            )
        )
    header = (
        "Method",
        "per step (range over seeds)",
        "forward",
        "backward",
        "processor time",
        "cosine",
        "distance of the gradient",
        "distance of the solution",
        "judgement",
    )
    batch = f", batch {setting.batch}" if setting.batch else ""
    return Table(setting.label + batch, header, tuple(rows), notes.notes)


#: columns of Table 1 of the paper, as methods declare them
FEATURES: dict[str, Callable[[Baseline], bool]] = {
    "convex constraints": lambda method: method.family == "conic",
    "first-order only": lambda method: method.first_order,
    "solver-agnostic": lambda method: method.any_solver,
    "exact hypergradient": lambda method: method.exact,
}


def features_table(results: Results) -> Table:
    """Table 1 of the paper, for the methods of this run: what each declares, and the tests of the lab verify."""
    known = [BASELINES[name] for name in sorted(set(distinct(results.rows, "method")), key=rank) if name in BASELINES]
    marks: dict[bool, tuple[str, Tone]] = {True: ("✓", "good"), False: ("✗", "muted")}
    rows = [(Cell(each.name), *(Cell(*marks[has(each)]) for has in FEATURES.values())) for each in known]
    return Table("Features of the methods", ("Method", *FEATURES), tuple(rows))


def trouble_table(results: Results) -> Table | None:
    """What failed or was skipped, once per reason, with the sizes and seeds concerned."""
    groups = by(results.trouble, "experiment", "task", "method", "status", "reason")
    rows = []
    for (experiment, task, method, status, reason), group in groups.items():
        sizes = sorted({row.d_y for row in group if row.d_y is not None})
        seeds = sorted({row.seed for row in group})
        rows.append(
            (
                Cell(method),
                Cell(EXPERIMENTS[experiment]),
                Cell(task_name(task) + (f", d_y = {', '.join(map(str, sizes))}" if sizes else "")),
                Cell(status, "bad" if status == "failed" and is_ours(method) else ""),
                Cell(reason or words.UNKNOWN),
                Cell(", ".join(map(str, seeds))),
            )
        )
    header = ("Method", "experiment", "where", "status", "reason", "seeds")
    return Table("What did not run, and why", header, tuple(rows)) if rows else None


def machine_table(results: Results) -> Table:
    machine = results.machine
    facts = {
        "Processor": machine.cpu,
        "Cores used": str(machine.cores),
        "Threads of a job": str(machine.threads),
        "Timed jobs at a time": str(machine.at_once) + (", each on cores of its own" if machine.at_once > 1 else ""),
        "Memory": f"{machine.memory_gb:.1f} GB",
        "CUDA device": machine.device or "none",
        "Load before the run": f"{machine.load:.1f}" + (", so that times are noisy" if machine.load > QUIET else ""),
        "System": machine.platform,
        "Python": machine.python,
        "Started": machine.date,
        "Preset": machine.preset,
        "Tasks": SETTINGS[machine.setting],
        "Seeds": ", ".join(map(str, machine.seeds)),
    }
    return plain("Machine", ("", "value"), [[name, value] for name, value in facts.items()])


def version_table(results: Results) -> Table:
    return plain(
        "Versions", ("Package", "version"), [[name, v] for name, v in sorted(results.machine.packages.items())]
    )
