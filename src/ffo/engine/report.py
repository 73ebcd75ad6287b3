"""The findings of a call; an `Info` is made from them when it is read."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import numpy as np

from ffo.engine.info import Info, Times
from ffo.errors import Status
from ffo.ghost.certificate import ERROR, RESIDUAL
from ffo.ghost.direct import certificate_of
from ffo.kernels import evidence as columns
from ffo.kernels.point import MARGIN_RATIO

Array = np.ndarray

#: largest values of the columns ERROR and RATIO of the evidence of a good gradient
_LIMITS = np.array([ERROR, MARGIN_RATIO])
_DOUBTS = slice(columns.ERROR, columns.RATIO + 1)
_lock = Lock()


class Findings(NamedTuple):
    """What is known about samples that one solver has solved, all of them verified.

    Attributes:
        evidence, flags: of Newton's method (`ffo.kernels.evidence`).
    """

    solver: str
    iterations: Array
    evidence: Array
    flags: Array
    times: Times

    @property
    def undoubted(self) -> bool:
        """Whether nothing is known that speaks against a gradient."""
        return not np.count_nonzero(self.flags) and _all_below(self.evidence[:, _DOUBTS], _LIMITS)

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


class EngineReport:
    """The report on a call. Making an `Info` and adding a derivative to it takes a tenth of a step on a small program:
    both are put off until the report is read, or a second derivative is taken."""

    def __init__(self, known: Info | Findings) -> None:
        self._known = known
        self._added: tuple[float, Array, Array] | None = None

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
            seconds, residual, kinked = self._added
            made.add_pass(seconds, residual, None, None, kinked)
            self._added = None
        self._known = made
        return made

    def add_pass(
        self, seconds: float, residual: Array, dependent: Array | None, ambiguous: Array | None, kinked: Array
    ) -> None:
        """Add a derivative: the arguments of `Info.add_pass`."""
        with _lock:
            plain = isinstance(self._known, Findings) and self._added is None and dependent is None is ambiguous
            if plain:
                self._added = seconds, residual, kinked
            else:
                self._made().add_pass(seconds, residual, dependent, ambiguous, kinked)

    @property
    def undoubted(self) -> bool:
        """Whether no sample's gradient is known to be in doubt, after at least one derivative."""
        known, added = self._known, self._added
        if isinstance(known, Findings):
            return added is not None and known.undoubted and not np.count_nonzero(added[1] > RESIDUAL)
        return known.certificate.all_good

    def __reduce__(self) -> tuple[Callable[[Info], Info], tuple[Info]]:
        return itself, (self.info(),)  # copies and pickles are independent of further derivatives


def itself(info: Info) -> Info:
    """The form in which a report is copied and pickled."""
    return info


def _all_below(values: Array, limits: Array) -> bool:
    return bool(np.count_nonzero(values <= limits) == values.size)
