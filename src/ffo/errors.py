"""Exceptions, warnings and the status of a sample, each with advice.

Every exception of this package derives from `FFOError`. A failed solve raises a `SolverError`, which names the
failed samples of the batch and says what to try. `Status` is the per-sample verdict reported by solutions and by
`layer.info`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Status(enum.IntEnum):
    """Verdict on one sample of a batch."""

    SOLVED = 0
    INACCURATE = 1
    INFEASIBLE = 2
    UNBOUNDED = 3
    ITERATION_LIMIT = 4
    TIME_LIMIT = 5
    NUMERICAL = 6
    INVALID_INPUT = 7
    RELAXED = 8

    @property
    def ok(self) -> bool:
        return self is Status.SOLVED

    @property
    def answered(self) -> bool:
        """Whether the sample has outputs: it was solved, or it is infeasible and its nearest feasible problem was."""
        return self in (Status.SOLVED, Status.RELAXED)


#: as a plain int: comparing an array with it is ten times faster
SOLVED: int = Status.SOLVED.value
#: statuses by number
STATUSES = tuple(Status)

ADVICE: dict[Status, str] = {
    Status.SOLVED: "",
    Status.INACCURATE: (
        "the solver returned a point whose optimality conditions do not hold to the requested accuracy. "
        "This usually means bad scaling or too few iterations: raise max_iters, rescale the data, "
        "try another solver, or name one in retry="
    ),
    Status.INFEASIBLE: (
        "no point satisfies the constraints for these parameter values. Constrain what the network may "
        "predict, or use on_fail='relax' to solve the nearest feasible problem, or on_fail='nan' to keep "
        "the rest of the batch"
    ),
    Status.UNBOUNDED: (
        "the objective decreases without bound for these parameter values. Add bounds or a small "
        "quadratic term, or use on_fail='nan' to keep the rest of the batch"
    ),
    Status.ITERATION_LIMIT: "the solver stopped at its iteration limit: raise max_iters or loosen eps",
    Status.TIME_LIMIT: (
        "the time limit of the call (time_limit=) or of the solver was reached: raise it, loosen eps, or use "
        "on_fail='nan' to keep the rest of the batch"
    ),
    Status.NUMERICAL: (
        "the solver broke down numerically. Rescale the data (entries between 1e-3 and 1e3 are safe), "
        "try another solver, or name one in retry="
    ),
    Status.INVALID_INPUT: (
        "the problem data of this sample is not finite, not convex, or breaks an attribute that a parameter was "
        "declared with: look for NaN or inf in the inputs, and for matrices that should be positive "
        "semidefinite but are not"
    ),
    Status.RELAXED: "",
}


class FFOError(Exception):
    """Base of every exception raised by this package."""


class InputError(FFOError, ValueError):
    """An argument has the wrong shape, type, device or value; the message names it."""


class UnknownSettingError(InputError):
    """A solver setting that is not known to any solver of this package."""


class MissingSolverError(FFOError, ImportError):
    """The solver's package is not installed; the message contains the pip command."""


class UnsupportedProblemError(FFOError, ValueError):
    """The chosen solver (or this package) does not support this kind of problem."""


class TooLargeError(FFOError, MemoryError):
    """The problem, or its batch, would need more memory than is available; the message contains the estimate."""


class DerivativeError(FFOError, RuntimeError):
    """A derivative was requested that this package does not compute."""


class NotCalledError(FFOError, RuntimeError):
    """A report on a layer's last call was requested before any call."""


class NotFiniteError(FFOError, ArithmeticError):
    """An objective or its gradient is infinite or NaN where a method needs it."""


class SolverError(FFOError, RuntimeError):
    """A solve failed for some samples.

    Attributes:
        samples: indices of the failed samples in the batch.
        status: the common `Status` of these samples.
        proof: proof that the first of them has no solution (`ffo.engine.proof.Proof`), if there is one; its `parts`
            are the constraints that contradict each other, or the variables along which the objective decreases
            without bound.
    """

    status: Status = Status.NUMERICAL

    def __init__(self, samples: Sequence[int], solver: str, detail: str = "", proof: object = None) -> None:
        self.samples = tuple(int(i) for i in samples)
        self.solver, self.proof = solver, proof
        if proof is not None and str(proof):
            detail = f"sample {self.samples[0]}: {proof}" + (f"; {detail}" if detail else "")
        shown = ", ".join(map(str, self.samples[:8])) + (", …" if len(self.samples) > 8 else "")
        noun = "sample" if len(self.samples) == 1 else "samples"
        what = self.status.name.lower().replace("_", " ")
        text = f"{solver}: {what} for {noun} {shown} of the batch; {ADVICE[self.status]}."
        super().__init__(text + (f" ({detail})" if detail else ""))


class InfeasibleError(SolverError):
    status = Status.INFEASIBLE


class UnboundedError(SolverError):
    status = Status.UNBOUNDED


class InaccurateError(SolverError):
    status = Status.INACCURATE


class IterationLimitError(SolverError):
    status = Status.ITERATION_LIMIT


class TimeLimitError(SolverError):
    status = Status.TIME_LIMIT


class NumericalError(SolverError):
    status = Status.NUMERICAL


class InvalidDataError(SolverError, ValueError):
    status = Status.INVALID_INPUT


_BY_STATUS: dict[Status, type[SolverError]] = {
    cls.status: cls
    for cls in (
        InfeasibleError,
        UnboundedError,
        InaccurateError,
        IterationLimitError,
        TimeLimitError,
        NumericalError,
        InvalidDataError,
    )
}


def solver_error(
    status: Status, samples: Sequence[int], solver: str, detail: str = "", proof: object = None
) -> SolverError:
    """The exception for samples that ended with `status`."""
    return _BY_STATUS[status](samples, solver, detail, proof)


class GradientWarning(UserWarning):
    """A gradient was computed at a point where it cannot be fully trusted (see the certificate)."""


class ZeroGradientWarning(GradientWarning):
    """A gradient is zero although the loss depends on the solution: a vertex does not move with the costs."""


class SettingWarning(UserWarning):
    """A setting was accepted but has no effect on the chosen solver."""
