"""Seconds to compile the kernels with an empty cache, and to load them from a full one.

`python -m benchmarks.compile NAME...` builds layers and runs a few steps of each; the extra time of the first ones is
that of compiling or loading. One JSON line is printed. Every measurement is a fresh process, since a process compiles
once; Numba finds its cache through the environment variable NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import forms, latency, peers, problems
from benchmarks.peers import Step
from benchmarks.report import Figure, Suite

#: kinds of first quadratic programs, each measured with its own cache
FIRST = ("sparse QP", "dense QP", "separable QP")
STEPS = 4
#: seconds for a first quadratic program, for everything, and for loading everything
ONE, ALL, LOADED = 15.0, 40.0, 1.0


def _layer(contender: peers.Contender, build: Callable[[], problems.Case]) -> Callable[[], tuple[Step, problems.Case]]:
    def make() -> tuple[Step, problems.Case]:
        case = build()
        return contender(case), case

    return make


#: a step of each, by its name on the command line; together they need every kernel
LAYERS: dict[str, Callable[[], tuple[Step, problems.Case]]] = {
    "sparse QP": _layer(partial(peers.ffo_qp, solver="INTERIOR"), partial(latency.general, 30)),
    "dense QP": _layer(partial(peers.ffo_qp, solver="DENSE"), partial(latency.general, 30, dense=True)),
    "separable QP": _layer(partial(peers.ffo_qp, solver="SEPARABLE"), partial(problems.sudoku, batch=1)),
    "degenerate LP": _layer(peers.ffo, partial(forms.shortest_path, 2)),
    "SOCP": _layer(peers.ffo, partial(problems.decision_qp, 20, norm_ball=True)),
    "SDP": _layer(peers.ffo, partial(problems.semidefinite, 4)),
    "entropy": _layer(peers.ffo, problems.entropy),
    "p-norm": _layer(peers.ffo, problems.p_norm),
}


def suite(progress: Callable[[str], None]) -> Suite:
    """First quadratic programs, everything, and everything again from the cache."""
    rows: list[dict[str, object]] = []
    figures = []

    def add(label: str, names: tuple[str, ...], cache: str, target: float) -> None:
        progress(f"compile: {label}")
        seconds, reason = measure(names, cache)
        total = sum(seconds.values()) if seconds else math.nan
        figures.append(Figure(label, total, target, "s", False, reason))
        rows.extend({"run": label, "layer": name, "seconds": value} for name, value in seconds.items())

    for name in FIRST:
        with tempfile.TemporaryDirectory() as cache:
            add(f"first {name}: compile", (name,), cache, ONE)
    with tempfile.TemporaryDirectory() as cache:
        add("everything: compile", tuple(LAYERS), cache, ALL)
        add("everything: load", tuple(LAYERS), cache, LOADED)
    return Suite("compile", figures, rows)


def measure(names: tuple[str, ...], cache: str) -> tuple[dict[str, float], str]:
    """Seconds by layer, in a fresh process; or the reason why there are none."""
    command = [sys.executable, "-m", "benchmarks.compile", *names]
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles modules when it installs them: a user never waits
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return {}, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:160]
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def added(name: str) -> float:
    """How much longer building a layer and its first steps take than as many later steps.

    More than one, because a first step may make the next ones use other kernels.
    """
    start = time.perf_counter()
    step, case = LAYERS[name]()
    tensors, weights = step.tensors(case.data(0)), torch.tensor(case.weights(0))
    times = []
    for _ in range(STEPS):
        solution = step.forward(tensors)
        step.backward(tensors, solution, weights)
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    return sum(times) - STEPS * min(times)


if __name__ == "__main__":
    print(json.dumps({name: added(name) for name in sys.argv[1:]}))
