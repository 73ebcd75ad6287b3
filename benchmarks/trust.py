"""The cost of verification: judge and certificate as a share of a step, and verdicts relative to Clarabel's.

CPU time of one thread, best of many: shares and ratios then hold on a busy machine too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import peers
from benchmarks.problems import decision_qp
from benchmarks.report import Figure, Suite
from ffo.cones import Nonneg, Product
from ffo.engine import Engine, Options
from ffo.ghost.direct import Compiled
from ffo.kernels import evidence as columns
from ffo.program.cone import ConeProgram
from ffo.program.plan import values_of
from ffo.solvers import get_solver

#: share of a step in percent, and times Clarabel's own verdict
SHARE, VERDICT = 15.0, 2.0
#: seconds for each number
SECONDS = 1.0
#: kind, variables, rows, batch
VERDICTS = [
    *((kind, 10, 20, batch) for kind in ("infeasible", "unbounded", "unbounded quadratic") for batch in (1, 64)),
    *(("infeasible", *shape) for shape in ((10, 8, 1), (10, 8, 64), (30, 60, 1), (600, 600, 1))),
]


def suite(progress: Callable[[str], None]) -> Suite:
    """Both measurements."""
    figures, rows = [], []
    with one_thread():
        for label, ball in (("QP", False), ("SOCP", True)):
            progress(f"trust: share of a step, {label}")
            rows.append({"case": f"{label} n=200, batch 32", **share(ball)})
            name = f"{label} n=200, batch 32: judge and certificate, share of a step"
            figures.append(Figure(name, rows[-1]["share"], SHARE, "%", False))
        for kind, n, m, batch in VERDICTS:
            progress(f"trust: {kind}, n={n}, {m} rows, batch {batch}")
            program = without_solution(kind, n, m, batch)
            engine, peer = Engine(Options(on_fail="nan")), get_solver("CLARABEL")
            mine, theirs = best(partial(engine.run, program)), best(partial(peer.solve, program))
            name = f"{kind}, n={n}, {m} rows, batch {batch}: verdict, times Clarabel's own"
            rows.append({"case": name, "step": mine, "clarabel": theirs})
            figures.append(Figure(name, mine / theirs, VERDICT, "x", False))
    return Suite("trust (CPU ms)", figures, rows)


@contextmanager
def one_thread() -> Iterator[None]:
    """Everything in the calling thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with patch.dict(os.environ, FFO_NUM_THREADS="1"), torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        torch.set_num_threads(threads)


def best(run: Callable[[], Any], seconds: float = SECONDS) -> float:
    """Milliseconds of the fastest run."""
    run()
    found, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or found == np.inf:
        start = time.thread_time()
        run()
        found = min(found, time.thread_time() - start)
    return 1e3 * found


def share(norm_ball: bool) -> dict[str, float]:
    """Milliseconds of a step, of the judge on its answers, of the search for null vectors and of the rest of the
    certificate; and their share of the step in percent."""
    case = decision_qp(200, norm_ball=norm_ball, batch=32)
    step = peers.ffo(case)
    data, weights = step.tensors(case.data(0)), torch.tensor(case.weights(0))
    kept: list[tuple[Any, ...]] = []

    def run() -> None:
        step.backward(data, step.forward(data), weights)

    original = Compiled.sensitivity
    with patch.object(Compiled, "sensitivity", lambda self, *a: kept.append((self, *a[:2])) or original(self, *a)):
        run()
    found, *right = kept[0]
    values, evidence, samples = values_of(found.program), found.state.evidence, found.state.samples

    def solve(singular: float) -> None:
        """The backward solve; `singular`: NaN to look for null vectors, 0 if there are known to be none."""
        evidence[:, columns.SINGULAR] = singular
        found.plan.sensitivity(found.state, samples, *right)

    whole = best(run)
    judge = best(lambda: found.plan.judge(values, found.x, found.y, found.s))
    null = best(lambda: solve(np.nan)) - best(lambda: solve(0.0))
    rest = best(lambda: found.with_evidence(samples, *right, found.x, found.y, evidence[:, 0]))
    return {"step": whole, "judge": judge, "null": null, "rest": rest, "share": 100 * (judge + null + rest) / whole}


def without_solution(kind: str, n: int, m: int, batch: int) -> ConeProgram:
    """Two of m rows contradict each other; or the objective is unbounded along (1, ..., 1), where P vanishes."""
    rng = np.random.default_rng(n)
    rows, b, q, P = rng.normal(size=(m, n)), np.ones((batch, m)), rng.normal(size=(batch, n)), np.eye(n)
    if kind == "infeasible":
        rows[1], b[:, :2] = -rows[0], -1.0
    else:
        ray, root = np.ones(n), rng.normal(size=(n, n // 2)) * (kind == "unbounded quadratic")
        rows -= np.outer(rows @ ray + rng.uniform(0, 1, m) * (np.arange(m) % 2), ray) / n
        root -= np.outer(ray, ray @ root) / n
        q, P = q - (q.sum(axis=1, keepdims=True) + 1) / n, root @ root.T
    return ConeProgram.from_matrices(P, q, rows, b, Product([(Nonneg(), m)]))
