"""How a method looks in every figure: colour, marker and dash, the same wherever it appears.

The colours are those of Okabe and Ito, moved in lightness until each has a contrast of at least 3 to
its page, light or dark, and pairs stay apart for readers with protanopia, deuteranopia or tritanopia. No two
methods differ by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

#: name -> on a light page, on a dark page
PALETTE = {
    "ink": ("#1b1f24", "#e8ebef"),
    "muted": ("#5b6470", "#a3adb9"),
    "grid": ("#dfe3e8", "#343c46"),
    "good": ("#1a6b3c", "#5fd08f"),
    "bad": ("#a8320b", "#ff9a76"),
    "blue": ("#0072b2", "#4ea8e6"),
    "vermillion": ("#d55e00", "#ff8243"),
    "green": ("#008f68", "#1fc795"),
    "purple": ("#aa3f86", "#e39ac6"),
    "orange": ("#a87600", "#f0b429"),
    "sky": ("#3f97cf", "#9ad7ff"),
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
    "CvxpyLayer": Look("green", "^"),
    "QPTH": Look("purple", "v"),
    "LPGD": Look("orange", "D"),
    "LPGD (tight)": Look("orange", "d", (5, 2), filled=False),
    "BPQP": Look("sky", "P"),
    "dQP": Look("ink", "X"),
    "Alt-Diff": Look("muted", "*"),
    "QPLayer": Look("purple", "h", (5, 2), filled=False),
    "QPTH (GPU)": Look("purple", "1", (1, 1.5)),
    "Moreau (cvxpylayers)": Look("green", "p", (5, 2), filled=False),
    "Moreau (direct)": Look("ink", "8", (5, 2), filled=False),
    "ffolayer": Look("muted", "<", (1, 1.5), filled=False),
}
MARKERS = "o s ^ v D p h X P * < >".split()
DASHES: tuple[tuple[float, ...], ...] = ((4, 1.5), (1, 1.5), (6, 1.5, 1, 1.5), (3, 1, 1, 1, 1, 1))
COLOURS = "green purple orange sky ink muted".split()


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method, ours first, then as known, then by name.

    A variant of ours takes the colour of its base with another marker and dash; a method that is not
    known takes what is left.
    """
    found: dict[str, Look] = {}
    spare = 0
    for method in sorted(set(methods), key=rank):
        base = next((name for name in OURS if method.startswith(name)), None)
        if method in KNOWN:
            found[method] = KNOWN[method]
        elif base is not None:
            order = 1 + sum(name.startswith(base) and name not in KNOWN for name in found)
            marker = MARKERS[(MARKERS.index(KNOWN[base].marker) + 2 * order) % len(MARKERS)]
            found[method] = replace(KNOWN[base], marker=marker, dash=DASHES[order % 4], filled=False, width=1.6)
        else:
            found[method] = Look("muted", MARKERS[-1 - spare % len(MARKERS)], DASHES[spare % 4], filled=False)
            spare += 1
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
