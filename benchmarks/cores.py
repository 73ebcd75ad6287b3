"""One step on 1, 2, 4, 8 and 16 cores, up to the number available.

Every measurement runs in a fresh process, `python -m benchmarks.cores CASE REPEATS`, which inherits its
affinity, so that no library has counted the cores before they were restricted.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers, problems
from benchmarks.problems import Case
from benchmarks.report import Figure, Suite
from benchmarks.timing import Entry, Timing, measure

COUNTS = (1, 2, 4, 8, 16)
#: seconds after which a measurement is stopped
LIMIT = 300.0
MOREAU_RATIO = 5.0


@dataclass(frozen=True)
class Load:
    """A case, and the required speed-up over one core by number of cores."""

    build: Callable[[], Case]
    targets: dict[int, float]


DECISION, CURVED = {2: 1.6, 16: 7.0}, {16: 4.0}
LOADS = {
    "QP n=200, batch 512": Load(lambda: problems.decision_qp(200, batch=512), DECISION),
    "SOCP n=200, batch 512": Load(lambda: problems.decision_qp(200, norm_ball=True, batch=512), DECISION),
    "QP n=800, batch 256": Load(lambda: problems.decision_qp(800, batch=256), DECISION),
    "SOCP n=800, batch 256": Load(lambda: problems.decision_qp(800, norm_ball=True, batch=256), DECISION),
    "SDP order 8, batch 128": Load(lambda: problems.semidefinite(8, batch=128), CURVED),
    "entropy n=30, batch 256": Load(lambda: problems.entropy(30, batch=256), CURVED),
}


def suite(repeats: int, progress: Callable[[str], None]) -> Suite:
    """Times by number of cores, and ours compared with Moreau called directly on all of them."""
    available = spread_cores()
    counts = [k for k in COUNTS if k <= len(available)]
    figures: list[Figure] = []
    rows: list[dict[str, Any]] = []
    for name, load in LOADS.items():
        timings: dict[int, Timing] = {}
        for k in counts:
            progress(f"{name}: {k} cores")
            timings[k] = _on_cores(name, available[:k], repeats)
        figures += [_speedup(name, timings, k, target) for k, target in load.targets.items()]
        rows += [_row(name, k, t, timings[1].total / t.total) for k, t in timings.items()]
    case = problems.decision_qp(800, batch=512)
    entries = [Entry("ffo", peers.ffo, case), Entry("Moreau, sparse values", peers.moreau, case)]
    ours, moreau = measure(entries, repeats, progress=lambda what: progress(f"against Moreau: {what}"))
    ratio = min(moreau.total / ours.total, moreau.best / ours.best)
    words = f"QP n=800, batch 512, {len(available)} cores: step against Moreau called directly"
    figures.append(Figure(words, ratio, MOREAU_RATIO, reason=ours.reason or moreau.reason))
    rows += [_row(f"QP n=800, batch 512: {t.label}", len(available), t, math.nan) for t in (ours, moreau)]
    return Suite("cores", figures, rows)


def _speedup(name: str, timings: dict[int, Timing], k: int, target: float) -> Figure:
    """One core against k: the smaller of the ratios of medians and of best times."""
    one, many = timings[1], timings.get(k, Timing("", reason=f"fewer than {k} cores here"))
    ratio = min(one.total / many.total, one.best / many.best)
    return Figure(f"{name}: {k} cores against one", ratio, target, reason=one.reason or many.reason)


def _row(case: str, cores: int, t: Timing, speedup: float) -> dict[str, Any]:
    times = {key: getattr(t, key) for key in ("forward", "backward", "total", "best", "reason")}
    return {"case": case, "cores": cores, "speed-up": speedup, **times}


def spread_cores() -> list[int]:
    """The processors available to this process; second hardware threads of a core come last."""
    if not hasattr(os, "sched_getaffinity"):
        raise NotImplementedError("this system does not restrict processes to some cores")
    cores: dict[str, int] = {}
    ranked = []
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text() if siblings.exists() else str(cpu)
        ranked.append((cores.get(core, 0), cpu))
        cores[core] = cores.get(core, 0) + 1
    return [cpu for _, cpu in sorted(ranked)]


@contextmanager
def _restricted(cpus: list[int]) -> Iterator[None]:
    """Restricts the calling thread, and every process it starts, to these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _on_cores(name: str, cpus: list[int], repeats: int) -> Timing:
    command = [sys.executable, "-m", "benchmarks.cores", name, str(repeats)]
    try:
        with _restricted(cpus):
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Timing(name, reason=f"longer than {LIMIT:g} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Timing(name, reason=lines[-1][:160])
    return Timing(**json.loads(done.stdout.strip().splitlines()[-1]))


def _measure_here(name: str, repeats: int) -> Timing:
    import torch

    # The loss uses torch, whose threads wait for each other: on a machine with 16 cores of which 11 are free, 16
    # threads take 40 ms for a sum of 100,000 numbers.
    torch.set_num_threads(1)
    (timing,) = measure([Entry(name, peers.ffo, LOADS[name].build())], repeats)
    return timing


if __name__ == "__main__":
    print(json.dumps(_measure_here(sys.argv[1], int(sys.argv[2])).as_dict()))
