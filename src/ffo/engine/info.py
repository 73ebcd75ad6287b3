"""The report on a call: `layer.info`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from ffo.engine.proof import Proof
from ffo.errors import DerivativeError, Status
from ffo.ghost.certificate import Certificate
from ffo.program.names import Names, parts

Array = np.ndarray


@dataclass
class Times:
    """Seconds: `setup` and `solve` inside solvers, `polish` for Newton steps and factorizations,
    `forward` for the whole call, `backward` for the last backward pass (0 before any)."""

    setup: float = 0.0
    solve: float = 0.0
    polish: float = 0.0
    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Times)))


@dataclass(frozen=True)
class Violation:
    """By how much a relaxed sample violates its constraints.

    Attributes:
        vector: (m,) violation of the program's rows.
        names: the user's names of these rows.
    """

    vector: Array
    names: Names

    @property
    def size(self) -> float:
        """The Euclidean norm."""
        return float(np.linalg.norm(self.vector))

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Violated constraints by the user's names, with their violation, the largest first."""
        return parts(self.names.constraints, self.vector)


@dataclass
class Info:
    """Report on a call of a layer; arrays have one entry per sample.

    With smoothing, they have one per draw: entry `k * draws + d` is draw d of sample k, and
    `info.ok.reshape(batch, draws).all(1)` says which samples were solved.

    It belongs to the call: backward passes through an earlier call add to that call's report, not to the last
    one's (`layer.call` returns a call's own report with its outputs). The certificate keeps the worst verdict of
    several passes, and of the rows of a Jacobian.

    Attributes:
        status: the verdict on each sample.
        solver: name of the solver that answered ("Newton" if Newton's method found the solution without one; ""
            for a warm-start hit, and for invalid data).
        residual: natural residual of the returned point, after polish: the violation of the optimality
            conditions, each in its own units; NaN where a sample failed.
        iterations: of the solver, or steps of Newton's method; -1 if unknown, 0 for warm-start hits.
        warm_hits: number of samples solved from their remembered active set, or from that of the user's guess.
        retried: samples on which the first solver failed and another was tried, or which another solved more
            accurately (see `retry=`); also those that a solver solved again with a smaller eps: with `backward_eps=`,
            because an answer that it called solved did not hold; with curved cones, because its answer was coarse.
        rescued: samples whose solver failed, or was coarse, but whose point was turned into a solution: by Newton
            steps, or by another solve on the face of its large multipliers.
        evidence: the certificate; None if no derivative can be taken (problems given by functions, called without
            gradients).
        detail: the solver's own message about failed samples; for others the expression of parameters, if any, that
            has no derivative there (`certificate.irregular`).
        proofs: of the samples that provably have no solution; `proofs[k].parts` names the constraints that contradict
            each other with their multipliers, or the variables with their components of the ray.
        violations: of the relaxed samples (`on_fail="relax"`); `violations[k].parts` names the constraints.
    """

    status: list[Status]
    solver: tuple[str, ...]
    residual: Array
    iterations: Array
    warm_hits: int = 0
    retried: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    rescued: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    evidence: Certificate | None = None
    times: Times = field(default_factory=Times)
    detail: dict[int, str] = field(default_factory=dict)
    proofs: dict[int, Proof] = field(default_factory=dict)
    violations: dict[int, Violation] = field(default_factory=dict)

    @property
    def certificate(self) -> Certificate:
        """How far to trust the gradients; complete once they have been computed."""
        if self.evidence is None:
            raise DerivativeError(
                "there is no certificate: the layer was called without gradients, and no derivative can be taken. Pass "
                "tensors that require gradients"
            )
        return self.evidence

    @property
    def ok(self) -> Array:
        """(batch,) true where the sample was solved."""
        return np.array([s is Status.SOLVED for s in self.status])

    @property
    def answered(self) -> Array:
        """(batch,) true where the sample has outputs: it was solved or relaxed."""
        return np.array([s.answered for s in self.status])

    @property
    def differentiated(self) -> bool:
        """Whether any derivative has been taken."""
        return self.evidence is not None and self.evidence.differentiated

    @property
    def violation(self) -> Array:
        """(batch,) Euclidean norm of the constraint violation of relaxed samples; 0 for solved ones, NaN for failed
        ones."""
        found = np.where(self.answered, 0.0, np.nan)
        found[list(self.violations)] = [each.size for each in self.violations.values()]
        return found

    @classmethod
    def joined(cls, parts: Sequence[Info]) -> Info:
        """Concatenate the reports on the consecutive parts of a batch."""
        total, first = sum(len(part.status) for part in parts), 0
        nothing = np.zeros(total, dtype=bool)
        found = cls(
            [Status.SOLVED] * total, ("",) * total, nothing.astype(float), nothing.astype(np.int64), 0, nothing.copy(),
            nothing.copy(), Certificate.unsolved(total), sum((part.times for part in parts), start=Times()),
        )  # fmt: skip
        for part in parts:
            found.take_in(part, np.arange(first, first + len(part.status)))
            first += len(part.status)
        return found

    def take_in(self, other: Info, samples: Array) -> None:
        """Insert the report on some samples (by number)."""
        solver = list(self.solver)
        for k, i in enumerate(samples.tolist()):
            self.status[i], solver[i] = other.status[k], other.solver[k]
            for mine, theirs in ((self.detail, other.detail), (self.proofs, other.proofs)):
                mine.update({i: theirs[k]} if k in theirs else {})  # type: ignore[arg-type, dict-item]
            if k in other.violations:
                self.violations[i] = other.violations[k]
        self.solver, self.warm_hits = tuple(solver), self.warm_hits + other.warm_hits
        for name in ("residual", "iterations", "retried", "rescued"):
            getattr(self, name)[samples] = getattr(other, name)
        if self.evidence is not None and other.evidence is not None:
            self.evidence = self.evidence.put(samples, other.evidence)

    def add_pass(self, seconds: float, residual: Array, *evidence: Array | None) -> None:
        """Add a backward or forward-mode pass: its time, and the arguments of `Certificate.after_backward`."""
        self.evidence = self.certificate.after_backward(residual, *evidence)
        self.times.backward = seconds
