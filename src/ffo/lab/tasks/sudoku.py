"""Learning the rules of Sudoku: the linear constraints of a QP whose solution completes a puzzle.

    y*(p) = argmin tau/2 y'y - p'y   subject to   A(theta) y = b(theta),  y >= 0

p and y are indicators of digits, (size**3,). A is dense and learnable, and b = A exp(log z0) with a
learnable z0, so that z0 > 0 is always feasible.

The authors' code (github.com/GT-KOALA/FFOLayer, `sudoku/`) has the same problem and the same initial A and z0. It
splits the puzzles 90/10 instead of 80/20, and its loss is the mean over all entries.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ffo.lab.tasks.base import Task, TaskData, TaskSizes
from ffo.lab.tasks.inner import Inner
from ffo.lab.tasks.puzzles import generate, one_hot

TAU = 0.1
#: share of the puzzles for training
SHARES = {"paper": 0.8, "authors": 0.9}
#: size of the board -> (rank of the true rules, digits left in a puzzle)
BOARDS = {4: (40, 6), 9: (249, 34)}


class Rules(nn.Module):
    """A and b = A exp(log z0), shared by all puzzles."""

    def __init__(self, rows: int, n: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.A = nn.Parameter(torch.rand(rows, n, generator=generator, dtype=torch.float64))
        self.log_z0 = nn.Parameter(torch.zeros(n, dtype=torch.float64))

    def forward(self, puzzles: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"q": puzzles, "A": self.A, "b": self.A @ self.log_z0.exp()}


class Sudoku(Task):
    """Boards of 4×4 or 9×9."""

    def __init__(self, size: int, inner: Inner, sizes: TaskSizes) -> None:
        self.name, self.size, self.inner, self.sizes = f"sudoku{size}", size, inner, sizes

    def draw(self, seed: int) -> TaskData:
        rng = np.random.default_rng([seed, self.size])
        puzzles, solved = generate(self.size, self.sizes.samples, BOARDS[self.size][1], rng)
        inputs, targets = (torch.tensor(one_hot(boards, self.size)) for boards in (puzzles, solved))
        return TaskData.split(inputs, targets, SHARES[self.sizes.setting])

    def model(self, seed: int) -> nn.Module:
        return Rules(self.inner.equalities, self.inner.n, seed)

    def loss(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        squared = (y - targets).square()
        return squared.mean() if self.sizes.setting == "authors" else squared.sum(dim=1).mean()

    def scores(self, y: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        """The loss, the share of boards with a wrong digit ("error") and that of wrong digits ("cells")."""
        digits, true = (t.reshape(len(t), -1, self.size).argmax(dim=2) for t in (y, targets))
        wrong = (digits != true).double()
        return {**super().scores(y, targets), "error": float(wrong.amax(dim=1).mean()), "cells": float(wrong.mean())}


def sudoku(size: int, sizes: TaskSizes) -> Sudoku:
    """The task for boards of this size."""
    n = size**3
    inner = Inner(TAU * np.eye(n), -np.eye(n), np.zeros(n), BOARDS[size][0], matrices_as_parameters=False)
    return Sudoku(size, inner, sizes)
