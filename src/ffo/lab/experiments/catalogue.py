"""Which jobs make up each experiment.

Jobs of one seed and size stand together, methods innermost: contenders run within minutes of each other,
and share what is costly to prepare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from ffo.lab.baselines import BASELINES, DEFAULTS, Settings
from ffo.lab.experiments.presets import Course, Preset
from ffo.lab.jobs import Job
from ffo.lab.rows import EXPERIMENTS
from ffo.lab.tasks.base import Sizes

#: those that re-solve: their tolerance and perturbation are part of the gradient
RESOLVING = ("FFOCP", "FFOCP resolve", "LPGD")
FOLLOWED = ("FFOCP", "FFOCP iterative", "FFOCP resolve", "FFOQP", "CvxpyLayer", "LPGD", "LPGD (tight)", "BPQP", "dQP")
BATCHED = ("FFOCP", "FFOQP", "CvxpyLayer", "LPGD", "BPQP", "dQP", "QPLayer", "Moreau (direct)")
FORWARD_SOLVERS = {
    "qp": ("PIQP", "CLARABEL", "SCS", "OSQP", "PROXQP", "QOCO", "DAQP", "HIGHS", "MOREAU", "ECOS"),
    "socp": ("CLARABEL", "SCS", "QOCO", "MOREAU", "ECOS"),
}

Planner = Callable[[Preset, Sequence[str]], Iterator[Job]]


def _train(experiment: str, task: str, method: str, seed: int, course: Course, settings: Settings = DEFAULTS) -> Job:
    job = Job(experiment, task, method, seed, course.sizes, course.batch, "train", course.epochs, settings=settings)
    return replace(job, time_limit=course.time_limit)


def _decision(experiment: str, task: str) -> Planner:
    def jobs(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
        for seed, method in product(preset.seeds, methods):
            yield _train(experiment, task, method, seed, preset.decision)

    return jobs


def _sudoku(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for size, course in preset.boards.items():
        large = size == max(preset.boards)
        seeds, some = (preset.sweep_seeds, preset.swept) if large else (preset.seeds, ())
        for seed, method in product(seeds, _among(methods, some)):
            yield _train("sudoku", f"sudoku{size}", method, seed, course)


def _scaling(experiment: str, task: str) -> Planner:
    def jobs(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
        cases = product(sorted(preset.sizes), preset.sweep_seeds, _among(methods, preset.swept))
        for size, seed, method in cases:
            sizes = replace(preset.decision.sizes, d_y=size)
            yield Job(experiment, task, method, seed, sizes, preset.decision.batch, "time", steps=preset.steps)

    return jobs


def _memory(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """One seed: what is measured does not depend on the data's values."""
    for size, method in product(sorted(preset.memory_sizes), _among(methods, preset.weighed)):
        sizes = Sizes(d_y=size, samples=2 * preset.decision.batch)
        yield Job("memory", "qp", method, preset.seeds[0], sizes, preset.decision.batch, "memory")


def _lpgd(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    size = preset.lpgd_board
    for seed, method in product(preset.sweep_seeds, _among(methods, ("FFOCP", "LPGD", "LPGD (tight)"))):
        yield _train("lpgd", f"sudoku{size}", method, seed, preset.boards[size])


def _similarity(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for task, size, seed in product(("qp", "socp"), preset.similarity_sizes, preset.sweep_seeds):
        sizes = replace(preset.ablation.sizes, d_y=size)
        for method in _among(methods, FOLLOWED):
            job = Job("similarity", task, method, seed, sizes, preset.ablation.batch, "similarity")
            yield replace(job, steps=preset.similarity_steps, every=preset.every)


def _batch(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for batch, seed, method in product(preset.batches, preset.sweep_seeds, _among(methods, BATCHED)):
        sizes = replace(preset.ablation.sizes, samples=max(preset.ablation.sizes.samples, 2 * batch))
        yield Job("batch", "qp", method, seed, sizes, batch, "time", steps=preset.steps)


def _tolerance(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    cases = product(("qp", "socp"), preset.sweep_seeds, preset.tolerances, _among(methods, RESOLVING))
    for task, seed, tolerance, method in cases:
        yield _train("tolerance", task, method, seed, preset.ablation, Settings(tolerance=tolerance))


def _delta(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    perturbing = [name for name in _among(methods, RESOLVING) if "delta" in BASELINES[name].settings]
    for task, seed, delta, method in product(("qp", "socp"), preset.sweep_seeds, preset.deltas, perturbing):
        yield _train("delta", task, method, seed, preset.ablation, Settings(delta=delta))


def _solvers(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for task, solvers in FORWARD_SOLVERS.items():
        for seed, solver, method in product(preset.sweep_seeds, solvers, _among(methods, ("FFOCP",))):
            job = Job("solvers", task, method, seed, preset.ablation.sizes, preset.ablation.batch, "time")
            yield replace(job, steps=preset.steps, settings=Settings(solver=solver))


def _among(methods: Sequence[str], some: Sequence[str]) -> list[str]:
    """Those of `methods` that are in `some`; all of them if that is empty."""
    return [name for name in methods if not some or name in some]


CATALOGUE: dict[str, Planner] = {
    "dfl": _decision("dfl", "qp"),
    "sudoku": _sudoku,
    "socp": _decision("socp", "socp"),
    "scaling_qp": _scaling("scaling_qp", "qp"),
    "scaling_socp": _scaling("scaling_socp", "socp"),
    "memory": _memory,
    "lpgd": _lpgd,
    "similarity": _similarity,
    "batch": _batch,
    "tolerance": _tolerance,
    "delta": _delta,
    "solvers": _solvers,
}
assert set(CATALOGUE) == set(EXPERIMENTS)


def plan(preset: Preset, experiments: Sequence[str], methods: Sequence[str], processes: int = 1) -> list[Job]:
    """All jobs of these experiments and methods, in the order they are run.

    `processes` is the number that training is distributed over. Jobs that need a process of their own come
    last, so that the others can share one.
    """
    jobs = [job for name in experiments for job in CATALOGUE[name](preset, methods)]
    jobs = [replace(job, time_limit=min(job.time_limit, preset.time_limit), budget=preset.budget) for job in jobs]
    jobs = [replace(job, processes=processes) if job.kind == "train" else job for job in jobs]
    return sorted(_chained(jobs, preset.repeat_limit), key=lambda job: job.fresh)


def _chained(jobs: Sequence[Job], repeat_limit: float) -> Iterator[Job]:
    """Each job after the one before it that differs in nothing but seed and size.

    A method that builds another's layer comes after that one's job; on a further seed, after its own.
    """
    before: dict[tuple[str, str, str, Settings], Job] = {}
    all_keys = {job.key for job in jobs}
    for job in jobs:
        series = (job.experiment, job.task, job.method, job.settings)
        easier = before.get(series)
        before[series] = job
        repeats = easier is not None and replace(job, seed=easier.seed).key == easier.key
        twin = replace(job, method=BASELINES[job.method].same_build or job.method).key
        if not repeats and twin != job.key and twin in all_keys:
            yield replace(job, after=twin)
        elif easier is not None:
            yield replace(job, after=easier.key, repeat_limit=repeat_limit if repeats else math.inf)
        else:
            yield job
