"""Training a model through a layer, in one process or in several."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ffo.lab.baselines import BASELINES
from ffo.lab.baselines.base import Layer
from ffo.lab.jobs import Job
from ffo.lab.reference import NoReferenceError, Reference, distance, solutions
from ffo.lab.rows import Row
from ffo.lab.runner.progress import duration
from ffo.lab.step import Clock, Step, accuracy, first_reference, shuffled, take_step, true_gradient
from ffo.lab.stopwatch import Stopwatch
from ffo.lab.tasks import Task, TaskData, make_task

#: times the budget that a first step may take and still be followed by one that does not fill caches
FIRST = 3
#: times the limit that a training run may be expected to take: judged by its first step, which may fill caches, by its
#: second, and by its first epoch
FIRST_STEPS, FIRST_EPOCH = (20.0, 2.0), 1.1
#: samples of the last step whose solutions are compared with the reference
LAST_SAMPLES = 4


@dataclass
class Trainer:
    """Adam on one task; under `torch.distributed` every process takes its share of each batch."""

    job: Job
    task: Task
    data: TaskData
    model: torch.nn.Module
    layer: Layer
    build_s: float
    clock: Clock = field(default_factory=Clock)
    steps: int = 0
    first: Step | None = None
    last: Step | None = None

    @classmethod
    def of(cls, job: Job) -> Trainer:
        task = make_task(job.task, job.sizes)
        model = task.model(job.seed)
        if dist.is_initialized():
            model = DistributedDataParallel(model)
        data = task.data(job.seed)
        start = time.perf_counter()
        layer = BASELINES[job.method].build(task.inner, job.settings)
        return cls(job, task, data, model, layer, time.perf_counter() - start)

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        sizes = self.job.sizes
        return torch.optim.Adam(self.model.parameters(), lr=sizes.learning_rate, eps=sizes.adam_eps)

    def batches(self, epoch: int) -> Iterator[torch.Tensor]:
        """Indices of this process's share of each full batch of an epoch."""
        order = shuffled(len(self.data.train_inputs), self.job.seed, epoch)
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        for k in range(self.per_epoch):
            yield order[k * self.job.batch : (k + 1) * self.job.batch][rank::world]

    def step(self, index: torch.Tensor) -> Step:
        """One step of the optimiser on these samples."""
        values = self.model(self.data.train_inputs[index])
        step = take_step(self.task, self.layer, values, self.data.train_targets[index])
        self.optimizer.zero_grad()
        torch.autograd.backward([values[name] for name in step.gradient], list(step.gradient.values()))
        if math.isfinite(self.task.clip):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)
        self.optimizer.step()
        self.clock.add(step)
        self.first, self.last = self.first or step, step
        self.steps += 1
        return step

    def epoch(self, epoch: int) -> Iterator[Row]:
        """Train for one epoch. Yields a row after the very first step, then the epoch's row with its losses and
        errors; those of training are means over its steps."""
        scores = []
        for index in self.batches(epoch):
            since = Stopwatch()
            step = self.step(index)
            scores.append(self.task.scores(step.y, self.data.train_targets[index]))
            if self.steps == 1:
                yield self.job.row(record="progress", **self.measured())
            for margin in FIRST_STEPS[self.steps - 1 : self.steps]:
                self.refuse_if_too_slow(since.seconds, self.per_epoch * self.job.epochs, "steps", margin)
        found = {f"train_{name}": sum(score[name] for score in scores) / len(scores) for name in scores[0]}
        found |= {f"test_{name}": score for name, score in self.test().items()}
        found = {name: _mean_over_processes(value) for name, value in found.items()}
        yield self.job.row(record="curve", epoch=epoch, step=self.steps, **found, **self.measured())

    def started(self) -> Row:
        """What is known before the first step."""
        return self.job.row(record="progress", build_s=self.build_s if self.job.timed else None)

    def measured(self) -> dict[str, float]:
        """Accuracy of the first step and, if they are measured, times so far."""
        right = first_accuracy(self.job, self.first)
        return {"build_s": self.build_s, **self.clock.medians(), **right} if self.job.timed else right

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return max(1, len(self.data.train_inputs) // self.job.batch)

    def refuse_if_too_slow(self, one: float, count: int, what: str, margin: float) -> None:
        """Raises if all steps or epochs, each taking as long as one did, would exceed `margin` times the limit."""
        expected = one * count
        if expected > margin * self.job.time_limit:
            raise TimeoutError(
                f"left out, would take about {duration(expected)} ({count} {what}, of which one took "
                f"{one:.2g} s; the limit is {self.job.time_limit:g} s)"
            )

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Mean loss and errors on the test set, in batches of the training's size."""
        solutions = []
        self.model.eval()
        for x in self.data.test_inputs.split(self.job.batch):
            values = {name: v.detach() for name, v in self.model(x).items()}
            solutions.append(self.layer(values))
        self.model.train()
        return self.task.scores(torch.cat(solutions), self.data.test_targets)


def _mean_over_processes(value: float) -> float:
    if not dist.is_initialized():
        return value
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def train(job: Job) -> Iterator[Row]:
    """A curve row per epoch, then the result: final losses, median times, accuracy on the first batch."""
    trainer = Trainer.of(job)
    yield trainer.started()
    start, watch = time.perf_counter(), Stopwatch()
    last = job.row()
    for epoch in range(1, job.epochs + 1):
        for row in trainer.epoch(epoch):
            last = replace(row, elapsed_s=time.perf_counter() - start)
            yield last
        if epoch == 1:
            trainer.refuse_if_too_slow(watch.seconds, job.epochs, "epochs", FIRST_EPOCH)
    worst = [off for off in (last.solution, solution_error(trainer)) if off is not None]
    yield replace(last, record="result", solution=max(worst, default=None))


def solution_error(trainer: Trainer) -> float | None:
    """Distance of a few of the last step's solutions from the reference's, if there is one."""
    if trainer.last is None or dist.is_initialized():
        return None
    values = {name: v[:LAST_SAMPLES] if name == "q" else v for name, v in trainer.last.values.items()}
    y = trainer.last.y[:LAST_SAMPLES].numpy()
    try:
        return distance(y, solutions(trainer.task.inner, values))
    except NoReferenceError:
        return None


def time_steps(job: Job) -> Iterator[Row]:
    """Median times of single steps on fresh batches with the untrained model."""
    trainer = Trainer.of(job)
    yield trainer.started()
    inputs, targets = trainer.data.train_inputs, trainer.data.train_targets
    order = shuffled(len(inputs), job.seed, 1)
    watch = Stopwatch()
    for k in range(job.steps + 1):
        index = order[torch.arange(k * job.batch, (k + 1) * job.batch) % len(order)]
        with torch.no_grad():
            values = trainer.model(inputs[index])
        step = take_step(trainer.task, trainer.layer, values, targets[index])
        trainer.clock.add(step)
        trainer.first = trainer.first or step
        if k == 0:
            yield job.row(record="progress", **trainer.measured())
        if watch.seconds > job.budget * (1 if k else FIRST):
            break
    yield job.row(**trainer.measured())


def first_accuracy(job: Job, first: Step | None) -> dict[str, float]:
    """cosine, l2 and linf of the gradient of the first step, and the distance of its solutions.

    Empty if there is no reference, or if this process saw only a share of the batch.
    """
    if first is None or dist.is_initialized():
        return {}
    try:
        true = first_reference(job.task, job.sizes, job.seed, job.batch)
    except NoReferenceError:
        return {}
    return asdict(accuracy(first, true))


@torch.no_grad()
def _true_gradient(trainer: Trainer, index: torch.Tensor) -> Reference | None:
    """The reference at these samples, taken before the step changes the model; None if there is no derivative."""
    data = trainer.data
    try:
        return true_gradient(trainer.task, trainer.model(data.train_inputs[index]), data.train_targets[index])
    except NoReferenceError:
        return None


def follow_gradients(job: Job) -> Iterator[Row]:
    """Train, and compare every few steps' gradients with the reference at the same inputs."""
    trainer = Trainer.of(job)
    worst = {"cosine": 1.0, "l2": 0.0, "linf": 0.0, "solution": 0.0}
    epoch = 0
    while trainer.steps < job.steps:
        epoch += 1
        for index in trainer.batches(epoch):
            true = _true_gradient(trainer, index) if trainer.steps % job.every == 0 else None
            step = trainer.step(index)
            if true is not None:
                found = asdict(accuracy(step, true))
                worst = {k: (min if k == "cosine" else max)(worst[k], v) for k, v in found.items()}
                yield job.row(record="curve", step=trainer.steps - 1, train_loss=step.loss, **found)
            if trainer.steps >= job.steps:
                break
    yield job.row(step=trainer.steps, **worst)
