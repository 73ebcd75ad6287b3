"""Solve a batch, polish it, and make its derivative ready.

The order of things: data that cannot be solved is set aside; samples with a remembered solution are
tried from their active set alone; the rest go to the solver (and to the solvers in `retry=`); points
that failed are given to Newton's method before they are given up. What remains failed is raised or
turned into NaN, as the user chose.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ffo.engine.convexity import indefinite
from ffo.engine.info import Info, Times
from ffo.engine.memory import Memory
from ffo.engine.options import Options
from ffo.errors import Status, solver_error
from ffo.ghost.certificate import Certificate
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Linearization, linearize
from ffo.ghost.problem import Way
from ffo.ghost.resolve import Resolve
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.forward import solve_checked
from ffo.solvers.registry import choose, get_solver
from ffo.solvers.verdict import judge

Array = np.ndarray

#: residuals up to which Newton's method from a remembered or failed point counts as solved: the natural
#: one, in units of the point it started from, and the measured one, which no diverged start can shrink
ACCEPT = 1e-10
MEASURED = 1e-8
#: unknowns of one sample's ghost system beyond which factors are no longer tried by default
DIRECT_LIMIT = 200_000
#: failures whose point may still be near the solution
_REPAIRABLE = (Status.INACCURATE, Status.ITERATION_LIMIT, Status.TIME_LIMIT, Status.NUMERICAL)


@dataclass
class Outcome:
    """A solved batch: x (batch, n), y and s (batch, m), NaN where a sample failed.

    `pieces` are the linearizations of groups of samples; samples in none of them failed, or no
    derivative has been prepared yet.
    """

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    pieces: list[tuple[Array, Linearization]]
    info: Info
    way: Way

    def prepare(self) -> None:
        """Polish, and make the derivative ready (done ahead when a gradient is expected)."""
        if self.info.certificate is not None:
            return
        start = time.perf_counter()
        todo = np.flatnonzero(self.info.ok)
        todo = np.setdiff1d(todo, np.concatenate([who for who, _ in self.pieces] or [todo[:0]]))
        if len(todo):
            piece = _linearize(self.program, todo, self.x, self.y, self.s, self.way)
            self.pieces.append((todo, piece))
        for who, piece in self.pieces:
            self.x[who], self.y[who], self.s[who] = piece.x, piece.y, piece.s
            self.info.residual[who] = np.fmin(piece.certificate.natural_residual, self.info.residual[who])
        self.info.certificate = _merge_certificates(self.pieces, len(self.x))
        self.info.times = replace(self.info.times, polish=self.info.times.polish + time.perf_counter() - start)

    def adjoint(self, c_x: Array, c_y: Array) -> DataGradient:
        """Loss gradients in x and y -> gradient in the data; failed samples contribute zero."""
        self.prepare()
        start = time.perf_counter()
        batch, n = self.x.shape
        m = self.y.shape[1]
        total = DataGradient(*(np.zeros((batch, k)) for k in (n, m, n, m, m)))
        residual = np.full(batch, np.nan)
        for who, piece in self.pieces:
            part, residual[who] = piece.adjoint(c_x[who], c_y[who])
            for name in ("x", "y", "u", "v", "db"):
                getattr(total, name)[who] = getattr(part, name)
        assert self.info.certificate is not None
        self.info.certificate = self.info.certificate.with_ghost_residual(residual)
        self.info.times = replace(self.info.times, backward=time.perf_counter() - start)
        return total

    def tangent(self, change: ConeProgram) -> tuple[Array, Array]:
        """Derivative (dx, dy) along a change of the data; zero for failed samples."""
        self.prepare()
        dx, dy = np.zeros_like(self.x), np.zeros_like(self.y)
        for who, piece in self.pieces:
            dx[who], dy[who] = piece.tangent(change.take(who))
        return dx, dy


class Engine:
    """Options, the solver they name, and what is remembered between calls."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._solvers: dict[str, Solver] = {}
        self._memory = Memory()
        # Complain now, not at the first call.
        if isinstance(options.solver, str):
            self._configured(options.solver, options.solver_args)
        elif options.solver is not None:
            get_solver(options.solver, options.solver_args)
        for other in options.retry:
            get_solver(other)

    def __getstate__(self) -> dict[str, object]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["options"])  # type: ignore[misc,arg-type]

    def solver(self, program: ConeProgram, overrides: dict[str, object] | None = None) -> Solver:
        """The configured solver for a program."""
        chosen = self.options.solver or choose(program)
        if isinstance(chosen, Solver):
            return get_solver(chosen, overrides)
        return self._configured(chosen, {**self.options.solver_args, **(overrides or {})})

    def _configured(self, name: str, settings: Mapping[str, object]) -> Solver:
        """A solver by name, made once for the same settings (and so warning once of idle ones)."""
        key = f"{name.upper()} {sorted(settings.items(), key=str)!r}"
        if key not in self._solvers:
            self._solvers[key] = get_solver(name, settings, self.options.verbose)
        return self._solvers[key]

    def way(self, program: ConeProgram, solver: Solver) -> Way:
        """The way to solve ghost systems of a program."""
        choice = self.options.backward
        if isinstance(choice, Way):
            return choice
        if choice == "auto":
            choice = "direct" if program.n + program.m <= DIRECT_LIMIT else "iterative"
        if choice == "direct":
            return Direct()
        if choice == "iterative":
            return Iterative()
        return Resolve(solver.solve, delta=self.options.delta)

    def run(
        self,
        program: ConeProgram,
        derivative: bool,
        keys: Sequence[Hashable] | None = None,
        overrides: dict[str, object] | None = None,
        check_convexity: bool = True,
        copies: int = 1,
    ) -> Outcome:
        """Solve every sample of a program.

        Args:
            derivative: whether gradients will be asked for; if not, no work is done for them.
            keys: one per sample; remembered solutions are tried first.
            overrides: solver settings for this call.
            check_convexity: whether P depends on parameters, so that it may be indefinite.
            copies: how many neighbouring samples are copies of one sample of the caller's batch
                (smoothing), whose number is the one to name in errors.
        """
        start = time.perf_counter()
        program = program.pruned()
        run = _Run(program, self.solver(program, overrides), self.options)
        run.way = self.way(program, run.solver)
        run.reject_bad_data(check_convexity)
        if keys is not None:
            run.from_memory(self._memory, keys)
        run.solve()
        run.rescue()
        run.raise_failures(copies)
        outcome = run.outcome(start)
        if derivative:
            outcome.prepare()
        if keys is not None:
            good = np.flatnonzero(outcome.info.ok)
            self._memory.remember([keys[int(i)] for i in good], outcome.x[good], outcome.y[good], outcome.s[good])
        outcome.info.times = replace(outcome.info.times, forward=time.perf_counter() - start)
        return outcome


class _Run:
    """One call, step by step."""

    way: Way

    def __init__(self, program: ConeProgram, solver: Solver, options: Options) -> None:
        batch, n, m = program.batch, program.n, program.m
        self.program, self.solver, self.options = program, solver, options
        self.x, self.y, self.s = np.full((batch, n), np.nan), np.full((batch, m), np.nan), np.full((batch, m), np.nan)
        self.status = np.full(batch, -1)  # -1: not decided yet
        self.answered = np.full(batch, "", dtype=object)
        self.residual, self.iterations = np.full(batch, np.nan), np.full(batch, -1)
        self.retried, self.rescued = np.zeros(batch, dtype=bool), np.zeros(batch, dtype=bool)
        self.detail: dict[int, str] = {}
        self.pieces: list[tuple[Array, Linearization]] = []
        self.hits = 0
        self.times = Times()

    def reject_bad_data(self, check_convexity: bool) -> None:
        bad = np.flatnonzero(~self.program.finite)
        self.status[bad] = Status.INVALID_INPUT
        self.detail.update({int(k): "the problem data has NaN or infinite entries" for k in bad})
        P = self.program.P
        if not check_convexity or (len(bad) and P.shared):
            return
        good = np.flatnonzero(self.status < 0)
        for k, value in indefinite(P.take(good)).items():
            who = good if P.shared else good[k : k + 1]
            self.status[who] = Status.INVALID_INPUT
            text = f"the quadratic term is not positive semidefinite: smallest eigenvalue {value:.3g}"
            self.detail.update({int(i): text for i in who})

    def from_memory(self, memory: Memory, keys: Sequence[Hashable]) -> None:
        """Newton's method from remembered solutions; kept where it ends in a solution."""
        known, x, y, s = memory.recall(keys, self.program.n, self.program.m)
        fresh = self.status[known] < 0
        known, x, y, s = known[fresh], x[fresh], y[fresh], s[fresh]
        if not len(known) or not self.way.polishes:
            return
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            piece = linearize(self.program.take(known), _point(x, y, s), self.way)
            hit = self._accept(known, piece)
        self.iterations[known[hit]] = 0
        self.hits = int(hit.sum())
        self.times = replace(self.times, polish=time.perf_counter() - start)

    def solve(self) -> None:
        todo = np.flatnonzero(self.status < 0)
        if not len(todo):
            return
        program = self.program if len(todo) == self.program.batch else self.program.take(todo)
        solution, report = solve_checked(self.solver, program, retry=self.options.retry)
        self.x[todo], self.y[todo], self.s[todo] = solution.x, solution.y, solution.s
        self.status[todo], self.iterations[todo] = solution.status, solution.iterations
        self.answered[todo] = report.solver
        self.residual[todo], self.retried[todo] = report.residual, report.retried
        self.detail.update({int(todo[k]): text for k, text in (solution.detail or {}).items()})
        self.times = replace(self.times, setup=solution.setup_time, solve=solution.solve_time)

    def rescue(self) -> None:
        """Newton's method from the points of failed samples."""
        finite = np.isfinite(self.x).all(axis=1) & np.isfinite(self.y).all(axis=1) & np.isfinite(self.s).all(axis=1)
        failed = np.flatnonzero(np.isin(self.status, _REPAIRABLE) & finite)
        if not len(failed) or not self.way.polishes:
            return
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            piece = _linearize(self.program, failed, self.x, self.y, self.s, self.way)
            saved = self._accept(failed, piece)
        self.times = replace(self.times, polish=self.times.polish + time.perf_counter() - start)
        self.rescued[failed[saved]] = True
        for k in failed[saved]:
            self.detail.pop(int(k), None)

    def _accept(self, who: Array, piece: Linearization) -> Array:
        """Take over the points of a piece that are solutions; true where they are."""
        measured, verdict = judge(_point(piece.x, piece.y, piece.s), piece.program, MEASURED)
        good = (piece.certificate.natural_residual <= ACCEPT) & (verdict == Status.SOLVED)
        mine = who[good]
        if len(mine):
            self.x[mine], self.y[mine], self.s[mine] = piece.x[good], piece.y[good], piece.s[good]
            self.status[mine], self.residual[mine] = Status.SOLVED, measured[good]
            self.pieces.append((mine, piece if good.all() else piece.take(np.flatnonzero(good))))
        return good

    def raise_failures(self, copies: int) -> None:
        failed = self.status != Status.SOLVED
        if not failed.any():
            return
        if self.options.on_fail == "raise":
            first = int(np.flatnonzero(failed)[0])
            same = np.unique(np.flatnonzero(self.status == self.status[first]) // copies)
            name = str(self.answered[first]) or self.solver.name
            raise solver_error(Status(int(self.status[first])), same.tolist(), name, self.detail.get(first, ""))
        for v in (self.x, self.y, self.s):
            v[failed] = np.nan

    def outcome(self, start: float) -> Outcome:
        info = Info(
            status=[Status(int(k)) for k in self.status],
            solver=tuple(map(str, self.answered)),
            residual=self.residual,
            iterations=self.iterations,
            warm_hits=self.hits,
            retried=self.retried,
            rescued=self.rescued,
            times=replace(self.times, forward=time.perf_counter() - start),
            detail=self.detail,
        )
        return Outcome(self.program, self.x, self.y, self.s, self.pieces, info, self.way)


def _point(x: Array, y: Array, s: Array) -> Solution:
    return Solution(x, y, s, np.zeros(len(x), dtype=int), np.full(len(x), -1))


def _linearize(program: ConeProgram, who: Array, x: Array, y: Array, s: Array, way: Way) -> Linearization:
    if len(who) == program.batch:
        return linearize(program, _point(x, y, s), way)
    return linearize(program.take(who), _point(x[who], y[who], s[who]), way)


def _merge_certificates(pieces: list[tuple[Array, Linearization]], batch: int) -> Certificate:
    """One certificate for the batch; samples in no piece were not solved."""
    merged = Certificate(
        unsettled=np.ones(batch, dtype=bool),
        margin_ratio=np.full(batch, np.inf),
        weakly_active=np.zeros(batch, dtype=bool),
        error=np.full(batch, np.inf),
        natural_residual=np.full(batch, np.nan),
        ghost_residual=np.full(batch, np.nan),
    )
    for who, piece in pieces:
        for name, values in vars(piece.certificate).items():
            getattr(merged, name)[who] = values
    return merged
