"""The work of one process of the fuzzer; not in `__main__`, where other processes cannot import it."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

from fuzz import families, run
from fuzz.judge import Outcome
from fuzz.shrink import shrink, write_down

Counts = Counter[tuple[str, Outcome]]
DEFAULT = "with the default solver"
#: most tests written per kind and outcome
KEPT = 3


def work(chosen: argparse.Namespace, worker: int) -> Counts:
    """Run this worker's batches until time is up."""
    torch.set_num_threads(1)
    counts: Counts = Counter()
    kept: Counts = Counter()
    hunted = {Outcome(value) for value in chosen.hunt}
    end, index = time.monotonic() + 60 * chosen.minutes, chosen.start + worker
    while time.monotonic() < end and index < chosen.start + chosen.batches:
        kind = chosen.only[index % len(chosen.only)]
        play = families.play if kind in families.NAMES else run.play
        for case, route, verdicts in play(chosen.seed, index, kind):
            if time.monotonic() > end:  # exact arithmetic on one batch may take minutes
                return counts
            counts.update((kind, v.outcome) for v in verdicts)
            counts.update((DEFAULT, v.outcome) for v in verdicts if route.solver is None)
            for v in {v.outcome: v for v in verdicts if v.outcome in hunted}.values():
                kept[kind, v.outcome] += 1
                print(f"{kind} {index}: {v.outcome.value} ({v.note}) {route}", flush=True)
                if kept[kind, v.outcome] <= KEPT:
                    smaller = shrink(case, route, v.outcome) if case else None
                    print("   ", write_down(Path(chosen.folder), smaller, v, chosen.seed, index, kind), flush=True)
        index += chosen.workers
    return counts
