"""The interface of a solver adapter.

An adapter is thin: it declares what its solver can do, translates settings, passes the data and returns the answer as
a `Solution` with this package's sign conventions. It does not judge the answer (its residuals are measured elsewhere)
and never switches to another solver.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ffo.cones.base import Cone
from ffo.errors import MissingSolverError, UnsupportedProblemError
from ffo.kernels.deadline import Deadline, current
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.pool import solve_samples
from ffo.solvers.settings import resolve
from ffo.solvers.workspace import Workspace, gather

#: shortest time limit in seconds passed to a solver: some read 0 as no limit
SHORTEST = 1e-3
#: smallest accuracy to which an answer is asked for again: below, most solvers run into their iteration limit
FINEST = 1e-12


@dataclass(frozen=True)
class Capabilities:
    """What a solver supports, and how to call it.

    Attributes:
        cones: the cone types it accepts.
        quadratic: whether it takes P natively.
        threads: whether its solves release the GIL, so that Python threads speed up a batch.
        convexity: whether it answers INVALID_INPUT if and only if P is not positive semidefinite.
        slow_quadratic: whether it may take very long on quadratic programs: after another solver it is asked only
            about samples without an answer, not to improve a coarse one.
        module: the module to import; package: what to pip install; extra: the extra of ffo.
    """

    cones: frozenset[type[Cone]]
    quadratic: bool
    module: str
    package: str
    extra: str | None = None
    threads: bool = False
    convexity: bool = False
    slow_quadratic: bool = False


class Solver:
    """A configured solver. Subclasses implement `workspace` or, if the solver has a native batch, `solve`.

    Attributes:
        settings: the settings in the solver's own names.
        eps: the loosest accuracy among them.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    #: the solver's own setting names that are passed through
    native_settings: ClassVar[frozenset[str]] = frozenset()
    #: the solver's own names for `eps`, `max_iters` and `time_limit`; "" if it has no such limit
    tolerances: ClassVar[tuple[str, ...]] = ()
    iteration_limit: ClassVar[str] = ""
    time_limit: ClassVar[str] = ""
    #: values of the solver's settings that differ from its own defaults
    defaults: ClassVar[Mapping[str, Any]] = {}
    #: True if the solver's setting names are not known here and all are passed through
    open_settings: ClassVar[bool] = False
    #: names that are ignored nevertheless, with a warning
    ignored_settings: ClassVar[frozenset[str]] = frozenset()
    #: measured residual below which an answer counts as solved, however small eps is
    residual_floor: ClassVar[float] = 1e-5
    #: smallest accuracy that the solver accepts
    tightest: ClassVar[float] = 0.0

    def __init__(self, settings: Mapping[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.require()
        resolved = resolve(self, settings)
        self.verbose = verbose or resolved.verbose
        self.settings, self.eps = resolved.native, resolved.eps
        for name in self.tolerances:
            if self.settings[name] == self.eps:  # set here, not by the user
                self.settings[name] = max(self.eps, self.tightest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"

    @classmethod
    def installed(cls) -> bool:
        return importlib.util.find_spec(cls.capabilities.module) is not None

    @classmethod
    def require(cls) -> None:
        """Raise, with the pip command, if the solver's package is missing."""
        if not cls.installed():
            extra = cls.capabilities.extra
            hint = f" (or: pip install 'ffo[{extra}]')" if extra else ""
            raise MissingSolverError(
                f"solver {cls.name} needs the package {cls.capabilities.package}: "
                f"pip install {cls.capabilities.package}{hint}"
            )

    def check(self, program: ConeProgram) -> None:
        """Raise if the solver does not support this kind of program."""
        if not program.cones.kinds <= self.capabilities.cones:
            missing = program.cones.kinds - self.capabilities.cones
            names = ", ".join(sorted(kind.name for kind in missing))
            raise UnsupportedProblemError(f"{self.name} does not support the cones of this problem: {names}")
        if program.P.nnz and not self.capabilities.quadratic:
            raise UnsupportedProblemError(f"{self.name} does not support quadratic objectives")

    def workspace(self, program: ConeProgram) -> Workspace:
        """Set the solver up for a program."""
        raise NotImplementedError(f"{self.name} solves whole batches")

    def at(self, eps: float | None) -> Self:
        """This solver with another accuracy; None: with its own."""
        if eps is None or eps == self.eps:
            return self
        return self._changed(eps, dict.fromkeys(self.tolerances, max(eps, self.tightest)))

    def tighter(self, factors: Iterable[float]) -> Iterator[Self]:
        """This solver with each of its accuracies times these factors, as far as they can be asked for."""
        least = max(FINEST, self.tightest)
        asked = {name: self.settings.get(name) for name in self.tolerances}
        coarse = {name: eps for name, eps in asked.items() if isinstance(eps, (int, float)) and eps > least}
        for factor in factors if coarse else ():
            finer = {name: max(factor * eps, least) for name, eps in coarse.items()}
            yield self._changed(max(factor * self.eps, least), finer)

    def in_time(self, deadline: Deadline | None) -> Self:
        """This solver, limited to the remaining time of the call if it supports a limit."""
        own = self.time_limit
        if deadline is None or not own:
            return self
        return self._changed(self.eps, {own: min(self.settings.get(own, math.inf), max(deadline.left, SHORTEST))})

    def _changed(self, eps: float, settings: Mapping[str, Any]) -> Self:
        other = copy.copy(self)
        other.settings, other.eps = {**self.settings, **settings}, eps
        return other

    def solve(self, program: ConeProgram) -> Solution:
        """Solve every sample of the batch."""
        self.check(program)
        start = time.perf_counter()
        deadline = current()
        points, setup = solve_samples(
            lambda part: self.in_time(deadline).workspace(part), program, self.capabilities.threads
        )
        return gather(points, program, setup_time=setup, solve_time=time.perf_counter() - start - setup)
