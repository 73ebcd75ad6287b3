"""Which jobs make up each experiment.

Jobs of one seed and size are adjacent, methods innermost: methods run within minutes of each other, and share
what is costly to prepare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from ffo.lab.baselines import BASELINES, DEFAULTS, Settings
from ffo.lab.baselines.base import CUDA
from ffo.lab.baselines.cvxpylayers_ import FIXED_TAU, FIXED_TOLERANCE
from ffo.lab.bilevel.jobs import ALGORITHM_ONE, PENALTY, BilevelJob
from ffo.lab.experiments.presets import Course, Preset
from ffo.lab.jobs import Job, Kind
from ffo.lab.rows import EXPERIMENTS
from ffo.lab.tasks.base import TaskSizes

OURS = ("FFOCP", "FFOCP (paper)", "FFOQP", "FFOQP (paper)")
#: methods whose backward pass is a solve to a tolerance, and those to compare it with that have no such tolerance
RESOLVING, DIRECT = ("FFOCP (paper)", "BPQP"), ("FFOCP", "FFOQP")
FOLLOWED = (*OURS, "FFOCP iterative", "FFOCP resolve", "CvxpyLayer", "LPGD", "LPGD (tight)", "BPQP", "dQP")
EXACT = (*OURS, "BPQP", "dQP", "QPTH", "QPLayer", "Moreau (direct)")
BATCHED = (*OURS, "CvxpyLayer", "LPGD", "BPQP", "dQP", "QPLayer", "Moreau (direct)")
FORWARD_SOLVERS = {
    "qp": ("PIQP", "CLARABEL", "SCS", "OSQP", "PROXQP", "QOCO", "DAQP", "HIGHS", "MOREAU", "ECOS"),
    "socp": ("CLARABEL", "SCS", "QOCO", "MOREAU", "ECOS"),
}

#: experiments that train a model to the end, and that time its single steps
TRAINED = ("dfl", "sudoku", "socp", "dense")
TIMED = ("scaling_qp", "scaling_sudoku", "scaling_socp", "scaling_dense")
#: seconds that a bilevel job may take at least
BILEVEL_LIMIT = 60.0
#: seconds for a job in a fresh process, which loads compiled code first
FRESH_LIMIT = 6.0

Planner = Callable[[Preset, Sequence[str]], Iterator[Job]]


def _train(experiment: str, task: str, method: str, seed: int, course: Course, settings: Settings = DEFAULTS) -> Job:
    job = Job(experiment, task, method, seed, course.sizes, course.batch, "train", course.epochs, settings=settings)
    return replace(job, time_limit=course.time_limit or math.inf, timed=course.timed)


def _decision(experiment: str, task: str) -> Planner:
    def jobs(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
        dimensions = preset.trained or (preset.decision.sizes.d_y,)
        for d_y, seed, method in product(dimensions, preset.seeds, _among(methods, preset.swept)):
            course = replace(preset.decision, sizes=replace(preset.decision.sizes, d_y=d_y))
            yield _train(experiment, task, method, seed, course)

    return jobs


def _dense(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for seed, method in product(preset.ablation_seeds, _among(methods, preset.swept)):
        yield _train("dense", "qp_dense", method, seed, preset.dense)


def _sudoku(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for size, course in preset.boards.items():
        seeds = preset.ablation_seeds if size == max(preset.boards) else preset.seeds
        for seed, method in product(seeds, _among(methods, preset.swept)):
            yield _train("sudoku", f"sudoku{size}", method, seed, course)


def _scaling(experiment: str, task: str) -> Planner:
    def jobs(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
        cases = product(sorted(preset.sizes), preset.seeds, _among(methods, preset.swept))
        for size, seed, method in cases:
            sizes = replace(preset.decision.sizes, d_y=size, samples=4 * preset.batch)
            yield Job(experiment, task, method, seed, sizes, preset.batch, "time", steps=preset.steps)

    return jobs


def _scaling_dense(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    cases = product(sorted(preset.dense_batches.items()), preset.ablation_seeds, _among(methods, preset.swept))
    for (size, batch), seed, method in cases:
        sizes = replace(preset.decision.sizes, d_y=size, samples=4 * batch)
        yield Job("scaling_dense", "qp_dense", method, seed, sizes, batch, "time", steps=preset.steps)


def _scaling_sudoku(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    cases = product(preset.board_batches.items(), preset.seeds, _among(methods, preset.swept))
    for (size, batch), seed, method in cases:
        sizes = replace(preset.boards[size].sizes, samples=4 * batch)
        yield Job("scaling_sudoku", f"sudoku{size}", method, seed, sizes, batch, "time", steps=preset.steps)


def _memory(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """One seed: what is measured does not depend on the data's values. It is the memory of the host."""
    here = [name for name in _among(methods, preset.weighed) if not BASELINES[name].on_device]
    for size, method in product(sorted(preset.memory_sizes), here):
        sizes = TaskSizes(d_y=size, samples=2 * preset.batch, setting=preset.decision.sizes.setting)
        yield Job("memory", "qp", method, preset.seeds[0], sizes, preset.batch, "memory", timed=False)


def _lpgd(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """LPGD with its perturbation fixed while the tolerance varies, and the other way round; beside ours."""
    task = f"sudoku{preset.lpgd_board}"
    tolerances = [Settings(tolerance=value, delta=FIXED_TAU) for value in preset.lpgd_tolerances]
    perturbations = [Settings(tolerance=FIXED_TOLERANCE, delta=value) for value in preset.lpgd_taus]
    for seed in preset.ablation_seeds:
        for method in _among(methods, ("FFOCP", "FFOCP (paper)")):
            yield _train("lpgd", task, method, seed, preset.lpgd)
        for settings in dict.fromkeys([*tolerances, *perturbations]) if "LPGD" in methods else ():
            job = _train("lpgd", task, "LPGD", seed, preset.lpgd, settings)
            yield replace(job, label=f"LPGD, tolerance {settings.tolerance:g}, τ {settings.delta:g}")


def _adam(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """Training with torch's epsilon, and with one well above rounding."""
    for seed, eps, method in product(preset.ablation_seeds, preset.adam_epsilons, _among(methods, EXACT)):
        sizes = replace(preset.adam.sizes, adam_eps=eps)
        yield _train("adam", "qp", method, seed, replace(preset.adam, sizes=sizes))


def _similarity(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for task, size, seed in product(("qp", "socp"), preset.similarity_sizes, preset.ablation_seeds):
        sizes = replace(preset.ablation.sizes, d_y=size)
        for method in _among(methods, FOLLOWED):
            job = Job("similarity", task, method, seed, sizes, preset.ablation.batch, "similarity", timed=False)
            yield replace(job, steps=preset.similarity_steps, every=preset.every)


def _batch(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    for batch, seed, method in product(preset.batches, preset.ablation_seeds, _among(methods, BATCHED)):
        sizes = replace(preset.ablation.sizes, samples=max(preset.ablation.sizes.samples, 2 * batch))
        yield Job("batch", "qp", method, seed, sizes, batch, "time", steps=preset.steps)


def _tolerance(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """The tolerance of the backward solve alone; of LPGD, which has one for both solves, with its perturbation fixed;
    and methods without such a tolerance."""
    swept = [
        *((method, Settings(backward_tolerance=value)) for value in preset.tolerances for method in RESOLVING),
        *(("LPGD", Settings(tolerance=value, delta=FIXED_TAU)) for value in preset.tolerances),
        *((method, DEFAULTS) for method in DIRECT),
    ]
    for task, seed, (method, settings) in product(("qp", "socp"), preset.ablation_seeds, swept):
        if method in methods:
            yield _train("tolerance", task, method, seed, preset.ablation, settings)


def _delta(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """The perturbation, with the tolerance of LPGD fixed."""
    swept = [
        *(("FFOCP (paper)", Settings(delta=value)) for value in preset.deltas),
        *(("LPGD", Settings(tolerance=FIXED_TOLERANCE, delta=value)) for value in preset.deltas),
    ]
    for task, seed, (method, settings) in product(("qp", "socp"), preset.ablation_seeds, swept):
        if method in methods:
            yield _train("delta", task, method, seed, preset.ablation, settings)


def _solvers(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    agnostic = _among(methods, ("FFOCP", "FFOCP (paper)"))
    for task, solvers in FORWARD_SOLVERS.items():
        for seed, solver, method in product(preset.ablation_seeds, solvers, agnostic):
            job = Job("solvers", task, method, seed, preset.ablation.sizes, preset.ablation.batch, "time")
            yield replace(job, steps=preset.steps, settings=Settings(solver=solver))


def _bilevel(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """Calls to a stationary point; of every lower level, with the layer that solves it."""
    sizes = preset.bilevel
    for task, seed, walk in product(sizes.lower_levels, sizes.seeds, sizes.walks):
        layer = "FFOCP" if task == "disc" else "FFOQP"
        if layer in methods:
            yield _bilevel_job("bilevel", task, layer, seed, "walk", walk, sizes.epsilons)


def _hypergradient(preset: Preset, methods: Sequence[str]) -> Iterator[Job]:
    """Algorithm 1 beside a penalty method."""
    sizes = preset.bilevel
    for task, seed in product(("box", "ball"), sizes.seeds) if "FFOCP" in methods else ():
        job = _bilevel_job("hypergradient", task, "FFOCP", seed, "price", ALGORITHM_ONE, sizes.accuracies)
        yield replace(job, deltas=sizes.deltas)
        yield _bilevel_job("hypergradient", task, "FFOCP", seed, "price", PENALTY, sizes.weights)


def _bilevel_job(
    experiment: str, task: str, layer: str, seed: int, kind: Kind, label: str, values: tuple[float, ...]
) -> BilevelJob:
    sizes = TaskSizes(d_y=0, samples=0)  # the lower levels have their own
    return BilevelJob(experiment, task, layer, seed, sizes, 1, kind, timed=False, label=label, values=values)


def _among(methods: Sequence[str], some: Sequence[str]) -> list[str]:
    """Those of `methods` that are in `some`; all of them if that is empty."""
    return [name for name in methods if not some or name in some]


CATALOGUE: dict[str, Planner] = {
    "dfl": _decision("dfl", "qp"),
    "sudoku": _sudoku,
    "socp": _decision("socp", "socp"),
    "dense": _dense,
    "scaling_qp": _scaling("scaling_qp", "qp"),
    "scaling_socp": _scaling("scaling_socp", "socp"),
    "scaling_dense": _scaling_dense,
    "scaling_sudoku": _scaling_sudoku,
    "memory": _memory,
    "lpgd": _lpgd,
    "adam": _adam,
    "similarity": _similarity,
    "batch": _batch,
    "tolerance": _tolerance,
    "delta": _delta,
    "solvers": _solvers,
    "bilevel": _bilevel,
    "hypergradient": _hypergradient,
}
assert set(CATALOGUE) == set(EXPERIMENTS)


def plan(
    preset: Preset,
    experiments: Sequence[str],
    methods: Sequence[str],
    processes: int = 1,
    time_limit: float | None = None,
    device: str = CUDA,
) -> list[Job]:
    """All jobs of these experiments and methods, in the order they are run.

    Training is distributed over `processes`; `time_limit` replaces the preset's limit for every job; methods that run
    on a device use `device`, and "cpu" leaves them out. Jobs whose times are measured come first; those that need a
    fresh process come last, so that the others can share one.
    """
    if device == "cpu":
        methods = [name for name in methods if not BASELINES[name].on_device]
    jobs = [job for name in experiments for job in CATALOGUE[name](preset, methods)]
    jobs = [_on(device, job) if BASELINES[job.method].on_device else job for job in jobs]
    jobs = [replace(job, time_limit=time_limit or _limit(job, preset), budget=preset.budget) for job in jobs]
    jobs = [replace(job, processes=processes) if job.kind == "train" else job for job in jobs]
    return list(_chained(sorted(jobs, key=lambda job: (not job.timed, job.fresh)), preset))


def _on(device: str, job: Job) -> Job:
    return replace(job, settings=replace(job.settings, device=device))


def _limit(job: Job, preset: Preset) -> float:
    """The time limit of its course, if it has one; bilevel jobs count calls, and get the time for them, as do jobs that
    start a process."""
    if isinstance(job, BilevelJob):
        return max(preset.time_limit, BILEVEL_LIMIT)
    if job.kind == "memory":
        return max(preset.time_limit, FRESH_LIMIT)
    return job.time_limit if job.kind == "train" and math.isfinite(job.time_limit) else preset.time_limit


def _chained(jobs: Sequence[Job], preset: Preset) -> Iterator[Job]:
    """Set `after` of each job to an easier one that differs only in seed or size: for a further seed, the first; for
    a larger size, the first seed of the previous size.

    A method that builds another's layer comes after that one's job; on a further seed, after its own. Training
    comes after single steps of the same size, if those are timed before.
    """
    before: dict[tuple[str, str, str, Settings, str], Job] = {}
    timed: dict[tuple[str, str, int], Job] = {}
    keys = {job.key for job in jobs}
    for job in jobs:
        series = (job.experiment, job.task, job.method, job.settings, job.label)
        easier = before.get(series)
        if easier is None and job.experiment in TRAINED:
            easier = timed.get((job.task, job.method, job.d_y))
        if job.experiment in TIMED:
            timed.setdefault((job.task, job.method, job.d_y), job)
        repeats = easier is not None and replace(job, seed=easier.seed).key == easier.key
        if not repeats:
            before[series] = job
        twin = replace(job, method=BASELINES[job.method].same_build or job.method).key
        if not repeats and twin != job.key and twin in keys:
            yield replace(job, after=twin)
        elif easier is not None:
            limit = preset.repeat_limit if job.timed else preset.repeat_training
            yield replace(job, after=easier.key, repeat_limit=limit if repeats else math.inf)
        else:
            yield job
