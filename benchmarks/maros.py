"""Half of the Maros-Meszaros collection: accuracy of solutions, and correctness of gradients.

`python -m benchmarks.maros FILE` runs one problem and prints JSON lines, one per stage, so that a hang or a
crash loses one stage of one problem: the forward pass (solve and polish), the backward pass with its
certificate, and the check of gradients that it calls good, by differences of tight solves.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quadratic import QuadraticProblem, difference, directions, read
from benchmarks.report import Figure, Suite

Array = np.ndarray
DATA = Path(__file__).parents[2] / "shared" / "data" / "maros_meszaros"
#: seconds for the forward pass and for the backward pass, and of processor time for the check
LIMITS = {"forward": 30, "backward": 30, "check": 300}
RESIDUAL, AGREEMENT = 1e-6, 1e-3
WORKERS = 2
#: required number of solved problems
SOLVED = 62
#: blocks of the objective: their gradients may be good where those of the constraints are not
OBJECTIVE = ("p", "Q")


@dataclass(frozen=True)
class Row:
    """One problem. `stage` is the last one that was completed.

    Attributes:
        seconds: of the forward pass with everything that a gradient needs; residual: after it.
        good: what the certificate calls good: the gradient in "all" blocks, in the "objective" (p and Q)
            or "none".
        checked: directions of these blocks in which differences decide; error: largest disagreement of
            the gradient with them, relative; worst: the direction; undecided: the others, and why.
        reason: why the problem was not solved, or not all of its gradient is called good.
    """

    problem: str
    stage: str = ""
    n: int = 0
    rows: int = 0
    solver: str = ""
    seconds: float = math.nan
    residual: float = math.nan
    backward: float = math.nan
    good: str = "none"
    checked: int = 0
    error: float = math.nan
    worst: str = ""
    undecided: str = ""
    reason: str = ""

    @property
    def solved(self) -> bool:
        return self.residual <= RESIDUAL and self.seconds <= LIMITS["forward"]

    @property
    def wrong(self) -> bool:
        """Whether a gradient is called good and differences contradict it."""
        return self.good != "none" and self.error > AGREEMENT

    @property
    def unchecked(self) -> bool:
        """Whether a gradient is called good and differences do not decide it."""
        return self.good != "none" and not self.checked


def suite(progress: Any, data: Path = DATA) -> Suite:
    """All problems of a folder, two at a time."""
    files = sorted(data.glob("*.npz"))

    def one(path: Path) -> Row:
        progress(f"maros: {path.stem}")
        return run(path)

    with ThreadPoolExecutor(WORKERS) as pool:
        rows = list(pool.map(one, files))
    checked = [row for row in rows if row.checked]
    worst = max((row.error for row in checked), default=math.nan)
    missing = "" if files else f"no problems in {data}"
    count = lambda name: float(sum(bool(getattr(row, name)) for row in rows)) if files else math.nan  # noqa: E731
    solved = f"KKT residual <= {RESIDUAL:g} within {LIMITS['forward']} s"
    figures = [
        Figure(solved, count("solved"), SOLVED, f"of {len(rows)}", reason=missing),
        Figure("wrong gradients called good", count("wrong"), 0, "", False, missing),
        Figure(f"largest error of {len(checked)} good gradients", worst, AGREEMENT, "", False, missing),
        Figure("good gradients that no difference could check", count("unchecked"), 0, "", False, missing),
    ]
    return Suite("maros", figures, [_cells(row) for row in rows])


def _cells(row: Row) -> dict[str, Any]:
    """The table's cells for a problem."""
    cells = {"case": row.problem, **asdict(row)}
    for name in ("problem", "stage", "undecided"):
        del cells[name]
    undecided = f"undecided by differences: {row.undecided}" if row.undecided else ""
    failed = "" if row.solved else "NOT SOLVED"
    return {**cells, "reason": "; ".join(filter(None, (failed, row.reason, undecided)))}


def _short(reasons: list[str]) -> str:
    """The reasons without the advice that comes with them."""
    return "; ".join(reason.split(":")[0] for reason in reasons)


def run(path: Path) -> Row:
    """Run one problem in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.maros", str(path)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    row = Row(**json.loads(lines[-1])) if lines else Row(path.stem)
    if not done.returncode:
        return row
    stages = list(LIMITS)
    stage = stages[stages.index(row.stage) + 1 if row.stage else 0]
    if done.returncode in (-signal.SIGALRM, -signal.SIGPROF):
        why = f"{stage}: longer than {LIMITS[stage]} s"
    else:
        why = f"{stage}: {(done.stderr.strip().splitlines() or [f'exit status {done.returncode}'])[-1][:160]}"
    return replace(row, reason="; ".join(filter(None, (row.reason, why))))


def stages(path: Path) -> Iterator[Row]:
    """What is known about a problem, stage by stage."""
    from ffo.torch import FFOQPLayer

    problem = read(path)
    layer = FFOQPLayer(duals=True, on_fail="nan")
    tensors = problem.tensors(problem.values)
    signal.alarm(LIMITS["forward"])
    start = time.perf_counter()
    solution = layer(**tensors)
    seconds = time.perf_counter() - start
    found = [v.detach().numpy() for v in solution]
    info = layer.info
    assert info is not None
    row = Row(
        problem.name,
        "forward",
        n=len(problem.p),
        rows=len(problem.h) + len(problem.b),
        solver=info.solver[0],
        seconds=seconds,
        residual=problem.residual(*found),
        reason=" ".join(info.detail.values()),
    )
    yield row
    if not info.ok[0]:
        return
    signal.alarm(LIMITS["backward"])
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(len(problem.p))
    start = time.perf_counter()
    gradients = torch.autograd.grad(solution.z @ torch.tensor(weights), list(tensors.values()))
    row = replace(row, stage="backward", backward=time.perf_counter() - start)
    certificate = info.certificate
    assert certificate is not None
    verdicts = {"all": certificate, "objective": replace(certificate, dependent=np.zeros(1, dtype=bool))}
    good = next((name for name, verdict in verdicts.items() if verdict.good[0]), "none")
    row = replace(row, good=good, reason=_short(certificate.reasons(0)))
    yield row
    if row.good == "none":
        return
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_PROF, LIMITS["check"])
    named = {name: _values(g) for name, g in zip(tensors, gradients, strict=True)}
    yield from check(problem, row, found[0], named, weights, rng)


def check(
    problem: QuadraticProblem,
    row: Row,
    x: Array,
    gradients: dict[str, Array],
    weights: Array,
    rng: np.random.Generator,
) -> Iterator[Row]:
    """Compare the gradients called good with differences, direction by direction."""
    warm, cold = TightSolver(problem, ["this"]), TightSolver(problem, None)
    # A direction moves the data by about its own size, so x by about its own.
    floor = 1e-7 * float(np.linalg.norm(weights) * np.linalg.norm(x))
    for name, direction in directions(problem, x, rng).items():
        if row.good == "objective" and not set(direction) <= set(OBJECTIVE):
            continue
        computed = sum(float(gradients[k] @ d) for k, d in direction.items() if k in gradients)
        off, why = math.inf, ""
        # Warm starts are fast, but in nearly singular problems their errors differ; if they contradict the gradient,
        # cold solves decide.
        for solve in (warm, cold):
            solve.failure = ""
            found = difference(lambda t, s=solve, d=direction: float(weights @ (s(d, t) - x)), floor)
            if found.smooth:
                off = abs(computed - found.value) / max(abs(computed), abs(found.value), floor)
                if off <= AGREEMENT:
                    break
            why = "kink" if found.decided else (solve.failure or f"differences disagree by {found.doubt:.0e}")
        if off == math.inf:
            row = replace(row, undecided="; ".join(filter(None, (row.undecided, f"{name}: {why}"))))
            continue
        row = replace(row, checked=row.checked + 1)
        if not off <= row.error:
            row = replace(row, worst=name, error=off)
        yield row
    yield replace(row, stage="check")


class TightSolver:
    """The solution of the problem moved along a direction; with keys, started from the one before."""

    def __init__(self, problem: QuadraticProblem, keys: list[str] | None) -> None:
        from ffo.torch import FFOQPLayer

        self.problem, self.keys = problem, keys
        self.layer = FFOQPLayer(solver_args={"eps": 1e-10}, on_fail="nan")
        self.failure = ""
        self._middle: Array | None = None

    def __call__(self, direction: dict[str, Array], t: float) -> Array:
        if t:
            return self._solve(direction, t)
        if self._middle is None:
            self._middle = self._solve({}, t)
        return self._middle

    def _solve(self, direction: dict[str, Array], t: float) -> Array:
        values = self.problem.values
        for name, d in direction.items():
            values[name] = values[name] + t * d  # infinite bounds stay infinite
        tensors = self.problem.tensors(values)
        solution = self.layer(**tensors, keys=self.keys)
        info = self.layer.info
        assert info is not None
        if not info.ok[0]:
            self.failure = f"the moved problem is {info.status[0].name}"
        return solution.detach().numpy()


def _values(gradient: torch.Tensor) -> Array:
    return (gradient.coalesce().values() if gradient.is_sparse else gradient).detach().numpy()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for found in stages(Path(sys.argv[1])):
        print(json.dumps(asdict(found)), flush=True)
