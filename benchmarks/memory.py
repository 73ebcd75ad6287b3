"""Build time and peak memory of a whole process, each measurement in a fresh one.

`python -m benchmarks.memory CONTENDER CASE N` runs one step and prints one JSON line.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.problems import Case, decision_qp, sparse_qp

#: cases by their name on the command line of the child process
CASES = {
    "qp": decision_qp,
    "qp-factor": lambda n: decision_qp(n, quad_form=False),
    "socp": lambda n: decision_qp(n, norm_ball=True),
    "socp-factor": lambda n: decision_qp(n, norm_ball=True, quad_form=False),
    "sparse": sparse_qp,
}
CONTENDERS: dict[str, peers.Contender] = {
    "ffo": peers.ffo,
    "ffo-iterative": lambda case: peers.ffo(case, backward="iterative"),
    "cvxpylayers": peers.cvxpylayers,
    "cvxpylayers-lean": peers.cvxpylayers_lean,
    "moreau": peers.moreau,
    "qpth": peers.qpth,
    "qplayer": peers.qplayer,
}


@dataclass(frozen=True)
class Footprint:
    """Seconds to build the layer and for its first step; megabytes at the peak of the process.

    `imported` is the peak before the package is imported and its layer built; `backward` the peak memory of
    NumPy arrays in the backward pass (sparse case only, because tracing slows things down).
    """

    contender: str
    case: str
    n: int
    build: float = math.nan
    first_step: float = math.nan
    imported: float = math.nan
    peak: float = math.nan
    backward: float = math.nan
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def footprint(contender: str, case: str, n: int, timeout: float = 900.0) -> Footprint:
    """Measure one contender on one case in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", contender, case, str(n)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Footprint(contender, case, n, reason=f"longer than {timeout:g} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode} (out of memory?)"]
        return Footprint(contender, case, n, reason=lines[-1][:160])
    return Footprint(**json.loads(done.stdout.strip().splitlines()[-1]))


def peak_megabytes() -> float:
    """Peak resident set of this process.

    On Linux from VmHWM: ru_maxrss of a child starts at the peak of the process that spawned it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _measure_here(contender: str, name: str, n: int) -> Footprint:
    import torch

    case: Case = CASES[name](n)
    data, weights = case.data(0), torch.tensor(case.weights(0))
    imported = peak_megabytes()
    start = time.perf_counter()
    step = CONTENDERS[contender](case)
    built = time.perf_counter()
    tensors = step.tensors(data)
    solution = step.forward(tensors)
    trace = name == "sparse"
    if trace:
        tracemalloc.start()
    step.backward(tensors, solution, weights)
    traced = tracemalloc.get_traced_memory()[1] / 2**20 if trace else math.nan
    return Footprint(contender, name, n, built - start, time.perf_counter() - built, imported, peak_megabytes(), traced)


if __name__ == "__main__":
    print(json.dumps(_measure_here(sys.argv[1], sys.argv[2], int(sys.argv[3])).as_dict()))
