"""How much of each experiment: the paper's sizes, or what fits into five minutes on two cores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ffo.lab.tasks.base import Sizes


@dataclass(frozen=True)
class Course:
    """A training run: the task's sizes, samples per step, epochs; its own time limit, if it has one."""

    sizes: Sizes
    batch: int
    epochs: int
    time_limit: float = math.inf


@dataclass(frozen=True)
class Preset:
    """Everything that sizes an experiment.

    Attributes:
        seeds: of the training experiments; sweep_seeds: of all others, and of the largest board.
        swept: methods of the scaling experiments and of the largest board; weighed: of the memory
            experiment; empty: all.
        decision: training of the QP and the SOCP; boards: training by size of the Sudoku board.
        sizes: dimensions of the scaling experiments; steps: timed in each, for at most `budget` seconds.
        memory_sizes: dimensions of the memory experiment.
        lpgd_board: size of the Sudoku board on which LPGD's tolerance is studied.
        similarity_sizes: dimensions; similarity_steps: steps of training; every: steps between comparisons.
        batches: batch sizes; ablation: training of the tolerance and perturbation experiments, and the
            sizes at which batch sizes and solvers are compared.
        time_limit: seconds for one job; a method that took longer than repeat_limit is not run on a further
            seed.
    """

    name: str
    seeds: tuple[int, ...]
    sweep_seeds: tuple[int, ...]
    swept: tuple[str, ...]
    weighed: tuple[str, ...]
    decision: Course
    boards: dict[int, Course]
    sizes: tuple[int, ...]
    steps: int
    budget: float
    memory_sizes: tuple[int, ...]
    lpgd_board: int
    similarity_sizes: tuple[int, ...]
    similarity_steps: int
    every: int
    batches: tuple[int, ...]
    ablation: Course
    tolerances: tuple[float, ...]
    deltas: tuple[float, ...]
    time_limit: float
    repeat_limit: float


QUICK = Preset(
    name="quick",
    seeds=(0, 1),
    sweep_seeds=(0,),
    swept=(
        "FFOCP",
        "FFOQP",
        "CvxpyLayer",
        "CvxpyLayer (constants)",
        "LPGD",
        "LPGD (tight)",
        "BPQP",
        "dQP",
        "Alt-Diff",
        "QPTH",
        "QPLayer",
        "Moreau (cvxpylayers)",
        "Moreau (direct)",
        "ffolayer FFOQP",
        "ffolayer FFOCP",
    ),
    weighed=("FFOCP", "FFOQP", "CvxpyLayer"),
    decision=Course(Sizes(d_y=200, samples=40, learning_rate=1e-3), batch=32, epochs=3),
    boards={
        4: Course(Sizes(samples=40, learning_rate=3e-2), batch=32, epochs=3),
        9: Course(Sizes(samples=10, learning_rate=1e-2), batch=4, epochs=1, time_limit=4.0),
    },
    sizes=(100, 200, 800),
    steps=3,
    budget=0.8,
    memory_sizes=(200, 1000),
    lpgd_board=4,
    similarity_sizes=(100,),
    similarity_steps=6,
    every=2,
    batches=(1, 8, 32, 128),
    ablation=Course(Sizes(d_y=100, samples=80, learning_rate=1e-3), batch=32, epochs=1),
    tolerances=(1e-3, 1e-6, 1e-9),
    deltas=(1e-2, 1e-4, 1e-6),
    time_limit=5.0,
    repeat_limit=2.5,
)
PAPER = Preset(
    name="paper",
    seeds=tuple(range(10)),
    sweep_seeds=tuple(range(10)),
    swept=(),
    weighed=(),
    decision=Course(Sizes(d_y=800, samples=2048, learning_rate=1e-3), batch=32, epochs=20),
    boards={
        4: Course(Sizes(samples=2048, learning_rate=3e-2), batch=64, epochs=20),
        9: Course(Sizes(samples=2048, learning_rate=1e-2), batch=8, epochs=10),
    },
    sizes=(50, 100, 200, 400, 600, 800, 1000),
    steps=10,
    budget=60.0,
    memory_sizes=(200, 400, 600, 800, 1000),
    lpgd_board=9,
    similarity_sizes=(100, 200, 400, 800),
    similarity_steps=200,
    every=10,
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    ablation=Course(Sizes(d_y=200, samples=2048, learning_rate=1e-3), batch=32, epochs=10),
    tolerances=(1e-3, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12),
    deltas=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7),
    time_limit=4 * 3600.0,
    repeat_limit=math.inf,
)
PRESETS = {preset.name: preset for preset in (QUICK, PAPER)}
