"""The decision-focused tasks as the authors' public code has them, which differs from the paper's text.

    y*(x) = argmin 1/2 y'Qy + p(x)'y   subject to   -1 <= y <= 0,  sum y <= 3   (and |y|_2 <= 1 for the SOCP)

with predicted costs p, and the mean of c_j y_j over samples and coordinates as the loss. The true costs c are U(0, 1);
inputs are the outputs of a random network for them, plus U(0, 0.1). The budget never binds, since y <= 0.

Facts are from github.com/GT-KOALA/FFOLayer, `synthetic_task/` (models.py, data.py, main_synthetic.py and
main_synthetic_general.py); no code is. The authors compute in single precision, the lab in double.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ffo.lab.tasks.base import Task, TaskData, TaskSizes
from ffo.lab.tasks.inner import Inner

#: bound on the outputs of the network, on the norm of a gradient, and on the noise of the inputs
LARGEST_OUTPUT, LARGEST_GRADIENT, NOISE = 10.0, 2.0, 0.1
BUDGET = 3.0


class Network(nn.Module):
    """Three linear layers, with batch normalisation after the first two; outputs are clipped. A batch of one is not
    normalised."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList([nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden)])

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        *hidden, last = self.linear
        for layer, norm in zip(hidden, self.norms, strict=True):
            x = torch.relu(norm(layer(x)) if len(x) > 1 else layer(x))
        return last(x).clamp(-LARGEST_OUTPUT, LARGEST_OUTPUT)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"q": -self.outputs(x)}  # the lab's problems have -q'y


class AuthorsDecision(Task):
    """The tasks "qp", "qp_dense" (which the authors do not have: here with their constraints) and "socp"."""

    clip = LARGEST_GRADIENT

    def __init__(self, name: str, inner: Inner, sizes: TaskSizes) -> None:
        self.name, self.inner, self.sizes = name, inner, sizes

    def draw(self, seed: int) -> TaskData:
        s = self.sizes
        rng = np.random.default_rng([seed, s.d_y])
        costs = torch.tensor(rng.uniform(size=(s.samples, s.d_y)))
        noise = torch.tensor(rng.uniform(0.0, NOISE, size=(s.samples, s.d_x)))
        with torch.no_grad():
            inputs = self._network(s.d_y, s.d_x, 1000 + seed).outputs(costs)
        return TaskData.split(inputs + noise, costs)

    def model(self, seed: int) -> nn.Module:
        return self._network(self.sizes.d_x, self.sizes.d_y, seed)

    def _network(self, inputs: int, outputs: int, seed: int) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Network(inputs, self.sizes.hidden, outputs).double()

    def loss(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (y * targets).mean()


def authors_sides(n: int) -> np.ndarray:
    """h (2n + 1,) of y <= 0, -y <= 1, sum y <= 3."""
    return np.concatenate([np.zeros(n), np.ones(n), [BUDGET]])
