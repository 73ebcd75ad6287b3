"""Training a model through a layer, in one process or in several."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ffo.lab.baselines import BASELINES
from ffo.lab.baselines.base import Layer
from ffo.lab.jobs import Job
from ffo.lab.reference import NoReferenceError
from ffo.lab.rows import Row
from ffo.lab.step import Clock, Step, accuracy, first_reference, shuffled, take_step, true_gradient
from ffo.lab.stopwatch import Stopwatch
from ffo.lab.tasks import Task, TaskData, make_task

#: Adam takes whole steps along gradients larger than this, however small: with its default of 1e-8, where the
#: exact gradient is zero, methods would differ by how large the rounding of theirs is
ADAM_EPS = 1e-5


@dataclass
class Trainer:
    """Adam on one task; under `torch.distributed` every process takes its share of each batch."""

    job: Job
    task: Task
    data: TaskData
    model: torch.nn.Module
    layer: Layer
    optimizer: torch.optim.Optimizer
    build_s: float
    clock: Clock = field(default_factory=Clock)
    steps: int = 0
    first: Step | None = None

    @classmethod
    def of(cls, job: Job) -> Trainer:
        task = make_task(job.task, job.sizes)
        model = task.model(job.seed)
        if dist.is_initialized():
            model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=job.sizes.learning_rate, eps=ADAM_EPS)
        data = task.data(job.seed)
        start = time.perf_counter()
        layer = BASELINES[job.method].build(task.inner, job.settings)
        return cls(job, task, data, model, layer, optimizer, time.perf_counter() - start)

    def batches(self, epoch: int) -> Iterator[torch.Tensor]:
        """Indices of this process's share of each whole batch of an epoch."""
        order = shuffled(len(self.data.train_inputs), self.job.seed, epoch)
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        whole = max(1, len(order) // self.job.batch)
        for k in range(whole):
            yield order[k * self.job.batch : (k + 1) * self.job.batch][rank::world]

    def step(self, index: torch.Tensor) -> Step:
        """One step of the optimiser on these samples."""
        values = self.model(self.data.train_inputs[index])
        step = take_step(self.task, self.layer, values, self.data.train_targets[index])
        self.optimizer.zero_grad()
        torch.autograd.backward([values[name] for name in step.gradient], list(step.gradient.values()))
        self.optimizer.step()
        self.clock.add(step)
        self.first = self.first or step
        self.steps += 1
        return step

    def epoch(self, epoch: int) -> dict[str, float | None]:
        """Train for one epoch; returns its losses and errors, those of training as means over its steps."""
        losses, errors = [], []
        for index in self.batches(epoch):
            since = Stopwatch()
            step = self.step(index)
            losses.append(step.loss)
            errors.append(self.task.error(step.y, self.data.train_targets[index]))
            if self.steps == 1:
                self.refuse_if_too_slow(since.seconds)
        train_error = None if errors[0] is None else sum(e for e in errors if e is not None) / len(errors)
        test_loss, test_error = self.test()
        found = {
            "train_loss": sum(losses) / len(losses),
            "train_error": train_error,
            "test_loss": test_loss,
            "test_error": test_error,
        }
        return {name: _mean_over_processes(value) for name, value in found.items()}

    def refuse_if_too_slow(self, first: float) -> None:
        """Raises if all steps, at the speed of the first one, would by far exceed the limit."""
        per_epoch = max(1, len(self.data.train_inputs) // self.job.batch)
        expected = first * per_epoch * self.job.epochs
        if expected > 2 * self.job.time_limit:
            raise TimeoutError(
                f"its first step took {first:.2g} s: {per_epoch * self.job.epochs} steps would take about "
                f"{expected:.0f} s, the limit is {self.job.time_limit:g} s"
            )

    @torch.no_grad()
    def test(self) -> tuple[float, float | None]:
        """Mean loss and error on the test set, in batches of the training's size."""
        inputs, targets = self.data.test_inputs, self.data.test_targets
        solutions = []
        for x in inputs.split(self.job.batch):
            values = {name: v.detach() for name, v in self.model(x).items()}
            solutions.append(self.layer(values))
        y = torch.cat(solutions)
        return float(self.task.loss(y, targets)), self.task.error(y, targets)


def _mean_over_processes(value: float | None) -> float | None:
    if value is None or not dist.is_initialized():
        return value
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def train(job: Job) -> Iterator[Row]:
    """A curve row per epoch, then the result: final losses, median times, accuracy on the first batch."""
    trainer = Trainer.of(job)
    start = time.perf_counter()
    last: dict[str, Any] = {}
    for epoch in range(1, job.epochs + 1):
        last = {**trainer.epoch(epoch), "epoch": epoch, "step": trainer.steps}
        last["elapsed_s"] = time.perf_counter() - start
        yield job.row(record="curve", **last)
    yield job.row(**last, build_s=trainer.build_s, **trainer.clock.medians(), **first_accuracy(job, trainer.first))


def time_steps(job: Job) -> Iterator[Row]:
    """Median times of single steps on fresh batches with the untrained model."""
    trainer = Trainer.of(job)
    inputs, targets = trainer.data.train_inputs, trainer.data.train_targets
    order = shuffled(len(inputs), job.seed, 1)
    first: Step | None = None
    start = time.perf_counter()
    for k in range(job.steps + 1):
        index = order[torch.arange(k * job.batch, (k + 1) * job.batch) % len(order)]
        with torch.no_grad():
            values = trainer.model(inputs[index])
        step = take_step(trainer.task, trainer.layer, values, targets[index])
        trainer.clock.add(step)
        first = first or step
        if time.perf_counter() - start > job.budget:
            break
    yield job.row(build_s=trainer.build_s, **trainer.clock.medians(), **first_accuracy(job, first))


def first_accuracy(job: Job, first: Step | None) -> dict[str, float]:
    """cosine, l2 and linf of the gradient of the first step.

    Nothing where there is no reference to be had, or where this process saw a share of the batch alone.
    """
    if first is None or dist.is_initialized():
        return {}
    try:
        true = first_reference(job.task, job.sizes, job.seed, job.batch)
    except NoReferenceError:
        return {}
    return asdict(accuracy(first, true))


def follow_gradients(job: Job) -> Iterator[Row]:
    """Train, and compare every few steps' gradients with the reference at the same inputs."""
    trainer = Trainer.of(job)
    worst = {"cosine": 1.0, "l2": 0.0, "linf": 0.0}
    epoch = 0
    while trainer.steps < job.steps:
        epoch += 1
        for index in trainer.batches(epoch):
            compared = trainer.steps % job.every == 0
            if compared:  # before the step: it moves the model
                targets = trainer.data.train_targets[index]
                with torch.no_grad():
                    true = true_gradient(trainer.task, trainer.model(trainer.data.train_inputs[index]), targets)
            step = trainer.step(index)
            if compared:
                found = asdict(accuracy(step, true))
                worst = {k: (min if k == "cosine" else max)(worst[k], v) for k, v in found.items()}
                yield job.row(record="curve", step=trainer.steps - 1, train_loss=step.loss, **found)
            if trainer.steps >= job.steps:
                break
    yield job.row(build_s=trainer.build_s, step=trainer.steps, **trainer.clock.medians(), **worst)
