"""Synthetic decision-focused learning: the paper's QP and SOCP tasks.

A network predicts the linear costs q_theta(x) of

    y*(x) = argmin 1/2 y'Qy - q'y   subject to   Gy <= h   (and |y|_2 <= 1 for the SOCP)

with Q = I and G = [I; -I; 1'], h = (1, 0, budget), and is trained on the loss y_i'y*(x_i), where y_i
are the true costs of sample i. In the dense variant, Q = LL' + 0.1 I with a random lower triangular L.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ffo.lab.tasks.authors import AuthorsDecision, authors_sides
from ffo.lab.tasks.base import Task, TaskData, TaskSizes
from ffo.lab.tasks.inner import Inner

#: standard deviation of the noise; the true costs have standard deviation 1
NOISE = 0.3


class Predictor(nn.Module):
    """A two-layer perceptron for q."""

    def __init__(self, d_x: int, hidden: int, d_y: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d_x, hidden), nn.ReLU(), nn.Linear(hidden, d_y))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"q": self.layers(x)}


class Decision(Task):
    """The QP task ("qp"), the one with a dense Q ("qp_dense"), and the one with a norm ball ("socp")."""

    def __init__(self, name: str, inner: Inner, sizes: TaskSizes) -> None:
        self.name, self.inner, self.sizes = name, inner, sizes

    def draw(self, seed: int) -> TaskData:
        s = self.sizes
        rng = np.random.default_rng([seed, s.d_y])
        x = rng.standard_normal((s.samples, s.d_x))
        first = rng.standard_normal((s.d_x, s.hidden)) / np.sqrt(s.d_x)
        second = rng.standard_normal((s.hidden, s.d_y)) / np.sqrt(s.hidden / 2)
        costs = np.maximum(x @ first, 0) @ second
        costs += NOISE * rng.standard_normal(costs.shape)
        return TaskData.split(torch.tensor(x), torch.tensor(costs))

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Predictor(self.sizes.d_x, self.sizes.hidden, self.sizes.d_y).double()

    def loss(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (y * targets).sum(dim=1).mean()


def dense_quadratic(n: int) -> np.ndarray:
    """LL' + 0.1 I (n, n) for a lower triangular L of normal entries with variance 1/n; the same for all seeds."""
    L = np.tril(np.random.default_rng(n).standard_normal((n, n))) / np.sqrt(n)
    return L @ L.T + 0.1 * np.eye(n)


def decision(name: str, sizes: TaskSizes) -> Task:
    """The task "qp", "qp_dense" or "socp", of the setting that the sizes name."""
    n, ball = sizes.d_y, name == "socp"
    identity, budget = np.eye(n), 0.5 * np.sqrt(n) if ball else 0.2 * n
    Q = dense_quadratic(n) if name == "qp_dense" else identity
    G = np.vstack([identity, -identity, np.ones((1, n))])
    authors = sizes.setting == "authors"
    h = authors_sides(n) if authors else np.concatenate([np.ones(n), np.zeros(n), [budget]])
    inner = Inner(Q, G, h, radius=1.0 if ball else np.inf)
    return (AuthorsDecision if authors else Decision)(name, inner, sizes)
