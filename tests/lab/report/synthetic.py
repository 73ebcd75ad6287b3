"""Rows like those of a run: invented times with the growth, spread and failures of real ones."""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ffo.lab.rows import EXPERIMENTS, MACHINE, ROWS, Machine, Row

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Contender:
    """Seconds of a step are `forward`, `backward` at d_y = 200 and grow with `growth`; `error` is 1 - cosine."""

    name: str
    family: str
    forward: float
    backward: float
    growth: float
    error: float
    memory: float = 30.0


CONTENDERS = [
    Contender("FFOCP", "conic", 0.014, 0.008, 0.9, 3e-13, 20),
    Contender("FFOCP iterative", "conic", 0.014, 0.021, 1.0, 4e-9, 16),
    Contender("FFOCP (paper)", "conic", 0.06, 0.04, 0.95, 1e-10, 25),
    Contender("FFOQP", "qp", 0.006, 0.004, 0.8, 1e-14, 12),
    Contender("FFOQP (paper)", "qp", 0.05, 0.02, 1.2, 1e-13, 40),
    Contender("CvxpyLayer", "conic", 0.24, 0.10, 1.7, 8e-8, 900),
    Contender("QPTH", "qp", 3.2, 0.15, 2.4, 1e-11, 300),
    Contender("LPGD", "conic", 0.25, 0.20, 1.6, 0.12, 900),
    Contender("LPGD (tight)", "conic", 0.9, 1.4, 1.7, 3e-6, 900),
    Contender("BPQP", "conic", 0.12, 0.3, 1.5, 2e-6, 120),
    Contender("dQP", "qp", 0.12, 0.05, 1.6, 1e-12, 100),
    Contender("Alt-Diff", "qp", 1.6, 1.1, 2.2, 4e-6, 500),
    Contender("QPLayer", "qp", 0.29, 0.05, 2.0, 1e-10, 250),
    Contender("Moreau (cvxpylayers)", "conic", 1.05, 0.8, 2.5, 2e-4, 800),
    Contender("Moreau (direct)", "conic", 0.13, 0.1, 0.9, 1e-9, 60),
]
BY_NAME = {c.name: c for c in CONTENDERS}
TASK_SIZE = {"qp": 200, "qp_dense": 200, "socp": 200, "sudoku4": 64, "sudoku9": 729}
TRAINED = ("dfl", "sudoku", "socp", "dense", "lpgd", "adam", "tolerance")
TOO_SLOW = "TimeoutError: its first step took 6.7 s: 800 steps would take about 5360 s, the limit is 120 s"
#: what each task adds to a step's time
TASK_FACTOR = {"qp": 1.0, "qp_dense": 3.0, "socp": 1.5, "sudoku4": 0.8, "sudoku9": 2.0}


def timed(contender: Contender, rng: np.random.Generator, row: Row) -> Row:
    """`row` with times and accuracy."""
    assert row.d_y is not None
    assert row.batch is not None
    size = (row.d_y / 200) ** contender.growth * TASK_FACTOR[row.task] * (0.15 + 0.85 * row.batch / 32)
    forward, backward = (
        size * each * math.exp(0.08 * rng.standard_normal()) for each in (contender.forward, contender.backward)
    )
    error = min(1.0, contender.error * math.exp(0.5 * rng.standard_normal()))
    return replace(
        row,
        build_s=0.02 * size,
        forward_s=forward,
        backward_s=backward,
        total_s=forward + backward,
        cosine=1 - error,
        l2=math.sqrt(2 * error),
        solution=1e-9,
        linf=1.4 * math.sqrt(2 * error),
    )


def row_of(contender: Contender, experiment: str, task: str, seed: int, **values: Any) -> Row:
    values = {"d_y": TASK_SIZE[task], "batch": 32, "job": f"{experiment}-{task}-{contender.name}-{seed}"} | values
    values = {"adam_eps": 1e-8 if experiment in TRAINED else None} | values
    return Row(experiment=experiment, task=task, method=contender.name, family=contender.family, seed=seed, **values)


def failed(row: Row, reason: str, status: str = "failed") -> Row:
    return replace(row, status=status, reason=reason)


def training(experiment: str, task: str, names: list[str], seed: int, epochs: int = 12, **values: Any) -> Iterator[Row]:
    """Curve rows and a result row for each contender."""
    sudoku = task.startswith("sudoku")
    start, end = (6.0, 0.4) if sudoku else (-0.2, -6.3)
    shift = 0.05 * np.random.default_rng(seed).standard_normal()
    for name in names:
        contender = BY_NAME[name]
        rng = np.random.default_rng(zlib.crc32(f"{name} {task} {seed}".encode()))
        base = row_of(contender, experiment, task, seed, **values)
        stall = 0.35 if contender.error > 1e-2 else 0.0
        for epoch in range(epochs + 1):
            progress = (1 - stall) * (1 - math.exp(-epoch / 3.5))
            loss = start + (end - start) * progress + shift + 0.002 * rng.standard_normal()
            loss += stall * 0.4 * rng.standard_normal()
            point = replace(
                base, record="curve", epoch=epoch, step=epoch * 51, elapsed_s=epoch * 51 * contender.forward
            )
            point = replace(point, train_loss=loss, test_loss=loss + 0.1)
            if sudoku:
                error = min(1.0, max(0.0, 1.05 - progress + 0.02 * rng.standard_normal()))
                point = replace(point, train_error=error, test_error=min(1.0, error + 0.05))
                point = replace(point, train_cells=error / 3, test_cells=min(1.0, error + 0.05) / 3)
            yield point
        final = timed(contender, rng, replace(point, record="result"))
        tolerance = final.backward_tolerance or final.tolerance
        if tolerance is not None:
            slower = 1 + 0.2 * math.log10(1e-3 / tolerance)
            error = min(0.5, 300 * tolerance) if name == "LPGD" else 1e-3 * tolerance
            final = replace(final, backward_s=slower * final.backward_s, cosine=1 - error)
        yield final


def sweeps(seed: int) -> Iterator[Row]:
    """Sizes, batches, memory, tolerances, perturbations and solvers."""
    rng = np.random.default_rng(100 + seed)
    for experiment, task in (("scaling_qp", "qp"), ("scaling_dense", "qp_dense"), ("scaling_socp", "socp")):
        for contender in CONTENDERS:
            if task == "socp" and contender.family == "qp":
                continue
            for d_y in (50, 100, 200, 500, 800, 1000):
                base = row_of(contender, experiment, task, seed, d_y=d_y)
                if d_y == 1000 and contender.name in ("CvxpyLayer", "LPGD"):
                    yield failed(base, "out of memory: 31.2 GB asked, 23.0 GB here")
                elif d_y >= 500 and contender.name == "Alt-Diff":
                    yield failed(base, "time limit of 120 s")
                else:
                    yield timed(contender, rng, base)
    for task, contender in itertools.product(("sudoku4", "sudoku9"), CONTENDERS):
        yield timed(contender, rng, row_of(contender, "scaling_sudoku", task, seed))
    for name in ("FFOCP", "FFOCP (paper)", "FFOQP", "CvxpyLayer"):
        for batch in (1, 4, 16, 64, 256):
            each = timed(BY_NAME[name], rng, row_of(BY_NAME[name], "batch", "qp", seed, batch=batch))
            yield replace(each, total_s=BY_NAME[name].forward * (2 + 0.1 * batch))
        for step in range(0, 60, 4):
            for d_y in (50, 200):
                base = timed(BY_NAME[name], rng, row_of(BY_NAME[name], "similarity", "qp", seed, d_y=d_y))
                yield replace(base, record="curve", step=step, forward_s=None, backward_s=None, total_s=None)
    for delta, (name, tolerance) in itertools.product(
        (1e-2, 1e-4, 1e-6, 1e-8), (("FFOCP (paper)", None), ("LPGD", 1e-8))
    ):
        base = row_of(BY_NAME[name], "delta", "qp", seed, delta=delta, tolerance=tolerance)
        error = delta + 1e-12 / delta
        yield replace(timed(BY_NAME[name], rng, base), cosine=1 - 1e-6 * error, l2=1e-3 * error)
    for solver, factor in (("piqp", 1.0), ("clarabel", 2.3), ("scs", 6.0), ("osqp", 4.0), ("gurobi", 0.0)):
        for task in ("qp", "socp"):
            base = row_of(BY_NAME["FFOCP"], "solvers", task, seed, solver=solver)
            if factor and not (solver == "osqp" and task == "socp"):
                measured = timed(BY_NAME["FFOCP"], rng, base)
                forward = factor * measured.forward_s
                yield replace(measured, forward_s=forward, total_s=forward + measured.backward_s)
            else:
                reason = "takes quadratic programs alone" if factor else "no licence for 800 variables"
                yield failed(base, reason, "skipped")


def bilevel(seed: int) -> Iterator[Row]:
    """Calls to stationary points, and costs of hypergradients."""

    def row(experiment: str, task: str, method: str, **values: Any) -> Row:
        job = f"{experiment}-{task}-{method}-{seed}"
        return Row(experiment, task, method, "conic", seed, job=job, **{"record": "curve", **values})

    for task in ("corners", "disc"):
        for epsilon in (0.5, 0.35, 0.25):
            for method, calls in (("GoldsteinDescent", 90 / epsilon**2), ("minimize", 40 / epsilon)):
                yield row("bilevel", task, method, epsilon=epsilon, calls=round(calls) + seed, distance=0.1)
        yield row("bilevel", task, "GoldsteinDescent", calls=1440, record="result")
    for task in ("box", "ball"):
        for k in (7, 9, 11, 13):
            yield row("hypergradient", task, "Algorithm 1", tolerance=10.0**-k, l2=10 ** (-k / 2), calls=15 * k + seed)
        for weight in (30, 100, 300):
            yield row("hypergradient", task, "penalty method", epsilon=1 / weight, l2=3 / weight, calls=20 * weight)
        for delta in (1e-1, 1e-2, 1e-3):
            error = 0.1 * delta
            yield row("hypergradient", task, "Algorithm 1", tolerance=1e-13, delta=delta, l2=error, calls=190)
        yield row("hypergradient", task, "Algorithm 1", calls=195, l2=1e-6, record="result")


def memory(seed: int, growth: float) -> Iterator[Row]:
    for name in ("FFOCP", "FFOQP", "CvxpyLayer", "QPTH"):
        contender = BY_NAME[name]
        power = growth if name.startswith("FFO") else 2.0
        for d_y in (200, 400, 1000):
            data = 2 * d_y * (2 * d_y + 1) * 8 / 2**20
            for order, phase in enumerate(("build", "forward", "backward")):
                above = contender.memory * (d_y / 200) ** power * (0.4 + 0.3 * order)
                base = row_of(contender, "memory", "qp", seed, d_y=d_y, record="phase", phase=phase)
                if name == "CvxpyLayer" and d_y == 1000:
                    yield failed(base, "out of memory: 31.2 GB asked, 23.0 GB here")
                else:
                    yield replace(base, peak_mb=450 + data + above, base_mb=450.0, data_mb=data)


def synthetic_rows(memory_growth: float = 0.3) -> list[Row]:
    """A whole run: every experiment, three seeds, failures of each kind."""
    names = [c.name for c in CONTENDERS]
    conic = [c.name for c in CONTENDERS if c.family == "conic"]
    rows: list[Row] = []
    for seed in SEEDS:
        rows += training("dfl", "qp", names, seed)
        rows += training("sudoku", "sudoku4", names, seed)
        rows += training("sudoku", "sudoku9", [n for n in names if n not in ("LPGD (tight)", "Alt-Diff")], seed)
        rows += training("socp", "socp", conic, seed)
        rows += training("dense", "qp_dense", names, seed)
        rows += training("lpgd", "sudoku4", ["FFOCP", "FFOCP (paper)"], seed)
        for tolerance, tau in ((1e-4, 1e-3), (1e-12, 1e-3), (1e-8, 1e-1), (1e-8, 1e-5)):
            for row in training("lpgd", "sudoku4", ["LPGD"], seed, tolerance=tolerance, delta=tau):
                rows.append(replace(row, method=f"LPGD, tolerance {tolerance:g}, τ {tau:g}"))
        for task in ("qp", "socp"):
            rows += training("tolerance", task, ["FFOCP"], seed)
            for tolerance in (1e-3, 1e-6, 1e-9, 1e-12):
                rows += training("tolerance", task, ["FFOCP (paper)", "BPQP"], seed, backward_tolerance=tolerance)
                rows += training("tolerance", task, ["LPGD"], seed, tolerance=tolerance, delta=1e-3)
        for eps in (1e-8, 1e-5):
            rows += training("adam", "qp", ["FFOCP", "FFOQP", "QPTH"], seed, adam_eps=eps)
        for name in ("LPGD (tight)", "Alt-Diff"):
            rows.append(failed(row_of(BY_NAME[name], "sudoku", "sudoku9", seed), TOO_SLOW))
        for name in ("QPTH", "QPLayer", "dQP", "Alt-Diff", "FFOQP", "FFOQP (paper)"):
            rows.append(
                failed(row_of(BY_NAME[name], "socp", "socp", seed), "takes quadratic programs alone", "skipped")
            )
        published = Contender("ffolayer FFOCP", "conic", 1, 1, 1, 0.3)
        rows.append(failed(row_of(published, "dfl", "qp", seed), "the package ffolayer does not import", "skipped"))
        rows += sweeps(seed)
        rows += bilevel(seed)
        rows += memory(seed, memory_growth)
    return rows


MACHINE_OF_THE_ROWS = Machine(
    cpu="Invented Processor 9000 @ 3.00GHz",
    cores=2,
    memory_gb=23.4,
    python="3.11.7",
    platform="Linux-6.1-x86_64",
    packages={"ffo": "0.1.0.dev0", "torch": "2.13.0", "cvxpy": "1.9.3", "cvxpylayers": "1.2.0", "diffcp": "1.1.9"},
    date="2026-03-01T12:00:00+00:00",
    preset="quick",
    seeds=list(SEEDS),
    experiments=list(EXPERIMENTS),
    methods=[c.name for c in CONTENDERS],
    threads=1,
    command="ffo lab run --preset quick --out results",
)


def write_results(folder: Path, rows: list[Row], machine: Machine = MACHINE_OF_THE_ROWS) -> Path:
    """`rows` and `machine` as the runner writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ROWS).write_text("".join(f"{row.as_json()}\n" for row in rows), encoding="utf-8")
    (folder / MACHINE).write_text(json.dumps(asdict(machine)), encoding="utf-8")
    return folder
