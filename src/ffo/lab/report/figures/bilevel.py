"""The bilevel experiments: calls to a stationary point, and the cost of one hypergradient."""

from __future__ import annotations

from collections.abc import Sequence

from ffo.lab.bilevel.jobs import ALGORITHM_ONE, PENALTY
from ffo.lab.report import words
from ffo.lab.report.drawing import Axis, Line, line_panel
from ffo.lab.report.figures.base import Plot, gaps_of, numbers
from ffo.lab.report.looks import Look
from ffo.lab.report.results import Results, Spread, by, curve, task_name
from ffo.lab.report.tables import plain
from ffo.lab.rows import EXPERIMENTS, Row

LOOKS = {
    "GoldsteinDescent": Look("blue", "o", width=2.4),
    "minimize": Look("vermillion", "s", width=2.4),
    "SGD": Look("green", "^"),
    "Adam": Look("pink", "v"),
    ALGORITHM_ONE: Look("blue", "o", width=2.4),
    PENALTY: Look("brown", "D", (4, 1.5)),
}
#: a line of the slope that a bound has, and how far above the measured one it is drawn
GUIDE, ABOVE = Look("muted", ".", (1, 1.5), width=1.2), 3.0
BOUND = -3
CALLS = Axis("oracle calls", log=True)
GRADIENTS = Axis("gradients of the functions", log=True)
ERROR = Axis("relative error", "error", log=True)


def stationarity(results: Results) -> Plot:
    """Calls until a point is certified to be stationary, against epsilon, for each lower level."""
    panels, drawn, tables = [], [], []
    for task, rows in by(results.of("bilevel", record="curve"), "task").items():
        groups = by(rows, "method")
        lines = [Line(name, look, *curve(groups.get(name, []), "epsilon", "calls")) for name, look in LOOKS.items()]
        lines = [line for line in lines if line.x]
        if not lines:
            continue
        axis = Axis("ε", log=True)
        panels.append(line_panel(f"bilevel-{task}", task_name(task), [*lines, guide(lines[0])], axis, CALLS))
        tables.append(
            numbers(f"{task_name(task)}: oracle calls by ε (median over starts)", "Method", lines, words.number)
        )
        drawn += [*lines, guide(lines[0])]
    return Plot(
        "bilevel",
        "Stationary points",
        EXPERIMENTS["bilevel"],
        "",
        "Calls of the oracle (one forward and one backward pass of a layer) until a point is certified to be "
        "(δ, ε)-Goldstein stationary, on problems whose stationary points are known. GoldsteinDescent takes the steps "
        "of the theory; minimize chooses its own. SGD and Adam, where shown, have the best of four step sizes for "
        "every ε, and return no certificate. The paper's corollary bounds the calls by a multiple of ε⁻³.",
        tuple(panels),
        tuple({line.label: line.look for line in drawn}.items()),
        tuple(tables),
        (*gaps_of(results, "bilevel"), *unreached(results)),
    )


def guide(line: Line) -> Line:
    """The slope of the bound, above a line."""
    start = ABOVE * line.y[-1].median
    values = [start * (at / line.x[-1]) ** BOUND for at in line.x]
    return Line("slope of the bound, −3", GUIDE, line.x, [Spread(v, v, v, 1) for v in values])


def unreached(results: Results) -> list[str]:
    """Sentences about walks that ended without a stationary point."""
    rows = [row for row in results.of("bilevel", record="curve") if row.calls is None]
    return [
        f"{method}, {task_name(task)}: ε = {words.number(epsilon)} not reached from {len(group)} "
        f"start{'s' if len(group) > 1 else ''}"
        for (method, task, epsilon), group in by(rows, "method", "task", "epsilon").items()
    ]


def hypergradients(results: Results) -> Plot:
    """Error against gradients, for Algorithm 1 and a penalty method; and against the perturbation of Algorithm 1."""
    panels, drawn, tables = [], [], []
    for task, rows in by(results.of("hypergradient", record="curve"), "task").items():
        by_calls = by((row for row in rows if row.delta is None), "method")
        lines = [Line(name, LOOKS.get(name, GUIDE), *costs(group)) for name, group in by_calls.items()]
        lines = [line for line in lines if line.x]
        if not lines:
            continue
        panels.append(line_panel(f"hypergradient-{task}", f"{task_name(task)}: by gradients", lines, GRADIENTS, ERROR))
        cells = [
            [line.label, words.number(calls), words.number(error.median)]
            for line in lines
            for calls, error in zip(line.x, line.y, strict=True)
        ]
        caption = f"{task_name(task)}: gradients, and relative error (medians over seeds)"
        tables.append(plain(caption, ("Method", "gradients", "error"), cells))
        drawn += lines
        by_delta = [row for row in rows if row.delta is not None]
        if by_delta:
            line = Line(ALGORITHM_ONE, LOOKS[ALGORITHM_ONE], *curve(by_delta, "delta", "l2"))
            title, name = f"{task_name(task)}: by δ", f"hypergradient-delta-{task}"
            panels.append(line_panel(name, title, [line], Axis("δ", "error", log=True), ERROR))
            tables.append(numbers(f"{task_name(task)}: relative error by δ", "Method", [line], words.number))
    return Plot(
        "hypergradient",
        "Hypergradients",
        EXPERIMENTS["hypergradient"],
        "",
        "Error of one hypergradient by the gradients of the lower level's functions that it takes, both solves "
        "included. Algorithm 1 is FFOFunctionLayer with backward='resolve' and a first-order solver of the user: every "
        "further digit takes as many gradients as the one before, O(log 1/ε). A penalty method takes O(1/ε). Then the "
        "error of Algorithm 1 by its perturbation δ, with tight solves: O(δ).",
        tuple(panels),
        tuple({line.label: line.look for line in drawn}.items()),
        tuple(tables),
        gaps_of(results, "hypergradient"),
    )


def costs(rows: Sequence[Row]) -> tuple[list[float], list[Spread]]:
    """Median gradients and the spread of errors at each accuracy or weight, cheapest first."""
    points = []
    for group in by(rows, "tolerance", "epsilon").values():
        calls, errors = Spread.of(row.calls for row in group), Spread.of(row.l2 for row in group)
        if calls is not None and errors is not None:
            points.append((calls.median, errors))
    points.sort(key=lambda point: point[0])
    return [calls for calls, _ in points], [errors for _, errors in points]
