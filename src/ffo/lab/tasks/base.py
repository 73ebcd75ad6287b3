"""A task: data, a model that predicts the layer's inputs, and a loss on its outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from ffo.lab.tasks.inner import Inner

Setting = Literal["paper", "authors"]


@dataclass(frozen=True)
class TaskSizes:
    """Size of a task: dimension of the decision (Sudoku has its own), samples, inputs, hidden units; the settings of
    Adam (torch's default epsilon); and whose task it is: that of the paper's text, or of its authors' code."""

    d_y: int = 800
    samples: int = 2048
    d_x: int = 640
    hidden: int = 128
    learning_rate: float = 1e-3
    adam_eps: float = 1e-8
    setting: Setting = "paper"


@dataclass(frozen=True)
class TaskData:
    """Inputs (samples, ...) and targets (samples, n), split for training and testing."""

    train_inputs: torch.Tensor
    train_targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor

    @classmethod
    def split(cls, inputs: torch.Tensor, targets: torch.Tensor, share: float = 0.8) -> TaskData:
        """The first `share` of the samples for training, the rest for testing."""
        k = round(share * len(inputs))
        return cls(inputs[:k], targets[:k], inputs[k:], targets[k:])


class Task(ABC):
    """A learning problem; everything is drawn from seeds.

    `clip` is the largest norm of the gradient in the model's parameters; longer ones are scaled to it.
    """

    name: str
    inner: Inner
    sizes: TaskSizes
    clip: float = math.inf

    def data(self, seed: int) -> TaskData:
        """The data set of this seed, cached."""
        return _drawn(self, seed)

    @abstractmethod
    def draw(self, seed: int) -> TaskData:
        """Draw the data set of this seed."""

    @abstractmethod
    def model(self, seed: int) -> torch.nn.Module:
        """inputs (batch, ...) -> the varying values of the inner problem by name: q (batch, n), A, b."""

    @abstractmethod
    def loss(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean over the batch, from solutions and targets (batch, n)."""

    def scores(self, y: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        """Scores of solutions: their loss, and error rates if a task has right and wrong answers."""
        return {"loss": float(self.loss(y, targets))}


@lru_cache(maxsize=2)
def _drawn(task: Task, seed: int) -> TaskData:
    return task.draw(seed)
