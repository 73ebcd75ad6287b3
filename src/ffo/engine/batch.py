"""The state of a call: the record that the stages of `Engine.run` fill in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ffo.engine.info import Info, Times, Violation
from ffo.engine.outcome import Outcome, SolvedPart, merged_certificate
from ffo.engine.proof import Proof
from ffo.engine.report import EngineReport
from ffo.errors import SOLVED, STATUSES, Status, solver_error
from ffo.ghost.oracle import Linearization, Way, linearize
from ffo.program.cone import ConeProgram, Solution
from ffo.program.names import Names
from ffo.program.presolve import Presolve, Triple
from ffo.solvers.base import Solver
from ffo.solvers.verdict import one_of
from ffo.solvers.workspace import OUT_OF_TIME

Array = np.ndarray

#: largest natural residual at which Newton's method from a remembered or failed point has solved a sample; above it,
#: another solver is tried for a better answer than the polished one
ACCEPT = 1e-10
#: the status of a sample without an answer
OPEN = -1
#: statuses of samples that more time might have solved
UNFINISHED = one_of(OPEN, Status.INACCURATE, Status.ITERATION_LIMIT, Status.NUMERICAL, Status.TIME_LIMIT)
_AS_IT_IS = Presolve()


def polished(program: ConeProgram, solution: Solution, way: Way) -> tuple[Linearization, float]:
    """Newton's method from these points, and how many seconds it took."""
    start = time.perf_counter()
    found = linearize(program, solution, way)
    return found, time.perf_counter() - start


def are_finite(*parts: Array) -> Array:
    """(batch,) whether all entries of some arrays (batch, ·) are finite."""
    return np.logical_and.reduce([np.isfinite(v).all(axis=1) for v in parts])


@dataclass
class Batch:
    """All samples of a program, and what is known about each; arrays have one entry or row per sample.

    Attributes:
        status: integers of `Status`, or `OPEN`.
        solver: name of the solver that answered; residual: natural residual of the point if it is a solution, else
            the one by which a solver's answer was judged.
        pieces: the linearizations of the solved samples, in groups.
        proofs: of the samples that provably have no solution.
        violations: of infeasible samples that were solved with slack.
        hits: number of samples solved from a remembered solution.
    """

    program: ConeProgram
    status: Array
    solver: Array
    residual: Array
    iterations: Array
    retried: Array
    rescued: Array
    detail: dict[int, str] = field(default_factory=dict)
    pieces: list[SolvedPart] = field(default_factory=list)
    proofs: dict[int, Proof] = field(default_factory=dict)
    violations: dict[int, Violation] = field(default_factory=dict)
    hits: int = 0
    setup_time: float = 0.0
    solve_time: float = 0.0
    polish_time: float = 0.0
    _point: Triple | None = None

    @classmethod
    def of(cls, program: ConeProgram) -> Batch:
        """Nothing is known yet."""
        unknown, no = np.full(program.batch, OPEN), np.zeros(program.batch, dtype=bool)
        no_solver, unmeasured = np.full(program.batch, "", dtype=object), np.full(program.batch, np.nan)
        return cls(program, unknown, no_solver, unmeasured, unknown.copy(), no, no.copy())

    @classmethod
    def joined(cls, program: ConeProgram, parts: Sequence[tuple[Array, Batch]]) -> Batch:
        """Join several batches, each of some samples of a program."""
        if len(parts) == 1:
            return parts[0][1]
        whole = cls.of(program)
        for samples, part in parts:
            whole.put(samples, part)
        return whole

    @property
    def open(self) -> Array:
        """Numbers of the samples without an answer."""
        return (self.status == OPEN).nonzero()[0]

    def finished(self, most: float) -> bool:
        """Whether all samples are solved, to a natural residual of at most this, or provably have no solution."""
        return np.count_nonzero(self.status) == len(self.proofs) and not np.count_nonzero(self.residual > most)

    @property
    def proven(self) -> Array:
        """(batch,) whether a sample provably has no solution."""
        found = np.zeros(len(self.status), dtype=bool)
        found[list(self.proofs)] = True
        return found

    def part(self, samples: Array) -> ConeProgram:
        """The program of some samples."""
        return self.program if len(samples) == self.program.batch else self.program.take(samples)

    @property
    def point(self) -> Triple:
        """x (batch, n), y and s (batch, m): the best point so far, NaN if there is none."""
        if self._point is None:
            batch, m = self.program.batch, self.program.m
            x, y, s = (np.full((batch, k), np.nan) for k in (self.program.n, m, m))
            self._point = x, y, s
        return self._point

    def put_point(self, samples: Array, point: Triple) -> None:
        """Store points of some samples."""
        if len(samples) == self.program.batch:
            self._point = point
            return
        for mine, new in zip(self.point, point, strict=True):
            mine[samples] = new

    def linearized(self, samples: Array, solution: Solution, way: Way) -> Linearization:
        """Newton's method on some samples from these points; nothing is stored yet."""
        found, seconds = polished(self.part(samples), solution, way)
        self.polish_time += seconds
        return found

    def accept(self, samples: Array, found: Linearization, good: Array) -> bool:
        """Store the good ones of some samples' solutions; returns whether all are good."""
        residual, whole = found.certificate.natural_residual, np.count_nonzero(good) == len(good)
        if not whole:
            if not good.any():
                return False
            samples, residual, found = samples[good], residual[good], found.take(np.flatnonzero(good))
        self.pieces.append(SolvedPart(samples, _AS_IT_IS, found))
        self.put_point(samples, (found.x, found.y, found.s))
        self.status[samples], self.residual[samples] = SOLVED, residual
        self._forget_details(samples)
        return whole

    def answered_by(self, name: str, samples: Array, iterations: Array) -> None:
        """Record which solver answered for some samples."""
        self.solver[samples], self.iterations[samples] = name, iterations

    def only(self, kept: Array) -> Batch:
        """The batch with only the answers of some samples kept; (batch,) mask."""
        pieces = []
        for piece in self.pieces:
            mine = kept[piece.samples]
            if mine.all():
                pieces.append(piece)
            elif mine.any():
                left = np.flatnonzero(mine)
                pieces.append(SolvedPart(piece.samples[left], piece.presolve.take(left), piece.found.take(left)))
        return replace(self, pieces=pieces, status=np.where(kept, self.status, OPEN))

    def withdraw(self, samples: Array, status: int | Array) -> None:
        """Withdraw answers; `status`: in place of SOLVED."""
        self._drop(samples)
        self.status[samples] = status
        self.detail.update(
            {int(k): f"the best point has a natural residual of {self.residual[k]:.1e}" for k in samples}
        )

    def _drop(self, samples: Array) -> None:
        """Forget the linearizations of some samples."""
        if self.pieces and len(samples):
            kept = np.ones(len(self.status), dtype=bool)
            kept[samples] = False
            self.pieces[:] = self.only(kept).pieces

    def prove(self, samples: Array, found: dict[int, Proof]) -> None:
        """Store proofs, by position among some samples; they override any other verdict on these samples."""
        if not found:
            return
        proofs = {int(samples[k]): proof for k, proof in found.items()}
        mine = np.array(list(proofs))
        status = np.array([proof.status for proof in proofs.values()])
        if (solved := self.status[mine] == SOLVED).any():
            self.withdraw(mine[solved], status[solved])
        self.proofs.update(proofs)
        self.status[mine] = status

    def reopen(self, samples: Array) -> None:
        """Forget everything about some samples but their points."""
        self.status[samples] = OPEN
        for k in samples.tolist():
            self.proofs.pop(k, None)
        self._forget_details(samples)

    def out_of_time(self) -> None:
        """Give unfinished samples that might have been solved the status TIME_LIMIT."""
        late = np.flatnonzero(UNFINISHED[self.status])
        for k in late.tolist():
            failure = self.detail.get(k) if self.status[k] in (Status.ITERATION_LIMIT, Status.NUMERICAL) else None
            self.detail[k] = f"{OUT_OF_TIME}; before that: {failure}" if failure else OUT_OF_TIME
        self.status[late] = Status.TIME_LIMIT

    def name_proofs(self, names: Names) -> None:
        """Give proofs the user's names of constraints and variables."""
        for k, proof in self.proofs.items():
            self.proofs[k] = proof.named(self.program.take(np.array([k])), names)

    def relax(self, samples: Array, other: Batch, violations: dict[int, Violation]) -> None:
        """Store solutions of these samples with slack on their constraints."""
        solved = other.status == SOLVED
        for k in np.flatnonzero(~solved).tolist():
            what = Status(int(other.status[k])).name.lower()
            self.detail[int(samples[k])] = f"{what} even with slack on the constraints that may be violated"
        other.proofs.clear()
        self.put(samples, other.only(solved), final_only=True)
        self.violations.update({int(samples[k]): violations[k] for k in np.flatnonzero(solved).tolist()})

    def undo(self, presolve: Presolve, program: ConeProgram) -> Batch:
        """The same batch for the original program, from that for the presolved one."""
        self.program, self._point = program, presolve.outward(*self.point)
        for k, piece in enumerate(self.pieces):
            steps = presolve if len(piece.samples) == program.batch else presolve.take(piece.samples)
            if piece.presolve.steps:
                steps = steps.then(piece.presolve)
            self.pieces[k] = SolvedPart(piece.samples, steps, piece.found)
        for k, proof in self.proofs.items() if presolve.steps else ():
            self.proofs[k] = proof.undo(presolve.take(np.array([k])), program)
        return self

    def put(self, samples: Array, other: Batch, final_only: bool = False) -> None:
        """Store the results of another batch of these samples; `final_only`: only solutions and proofs."""
        kept = (other.status == SOLVED) | other.proven if final_only else np.ones(len(samples), dtype=bool)
        mine = samples[kept]
        self._drop(mine)
        self.prove(samples, {k: proof for k, proof in other.proofs.items() if kept[k]})
        x, y, s = other.point
        self.put_point(mine, (x[kept], y[kept], s[kept]))
        for name in ("status", "solver", "residual", "iterations", "retried", "rescued"):
            getattr(self, name)[mine] = getattr(other, name)[kept]
        self._forget_details(mine)
        self.detail.update({int(samples[k]): text for k, text in other.detail.items() if kept[k]})
        for piece in other.pieces:
            self.pieces.append(SolvedPart(samples[piece.samples], piece.presolve, piece.found))
        self.hits += other.hits
        for name in ("setup_time", "solve_time", "polish_time"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def _forget_details(self, samples: Array) -> None:
        if self.detail:
            for k in samples.tolist():
                self.detail.pop(k, None)

    def raise_failures(self, copies: int, asked: Callable[[], Solver]) -> None:
        """Raise the first failure, naming the samples that share it.

        Args:
            copies: how many consecutive samples are copies of one sample of the caller's batch.
            asked: finds the solver to name if none was called.
        """
        if self.status.any():
            first = int(np.flatnonzero(self.status != SOLVED)[0])
            same = np.unique(np.flatnonzero(self.status == self.status[first]) // copies)
            name = str(self.solver[first]) or asked().name
            status, detail = Status(int(self.status[first])), self.detail.get(first, "")
            raise solver_error(status, same.tolist(), name, detail, self.proofs.get(first))

    def outcome(self, seconds: float) -> Outcome:
        """The results, NaN where samples failed; `seconds`: duration of the call."""
        solved = None
        if np.count_nonzero(self.status):
            solved = self.status == SOLVED
            for v in (*self.point, self.residual):
                v[~solved] = np.nan
        certificate = merged_certificate(self.pieces, len(self.status))
        status = [STATUSES[k] for k in self.status.tolist()]
        if self.violations:
            certificate.relaxed[list(self.violations)] = True
            for k in self.violations:
                status[k] = Status.RELAXED
        info = Info(
            status=status,
            solver=tuple(self.solver.tolist()),
            residual=self.residual,
            iterations=self.iterations,
            warm_hits=self.hits,
            retried=self.retried,
            rescued=self.rescued,
            evidence=certificate,
            times=Times(self.setup_time, self.solve_time, self.polish_time, seconds),
            detail=self.detail,
            proofs=self.proofs,
            violations=self.violations,
        )
        return Outcome(self.program, *self.point, self.pieces, EngineReport(info), solved)
