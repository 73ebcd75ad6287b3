"""Growth: the time and the memory of a step as the decision-focused QP grows, its matrices sparse.

`python -m benchmarks.growth FORM N` measures one size in this process and prints one JSON line; the suite
runs each in a fresh one. Exponents are fitted by least squares in logarithms over all sizes.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.exact import box_and_budget
from benchmarks.memory import peak_megabytes
from benchmarks.report import Figure, Suite

SIZES = (100, 300, 1_000, 3_000, 10_000)
#: the box as bounds lb, ub, or as rows of a sparse G
FORMS = ("bounds", "rows")
BATCH, REPEATS, BUDGET = 32, 5, 0.2
#: largest exponents of time in n, and of memory in the nonzeros (5% for the uncertainty of the fit)
TIME, MEMORY = 1.3, 1.05
#: smallest size at which a step raises the peak of the process above that of the imports
RESIDENT = 1_000


@dataclass(frozen=True)
class Growth:
    """One size: seconds of a step (median, best), and megabytes: `resident` is what steps add to the peak of the
    process, `arrays` what one step holds in NumPy arrays and Python objects at its peak.

    `error` is the largest error of the solutions of three samples; `nonzeros` counts those of all blocks of the
    batch: matrices that it shares, and vectors of every sample.
    """

    form: str
    n: int
    nonzeros: int = 0
    step: float = math.nan
    best: float = math.nan
    resident: float = math.nan
    arrays: float = math.nan
    error: float = math.nan
    reason: str = ""


def measure(form: str, n: int, timeout: float = 600.0) -> Growth:
    """Measure one size in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.growth", form, str(n)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Growth(form, n, reason=f"longer than {timeout:g} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode} (out of memory?)"]
        return Growth(form, n, reason=lines[-1][:160])
    return Growth(**json.loads(done.stdout.strip().splitlines()[-1]))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(values) over log(sizes), by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def suite(progress: Callable[[str], None]) -> Suite:
    """Exponents of time and memory for both forms."""
    figures, rows = [], []
    for form in FORMS:
        found = []
        for n in SIZES:
            progress(f"growth: {form}, n={n}")
            found.append(measure(form, n))
        reason = "; ".join(g.reason for g in found if g.reason)
        grown = exponent([g.n for g in found], [g.best for g in found]) if not reason else math.nan
        large = [g for g in found if g.n >= RESIDENT]
        arrays = exponent([g.nonzeros for g in found], [g.arrays for g in found]) if not reason else math.nan
        held = exponent([g.nonzeros for g in large], [g.resident for g in large]) if not reason else math.nan
        figures += [
            Figure(f"{form}: exponent of the step's time in n", grown, TIME, "", False, reason),
            Figure(f"{form}: exponent of arrays in the nonzeros", arrays, MEMORY, "", False, reason),
            Figure(f"{form}: exponent of peak memory in the nonzeros", held, MEMORY, "", False, reason),
        ]
        rows += [asdict(g) for g in found]
    return Suite("growth", figures, rows)


def _problem(form: str, n: int) -> tuple[dict[str, Any], int]:
    """The blocks shared by the batch, and their nonzeros."""
    import torch

    def sparse(rows: np.ndarray, cols: np.ndarray, values: np.ndarray, height: int) -> torch.Tensor:
        index = torch.from_numpy(np.stack([rows, cols]))
        with torch.sparse.check_sparse_tensor_invariants():
            return torch.sparse_coo_tensor(index, torch.from_numpy(values), (height, n), is_coalesced=True)

    every, ones, zeros = np.arange(n), np.ones(n), np.zeros(n)
    budget = torch.tensor([BUDGET * n], dtype=torch.float64)
    blocks: dict[str, Any] = {"Q": sparse(every, every, ones, n)}
    if form == "bounds":
        row = sparse(np.zeros(n, dtype=np.int64), every, ones, 1)
        blocks |= {"G": row, "h": budget, "lb": torch.from_numpy(zeros), "ub": torch.from_numpy(ones)}
    else:
        rows = np.concatenate([every, n + every, np.full(n, 2 * n)])
        G = sparse(rows, np.tile(every, 3), np.concatenate([ones, -ones, ones]), 2 * n + 1)
        blocks |= {"G": G, "h": torch.cat([torch.from_numpy(np.concatenate([ones, zeros])), budget])}
    stored = sum(b._nnz() if b.is_sparse else b.numel() for b in blocks.values())
    return blocks, stored + BATCH * n


def _measure_here(form: str, n: int) -> Growth:
    import torch

    from ffo.torch import FFOQPLayer

    layer = FFOQPLayer()
    blocks, nonzeros = _problem(form, n)
    rng = np.random.default_rng(n)
    weights = torch.from_numpy(rng.standard_normal((BATCH, n)))
    _step(layer, _problem(form, 20)[0], weights[:, :20].clone(), weights[:, :20])  # imports
    before, seconds = peak_megabytes(), []
    for _ in range(REPEATS):
        q = torch.from_numpy(rng.standard_normal((BATCH, n)))
        gc.collect()
        start = time.perf_counter()
        z = _step(layer, blocks, q, weights)
        seconds.append(time.perf_counter() - start)
    resident = peak_megabytes() - before
    error = max(np.abs(z[k] - box_and_budget(q[k].detach().numpy(), BUDGET * n, np.inf)).max() for k in range(3))
    tracemalloc.start()
    _step(layer, blocks, q.detach(), weights)
    arrays = tracemalloc.get_traced_memory()[1] / 2**20
    median, best = float(np.median(seconds)), min(seconds)
    return Growth(form, n, nonzeros, median, best, resident, arrays, float(error))


def _step(layer: Any, blocks: dict[str, Any], q: Any, weights: Any) -> np.ndarray:
    import torch

    q.requires_grad_()
    z = layer(p=-q, **blocks)
    torch.autograd.grad((z * weights).sum(), [q])
    return z.detach().numpy()


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(sys.argv[1], int(sys.argv[2])))))
