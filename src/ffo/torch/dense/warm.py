"""Active sets remembered by sample, tried before a solver is called."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from ffo.engine.memory import Backoff, Memory
from ffo.engine.start import TIGHT
from ffo.torch.dense.program import DenseProgram, Tensor, largest, positive
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
    """What is known about the samples of one call: their remembered active sets, or the user's guess.

    Attributes:
        keys: under which the samples are remembered; None: they are not.
        start: (n,) or (batch, n) the user's guess, used instead of what is remembered; None without.
    """

    sets: ActiveSets
    keys: list[Hashable] | None
    start: Tensor | None = None

    def part(self, samples: slice) -> Remembered:
        """The same for some samples."""
        keys, start = self.keys, self.start
        few = start if start is None or start.ndim == 1 else start[samples]
        return Remembered(self.sets, None if keys is None else keys[samples], few)

    def guess(self, program: DenseProgram) -> Guess | None:
        """The active sets of the guess; otherwise remembered ones, if most samples have one and those of the last
        calls were right."""
        if self.start is not None:
            return _active_at(program, self.start)
        assert self.keys is not None
        known, rows, bounds = self.sets.memory.recall(self.keys, program.r, program.n)
        if 2 * len(known) < program.batch or not self.sets.backoff.due():
            return None
        device = program.p.device
        spread = lambda v: torch.from_numpy(_spread(v, known, program.batch)).to(device)  # noqa: E731
        return Guess(spread(rows), spread(bounds), spread(np.ones((len(known), 1), dtype=bool)).squeeze(1))

    def record(self, hits: Tensor) -> None:
        """Record which samples (batch,) were solved from their active sets."""
        if self.start is None:
            self.sets.backoff.record(2 * int(hits.sum()) >= len(hits))

    def keep(self, answer: DenseAnswer) -> None:
        """Remember the active sets of the samples that were solved."""
        if self.keys is None:
            return
        with answer.kept.reading() as ((solution, _), _run):
            solved, verdict = solution.solved.cpu().numpy(), solution.verdict
            active = [v.cpu().numpy()[solved] for v in (verdict.rows, verdict.bounds)]
        keys = [key for key, good in zip(self.keys, solved.tolist(), strict=True) if good]
        self.sets.memory.remember(keys, *active)


def _active_at(program: DenseProgram, start: Tensor) -> Guess:
    """The constraints that a guess satisfies with equality or violates."""
    z = start.detach().to(program.p).expand(program.batch, -1)
    known = z.isfinite().all(dim=1)
    z = torch.where(known.unsqueeze(1), z, 0.0)
    reached, norms = program.rows(z), program.norms
    size = positive(torch.maximum(largest(z), largest(reached / norms))).unsqueeze(1)

    def sides(value: Tensor, low: Tensor, upp: Tensor, near: Tensor) -> Tensor:
        over, under = value - upp, low - value
        active = torch.maximum(over, under) >= -TIGHT * near
        return torch.where(active, torch.where(over >= under, 1, -1), 0).to(torch.int8)

    return Guess(sides(reached, program.low, program.upp, norms * size), sides(z, program.lb, program.ub, size), known)


def _spread(v: Array, known: Array, batch: int) -> Array:
    """(known, width) -> (batch, width), zero elsewhere."""
    found = np.zeros((batch, v.shape[1]), v.dtype)
    found[known] = v
    return found
