"""`python -m fuzz --minutes 10 --seed 0 --only weak`: prints the table, writes a test per failure to build/fuzz."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz import families, run
from fuzz.judge import Outcome
from fuzz.table import markdown, write_block
from fuzz.worker import DEFAULT, Counts, work

NAMES = (*run.NAMES, *families.NAMES)


def show(counts: Counts, kinds: Sequence[str]) -> None:
    width = max(map(len, (*kinds, DEFAULT))) + 2
    print(" " * width + "cases".rjust(8) + "".join(o.value.rjust(max(8, len(o.value) + 2)) for o in Outcome))
    for kind in (*kinds, "all", DEFAULT):
        row = [sum(counts[k, o] for k in (kinds if kind == "all" else [kind])) for o in Outcome]
        print(
            kind.ljust(width) + str(sum(row)).rjust(8)
            + "".join(str(v).rjust(max(8, len(o.value) + 2)) for v, o in zip(row, Outcome, strict=True))
        )  # fmt: skip


def table(counts: Counts, kinds: Sequence[str]) -> str:
    """The table as Markdown, without outcomes that did not occur, except for the wrong ones."""
    shown = [o for o in Outcome if o.wrong or any(counts[kind, o] for kind in kinds)]
    rows = []
    for kind in (*kinds, "all", DEFAULT):
        row = {o: sum(counts[k, o] for k in (kinds if kind == "all" else [kind])) for o in Outcome}
        rows.append((kind, sum(row.values()), *(row[o] for o in shown)))
    return markdown(("kind", "cases", *(o.value for o in shown)), rows)


def compare(chosen: argparse.Namespace) -> int:
    """The table of other packages."""
    from fuzz import peers

    text = peers.run(chosen.minutes, chosen.batches, chosen.seed, chosen.only or peers.NAMES)
    print(text)
    if chosen.table:
        write_block(chosen.table, "peers", text)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Random programs through every layer.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--batches", type=int, default=10**9, help="stop after so many batches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first batch")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", help=f"kinds: {', '.join(NAMES)}")
    parser.add_argument("--hunt", action="append", help="outcomes to write tests for; by default the wrong ones")
    parser.add_argument("--folder", default="build/fuzz", help="where tests of failures are written")
    parser.add_argument("--table", type=Path, help="a Markdown page into which the table is written")
    parser.add_argument("--peers", action="store_true", help="run the same programs through other packages")
    chosen = parser.parse_args(arguments)
    if chosen.peers:
        return compare(chosen)
    chosen.only = chosen.only or list(NAMES)
    chosen.hunt = chosen.hunt or [o.value for o in Outcome if o.wrong]
    if chosen.workers == 1:
        counts = work(chosen, 0)
    else:
        with multiprocessing.get_context("spawn").Pool(chosen.workers) as pool:
            counts = sum(pool.starmap(work, [(chosen, k) for k in range(chosen.workers)]), Counter())
    show(counts, chosen.only)
    if chosen.table:
        write_block(chosen.table, "fuzz", table(counts, chosen.only))
    return int(any(outcome.wrong and count for (_, outcome), count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
