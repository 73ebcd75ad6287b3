"""Numbers as a person reads them."""

from __future__ import annotations

import math
from typing import Literal

from ffo.lab.report.results import Spread

Kind = Literal["seconds", "megabytes", "error", "size", "number"]

UNKNOWN = "–"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def digits(value: float, count: int = 2) -> str:
    """`value` to `count` significant digits, to three from 100 on, without an exponent."""
    if value == 0:
        return "0"
    count = max(count, 3) if abs(value) >= 100 else count
    places = count - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(0, places)}f}".replace(",", "\N{THIN SPACE}")


def seconds(value: float | None) -> str:
    """A duration in a suitable unit."""
    if value is None:
        return UNKNOWN
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= scale:
            return f"{digits(value / scale)} {unit}"
    return f"{digits(value * 1e6)} µs"


def megabytes(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{digits(value / 1000)} GB" if abs(value) >= 1000 else f"{digits(value, 3)} MB"


def power(value: float) -> str:
    """A positive number in scientific notation, such as 3·10⁻⁷; a bare power of ten as 10⁻⁷."""
    exponent = math.floor(math.log10(value))
    factor = round(value / 10.0**exponent)
    if factor == 10:
        factor, exponent = 1, exponent + 1
    ten = f"10{str(exponent).translate(SUPERSCRIPT)}"
    return ten if factor == 1 else f"{factor}·{ten}"


def number(value: float | None) -> str:
    """A number of any size: three digits, in scientific notation if it is very large or very small."""
    if value is None:
        return UNKNOWN
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"−{power(-value)}" if value < 0 else power(value)
    return digits(value, 3).replace("-", "−")


def tick(value: float, kind: Kind) -> str:
    """The label of a tick: short, because ticks are round numbers."""
    if kind == "error":
        return power(value)
    if kind == "size":
        return f"{value:g}"
    units = {"seconds": ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs")), "megabytes": ((1e3, " GB"), (1.0, " MB"))}
    scale, unit = next(((s, u) for s, u in units.get(kind, ()) if abs(value) >= s * (1 - 1e-9)), (1.0, ""))
    return f"{value / scale:,.6g}{unit}".replace(",", "\N{THIN SPACE}").replace("-", "−")


def cosine(value: float | None) -> str:
    """A cosine; close to one, its distance from one; near 0.9999, on which much depends, with five digits."""
    if value is None:
        return UNKNOWN
    if value >= 1 - 1e-15:
        return "1"
    if value >= 0.99995:
        return f"1 − {power(1 - value)}"
    return f"{value:.5f}" if value >= 0.999 else f"{value:.3f}".replace("-", "−")


def ratio(value: float) -> str:
    return f"{digits(value)}×"


def bound(value: float) -> str:
    """A lower bound on a ratio."""
    return f"> {digits(value)}×"


def bound_note(built: bool, reason: str) -> str:
    """Why and when a run was stopped."""
    return f"{reason} (in its first step)" if built else f"{reason} (while it was being built, which our time includes)"


def percent(value: float) -> str:
    """A signed percentage, to a hundredth of a percent."""
    if abs(value) < 5e-5:
        return "0.00%"
    return f"{value:+.2%}".replace("-", "−")


def range_of(spread: Spread) -> str:
    """The range of a ratio over seeds, where there is one."""
    low, high = digits(spread.low), digits(spread.high)
    return f"{low}–{high}" if low != high else ""


def times_as_long(spread: Spread) -> str:
    """A ratio of times in words; with several seeds that differ, its range."""
    span = range_of(spread)
    return f"{ratio(spread.median)} as long" + (f" ({span})" if span else "")


def seconds_spread(spread: Spread | None) -> str:
    """Median and, with several seeds that differ, the range."""
    if spread is None:
        return UNKNOWN
    low, high = seconds(spread.low), seconds(spread.high)
    return seconds(spread.median) + (f" ({low} – {high})" if low != high else "")


def listing(items: list[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
