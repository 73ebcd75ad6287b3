"""Sizes of the experiments: the paper's, or what fits into five minutes or two hours on two cores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ffo.lab.tasks.base import TaskSizes


@dataclass(frozen=True)
class Course:
    """A training run: the task's sizes, samples per step, epochs; its own time limit, if it has one; and whether
    its steps are timed (else it may run in parallel with others)."""

    sizes: TaskSizes
    batch: int
    epochs: int
    time_limit: float | None = None
    timed: bool = True


@dataclass(frozen=True)
class Bilevel:
    """Sizes of the bilevel experiments: seeds; lower levels, contenders and epsilons of the calls to a stationary
    point; accuracies and perturbations of Algorithm 1, and weights of the penalty, for one hypergradient."""

    seeds: tuple[int, ...]
    lower_levels: tuple[str, ...]
    walks: tuple[str, ...]
    epsilons: tuple[float, ...]
    accuracies: tuple[float, ...]
    deltas: tuple[float, ...]
    weights: tuple[float, ...]


SMALL = Bilevel(
    seeds=(0,),
    lower_levels=("corners", "disc"),
    walks=("GoldsteinDescent", "minimize"),
    epsilons=(0.5, 0.35, 0.25),
    accuracies=(1e-7, 1e-9, 1e-11, 1e-13),
    deltas=(1e-1, 1e-2, 1e-3, 1e-4),
    weights=(30.0, 100.0, 300.0),
)
LARGE = Bilevel(
    seeds=(0, 1, 2, 3),
    lower_levels=("kink", "corners", "simplex", "valley", "smoothed", "disc"),
    walks=("GoldsteinDescent", "minimize", "SGD", "Adam"),
    epsilons=(0.5, 0.354, 0.25, 0.177, 0.125),
    accuracies=tuple(10.0**-k for k in range(7, 14)),
    deltas=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
    weights=(30.0, 100.0, 300.0, 1000.0),
)


@dataclass(frozen=True)
class Preset:
    """Everything that sizes an experiment.

    Attributes:
        seeds: of training and of timing; ablation_seeds: of all other experiments, and of the largest board's
            training.
        swept: methods of the training and timing experiments; weighed: of the memory experiment; empty: all.
        decision: training of the QP and the SOCP; dense: of the QP with a dense Q; boards:
            by size of the Sudoku board.
        sizes: dimensions at which steps of `batch` samples are timed; board_batches: samples of a timed step by
            size of the board; dense_batches: by dimension of the dense QP; steps: timed in each, for at most
            `budget` seconds.
        memory_sizes: dimensions of the memory experiment.
        lpgd: training on which LPGD's tolerance is studied, on a Sudoku board of size lpgd_board, at each of
            lpgd_tolerances and lpgd_taus, the other being fixed.
        similarity_sizes: dimensions; similarity_steps: steps of training; every: steps between comparisons.
        batches: batch sizes; ablation: training of the tolerance and perturbation experiments, and the
            sizes at which batch sizes and solvers are compared.
        adam: training with each of `adam_epsilons`.
        time_limit: seconds for one job; a method that took longer than repeat_limit, or repeat_training where
            times are not measured, is not run on a further seed.
        bilevel: the bilevel experiments.
        trained: dimensions at which the QP and the SOCP are trained; empty: that of `decision`.
    """

    name: str
    seeds: tuple[int, ...]
    ablation_seeds: tuple[int, ...]
    swept: tuple[str, ...]
    weighed: tuple[str, ...]
    decision: Course
    dense: Course
    boards: dict[int, Course]
    sizes: tuple[int, ...]
    batch: int
    board_batches: dict[int, int]
    dense_batches: dict[int, int]
    steps: int
    budget: float
    memory_sizes: tuple[int, ...]
    lpgd: Course
    lpgd_board: int
    lpgd_tolerances: tuple[float, ...]
    lpgd_taus: tuple[float, ...]
    similarity_sizes: tuple[int, ...]
    similarity_steps: int
    every: int
    batches: tuple[int, ...]
    ablation: Course
    tolerances: tuple[float, ...]
    deltas: tuple[float, ...]
    adam: Course
    adam_epsilons: tuple[float, ...]
    time_limit: float
    repeat_limit: float
    repeat_training: float
    bilevel: Bilevel = SMALL
    trained: tuple[int, ...] = ()


#: methods that are trained and timed
CONTENDERS = (
    "FFOCP",
    "FFOCP (paper)",
    "FFOQP",
    "FFOQP (paper)",
    "CvxpyLayer",
    "CvxpyLayer (constants)",
    "LPGD",
    "LPGD (tight)",
    "BPQP",
    "dQP",
    "Alt-Diff",
    "QPTH",
    "QPTH (GPU)",
    "FFOQP (GPU)",
    "QPLayer",
    "Moreau (cvxpylayers)",
    "Moreau (direct)",
    "ffolayer FFOQP",
    "ffolayer FFOCP",
)
QUICK = Preset(
    name="quick",
    seeds=(0, 1),
    ablation_seeds=(0,),
    swept=CONTENDERS,
    weighed=("FFOCP", "FFOCP (paper)", "FFOQP", "FFOQP (paper)", "CvxpyLayer"),
    decision=Course(TaskSizes(d_y=50, samples=80, learning_rate=3e-3), batch=8, epochs=6, time_limit=5.0, timed=False),
    dense=Course(TaskSizes(d_y=50, samples=40, learning_rate=3e-3), batch=8, epochs=3, time_limit=4.0, timed=False),
    boards={
        4: Course(TaskSizes(samples=60, learning_rate=3e-2), batch=8, epochs=6, time_limit=5.0, timed=False),
        9: Course(TaskSizes(samples=10, learning_rate=1e-2), batch=4, epochs=2, time_limit=4.0, timed=False),
    },
    sizes=(100, 200, 800),
    batch=32,
    board_batches={4: 32, 9: 4},
    dense_batches={100: 32, 800: 4},
    steps=3,
    budget=0.6,
    memory_sizes=(200, 1000),
    lpgd=Course(TaskSizes(samples=40, learning_rate=3e-2), batch=8, epochs=4),
    lpgd_board=4,
    lpgd_tolerances=(1e-4, 1e-12),
    lpgd_taus=(1e-1, 1e-5),
    similarity_sizes=(50,),
    similarity_steps=6,
    every=2,
    batches=(1, 8, 32, 128),
    ablation=Course(TaskSizes(d_y=100, samples=40, learning_rate=1e-3), batch=32, epochs=2),
    tolerances=(1e-3, 1e-6, 1e-9),
    deltas=(1e-2, 1e-4, 1e-6),
    adam=Course(TaskSizes(d_y=20, d_x=64, samples=80, learning_rate=1e-2), batch=32, epochs=12, timed=False),
    adam_epsilons=(1e-8, 1e-5),
    time_limit=3.0,
    repeat_limit=0.5,
    repeat_training=1.5,
)
PAPER = Preset(
    name="paper",
    seeds=tuple(range(10)),
    ablation_seeds=tuple(range(10)),
    swept=(),
    weighed=(),
    decision=Course(TaskSizes(d_y=800, samples=2048, learning_rate=1e-3), batch=32, epochs=20),
    dense=Course(TaskSizes(d_y=200, samples=2048, learning_rate=1e-3), batch=32, epochs=10),
    boards={
        4: Course(TaskSizes(samples=2048, learning_rate=3e-2), batch=64, epochs=20),
        9: Course(TaskSizes(samples=2048, learning_rate=1e-2), batch=8, epochs=10),
    },
    sizes=(50, 100, 200, 400, 600, 800, 1000),
    batch=32,
    board_batches={4: 64, 9: 8},
    dense_batches={50: 32, 100: 32, 200: 32, 400: 32, 800: 32},
    steps=10,
    budget=60.0,
    memory_sizes=(200, 400, 600, 800, 1000),
    lpgd=Course(TaskSizes(samples=2048, learning_rate=1e-2), batch=8, epochs=10),
    lpgd_board=9,
    lpgd_tolerances=(1e-4, 1e-8, 1e-12),
    lpgd_taus=(1e-1, 1e-3, 1e-5),
    similarity_sizes=(100, 200, 400, 800),
    similarity_steps=200,
    every=10,
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    ablation=Course(TaskSizes(d_y=200, samples=2048, learning_rate=1e-3), batch=32, epochs=10),
    tolerances=(1e-3, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12),
    deltas=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7),
    adam=Course(TaskSizes(d_y=200, samples=2048, learning_rate=1e-3), batch=32, epochs=10, timed=False),
    adam_epsilons=(1e-8, 1e-5),
    time_limit=4 * 3600.0,
    repeat_limit=math.inf,
    repeat_training=math.inf,
    bilevel=LARGE,
)
#: about two hours on two cores: what a method cannot finish within its limit is left out, and its row says how long
#: it would have taken; one that needs more than 20 s to be timed, or a minute to be trained, runs on one seed only
STANDARD = Preset(
    name="standard",
    seeds=(0, 1, 2),
    ablation_seeds=(0,),
    swept=CONTENDERS,
    weighed=(*QUICK.weighed, "CvxpyLayer (constants)", "LPGD", "BPQP", "dQP", "QPLayer", "Moreau (direct)"),
    decision=Course(TaskSizes(samples=2048, learning_rate=1e-3), batch=32, epochs=10, time_limit=150.0, timed=False),
    dense=Course(
        TaskSizes(d_y=200, samples=2048, learning_rate=1e-3), batch=32, epochs=10, time_limit=150.0, timed=False
    ),
    boards={
        4: Course(TaskSizes(samples=2048, learning_rate=3e-2), batch=64, epochs=10, time_limit=150.0, timed=False),
        9: Course(TaskSizes(samples=256, learning_rate=1e-2), batch=8, epochs=10, time_limit=150.0, timed=False),
    },
    sizes=(200, 500, 800, 1000),
    batch=32,
    board_batches={4: 64, 9: 8},
    dense_batches=dict.fromkeys((200, 500, 800, 1000), 8),
    steps=5,
    budget=5.0,
    memory_sizes=(200, 500, 800, 1000),
    lpgd=Course(TaskSizes(samples=512, learning_rate=3e-2), batch=64, epochs=10),
    lpgd_board=4,
    lpgd_tolerances=(1e-4, 1e-8, 1e-12),
    lpgd_taus=(1e-1, 1e-3, 1e-5),
    similarity_sizes=(200,),
    similarity_steps=50,
    every=10,
    batches=(1, 8, 32, 128, 256),
    ablation=Course(TaskSizes(d_y=200, samples=96, learning_rate=1e-3), batch=32, epochs=10),
    tolerances=(1e-3, 1e-6, 1e-9, 1e-12),
    deltas=(1e-1, 1e-2, 1e-4, 1e-6),
    adam=Course(TaskSizes(d_y=200, samples=512, learning_rate=1e-3), batch=32, epochs=10, timed=False),
    adam_epsilons=(1e-8, 1e-5),
    time_limit=60.0,
    repeat_limit=20.0,
    repeat_training=60.0,
    trained=(200, 500, 800, 1000),
)
#: of the authors' code: learning rates of the decision-focused tasks and of Sudoku, and samples of the former
AUTHORS_RATE, AUTHORS_SUDOKU_RATE, AUTHORS_SAMPLES = 1e-3, 1e-1, 2000


def as_the_authors(preset: Preset) -> Preset:
    """The preset with the authors' tasks and learning rates, and 2000 samples where it has the paper's 2048."""

    def changed(course: Course, rate: float, most: int) -> Course:
        sizes = replace(course.sizes, setting="authors", learning_rate=rate, samples=min(course.sizes.samples, most))
        return replace(course, sizes=sizes)

    boards = {
        size: changed(course, AUTHORS_SUDOKU_RATE, course.sizes.samples) for size, course in preset.boards.items()
    }
    return replace(
        preset,
        decision=changed(preset.decision, AUTHORS_RATE, AUTHORS_SAMPLES),
        dense=changed(preset.dense, AUTHORS_RATE, AUTHORS_SAMPLES),
        ablation=changed(preset.ablation, AUTHORS_RATE, AUTHORS_SAMPLES),
        adam=changed(preset.adam, AUTHORS_RATE, AUTHORS_SAMPLES),
        boards=boards,
        lpgd=changed(preset.lpgd, AUTHORS_SUDOKU_RATE, preset.lpgd.sizes.samples),
    )


PRESETS = {preset.name: preset for preset in (QUICK, STANDARD, PAPER)}
