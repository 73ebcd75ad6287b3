"""What a call on the dense path found out; `Info` is made of it when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ffo.engine.info import Info, Times
from ffo.errors import Status
from ffo.ghost.certificate import ERROR, RESIDUAL, Certificate
from ffo.kernels.point import MARGIN_RATIO, WEAK
from ffo.torch.base import warn_of_doubt
from ffo.torch.dense.program import Tensor
from ffo.torch.dense.solve import DenseSolution


@dataclass(frozen=True)
class Backward:
    """What a backward pass adds.

    Attributes:
        residual: (batch,) relative residual of the ghost.
        dependent: (batch,) samples whose active constraints depend on each other, where derivatives in constraints
            were asked for; None: none.
        seconds: how long it took.
    """

    residual: Tensor
    dependent: Tensor | None
    seconds: float


class DenseReport:
    """The evidence of a call as it comes: a few numbers a sample. Making an `Info` of them is left to those who
    read it: in a step on a small batch it would take a few percent of the time, on a device three waits for it.

    Args:
        times: of the forward pass.
    """

    def __init__(self, solution: DenseSolution, times: Times) -> None:
        self.natural, self.margin = solution.verdict.natural, solution.verdict.margin
        self.iterations, self.solver, self.warm_hits = solution.iterations, solution.solver, solution.warm_hits
        self.times = times
        self.backward: Backward | None = None
        self._info: Info | None = None

    def info(self) -> Info:
        """The same object at every call; a later backward pass is added to it."""
        if self._info is None:
            self._info = self._made()
            self._add_backward(self._info)
        return self._info

    def finish(self, backward: Backward) -> None:
        """Take in a backward pass, and warn where its gradient is in doubt."""
        self.backward = backward
        if self._info is not None:
            self._add_backward(self._info)
        if not self._quiet(backward):
            warn_of_doubt(self.info())

    def _quiet(self, backward: Backward) -> bool:
        """Whether the worst of all samples leaves no doubt (see `Certificate.good`); if not, they are looked at
        one by one."""
        if backward.dependent is not None:
            return False
        error, margin = float(self.natural.amax()), float(self.margin.amin())
        settled = error <= min(ERROR, MARGIN_RATIO * margin) and margin > WEAK
        return settled and float(backward.residual.amax()) <= RESIDUAL

    def _made(self) -> Info:
        natural, margin = self.natural.cpu().numpy(), self.margin.cpu().numpy()
        batch = len(natural)
        return Info(
            status=[Status.SOLVED] * batch,
            solver=self.solver,
            residual=natural.copy(),
            iterations=self.iterations.cpu().numpy(),
            warm_hits=self.warm_hits,
            retried=np.zeros(batch, dtype=bool),
            rescued=np.zeros(batch, dtype=bool),
            certificate=Certificate.before_backward(
                unsettled=np.zeros(batch, dtype=bool),
                margin_ratio=natural / np.maximum(margin, 1e-300),
                weakly_active=margin <= WEAK,
                error=natural,
                natural_residual=natural,
            ),
            times=self.times,
        )

    def _add_backward(self, info: Info) -> None:
        done = self.backward
        if done is None or info.certificate is None:
            return
        batch = len(info.status)
        info.certificate = replace(
            info.certificate,
            dependent=np.zeros(batch, dtype=bool) if done.dependent is None else done.dependent.cpu().numpy(),
            ghost_residual=done.residual.cpu().numpy(),
        )
        info.times = replace(info.times, backward=done.seconds)

    def __reduce__(self) -> tuple[object, tuple[Info]]:
        return _itself, (self.info(),)  # copies and pickles are of numbers, not of a device's tensors


def _itself(info: Info) -> Info:
    return info
