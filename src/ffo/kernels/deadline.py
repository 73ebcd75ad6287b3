"""Time limits of calls.

The deadline of a call is ambient, like NumPy's error state: code that loops over samples asks for the `current` one. It
is checked between chunks, samples, solvers and stages; compiled loops check a number that a timer sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import cache, wraps
from threading import Timer
from typing import ParamSpec, TypeVar

import numpy as np

Array = np.ndarray
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: seconds of a kernel's work on one sample above which a timer is started to stop it: starting one takes a tenth of
#: a millisecond
LONG = 1e-2
#: fraction of the remaining time that the next samples may take
SHARE = 0.25


class Pace:
    """How many samples to process at a time if time is limited: as many as should fit into a fraction of the rest.

    The time per sample is that of the last ones; before any, one sample is tried.
    """

    def __init__(self) -> None:
        self._seconds: float | None = None

    def samples(self, left: float) -> int:
        """The number of samples to take, at least one."""
        return 1 if self._seconds is None else max(int(SHARE * left / max(self._seconds, 1e-9)), 1)

    def record(self, seconds: float, samples: int) -> None:
        """Record the time of some samples."""
        self._seconds = seconds / samples


class Deadline:
    """A point so many seconds from now. Inside `with deadline:` it is the current one.

    Args:
        pace: measured in earlier calls.
    """

    def __init__(self, seconds: float, pace: Pace | None = None) -> None:
        self._end = time.monotonic() + seconds
        self.pace = pace or Pace()
        self._running: list[Array] = []
        self._timer: Timer | None = None
        self._token: Token[Deadline | None] | None = None

    @property
    def left(self) -> float:
        """Seconds left, 0 if it has passed."""
        return max(self._end - time.monotonic(), 0.0)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end

    def __enter__(self) -> Deadline:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def around(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """The function, with this deadline in every call."""

        @wraps(function)
        def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            with self:
                return function(*args, **kwargs)

        return limited

    def steps(self, most: int, seconds: float) -> Array:
        """`allowed` of a kernel that takes about so many seconds for one sample."""
        allowed = np.array([most])
        if seconds >= LONG:
            self._running.append(allowed)
            if self._timer is None:
                self._timer = Timer(self.left, self._stop)
                self._timer.daemon = True
                self._timer.start()
        return allowed

    def _stop(self) -> None:
        for allowed in self._running:
            allowed[0] = -1


_current: ContextVar[Deadline | None] = ContextVar("ffo_deadline", default=None)


def current() -> Deadline | None:
    """The deadline of this thread's call."""
    return _current.get()


def expired() -> bool:
    """Whether the time of this thread's call is up."""
    deadline = _current.get()
    return deadline is not None and deadline.passed


def allowed_steps(most: int, seconds: float) -> Array:
    """(1,) most steps of a kernel that takes about so many seconds for one sample; negative once time is up."""
    deadline = _current.get()
    return _unlimited(most) if deadline is None else deadline.steps(most, seconds)


@cache
def _unlimited(most: int) -> Array:
    return np.array([most])
