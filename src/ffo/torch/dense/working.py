"""The samples of a batch that are still worked on: those that stop are put aside, and leave when they are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ffo.torch.dense.program import Tensor

#: share of samples that still work from which the others are taken out (4096 programs of 100 variables: a third of the
#: work, since the last samples take three times the steps of most)
CROWDED = 0.5


class Working:
    """Arrays (batch or 1, ...) of the samples still at work, and where the results of all of them go.

    Args:
        data: read by every step; state: changed by it, (batch, ...) each.
    """

    def __init__(self, data: Sequence[Tensor], state: Sequence[Tensor]) -> None:
        self.data, self.state = tuple(data), tuple(state)
        self.results = tuple(v.clone() for v in state)
        self.samples: Tensor | None = None  # None: all of them
        self.stopped = torch.zeros(len(state[0]), dtype=torch.bool, device=state[0].device)

    def run(self, step: Callable[..., tuple[Tensor, ...]], limit: int) -> tuple[Tensor, ...]:
        """The state once every sample has stopped, or after so many steps.

        Args:
            step: (*data, *state) -> (stop, *state) with stop (batch,); a sample that stops keeps the state it is
                given with.
        """
        for _ in range(limit):
            stop, *state = step(*self.data, *self.state)
            keep = self.stopped
            self.state = tuple(torch.where(_wide(keep, v), v, w) for v, w in zip(self.state, state, strict=True))
            self.stopped = keep | stop
            left = len(keep) - int(self.stopped.sum())
            if not left:
                break
            if left <= CROWDED * len(keep):
                self._leave()
        self._store()
        return self.results

    def _store(self) -> None:
        if self.samples is None:
            self.results = self.state
        else:
            for result, v in zip(self.results, self.state, strict=True):
                result[self.samples] = v

    def _leave(self) -> None:
        """Go on without the samples that have stopped."""
        if self.samples is None:
            self.results = tuple(v.clone() for v in self.state)
        else:
            self._store()
        batch = len(self.stopped)
        on = torch.nonzero(~self.stopped).squeeze(1)
        self.samples = on if self.samples is None else self.samples[on]
        self.data = tuple(v if len(v) < batch else v[on] for v in self.data)
        self.state = tuple(v[on] for v in self.state)
        self.stopped = self.stopped[on]


def _wide(mine: Tensor, v: Tensor) -> Tensor:
    """(batch,) -> (batch, 1, ...) with the dimensions of v."""
    return mine.reshape(-1, *(1,) * (v.ndim - 1))
