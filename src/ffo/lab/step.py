"""One step through a layer: its solution, its gradient, and the time of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from ffo.lab.baselines.base import Layer
from ffo.lab.reference import Comparison, Reference, compare, reference
from ffo.lab.tasks import Task, TaskSizes, make_task

Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Step:
    """The inputs of a step, copied, and its results."""

    values: Values
    loss: float
    y: torch.Tensor
    gradient: dict[str, torch.Tensor]
    forward_s: float
    backward_s: float
    processor_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


def take_step(task: Task, layer: Layer, values: Values, targets: torch.Tensor) -> Step:
    """Run and time the layer alone, forward and backward, without the network around it."""
    learnt = task.inner.learnt
    leaves = {name: v.detach().requires_grad_(name in learnt) for name, v in values.items()}
    busy, start = time.process_time(), time.perf_counter()
    y = layer(leaves)
    middle = time.perf_counter()
    loss = task.loss(y, targets)
    gradients = torch.autograd.grad(loss, [leaves[name] for name in learnt])
    end, busy = time.perf_counter(), time.process_time() - busy
    gradient = dict(zip(learnt, gradients, strict=True))
    given = {name: v.detach().clone() for name, v in values.items()}
    return Step(given, loss.item(), y.detach(), gradient, middle - start, end - middle, busy)


@dataclass
class Clock:
    """Times of many steps."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.forward.append(step.forward_s)
        self.backward.append(step.backward_s)
        self.processor.append(step.processor_s)

    def medians(self) -> dict[str, float]:
        """Medians by field of a row; the first step, which fills caches, is left out if there are others."""
        times = np.array([self.forward, self.backward, self.processor])
        forward, backward, processor = times[:, 1:] if times.shape[1] > 1 else times
        found = {"forward_s": forward, "backward_s": backward, "total_s": forward + backward, "processor_s": processor}
        return {name: float(np.median(times)) for name, times in found.items()}


def true_gradient(task: Task, values: Values, targets: torch.Tensor) -> Reference:
    """The reference for these values."""
    return reference(task.inner, values, lambda y: task.loss(y, targets))


def accuracy(step: Step, true: Reference) -> Comparison:
    """Compare the step's solution and gradient with the reference."""
    return compare(step.y.numpy(), {name: g.numpy() for name, g in step.gradient.items()}, true)


def shuffled(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of the samples in an epoch of training."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch))


def first_batch(task: Task, seed: int, batch: int) -> tuple[Values, torch.Tensor]:
    """The inputs of the first training step: values of the untrained model, and targets."""
    data = task.data(seed)
    index = shuffled(len(data.train_inputs), seed, 1)[:batch]
    with torch.no_grad():
        return task.model(seed)(data.train_inputs[index]), data.train_targets[index]


@lru_cache(maxsize=4)
def first_reference(name: str, sizes: TaskSizes, seed: int, batch: int) -> Reference:
    """The reference at the first step: the same for all methods that are compared there."""
    task = make_task(name, sizes)
    return true_gradient(task, *first_batch(task, seed, batch))
