"""One call on its way: the record that the stages of `Engine.run` fill in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ffo.engine.info import Info, Times
from ffo.engine.outcome import Outcome, Piece, merged_certificate
from ffo.errors import Status, solver_error
from ffo.ghost.oracle import Linearization, linearize
from ffo.ghost.problem import Way
from ffo.program.cone import ConeProgram, Solution
from ffo.program.presolve import Presolve
from ffo.solvers.base import Solver
from ffo.solvers.verdict import judge

Array = np.ndarray

#: residuals up to which Newton's method from a remembered or failed point counts as solved: the natural
#: one, in units of the point it started from, and the measured one, which no diverged start can shrink
ACCEPT = 1e-10
MEASURED = 1e-8
#: the status of a sample that nobody has answered yet
OPEN = -1


@dataclass
class Batch:
    """All samples of a program, and what is known of each; arrays have one entry or row per sample.

    Attributes:
        x: (batch, n); y, s: (batch, m): the best point so far, NaN without any.
        status: integers of `Status`, or `OPEN`.
        solver: name of whoever answered; residual: natural residual of the point, where it is a solution, else
            the one that a solver's answer was judged by.
        pieces: the linearizations of the samples that are solved, in groups.
        hits: how many samples were solved from what is remembered of them.
    """

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    status: Array
    solver: Array
    residual: Array
    iterations: Array
    retried: Array
    rescued: Array
    detail: dict[int, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    hits: int = 0
    times: Times = field(default_factory=Times)

    @classmethod
    def of(cls, program: ConeProgram) -> Batch:
        """Nothing is known yet."""
        batch, m = program.batch, program.m
        return cls(
            program,
            x=np.full((batch, program.n), np.nan),
            y=np.full((batch, m), np.nan),
            s=np.full((batch, m), np.nan),
            status=np.full(batch, OPEN),
            solver=np.full(batch, "", dtype=object),
            residual=np.full(batch, np.nan),
            iterations=np.full(batch, -1),
            retried=np.zeros(batch, dtype=bool),
            rescued=np.zeros(batch, dtype=bool),
        )

    @property
    def open(self) -> Array:
        """Numbers of the samples that nobody has answered yet."""
        return np.flatnonzero(self.status == OPEN)

    def part(self, samples: Array) -> ConeProgram:
        """The program of some samples."""
        return self.program if len(samples) == self.program.batch else self.program.take(samples)

    @contextmanager
    def timed(self, name: Literal["solve", "polish"]) -> Iterator[None]:
        """Adds the seconds inside to one of the times."""
        start = time.perf_counter()
        yield
        seconds = getattr(self.times, name) + time.perf_counter() - start
        self.times = replace(self.times, **{name: seconds})

    def linearized(self, samples: Array, x: Array, y: Array, s: Array, way: Way) -> Linearization:
        """Newton's method on some samples from these points; nothing is taken over yet."""
        start = Solution(x, y, s, np.zeros(len(x), dtype=int), np.full(len(x), -1))
        with self.timed("polish"):
            return linearize(self.part(samples), start, way)

    def accept(self, samples: Array, found: Linearization, good: Array) -> None:
        """Take over the good ones of some samples' solutions."""
        mine = samples[good]
        if not len(mine):
            return
        if good.all():
            piece = Piece(mine, Presolve(), found)
        else:
            piece = Piece(mine, Presolve(), found.take(np.flatnonzero(good)))
        self.pieces.append(piece)
        self._put_point(piece)
        self.status[mine], self.residual[mine] = Status.SOLVED, found.certificate.natural_residual[good]
        for k in mine.tolist():
            self.detail.pop(k, None)

    def accept_solutions(self, samples: Array, found: Linearization, among: Array | bool = True) -> Array:
        """Take over what is a solution by itself, wherever it was started; true where that is so."""
        measured = found.measured  # absolute, so that small ones settle the matter
        if measured is None or not (measured <= MEASURED).all():
            none = np.zeros(len(samples), dtype=int)
            measured, _ = judge(Solution(found.x, found.y, found.s, none, none), found.program, MEASURED)
        good = (found.certificate.natural_residual <= ACCEPT) & (measured <= MEASURED) & among
        self.accept(samples, found, good)
        return np.asarray(good)

    def put(self, samples: Array, other: Batch, presolve: Presolve, solved_only: bool = False) -> None:
        """Take over what another batch, of these samples' reduced programs, has found out."""
        kept = other.status == Status.SOLVED if solved_only else np.ones(len(samples), dtype=bool)
        mine = samples[kept]
        x, y, s = presolve.outward(other.x, other.y, other.s)
        self.x[mine], self.y[mine], self.s[mine] = x[kept], y[kept], s[kept]
        for name in ("status", "solver", "residual", "iterations", "retried", "rescued"):
            getattr(self, name)[mine] = getattr(other, name)[kept]
        for local, k in enumerate(samples.tolist()):
            if kept[local]:
                self.detail.pop(k, None)
                if local in other.detail:
                    self.detail[k] = other.detail[local]
        for piece in other.pieces:
            self.pieces.append(Piece(samples[piece.samples], presolve.take(piece.samples), piece.found))
        self.hits += other.hits
        self.times = self.times + other.times

    def _put_point(self, piece: Piece) -> None:
        found = piece.found
        if len(piece.samples) == len(self.x):
            self.x, self.y, self.s = found.x, found.y, found.s
        else:
            self.x[piece.samples], self.y[piece.samples], self.s[piece.samples] = found.x, found.y, found.s

    def raise_failures(self, copies: int, asked: Callable[[], Solver]) -> None:
        """Raise the first failure, naming the samples that share it.

        Args:
            copies: how many neighbouring samples are copies of one sample of the caller's batch.
            asked: finds the solver to name where none was asked.
        """
        failed = np.flatnonzero(self.status != Status.SOLVED)
        if len(failed):
            first = int(failed[0])
            same = np.unique(np.flatnonzero(self.status == self.status[first]) // copies)
            name = str(self.solver[first]) or asked().name
            raise solver_error(Status(int(self.status[first])), same.tolist(), name, self.detail.get(first, ""))

    def outcome(self) -> Outcome:
        """What became of the samples; NaN where they failed."""
        failed = self.status != Status.SOLVED
        if failed.any():
            for v in (self.x, self.y, self.s):
                v[failed] = np.nan
            self.residual[failed] = np.nan
        info = Info(
            status=[Status(int(k)) for k in self.status],
            solver=tuple(map(str, self.solver)),
            residual=self.residual,
            iterations=self.iterations,
            warm_hits=self.hits,
            retried=self.retried,
            rescued=self.rescued,
            certificate=merged_certificate(self.pieces, len(self.x)),
            times=self.times,
            detail=self.detail,
        )
        return Outcome(self.program, self.x, self.y, self.s, self.pieces, info)
