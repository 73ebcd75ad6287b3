"""Solve a batch, polish it, and make its derivative ready.

The order of things: data that cannot be solved is set aside; samples with a remembered solution are
tried from their active set alone; the rest, if it is light and the user named no solver, is tried by Newton's
method from nothing; what is left goes to the solver (where it fails, to another: `retry=`); points
that failed are given to Newton's method before they are given up. What remains failed is raised or
turned into NaN, as the user chose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from ffo.engine.apart import Joint, RowGroup, row_groups
from ffo.engine.convexity import indefinite
from ffo.engine.info import Info, Times
from ffo.engine.memory import Attempts, Matrices, Memory
from ffo.engine.options import Options
from ffo.engine.outcome import Outcome, as_solution, linearize_at, linearize_some
from ffo.engine.scaling import Moderate, Scaled, Scaling, scaling
from ffo.errors import Status, solver_error
from ffo.ghost.ball import BallLayout, layout_of
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.layout import Layouts
from ffo.ghost.oracle import Linearization, linearize_from_nothing
from ffo.ghost.problem import Way
from ffo.ghost.resolve import Resolve
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SymmetricBatch
from ffo.solvers.base import Solver
from ffo.solvers.forward import solve_checked
from ffo.solvers.registry import choose, get_solver, second_choice
from ffo.solvers.verdict import judge

Array = np.ndarray

#: residuals up to which Newton's method from a remembered or failed point counts as solved: the natural
#: one, in units of the point it started from, and the measured one, which no diverged start can shrink
ACCEPT = 1e-10
MEASURED = 1e-8
#: name under which solutions of Newton's method from nothing are reported
NEWTON = "Newton"
#: unknowns and rows, of all samples together, from which it is tried before a solver is asked; those of one
#: sample, if each has to be eliminated by itself; the share of samples that may be left over if it is to pay
MANY, LARGE, PAYING = 4_000, 500, 0.5
#: unknowns of one sample's ghost system beyond which factors are no longer tried by default
DIRECT_LIMIT = 200_000
#: positions in the batch that are known, and their x, y, s; None without keys
Recalled = tuple[Array, Array, Array, Array] | None
#: failures whose point, if there is one, may still be near the solution
_REPAIRABLE = (
    Status.INACCURATE,
    Status.ITERATION_LIMIT,
    Status.TIME_LIMIT,
    Status.NUMERICAL,
    Status.INFEASIBLE,
    Status.UNBOUNDED,
)
#: relative residual of a point from which a verdict of infeasibility or unboundedness is not disputed (that of a
#: certificate of either is 1); below, a solution found by Newton's method refutes it
FAR = 0.5


class Engine:
    """Options, the solver they name, and what is remembered between calls."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._solvers: dict[str, Solver] = {}
        self._memory, self._newton = Memory(), Attempts()
        self._matrices, self._layouts, self._moderate = Matrices(), Layouts(), Moderate()
        # Complain now, not at the first call.
        if isinstance(options.solver, str):
            self._configured(options.solver, options.solver_args)
        elif options.solver is not None:
            get_solver(options.solver, options.solver_args)
        for other in options.retry or ():
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

    def _ours(self, overrides: dict[str, object] | None) -> bool:
        """Whether who solves is left to this package, and how but for the accuracy."""
        return self.options.solver is None and not {*self.options.solver_args, *(overrides or {})} - {"eps"}

    def others(
        self, program: ConeProgram, solver: Solver, overrides: dict[str, object] | None
    ) -> tuple[str | Solver, ...]:
        """Whom to ask about samples that the solver fails on: those in `retry=`; a second choice of this
        package's own where the first is too, as it is (settings, such as limits, are meant for one solver)."""
        options = self.options
        if options.retry is not None:
            return tuple(options.retry)
        if not self._ours(overrides):
            return ()
        other = second_choice(program, solver.name)
        return () if other is None else (self._configured(other, {"eps": solver.eps}),)

    def way(self, program: ConeProgram, find_solver: Callable[[], Solver], remember: bool = False) -> Way:
        """The way to solve ghost systems of a program; `remember`: its active sets will come again."""
        choice = self.options.backward
        if isinstance(choice, Way):
            return choice
        if choice == "auto":
            choice = "direct" if program.n + program.m <= DIRECT_LIMIT else "iterative"
        if choice == "direct":
            return Direct(self._layouts, remember)
        if choice == "iterative":
            return Iterative()
        return Resolve(find_solver().solve, delta=self.options.delta)

    def run(
        self,
        program: ConeProgram,
        derivative: bool,
        keys: Sequence[Hashable] | None = None,
        overrides: dict[str, object] | None = None,
        check_convexity: bool = True,
        copies: int = 1,
        open_sides: bool = False,
    ) -> Outcome:
        """Solve every sample of a program.

        Args:
            derivative: whether gradients will be asked for; if not, no work is done for them.
            keys: one per sample; remembered solutions are tried first.
            overrides: solver settings for this call.
            check_convexity: whether P depends on parameters, so that it may be indefinite.
            copies: how many neighbouring samples are copies of one sample of the caller's batch
                (smoothing), whose number is the one to name in errors.
            open_sides: whether +inf as the right-hand side of an inequality means that the sample
                does not have this row (else it is bad data).
        """
        start = time.perf_counter()
        original = program = self._matrices.recognized(program.pruned())
        remembered = self._recall(keys, program)
        units = None if self._moderate.holds(program) else scaling(program)
        if units is not None:
            program = units.apply(program)
            if remembered is not None:
                known, *point = remembered
                remembered = (known, *units.take(known).inward(*point))
        groups = row_groups(program) if open_sides else None
        if groups is None:
            run = self._solved(program, overrides, check_convexity, remembered)
            if units is not None:
                self._in_given_units(run, original, units, overrides)
            _raise_failures(run, copies)
            outcome = run.outcome()
        else:
            runs = [
                (group, self._solved(group.part(program), overrides, check_convexity, group.recalled(remembered)))
                for group in groups
            ]
            _raise_failures(_together(program, runs, self.options), copies)
            outcome = Joint.of(program, [(group, run.outcome()) for group, run in runs])
        if units is not None:
            outcome = Scaled.of(original, outcome, units)
        if derivative:
            outcome.prepare()
        if keys is not None:
            self._remember(keys, outcome)
        outcome.info.times = replace(outcome.info.times, forward=time.perf_counter() - start)
        return outcome

    def _recall(self, keys: Sequence[Hashable] | None, program: ConeProgram) -> Recalled:
        if keys is None:
            return None
        known, x, y, s = self._memory.recall(keys, program.n, program.m, program.m)
        return known, x, y, s

    def _remember(self, keys: Sequence[Hashable], outcome: Outcome) -> None:
        x, y, s, ok = outcome.x, outcome.y, outcome.s, outcome.info.ok
        if not ok.all():
            keys, x, y, s = [key for key, good in zip(keys, ok, strict=True) if good], x[ok], y[ok], s[ok]
        self._memory.remember(keys, x, y, s)

    def _solved(
        self, program: ConeProgram, overrides: dict[str, object] | None, check_convexity: bool, remembered: Recalled
    ) -> _Run:
        """Solved as far as it goes; failures are not raised yet."""
        find = partial(self.solver, program, overrides)
        if overrides:
            find()  # settings are checked, whether or not a solver will be asked
        run = _Run(program, find, self.options, self._matrices.indefinite)
        run.way = self.way(program, find, remember=remembered is not None)
        run.reject_bad_data(check_convexity)
        if remembered is not None:
            run.from_memory(*remembered)
        if self._ours(overrides) and isinstance(run.way, Direct):
            self._try_newton(run)
        if (run.status < 0).any():
            run.solve(self.others(program, run.solver, overrides))
        run.rescue()
        return run

    def _try_newton(self, run: _Run) -> None:
        """Newton's method from nothing, where it is likely to be faster than a solver."""
        left, size = int((run.status < 0).sum()), run.program.n + run.program.m
        if left * size < MANY or not run.program.P.nnz:
            return
        layout = layout_of(run.program)
        if layout is None or not (layout.pattern.is_bordered or size >= LARGE) or not self._newton.due():
            return
        run.from_nothing(layout)
        self._newton.record(paid=(run.status < 0).sum() < PAYING * left)

    def _in_given_units(
        self, run: _Run, original: ConeProgram, units: Scaling, overrides: dict[str, object] | None
    ) -> None:
        """Samples that failed at unit size, solved in the units they came in.

        Sizes are read off the data, and these may mislead (right-hand sides of 1e-12 that mean zero).
        """
        failed = np.flatnonzero(np.isin(run.status, _REPAIRABLE))
        if len(failed):
            again = self._solved(original.take(failed), overrides, False, None)
            run.adopt(failed, again, units.take(failed).inward(again.x, again.y, again.s))


class _Run:
    """One call, step by step."""

    way: Way

    def __init__(
        self,
        program: ConeProgram,
        find_solver: Callable[[], Solver],
        options: Options,
        judge_convexity: Callable[[SymmetricBatch], dict[int, float]] = indefinite,
    ) -> None:
        self.find_solver, self.judge_convexity = find_solver, judge_convexity
        batch, n, m = program.batch, program.n, program.m
        self.program, self.options = program, options
        self.x, self.y, self.s = np.full((batch, n), np.nan), np.full((batch, m), np.nan), np.full((batch, m), np.nan)
        self.status = np.full(batch, -1)  # -1: not decided yet
        self.answered = np.full(batch, "", dtype=object)
        self.residual, self.iterations = np.full(batch, np.nan), np.full(batch, -1)
        self.retried, self.rescued = np.zeros(batch, dtype=bool), np.zeros(batch, dtype=bool)
        self.detail: dict[int, str] = {}
        self.pieces: list[tuple[Array, Linearization]] = []
        self.hits = 0
        self.times = Times()

    @cached_property
    def solver(self) -> Solver:
        """The solver to ask; not looked for where nobody is."""
        return self.find_solver()

    def reject_bad_data(self, check_convexity: bool) -> None:
        bad = np.flatnonzero(~self.program.finite)
        self.status[bad] = Status.INVALID_INPUT
        self.detail.update({int(k): "the problem data has NaN or infinite entries" for k in bad})
        P = self.program.P
        good = np.flatnonzero(self.status < 0)
        if not check_convexity or not len(good):
            return
        for k, value in self.judge_convexity(P.take(good)).items():
            who = good if P.shared else good[k : k + 1]
            self.status[who] = Status.INVALID_INPUT
            text = f"the quadratic term is not positive semidefinite: smallest eigenvalue {value:.3g}"
            self.detail.update({int(i): text for i in who})

    def from_memory(self, known: Array, x: Array, y: Array, s: Array) -> None:
        """Newton's method from remembered solutions; kept where it ends in a solution."""
        fresh = self.status[known] < 0
        if not fresh.all():
            known, x, y, s = known[fresh], x[fresh], y[fresh], s[fresh]
        if not len(known) or not self.way.polishes:
            return
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            program = self.program if len(known) == self.program.batch else self.program.take(known)
            piece = linearize_at(program, x, y, s, self.way)
            hit = self._accept(known, piece)
        self.iterations[known[hit]] = 0
        self.hits = int(hit.sum())
        self.times = replace(self.times, polish=time.perf_counter() - start)

    def from_nothing(self, layout: BallLayout) -> None:
        """Newton's method without a solver; kept where it ends in a solution."""
        start = time.perf_counter()
        todo = np.flatnonzero(self.status < 0)
        program = self.program if len(todo) == self.program.batch else self.program.take(todo)
        piece, steps = linearize_from_nothing(program, layout)
        found = self._accept(todo, piece, piece.certificate.good)
        self.iterations[todo[found]], self.answered[todo[found]] = steps[found], NEWTON
        self.times = replace(self.times, solve=time.perf_counter() - start)

    def solve(self, others: Sequence[str | Solver]) -> None:
        todo = np.flatnonzero(self.status < 0)
        if not len(todo):
            return
        program = self.program if len(todo) == self.program.batch else self.program.take(todo)
        solution, report = solve_checked(self.solver, program, retry=others)
        self.x[todo], self.y[todo], self.s[todo] = solution.x, solution.y, solution.s
        self.status[todo], self.iterations[todo] = solution.status, solution.iterations
        self.answered[todo] = report.solver
        self.residual[todo], self.retried[todo] = report.residual, report.retried
        self.detail.update({int(todo[k]): text for k, text in (solution.detail or {}).items()})
        self.times = replace(self.times, setup=solution.setup_time, solve=self.times.solve + solution.solve_time)

    def adopt(self, who: Array, other: _Run, point: tuple[Array, Array, Array]) -> None:
        """Take over what another run of the same samples has solved, at these points."""
        solved = other.status == Status.SOLVED
        mine = who[solved]
        self.x[mine], self.y[mine], self.s[mine] = (v[solved] for v in point)
        for name in ("status", "answered", "residual", "iterations", "retried", "rescued"):
            getattr(self, name)[mine] = getattr(other, name)[solved]
        for k in mine.tolist():
            self.detail.pop(k, None)

    def rescue(self) -> None:
        """Newton's method from the points of failed samples."""
        if (self.status == Status.SOLVED).all() or not self.way.polishes:
            return
        finite = np.isfinite(self.x).all(axis=1) & np.isfinite(self.y).all(axis=1) & np.isfinite(self.s).all(axis=1)
        settled = np.isin(self.status, (Status.INFEASIBLE, Status.UNBOUNDED)) & ~(self.residual < FAR)
        failed = np.flatnonzero(np.isin(self.status, _REPAIRABLE) & finite & ~settled)
        if not len(failed):
            return
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            piece = linearize_some(self.program, failed, self.x, self.y, self.s, self.way)
            saved = self._accept(failed, piece)
        self.times = replace(self.times, polish=self.times.polish + time.perf_counter() - start)
        self.rescued[failed[saved]] = True
        for k in failed[saved]:
            self.detail.pop(int(k), None)

    def _accept(self, who: Array, piece: Linearization, among: Array | bool = True) -> Array:
        """Take over the points of a piece that are solutions, `among` some; true where they are."""
        measured = piece.measured  # absolute, so that small ones settle the matter
        if measured is None or not (measured <= MEASURED).all():
            measured, _ = judge(as_solution(piece.x, piece.y, piece.s), piece.program, MEASURED)
        good = (piece.certificate.natural_residual <= ACCEPT) & (measured <= MEASURED) & among
        mine = who[good]
        if len(mine) == len(self.status):
            self.x, self.y, self.s = piece.x, piece.y, piece.s
            self.status[:], self.residual = Status.SOLVED, measured
            self.pieces.append((mine, piece))
        elif len(mine):
            self.x[mine], self.y[mine], self.s[mine] = piece.x[good], piece.y[good], piece.s[good]
            self.status[mine], self.residual[mine] = Status.SOLVED, measured[good]
            self.pieces.append((mine, piece if good.all() else piece.take(np.flatnonzero(good))))
        return good

    def outcome(self) -> Outcome:
        """What became of the samples; NaN where they failed."""
        failed = self.status != Status.SOLVED
        if failed.any():
            for v in (self.x, self.y, self.s):
                v[failed] = np.nan
        info = Info(
            status=[Status(int(k)) for k in self.status],
            solver=tuple(map(str, self.answered)),
            residual=self.residual,
            iterations=self.iterations,
            warm_hits=self.hits,
            retried=self.retried,
            rescued=self.rescued,
            times=self.times,
            detail=self.detail,
        )
        return Outcome(self.program, self.x, self.y, self.s, self.pieces, info, self.way)


def _raise_failures(run: _Run, copies: int) -> None:
    """Raise the first failure, naming the samples that share it, if the user wants that."""
    failed = np.flatnonzero(run.status != Status.SOLVED)
    if not len(failed) or run.options.on_fail != "raise":
        return
    first = int(failed[0])
    same = np.unique(np.flatnonzero(run.status == run.status[first]) // copies)
    name = str(run.answered[first]) or run.solver.name
    raise solver_error(Status(int(run.status[first])), same.tolist(), name, run.detail.get(first, ""))


def _together(program: ConeProgram, runs: list[tuple[RowGroup, _Run]], options: Options) -> _Run:
    """The verdicts on all groups of samples, numbered as in the whole batch."""
    whole = _Run(program, runs[0][1].find_solver, options)
    for group, run in runs:
        whole.status[group.samples], whole.answered[group.samples] = run.status, run.answered
        whole.detail.update({int(group.samples[k]): text for k, text in run.detail.items()})
    return whole
