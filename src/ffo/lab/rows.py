"""Results of an experiment: rows, one JSON object per line.

A results folder holds

    rows.jsonl      one `Row` per line, written immediately: valid after an interruption, except for an
                    incomplete last line, which `read_rows` ignores
    machine.json    the `Machine` the rows were measured on
    done.jsonl      the jobs that are finished (the runner's own; a report does not need it)

Every row has every field of `Row`; fields that do not apply are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

ROWS, MACHINE, DONE = "rows.jsonl", "machine.json", "done.jsonl"

#: name -> what it shows, in the order of a report
EXPERIMENTS = {
    "dfl": "Synthetic decision-focused learning",
    "sudoku": "Sudoku",
    "socp": "Second-order cone programming",
    "dense": "Decision-focused learning with a dense Q",
    "scaling_qp": "Scaling in the dimension, QP",
    "scaling_socp": "Scaling in the dimension, SOCP",
    "scaling_dense": "Scaling in the dimension, dense QP",
    "scaling_sudoku": "Scaling in the size of the board, Sudoku",
    "memory": "Peak memory by phase",
    "lpgd": "The tolerance and the perturbation of LPGD",
    "adam": "The epsilon of Adam",
    "similarity": "Gradients during training, against a tight reference",
    "batch": "Batch size",
    "tolerance": "Tolerance of the backward solve",
    "delta": "Size of the perturbation",
    "solvers": "Solver of the forward pass",
    "bilevel": "Bilevel: calls to a Goldstein stationary point",
    "hypergradient": "Bilevel: cost of one hypergradient",
}
TASKS = {
    "qp": "decision-focused QP",
    "qp_dense": "dense decision-focused QP",
    "sudoku4": "Sudoku 4×4",
    "sudoku9": "Sudoku 9×9",
    "socp": "decision-focused SOCP",
}
#: lower levels of the bilevel experiments: the same field of a row as a task
LOWER_LEVELS = {
    "kink": "kink of the paper (QP)",
    "corners": "corners of a box (QP)",
    "simplex": "face of a simplex (QP)",
    "valley": "valley, one for each ε (QP)",
    "smoothed": "smoothed kink, one draw per call (QP)",
    "disc": "edge of a disc (second-order cone)",
    "box": "linear constraints",
    "ball": "a second-order cone",
}


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        experiment: a key of `EXPERIMENTS`.
        task: a key of `TASKS`, or of `LOWER_LEVELS` in the bilevel experiments.
        method: display name of the method, such as "FFOCP" or "CvxpyLayer".
        family: "conic" for methods that take any convex problem, "qp" for those that take only QPs.
        seed: seed of data, model and training.
        d_y: dimension of the decision variable.
        batch: samples per step.
        record: "result": one per job, its times, accuracy and final values; "curve": one point of a
            curve of that job (an epoch of training, a step for "similarity", an accuracy of a bilevel method);
            "phase": one phase of "memory"; "progress": what a running job knows so far (not written to files).
        job: hash of the job; its curve rows and its result row share it.
        build_s: seconds to build the layer, once, including the first step's set-up if a method defers it.
        forward_s, backward_s, total_s: median seconds of one step's layer (not of the network around it).
        processor_s: median processor seconds of such a step, all threads together. Other work on the machine makes
            the other times longer, and this one hardly.
        cosine, l2, linf: comparison of the gradient of the loss in the layer's inputs with the tight reference:
            cosine similarity, relative Euclidean and relative largest-entry distance. Worst over the
            tensors that are differentiated.
        solution: distance of the layer's solution from the reference's, relative to the larger of 1 and the
            reference's norm; worst over the samples of the first step and a few of the last.
        train_loss, test_loss: mean over samples; in a result row, after the last epoch.
        train_error, test_error: share of puzzles not solved exactly (Sudoku), in [0, 1]; train_cells and
            test_cells: share of their cells with a wrong digit.
        epoch: epochs finished (curve rows; 0 is before training).
        step: optimiser steps taken.
        elapsed_s: seconds of training so far; for a job that was stopped, its total seconds.
        at_least_s: for a job that was stopped during its first step: seconds that step had taken.
        peak_mb: peak resident memory of the process during `phase`, everything included; in a result row,
            the largest of these.
        base_mb: resident memory of that process before the data were made: interpreter and packages.
        data_mb: size of the data of one step: every tensor passed to the layer, and its gradient.
        phase: "build", "forward" or "backward" (memory); null elsewhere.
        tolerance: the tolerance of the solver, if the experiment sets one.
        delta: the perturbation of the re-solve, if the experiment sets one.
        solver: the forward solver, if the experiment sets one.
        backward_tolerance: the tolerance of the backward solve alone, if the experiment sets one.
        adam_eps: Adam's epsilon, if a model is trained.
        setting: "paper": the task as in the paper's text; "authors": as in its authors' code.
        epsilon: what a bilevel method aims at: the norm of a mean gradient, or one over the weight of a penalty.
        calls: of the oracle, one forward and one backward pass each ("bilevel"), or gradients of the lower level's
            functions ("hypergradient"); null if epsilon was not reached.
        distance: of zero from the Goldstein subdifferential at the point that was found, known without a layer.
        status: "ok"; "failed": it was tried and did not finish; "skipped": it cannot run here.
        reason: why it failed or was skipped; empty if ok.
    """

    experiment: str
    task: str
    method: str
    family: Literal["qp", "conic"]
    seed: int
    d_y: int | None = None
    batch: int | None = None
    record: Literal["result", "curve", "phase", "progress"] = "result"
    job: str = ""
    build_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    total_s: float | None = None
    processor_s: float | None = None
    cosine: float | None = None
    l2: float | None = None
    linf: float | None = None
    solution: float | None = None
    train_loss: float | None = None
    test_loss: float | None = None
    train_error: float | None = None
    test_error: float | None = None
    train_cells: float | None = None
    test_cells: float | None = None
    epoch: int | None = None
    step: int | None = None
    elapsed_s: float | None = None
    at_least_s: float | None = None
    peak_mb: float | None = None
    base_mb: float | None = None
    data_mb: float | None = None
    phase: str | None = None
    tolerance: float | None = None
    delta: float | None = None
    solver: str | None = None
    backward_tolerance: float | None = None
    adam_eps: float | None = None
    setting: str = "paper"
    epsilon: float | None = None
    calls: int | None = None
    distance: float | None = None
    status: Literal["ok", "failed", "skipped"] = "ok"
    reason: str = ""

    def as_json(self) -> str:
        """The row as one line. Numbers that are not finite become null."""
        finite = {k: None if isinstance(v, float) and v - v != 0 else v for k, v in asdict(self).items()}
        return json.dumps(finite, allow_nan=False, ensure_ascii=False)


COLUMNS = tuple(f.name for f in fields(Row))


@dataclass(frozen=True)
class Machine:
    """Where and how the rows were measured.

    Attributes:
        cpu: name of the processor; cores: available to this process; memory_gb: total.
        python, platform: versions of the interpreter and the system.
        packages: versions of the packages involved, by name.
        date: ISO 8601, when the run started (the first one, if it was resumed).
        preset, seeds, experiments, methods: as requested.
        threads: OpenMP/BLAS threads of a job.
        command: the command line.
        setting: of the tasks, as in `Row`.
        device: name of the CUDA device; empty if there is none.
        at_once: timed jobs that ran at a time, each on cores of its own.
        load: processes that wanted to run when it started, on average over the minute before: other work, which makes
            times noisy. The largest, if it was resumed.
        planned: jobs of the whole preset by experiment, whatever was requested of them.
    """

    cpu: str
    cores: int
    memory_gb: float
    python: str
    platform: str
    packages: dict[str, str]
    date: str
    preset: str
    seeds: list[int]
    experiments: list[str]
    methods: list[str]
    threads: int
    command: str
    setting: str = "paper"
    device: str = ""
    at_once: int = 1
    load: float = 0.0
    planned: dict[str, int] = field(default_factory=dict)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; an incomplete last line is ignored."""
    if not path.exists():
        return
    *whole, last = path.read_text(encoding="utf-8").split("\n")
    yield from (json.loads(line) for line in whole if line)
    try:
        yield json.loads(last)
    except json.JSONDecodeError:
        return


def read_rows(folder: Path) -> list[Row]:
    """The rows of a results folder, in the order they were measured."""
    return [Row(**entry) for entry in read_lines(folder / ROWS)]


def read_machine(folder: Path) -> Machine:
    """The machine of a results folder."""
    return Machine(**json.loads((folder / MACHINE).read_text(encoding="utf-8")))
