"""Panels as inline SVG, with the text, colours, and light or dark scheme of the page.

A figure is a row of small panels, each a separate SVG, so that on a phone they are stacked at a readable
size. Text stays text, in the font of the page; colours become the
variables `--blue`, `--ink` and so on, which the page sets for each scheme (see `looks.PALETTE`).
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import shorten
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Affine2D

from ffo.lab.report import words
from ffo.lab.report.looks import PALETTE, Look
from ffo.lab.report.results import Spread
from ffo.lab.report.words import Kind

INCHES = (4.4, 3.1)
#: about how wide a letter is, in points
LETTER = 5.7
#: smallest error shown on a log axis
LEAST_ERROR = 1e-16
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ffo",
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALETTE["muted"][0],
    "axes.labelcolor": PALETTE["ink"][0],
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": PALETTE["ink"][0],
    "text.color": PALETTE["ink"][0],
    "xtick.color": PALETTE["muted"][0],
    "ytick.color": PALETTE["muted"][0],
    "grid.color": PALETTE["grid"][0],
    "grid.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
}
#: matplotlib's path codes as SVG writes them
SEGMENTS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
#: about how many labels fit an axis
MOST_TICKS = {"x": 5, "y": 7}
FORMATS: dict[Kind, Callable[[float], str]] = {
    "seconds": words.seconds,
    "megabytes": words.megabytes,
    "error": words.number,
    "size": lambda value: f"{value:g}",
    "number": words.number,
}


@dataclass(frozen=True)
class Axis:
    """What an axis measures, its kind of unit, and whether it is logarithmic."""

    label: str
    kind: Kind = "number"
    log: bool = False


@dataclass(frozen=True)
class Line:
    """One curve: at `x`, the median over seeds, inside a band from the smallest to the largest."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[Spread]


@dataclass(frozen=True)
class Dots:
    """One line of a dot plot: total seconds and their two parts; or the reason why there is no measurement."""

    label: str
    look: Look
    total: Spread | None
    forward: Spread | None = None
    backward: Spread | None = None
    note: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Mark:
    """One marker of a scatter plot, with an optional label."""

    label: str
    look: Look
    x: float
    y: float
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """A picture with its name among all of a page, title and alternative text."""

    name: str
    title: str
    svg: str
    alt: str


def line_panel(name: str, title: str, lines: Sequence[Line], x: Axis, y: Axis) -> Panel:
    """Curves with their bands; thick lines lie below thin ones, so that curves that coincide both show."""

    def draw(axes: Axes) -> None:
        for order, line in enumerate(sorted(lines, key=lambda line: -line.look.width)):
            median, low, high = ([bounded(each, y) for each in part] for part in zip(*map(ends, line.y), strict=True))
            colour = PALETTE[line.look.colour][0]
            if any(spread.low < spread.high for spread in line.y):
                axes.fill_between(line.x, low, high, color=colour, alpha=0.14, linewidth=0)
            every = max(1, math.ceil(len(line.x) / 6))
            axes.plot(line.x, median, markevery=(order % every, every), **stroke(line.look), zorder=3 + order / 100)
        scale(axes, "x", x, [at for line in lines for at in line.x])
        scale(axes, "y", y, [bounded(value, y) for line in lines for spread in line.y for value in ends(spread)])

    alt = f"{title}: {y.label} against {x.label}. " + "; ".join(
        f"{line.label} from {FORMATS[y.kind](bounded(line.y[0].median, y))} "
        f"to {FORMATS[y.kind](bounded(line.y[-1].median, y))}"
        for line in lines
    )
    return panel(name, title, alt, draw)


def dot_panel(name: str, title: str, entries: Sequence[Dots], x: Axis) -> Panel:
    """A line per method, the fastest on top: a filled marker for the total with its range over seeds,
    hollow triangles for forward (pointing right) and backward (pointing left)."""
    ordered = sorted(entries, key=lambda e: (e.total is None, e.total.median if e.total else 0.0))
    values = [v for e in ordered for s in (e.total, e.forward, e.backward) if s for v in (s.low, s.high)]
    left = 12 + LETTER * max((len(entry.label) for entry in ordered), default=0)
    room = int((72 * INCHES[0] - left) / LETTER)

    def draw(axes: Axes) -> None:
        muted = PALETTE["muted"][0]
        for place, entry in enumerate(ordered):
            for part, marker in ((entry.forward, ">"), (entry.backward, "<")):
                if part is not None:
                    axes.plot([part.median], [place], marker, color=muted, markerfacecolor="none", markersize=4.5)
            if entry.total is None:
                axes.text(
                    0.01,
                    place,
                    shorten(entry.note, max(room, 10), placeholder=" …"),
                    transform=axes.get_yaxis_transform(),
                    va="center",
                    color=muted,
                )
                continue
            axes.plot([entry.total.low, entry.total.high], [place, place], color=PALETTE[entry.look.colour][0], lw=1.2)
            axes.plot([entry.total.median], [place], **stroke(entry.look, size=7))
            axes.annotate(
                words.seconds(entry.total.median) + (" ✗" if entry.wrong else ""),
                (1, place),
                xycoords=("axes fraction", "data"),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                color=PALETTE["bad" if entry.wrong else "ink"][0],
            )
        axes.set_yticks(range(len(ordered)), [entry.label for entry in ordered])
        axes.tick_params(axis="y", length=0, labelcolor=PALETTE["ink"][0])
        axes.set_ylim(len(ordered) - 0.4, -0.6)
        axes.grid(False, axis="y")
        if values:
            scale(axes, "x", x, values, most=3)
        else:
            axes.set_xticks([])

    alt = f"{title}: {x.label}. " + "; ".join(
        f"{e.label} {words.seconds(e.total.median)}{', gradient wrong' if e.wrong else ''}"
        if e.total
        else f"{e.label}: {e.note}"
        for e in ordered
    )
    return panel(name, title, alt, draw, height=0.75 + 0.235 * max(len(ordered), 3), left=left, right=58)


def scatter_panel(name: str, title: str, points: Sequence[Mark], x: Axis, y: Axis, bar: float, bar_label: str) -> Panel:
    """Methods as points; everything above `bar` is shaded and named."""
    bad = PALETTE["bad"][0]
    heights = [bounded(point.y, y) for point in points]

    def draw(axes: Axes) -> None:
        for point, height in zip(points, heights, strict=True):
            axes.plot([point.x], [height], **stroke(point.look, size=8))
            axes.annotate(
                point.note,
                (point.x, height),
                xytext=(-7, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                color=bad,
            )
        scale(axes, "x", x, [point.x for point in points])
        scale(axes, "y", y, [*heights, bar])
        top = 100 * max(*heights, 10 * bar)  # room for the label above the highest point's own
        axes.set_ylim(min(*heights, bar) / 8, top)
        axes.axhspan(bar, top, color=bad, alpha=0.12, linewidth=0)
        axes.axhline(bar, color=bad, linewidth=1, dashes=(4, 2))
        axes.text(0.015, top / 1.6, bar_label, transform=axes.get_yaxis_transform(), va="top", color=bad)

    alt = f"{title}: {y.label} against {x.label}. " + "; ".join(
        f"{point.label} at {FORMATS[x.kind](point.x)} and {FORMATS[y.kind](height)}"
        + (f", {point.note}" if point.note else "")
        for point, height in zip(points, heights, strict=True)
    )
    return panel(name, title, alt, draw)


def swatch(look: Look) -> str:
    """The line and marker of a legend entry, as SVG."""
    marker = MarkerStyle(look.marker)
    shape = marker.get_path().transformed(marker.get_transform() + Affine2D().scale(9, -9).translate(21, 8.5))
    outline = "".join(
        "Z" if code == shape.CLOSEPOLY else SEGMENTS[code] + " ".join(f"{each:.1f}" for each in points)
        for points, code in shape.iter_segments()
    )
    dash = f' stroke-dasharray="{" ".join(f"{look.width * each:g}" for each in look.dash)}"' if look.dash else ""
    colour = f"var(--{look.colour})"
    fill = colour if look.filled else "var(--page)"
    return (
        f'<svg aria-hidden="true" viewBox="0 0 42 17"><path d="M1 8.5H41" stroke="{colour}" '
        f'stroke-width="{1.3 * look.width:g}"{dash}/><path d="{outline}" fill="{fill}" stroke="{colour}" '
        f'stroke-width="1.2"/></svg>'
    )


def panel(
    name: str,
    title: str,
    alt: str,
    draw: Callable[[Axes], None],
    height: float = INCHES[1],
    left: float = 64,
    right: float = 18,
) -> Panel:
    """A panel `height` inches high, with margins of `left` and `right` points."""
    wide, high = 72 * INCHES[0], 72 * height
    left = min(left, 0.6 * wide)  # the longest labels are cut
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(INCHES[0], height))
        figure.subplots_adjust(left=left / wide, right=1 - right / wide, bottom=38 / high, top=1 - 26 / high)
        axes = figure.subplots()
        draw(axes)
        axes.yaxis.set_label_coords((15 - left) / (wide - left - right), 0.5)  # clear of wide tick labels
        axes.set_title(title, x=-left / (wide - left - right), ha="left", pad=10)  # clear of the uppermost tick label
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    name = re.sub(r"[^a-z0-9]+", "-", name.lower())
    return Panel(name, title, inline(buffer.getvalue(), name, alt), alt)


def ends(spread: Spread) -> tuple[float, float, float]:
    return spread.median, spread.low, spread.high


def bounded(value: float, axis: Axis) -> float:
    """`value`, or the least error where a log axis cannot show it."""
    return max(value, LEAST_ERROR) if axis.log and axis.kind == "error" else value


def stroke(look: Look, size: float = 5.0) -> dict[str, Any]:
    """Arguments of `Axes.plot`."""
    colour = PALETTE[look.colour][0]
    return {
        "color": colour,
        "marker": look.marker,
        "markersize": size,
        "markerfacecolor": colour if look.filled else "none",
        "markeredgecolor": colour,
        "linewidth": look.width,
        "linestyle": (0, look.dash) if look.dash else "solid",
        "solid_capstyle": "round",
    }


def scale(axes: Axes, which: Literal["x", "y"], axis: Axis, values: Sequence[float], most: int | None = None) -> None:
    """Set the ticks: measured sizes, else round numbers. A log axis spans at least a decade, so that noise does not
    look like a trend, and has at most about `most` ticks."""
    ticked = axes.xaxis if which == "x" else axes.yaxis
    ticked.set_label_text(axis.label)
    text = FuncFormatter(lambda value, _: words.tick(value, axis.kind))
    if not axis.log or not values:
        whole = sorted(set(values)) if axis.kind == "size" and len(set(values)) <= 6 else None
        ticked.set_major_locator(
            FixedLocator(whole) if whole is not None else MaxNLocator(6, integer=axis.kind == "size")
        )
        ticked.set_major_formatter(text)
        if axis.kind == "number" and values:
            widen(axes, which, min(values), max(values))
        return
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = min(values), max(values)
    if axis.kind == "size":
        places = spaced(sorted(set(values)))
    else:
        room = max(math.log10(high / low) * 0.06, (1.1 - math.log10(high / low)) / 2)
        low, high = low / 10**room, high * 10**room
        (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
        places = round_places(low, high, most or MOST_TICKS[which])
    ticked.set_major_locator(FixedLocator(places))
    ticked.set_minor_locator(NullLocator())
    ticked.set_major_formatter(text)


def widen(axes: Axes, which: Literal["x", "y"], low: float, high: float) -> None:
    """Make a linear axis span at least a hundredth of its values: less is noise."""
    least = 0.01 * max(abs(low), abs(high))
    if high - low < least:
        middle = (low + high) / 2
        (axes.set_xlim if which == "x" else axes.set_ylim)(middle - 0.6 * least, middle + 0.6 * least)


def round_places(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`, no closer than with `most` of them spread evenly on a log axis:
    1, 2, 5; 1, 3; decades; every second decade, and so on."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices: list[list[float]] = [[m * 10.0**e for e in exponents for m in steps] for steps in ((1, 2, 5), (1, 3))]
    choices += [[10.0**e for e in exponents if e % stride == 0] for stride in range(1, len(exponents) + 1)]
    gap = math.log(high / low) / most
    fitting = ([place for place in places if low <= place <= high] for places in choices)
    return next(p for p in fitting if all(math.log(b / a) >= gap for a, b in itertools.pairwise(p)))


def spaced(values: Sequence[float]) -> list[float]:
    """Of ascending values, those far enough apart on a log axis for labels; the largest is kept."""
    gap = math.log(values[-1] / values[0]) / 9
    kept: list[float] = []
    for value in reversed(values):
        if not kept or math.log(kept[-1] / value) >= gap:
            kept.append(value)
    return kept[::-1]


def inline(svg: str, name: str, alt: str) -> str:
    """matplotlib's SVG for use inside HTML, with ids that start with `name`."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    box = re.findall(r'viewBox="[^"]*"', svg)[0]
    svg = re.sub(r"<svg[^>]*>", f'<svg role="img" aria-label="{escape(alt)}" {box}>', svg, count=1)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace('xlink:href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for variable, (light, _) in PALETTE.items():
        svg = svg.replace(light, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", svg)
