"""Active sets remembered by sample, tried before a solver is called."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from ffo.engine.memory import Backoff, Memory
from ffo.torch.dense.program import DenseProgram
from ffo.torch.dense.solve import Guess

if TYPE_CHECKING:
    from ffo.torch.dense.answer import DenseAnswer

Array = np.ndarray


@dataclass(frozen=True)
class ActiveSets:
    """The last active set of each key, one byte per row and variable; and whether they are worth trying."""

    memory: Memory = field(default_factory=lambda: Memory(dtype=np.int8))
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True)
class Remembered:
    """The remembered active sets of the samples of one call."""

    sets: ActiveSets
    keys: list[Hashable]

    def guess(self, program: DenseProgram) -> Guess | None:
        """The active sets, if most samples have one and those of the last calls were right."""
        known, rows, bounds = self.sets.memory.recall(self.keys, program.r, program.n)
        if 2 * len(known) < program.batch or not self.sets.backoff.due():
            return None
        device = program.p.device
        spread = lambda v: torch.from_numpy(_spread(v, known, program.batch)).to(device)  # noqa: E731
        return Guess(spread(rows), spread(bounds), spread(np.ones((len(known), 1), dtype=bool)).squeeze(1))

    def keep(self, answer: DenseAnswer) -> None:
        """Remember the active sets of the samples that were solved."""
        with answer.kept.reading() as ((solution, _), _run):
            solved, verdict = solution.solved.cpu().numpy(), solution.verdict
            active = [v.cpu().numpy()[solved] for v in (verdict.rows, verdict.bounds)]
        keys = [key for key, good in zip(self.keys, solved.tolist(), strict=True) if good]
        self.sets.memory.remember(keys, *active)


def _spread(v: Array, known: Array, batch: int) -> Array:
    """(known, width) -> (batch, width), zero elsewhere."""
    found = np.zeros((batch, v.shape[1]), v.dtype)
    found[known] = v
    return found
