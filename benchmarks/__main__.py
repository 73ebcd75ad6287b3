"""`python -m benchmarks NAME...` or `--all`: run benchmarks, print ratios next to their targets."""

from __future__ import annotations

import argparse
import sys
import warnings

from benchmarks.report import busy, machine, save, show
from benchmarks.screen import open_screen
from benchmarks.suites import LONG, SUITES, Options


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--all", action="store_true", help=f"run every benchmark except {', '.join(LONG)}")
    parser.add_argument("--repeats", type=int, default=7, help="number of repetitions; the median counts")
    parser.add_argument(
        "--large",
        action="store_true",
        help="let other packages build unaided, even if that takes more than 24 GB of memory",
    )
    chosen = parser.parse_args(arguments)
    names = [*(name for name in SUITES if chosen.all and name not in LONG), *chosen.names]
    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        parser.error(f"name some of {', '.join(SUITES)}, or pass --all" + (f"; unknown: {unknown}" if unknown else ""))
    screen = open_screen()
    about = machine()
    screen.line(
        f"{about['cores']} cores, Python {about['python']}, torch {about['packages']['torch']}; times in seconds"
    )
    warning = busy()
    if warning:
        screen.line(warning, "bold red")
    suites = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages warn about accuracy; the tables show it
        for name in names:
            with screen.status(name) as update:
                suites.append(SUITES[name](Options(chosen.repeats, chosen.large, update)))
            show(screen, suites[-1])
    if warning:
        screen.line(warning, "bold red")
    screen.line(f"written to {save(suites, warning)}")
    figures = [figure for suite in suites for figure in suite.figures]
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
