"""The findings of a call; an `Info` is made from them when it is read."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import numpy as np

from ffo.engine.info import Info, Times
from ffo.errors import Status
from ffo.ghost.certificate import RESIDUAL
from ffo.ghost.direct import certificate_of
from ffo.kernels import evidence as columns

Array = np.ndarray

_lock = Lock()


class Findings(NamedTuple):
    """What is known about samples that one solver has solved, all of them verified.

    Attributes:
        evidence, flags: of Newton's method (`ffo.kernels.evidence`).
        undoubted: whether nothing in them speaks against a gradient.
    """

    solver: str
    iterations: Array
    evidence: Array
    flags: Array
    times: Times
    undoubted: bool

    def info(self) -> Info:
        batch = len(self.evidence)
        return Info(
            status=[Status.SOLVED] * batch,
            solver=(self.solver,) * batch,
            residual=self.evidence[:, columns.RESIDUAL].copy(),
            iterations=self.iterations,
            retried=np.zeros(batch, dtype=bool),
            rescued=np.zeros(batch, dtype=bool),
            evidence=certificate_of(self.evidence, self.flags),
            times=self.times,
        )


class Pass(NamedTuple):
    """A derivative: the arguments of `Info.add_pass`."""

    seconds: float
    residual: Array
    dependent: Array | None
    ambiguous: Array | None
    kinked: Array

    @property
    def undoubted(self) -> bool:
        """Whether nothing speaks against it."""
        if np.count_nonzero(self.kinked):
            return False
        if self.dependent is not None and np.count_nonzero(self.dependent):
            return False
        if self.ambiguous is not None and np.count_nonzero(self.ambiguous):
            return False
        return not np.count_nonzero(self.residual > RESIDUAL)


class EngineReport:
    """The report on a call. Making an `Info` and adding a derivative to it takes a tenth of a step on a small program:
    both are put off until the report is read, or a second derivative is taken."""

    def __init__(self, known: Info | Findings) -> None:
        self._known = known
        self._added: Pass | None = None

    def info(self) -> Info:
        """The same object at every call; later derivatives are added to it."""
        with _lock:
            return self._made()

    def _made(self) -> Info:
        known = self._known
        if isinstance(known, Info):
            return known
        made = known.info()
        if self._added is not None:
            made.add_pass(*self._added)
            self._added = None
        self._known = made
        return made

    def add_pass(self, derivative: Pass) -> None:
        """Add a derivative."""
        with _lock:
            if isinstance(self._known, Findings) and self._added is None:
                self._added = derivative
            else:
                self._made().add_pass(*derivative)

    @property
    def undoubted(self) -> bool:
        """Whether no sample's gradient is known to be in doubt, after at least one derivative."""
        known, added = self._known, self._added
        if isinstance(known, Findings):
            return added is not None and known.undoubted and added.undoubted
        return known.certificate.all_good

    def __reduce__(self) -> tuple[Callable[[Info], Info], tuple[Info]]:
        return itself, (self.info(),)  # copies and pickles are independent of further derivatives


def itself(info: Info) -> Info:
    """The form in which a report is copied and pickled."""
    return info
