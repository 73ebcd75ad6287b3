"""The findings of a call on the dense path; an `Info` is made from them on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ffo.engine.info import Info, Times
from ffo.engine.report import itself
from ffo.errors import Status
from ffo.ghost.certificate import RESIDUAL, Certificate
from ffo.kernels.point import WEAK
from ffo.torch.base import warn_of_doubt
from ffo.torch.dense.answer import DenseAnswer
from ffo.torch.dense.program import Tensor
from ffo.torch.dense.solve import DenseSolution


@dataclass(frozen=True)
class Backward:
    """What a backward pass adds.

    Attributes:
        residual: (batch,) relative residual of the ghost, 0 where the core solved it.
        seconds: how long it took.
    """

    residual: Tensor
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """For each sample (batch,): the natural residual, the margin (see `Verdict`), the iterations."""

    natural: Tensor
    margin: Tensor
    iterations: Tensor

    @classmethod
    def of(cls, solution: DenseSolution) -> Evidence:
        """Copies, because the solution's buffers may be overwritten."""
        return cls(*(v.clone() for v in (solution.verdict.natural, solution.verdict.margin, solution.iterations)))


class DeviceReport(ABC):
    """A report from which an `Info` is made when it is read."""

    _info: Info | None = None

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None  # called after a backward pass

    def info(self) -> Info:
        """The same object at every call; a later backward pass is added to it."""
        if self._info is None:
            self._info = self._made()
        return self._info

    @abstractmethod
    def _made(self) -> Info:
        """The report so far."""

    def __reduce__(self) -> tuple[object, tuple[Info]]:
        return itself, (self.info(),)  # copies and pickles contain numbers, not device tensors


class DenseReport(DeviceReport):
    """The evidence of a call: a few numbers per sample. An `Info` is made only when it is read: on a small batch it
    would take a few percent of a step, and on a device three synchronizations.

    Args:
        times: of the forward pass.
        left, core: which samples the core solved, and its report on them; None without any.
    """

    def __init__(
        self, found: Evidence, answer: DenseAnswer, times: Times, left: Tensor | None = None, core: Info | None = None
    ) -> None:
        super().__init__()
        self.natural, self.margin, self.iterations = found.natural, found.margin, found.iterations
        self.solver, self.hits = answer.solver, answer.hits
        self.times, self.left, self.core = times, left, core
        self.backward: Backward | None = None

    def finish(self, backward: Backward) -> None:
        """Add a backward pass, and warn if its gradient is in doubt (the core has warned about its samples)."""
        last = self.backward
        if last is not None:  # the worst of all passes counts
            backward = replace(backward, residual=torch.maximum(backward.residual, last.residual))
        self.backward = backward
        if self._info is not None:
            self._add_backward(self._info)
        self.changed()
        if float(backward.residual.amax()) > RESIDUAL:
            warn_of_doubt(self.info())

    def _made(self) -> Info:
        natural, margin = self.natural.cpu().numpy().copy(), self.margin.cpu().numpy()
        batch = len(natural)
        hits = np.zeros(batch, dtype=bool) if self.hits is None else self.hits.cpu().numpy()
        info = Info(
            status=[Status.SOLVED] * batch,
            solver=tuple("" if hit else self.solver for hit in hits),
            residual=natural.copy(),
            iterations=self.iterations.cpu().numpy().copy(),
            warm_hits=int(hits.sum()),
            retried=np.zeros(batch, dtype=bool),
            rescued=np.zeros(batch, dtype=bool),
            evidence=Certificate.before_backward(
                unsettled=np.zeros(batch, dtype=bool),
                margin_ratio=natural / np.maximum(margin, 1e-300),
                weakly_active=margin <= WEAK,
                error=natural,
                natural_residual=natural,
            ),
            times=self.times,
        )
        if self.core is not None and self.left is not None:
            info.take_in(self.core, self.left.cpu().numpy())
        self._add_backward(info)
        return info

    def _add_backward(self, info: Info) -> None:
        done = self.backward
        if done is None:
            return
        info.evidence = replace(info.certificate, ghost_residual=done.residual.cpu().numpy().copy())
        info.times = replace(info.times, backward=done.seconds)
        if self.core is not None and self.left is not None:
            info.evidence = info.certificate.put(self.left.cpu().numpy(), self.core.certificate)
