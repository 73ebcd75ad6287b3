"""FFOQPLayer compared with other layers for quadratic programs.

Contenders whose step takes at most a few seconds are timed in turn, in every repetition. Slower ones (qpth on hundreds
of variables, Moreau through cvxpylayers) run one or two steps in a separate process, `python -m benchmarks.qp_layers
CONTENDER CASE N GRADIENTS START`, which is stopped after `LIMIT` seconds: its row then says so, and the limit counts as
its time. All gradients are compared with dense linear algebra on the active set of a tight solve.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import exact, peers, problems
from benchmarks.peers import Contender
from benchmarks.problems import Case
from benchmarks.report import Figure
from benchmarks.timing import Entry, Timing, measure

Array = np.ndarray
#: seconds after which a slow contender is stopped, and steps that it runs if there is time
LIMIT, STEPS = 60.0, 2
#: GB of address space for a slow contender (Moreau through cvxpylayers takes 6 GB at n=500)
MEMORY = 12
#: largest relative error of a gradient
ACCURACY = 1e-6
SEED = 0

OURS, QPTH, QPLAYER = "FFOQPLayer", "qpth", "QPLayer"
THROUGH, DIRECT = "cvxpylayers + Moreau", "Moreau, sparse values"
CONTENDERS: dict[str, Contender] = {
    OURS: peers.ffo_qp,
    QPTH: peers.qpth,
    QPLAYER: peers.qplayer,
    THROUGH: peers.cvxpylayers_moreau,
    DIRECT: peers.moreau,
}
CASES: dict[str, Callable[[int], Case]] = {
    "dfl": problems.decision_qp,
    "dfl-factor": lambda n: problems.decision_qp(n, quad_form=False),  # the form that cvxpylayers accepts
    "sudoku": lambda _: problems.sudoku(),
    "dense": problems.dense_qp,
}


@dataclass(frozen=True)
class Match:
    """One problem, the contenders compared on it, and the targets.

    Attributes:
        together: contenders that are timed in turn with this package; slow: those that run in a process of their own.
        targets: pairs of a ratio and contenders: how many times faster this package is to be than the fastest of them.
        checked: number of samples whose gradients are checked.
    """

    case: str
    n: int
    together: tuple[str, ...]
    slow: tuple[str, ...]
    targets: tuple[tuple[float, tuple[str, ...]], ...]
    checked: int
    repeats: int | None = None
    warmup: int = 2


LAYERS = (QPTH, QPLAYER, THROUGH)
MATCHES = (
    *(
        Match(
            case="dfl",
            n=n,
            together=(QPLAYER, DIRECT),
            slow=(QPTH, THROUGH),
            targets=((5.0, LAYERS), (1.5, (DIRECT,))),
            checked=3,
            repeats=3 if n == 800 else None,
            warmup=1 if n == 800 else 2,
        )
        for n in (200, 500, 800)
    ),
    Match("sudoku", 729, (QPLAYER,), (QPTH,), ((4.0, (QPLAYER,)), (10.0, (QPTH,))), checked=8),
    Match("dense", 100, (QPLAYER,), (QPTH,), ((5.0, (QPTH,)), (2.0, (QPLAYER,))), checked=4),
    Match("dense", 10, (QPLAYER, QPTH), (), ((5.0, (QPTH, QPLAYER)),), checked=16),
)


@dataclass(frozen=True)
class Outcome:
    """Result of a match: figures with their targets, and a row for every contender."""

    figures: list[Figure] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


def play(match: Match, repeats: int, progress: Callable[[str], None]) -> Outcome:
    """Time all contenders of a match and check their gradients."""
    case = CASES[match.case](match.n)
    progress(f"{case.name}: reference")
    reference = reference_gradients(case, match.checked)
    entries = [Entry(label, CONTENDERS[label], case) for label in (OURS, *match.together)]
    # Small problems take milliseconds: more repetitions cost little, and make the medians more stable.
    count = match.repeats or (4 * repeats if match.n <= 10 else repeats)
    timings = {t.label: t for t in measure(entries, count, match.warmup, lambda what: progress(f"{case.name}: {what}"))}
    errors = {label: _error(label, case, reference) for label in timings}
    for label in match.slow:
        progress(f"{case.name}: {label}, in a process of its own")
        timings[label], errors[label] = _alone(label, match, reference)
    figures = [_figure(case.name, timings, target, rivals) for target, rivals in match.targets]
    name = f"{case.name}: gradient error"
    figures.append(Figure(name, errors[OURS], ACCURACY, "", False, timings[OURS].reason))
    ours = timings[OURS].total
    rows = [
        {"case": case.name, "time relative to ffo": t.total / ours, "gradient error": errors[label], **t.as_dict()}
        for label, t in timings.items()
    ]
    return Outcome(figures, rows)


def _figure(case: str, timings: Mapping[str, Timing], target: float, rivals: Sequence[str]) -> Figure:
    """Compare with the fastest of some contenders: the smaller of the ratio of medians and the ratio of best times."""
    ours = timings[OURS]
    ran = [timings[label] for label in rivals if not np.isnan(timings[label].total)]
    fastest = min(ran, key=lambda t: t.total, default=Timing("none could run"))
    ratio = min(fastest.total / ours.total, fastest.best / ours.best)
    missing = "; ".join(f"{label}: {timings[label].reason}" for label in rivals if timings[label].reason)
    among = f"the fastest of {len(rivals)}, {fastest.label}" if len(rivals) > 1 else rivals[0]
    return Figure(
        f"{case}: step compared with {among}", ratio, target, reason="; ".join(filter(None, (ours.reason, missing)))
    )


def reference_gradients(case: Case, samples: int) -> dict[str, Array]:
    """Gradients of the first samples for each block: the sum over samples if the block is shared, else stacked."""
    data, weights = case.data(SEED), case.weights(SEED)
    found = []
    for k in range(samples):
        values = case.sample(data, k)
        blocks = {name: np.asarray(v) for name, v in values.items()} | ({"p": -values["q"]} if "q" in values else {})
        gradient = exact.quadratic_gradient(blocks, _solution(case, values), weights[k])
        found.append({**gradient, "q": -gradient["p"]})
    stacked = {name: np.stack([g[name] for g in found]) for name in case.differentiate}
    return {name: v.sum(axis=0) if name in case.shared else v for name, v in stacked.items()}


def _solution(case: Case, values: Mapping[str, Array]) -> Array:
    if case.exact:
        return case.exact(values)
    problem, variable = case.concrete(values)
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return variable.value


def _error(label: str, case: Case, reference: Mapping[str, Array]) -> float:
    """Relative error of a contender's gradients, NaN if it does not run."""
    try:
        return difference(gradients(CONTENDERS[label], case), reference)
    except Exception:
        return np.nan  # the row of its timing says why


def gradients(contender: Contender, case: Case) -> dict[str, Array]:
    """Gradients of all samples at default settings."""
    step = contender(case)
    tensors = step.tensors(case.data(SEED))
    found = step.backward(tensors, step.forward(tensors), torch.tensor(case.weights(SEED)))
    return {name: g.numpy() for name, g in found.items()}


def difference(found: Mapping[str, Array], reference: Mapping[str, Array]) -> float:
    """Relative error over all blocks together; the reference may cover only the first samples."""
    pairs = [(found[k][: len(v)] if found[k].shape != v.shape else found[k], v) for k, v in reference.items()]
    distance = np.sqrt(sum(np.sum((g - v) ** 2) for g, v in pairs))
    return float(distance / np.sqrt(sum(np.sum(v**2) for _, v in pairs)))


def _alone(label: str, match: Match, reference: Mapping[str, Array]) -> tuple[Timing, float]:
    """Run a slow contender in a process of its own: the time of its fastest step, and the error of its gradients."""
    case = "dfl-factor" if label == THROUGH else match.case
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "gradients.npz"
        command = [sys.executable, "-m", "benchmarks.qp_layers", label, case]
        command += [str(match.n), str(saved), str(time.time())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
            output, errors, stopped = done.stdout, done.stderr, False
        except subprocess.TimeoutExpired as late:
            output, errors, stopped = (late.stdout or b"").decode(), "", True
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        error = difference(np.load(saved), reference) if saved.exists() else np.nan
    steps = [line for line in found if "forward" in line]
    if steps:
        best = min(steps, key=lambda step: step["forward"] + step["backward"])
        total = best["forward"] + best["backward"]
        words = "one step" if len(steps) == 1 else f"best of {len(steps)} steps"
        return Timing(label, found[0]["build"], best["forward"], best["backward"], total, total, words), error
    if stopped:
        at_least = LIMIT - found[0]["ready"] if found else np.nan
        reason = f"stopped in its first step, after {LIMIT:g} s"
        return Timing(label, total=at_least, best=at_least, reason=reason), error
    lines = [line for line in errors.strip().splitlines() if line] or ["no message"]
    return Timing(label, reason=lines[-1][:160]), error


def _run_alone(label: str, case_name: str, n: int, path: str, began: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY << 30, MEMORY << 30))
    case = CASES[case_name](n)
    start = time.perf_counter()
    step = CONTENDERS[label](case)
    build = time.perf_counter() - start
    print(json.dumps({"build": build, "ready": time.time() - began}), flush=True)
    for k in range(STEPS):
        tensors, weights = step.tensors(case.data(SEED + k)), torch.tensor(case.weights(SEED + k))
        start = time.perf_counter()
        solution = step.forward(tensors)
        middle = time.perf_counter()
        found = step.backward(tensors, solution, weights)
        print(json.dumps({"forward": middle - start, "backward": time.perf_counter() - middle}), flush=True)
        if k == 0:
            np.savez(path, **{name: g.numpy() for name, g in found.items()})


if __name__ == "__main__":
    _run_alone(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
