"""What happened in a call: `layer.info`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ffo.errors import Status
from ffo.ghost.certificate import Certificate

Array = np.ndarray


@dataclass(frozen=True)
class Times:
    """Seconds: `setup` and `solve` inside solvers, `polish` for Newton steps and factorizations,
    `forward` for the whole call, `backward` for the last backward pass (0 before any)."""

    setup: float = 0.0
    solve: float = 0.0
    polish: float = 0.0
    forward: float = 0.0
    backward: float = 0.0


@dataclass
class Info:
    """Report on the last call of a layer; arrays have one entry per sample (per draw with smoothing).

    Attributes:
        status: what became of each sample.
        solver: name of the solver that answered ("Newton" where none had to be asked, because Newton's
            method found the solution; "" for a warm start hit, and data not fit to be solved).
        residual: worst relative residual of the optimality conditions at the returned point.
        iterations: of the solver, or steps of Newton's method; -1 where unknown, 0 for warm start hits.
        warm_hits: how many samples were solved from their remembered active set alone.
        retried: samples that the first solver failed on and another was asked about (see `retry=`).
        rescued: samples whose solver failed but whose point Newton steps made a solution.
        certificate: how far to trust the gradients; None until a derivative is prepared.
        detail: the solver's own words about failed samples.
    """

    status: list[Status]
    solver: tuple[str, ...]
    residual: Array
    iterations: Array
    warm_hits: int = 0
    retried: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    rescued: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    certificate: Certificate | None = None
    times: Times = field(default_factory=Times)
    detail: dict[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> Array:
        """(batch,) true where the sample was solved."""
        return np.array([s is Status.SOLVED for s in self.status])
