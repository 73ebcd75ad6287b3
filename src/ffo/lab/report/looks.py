"""Colour, marker and dash of each method, the same in every figure.

The colours are those of Okabe and Ito, adjusted so that each has a contrast of at least 3 to its page, light
or dark, and every pair can be distinguished by readers with protanopia, deuteranopia or tritanopia. No two
methods differ by colour alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

#: name -> on a light page, on a dark page
PALETTE = {
    "ink": ("#1b1f24", "#e8ebef"),
    "muted": ("#5b6874", "#a3adb9"),
    "grid": ("#dfe3e8", "#343c46"),
    "card": ("#f6f8fa", "#1b2027"),
    "link": ("#0a5c91", "#79bff0"),
    "good": ("#1a6b3c", "#5fd08f"),
    "bad": ("#a8320b", "#ff9a76"),
    "blue": ("#0072b2", "#4ea8e6"),
    "vermillion": ("#d55e00", "#ff8243"),
    "green": ("#0b9f6c", "#2be8a3"),
    "pink": ("#d36aa6", "#d63c9c"),
    "brown": ("#6b430c", "#a07a1e"),
    "steel": ("#17476b", "#a8d4fb"),
}
PAGE = ("#ffffff", "#14181d")

OURS = ("FFOCP", "FFOQP")


def is_ours(method: str) -> bool:
    """Whether a method is this package's: FFOCP or FFOQP, with any backward way."""
    return method.startswith(OURS)


@dataclass(frozen=True)
class Look:
    """Colour (a name in `PALETTE`), marker and dash as matplotlib writes them."""

    colour: str
    marker: str
    dash: tuple[float, ...] = ()
    filled: bool = True
    width: float = 1.4


KNOWN = {
    "FFOCP": Look("blue", "o", width=3.2),
    "FFOQP": Look("vermillion", "s", width=3.2),
    "FFOCP (paper)": Look("blue", "D", (4, 1.5), filled=False, width=1.8),
    "FFOQP (paper)": Look("vermillion", "d", (4, 1.5), filled=False, width=1.8),
    "FFOQP (GPU)": Look("vermillion", "h", (1, 1.5), filled=False, width=1.8),
    "CvxpyLayer": Look("green", "^"),
    "CvxpyLayer (constants)": Look("green", ">", (1, 1.5), filled=False),
    "LPGD": Look("brown", "D"),
    "LPGD (tight)": Look("brown", "d", (5, 2), filled=False),
    "BPQP": Look("steel", "P"),
    "Moreau (direct)": Look("ink", "8", (5, 2), filled=False),
    "Moreau (cvxpylayers)": Look("green", "p", (5, 2), filled=False),
    "ffolayer FFOCP": Look("muted", "<", (1, 1.5), filled=False),
    "QPTH": Look("pink", "v"),
    "QPTH (GPU)": Look("pink", "1", (1, 1.5)),
    "QPLayer": Look("pink", "h", (5, 2), filled=False),
    "dQP": Look("ink", "X"),
    "Alt-Diff": Look("muted", "*"),
    "ffolayer FFOQP": Look("brown", "H", (1, 1.5), filled=False),
}
MARKERS = "o s ^ v D p h X P * < >".split()
DASHES: tuple[tuple[float, ...], ...] = ((4, 1.5), (1, 1.5), (6, 1.5, 1, 1.5), (3, 1, 1, 1, 1, 1))
COLOURS = "green pink brown steel ink muted".split()


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method.

    A variant of ours takes the colour of its base with another marker and dash; an unknown method takes an
    unused combination.
    """
    found: dict[str, Look] = {}
    taken = {(look.colour, look.marker) for look in KNOWN.values()}
    for method in sorted(set(methods), key=rank):
        base = next((name for name in OURS if method.startswith(name)), None)
        if method in KNOWN:
            found[method] = KNOWN[method]
            continue
        colours = [KNOWN[base].colour] if base else COLOURS[::-1]
        free = [pair for pair in itertools.product(colours, MARKERS) if pair not in taken]
        colour, marker = free[len(found) % len(free)]
        taken.add((colour, marker))
        found[method] = Look(colour, marker, DASHES[len(found) % len(DASHES)], filled=False, width=1.6)
    return found


def ordinal(labels: Iterable[str]) -> dict[str, Look]:
    """Looks for values of one setting (tolerances, sizes, solvers), in their order."""
    return {
        label: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i % 4] if i >= 4 else ())
        for i, label in enumerate(labels)
    }


def rank(method: str) -> tuple[int, int, str]:
    """Sort key: ours, then the known peers, then others by name."""
    known = list(KNOWN)
    return (0 if is_ours(method) else 1, known.index(method) if method in known else len(known), method)
