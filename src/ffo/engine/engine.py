"""Solve a batch, verify it, and prepare its derivative.

One call is a sequence of stages over one record, a `Batch`. Equal matrices are recognised; a presolve scales the data
to unit size and removes missing rows. Then, in each reduced program:

- data that cannot be solved is set aside;
- samples with a remembered solution, or a guess of the user's, are tried from its active set;
- the rest, if it is light and the user named no solver, is tried by Newton's method from zero;
- the remaining samples go to the solver, whose answers are polished and verified, and samples that fail go on to the
  next solver (`retry=`);
- coarse and failed answers are refined on the faces of their large multipliers;
- Newton's method is tried from the points of failed samples, and a proof that there is no solution is looked for;
- multipliers beside which the costs are rounding are reduced.

The presolve is undone, and answers found in other units are judged in the given ones. Samples that failed, or whose
answers are coarse, are tried again without rows whose right-hand sides mean infinity, and in other coordinates of
curved cones. Those that still failed are raised, turned into NaN or, if provably infeasible, relaxed, as users choose.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import is_not
from typing import NamedTuple

import numpy as np

from ffo.cones import Nonneg, SecondOrder, Zero
from ffo.engine.attempt import Attempt, Reduction, what_decides
from ffo.engine.balanced import solve_balanced
from ffo.engine.batch import Batch
from ffo.engine.checks import contradictions
from ffo.engine.distant import solve_without_distant_rows, units_are_lost
from ffo.engine.face import reduce_forces, refine_on_faces
from ffo.engine.info import Violation
from ffo.engine.memory import Backoff, Matrices, Memory
from ffo.engine.notices import VERTEX
from ffo.engine.options import Options, Relax
from ffo.engine.outcome import Outcome
from ffo.engine.stages import ask, from_memory, reject_bad_data, rescue, seek_proofs, solve_from_nothing
from ffo.engine.start import Start
from ffo.engine.units import check_in_given_units, holds, solve_in_given_units
from ffo.errors import Status, ZeroGradientWarning
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import Way
from ffo.ghost.resolve import Resolve
from ffo.kernels.deadline import Deadline, Pace, expired
from ffo.program.cone import ConeProgram
from ffo.program.epigraph import epigraphs
from ffo.program.fill import fits, is_small
from ffo.program.names import Names
from ffo.program.presolve import MissingRows, Presolve, missing_rows
from ffo.program.relaxation import Relaxation
from ffo.program.scaling import is_moderate, scaling
from ffo.program.substitution import Definitions, Substitution
from ffo.solvers.base import Solver
from ffo.solvers.registry import choose, further, get_solver, named_in_settings

Array = np.ndarray

#: Newton's method from zero pauses if it leaves more than this share of samples unsolved
PAYING = 0.5
#: most unknowns of one sample's ghost system for which factors are tried by default
DIRECT_LIMIT = 200_000
_NOBODY: Mapping[int, str] = {}
_DIRECT = Direct()


class _How(NamedTuple):
    """The arguments of `Engine.run` for a call; deadline: of the whole call."""

    overrides: dict[str, object] | None
    check_convexity: bool
    open_sides: bool
    deadline: Deadline | None


class Engine:
    """Options, the solver they name, and the memory between calls."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._solvers: dict[str, Solver] = {}
        self._memory, self._newton, self._pace = Memory(), Backoff(), Pace()
        self.matrices = Matrices()
        self._slack: Engine | None = None  # remembers relaxed programs
        self._first: tuple[tuple[object, ...], Solver | None] | None = None  # see `_attempt`
        self.notices_vertices = True  # once (see `engine.notices`)
        self._own = options.solver is None and options.solver_args.keys() <= {"eps"}
        # raise errors now, not at the first call
        named, settings = named_in_settings(options.solver, options.solver_args)
        if isinstance(named, str):
            self._configured(named, settings)
        elif named is not None:
            get_solver(named, settings)
        for other in (*(options.retry or ()), *filter(None, [options.backward_solver])):
            get_solver(other)

    def notice_vertices(self) -> None:
        """Warn that a gradient in the costs is zero; once."""
        self.notices_vertices = False
        warnings.warn(VERTEX, ZeroGradientWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, object]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["options"])  # type: ignore[misc,arg-type]

    def solver(self, program: ConeProgram, overrides: dict[str, object] | None = None) -> Solver:
        """The configured solver for a program."""
        given = {**self.options.solver_args, **(overrides or {})}
        named, settings = named_in_settings(self.options.solver, given) if given else (self.options.solver, given)
        chosen = named or self.matrices.once(choose, program)
        return self._configured(chosen, settings) if isinstance(chosen, str) else get_solver(chosen, settings)

    def _configured(self, name: str, settings: Mapping[str, object]) -> Solver:
        """A solver by name, made once for the same settings (and so warning once about unused ones)."""
        key = f"{name} {sorted(settings.items(), key=str)!r}" if settings else name
        if key not in self._solvers:
            self._solvers[key] = get_solver(name, settings, self.options.verbose)
        return self._solvers[key]

    def _ours(self, overrides: dict[str, object] | None) -> bool:
        """Whether the choice of the solver, and of its settings other than the accuracy, is left to this package."""
        return self._own and (not overrides or overrides.keys() <= {"eps"})

    def others(self, program: ConeProgram, solver: Solver, overrides: dict[str, object] | None) -> list[Solver]:
        """The solvers to try on samples that the first one fails on: those in `retry=`, else this package's own choice
        if the first was too, with default settings (settings, such as limits, are meant for one solver)."""
        if self.options.retry is not None:
            return [r if isinstance(r, Solver) else get_solver(r, {"eps": solver.eps}) for r in self.options.retry]
        names = further(program, solver.name) if self._ours(overrides) else ()
        return [self._configured(name, {"eps": solver.eps}) for name in names]

    def way(self, program: ConeProgram, find_solver: Callable[[], Solver]) -> Way:
        """The way to solve ghost systems of a program."""
        choice = self.options.backward
        if not isinstance(choice, str):
            return choice
        if choice == "auto":
            choice = "direct" if program.n + program.m <= DIRECT_LIMIT and fits(program) else "iterative"
        if choice == "direct":
            return _DIRECT
        if choice == "iterative":
            return Iterative()
        eps = self.options.backward_eps
        return Resolve(self._backward_solver(find_solver()).solve, delta=self.options.delta, eps=eps)

    def _backward_solver(self, forward: Solver) -> Solver:
        """The solver of re-solves: by default that of the forward pass, with its accuracy."""
        named, eps = self.options.backward_solver, self.options.backward_eps or forward.eps
        if isinstance(named, str):
            return self._configured(named, {"eps": eps})
        return (named or forward).at(self.options.backward_eps)

    def run(
        self,
        program: ConeProgram,
        keys: Sequence[Hashable] | None = None,
        overrides: dict[str, object] | None = None,
        refused: Mapping[int, str] = _NOBODY,
        check_convexity: bool = True,
        copies: int = 1,
        open_sides: bool = False,
        hidden: Array | None = None,
        names: Names | None = None,
        start: Start | None = None,
        explain: Callable[[str, int], str] | None = None,
    ) -> Outcome:
        """Solve every sample of a program.

        Args:
            keys: one per sample; remembered solutions are tried first.
            overrides: solver settings for this call.
            refused: samples that must not be solved, and why.
            check_convexity: whether P depends on parameters, so that it may be indefinite.
            copies: how many consecutive samples are copies of one sample of the caller's batch
                (smoothing), whose number is named in errors.
            open_sides: whether +inf as the right-hand side of an inequality means that the sample
                does not have this row (else it is invalid data).
            hidden: (n,) variables that are not outputs.
            names: the user's names of constraints and variables.
            start: the user's guesses, which are tried instead of remembered solutions.
            explain: names the parameters that make a sample invalid, from what is wrong with it and its number.
        """
        begun = time.perf_counter()
        if refused:
            q = np.array(program.q)
            q[list(refused)] = np.nan
            program = program.with_vectors(q=q)
        given = self.matrices.recognized(program)
        known = None if keys is None and start is None else self._known(given, keys, start)
        deadline = None if self.options.time_limit is None else Deadline(self.options.time_limit, self._pace)
        how = _How(overrides, check_convexity, open_sides, deadline)
        reduction, attempt = self._reduced(given, hidden, how), None
        if known is None and deadline is None and reduction.groups is None:
            attempt = self._attempt(reduction.whole, how)
            if attempt is not None and attempt.verified:
                outcome = attempt.outcome(given, reduction.presolve, begun)
                if reduction.units is None or self._holds(given, outcome, how):
                    if keys is not None:
                        self._remember(keys, outcome)
                    return outcome
        batch = self._solve(given, known, reduction, how, attempt)
        if np.count_nonzero(batch.status):
            if explain is not None:
                for k in np.flatnonzero(batch.status == Status.INVALID_INPUT).tolist():
                    batch.detail[k] = explain(batch.detail.get(k, ""), k // copies)
            batch.detail.update(refused)
            if self.options.relax is not None and names is not None:
                self._relax(batch, self.options.relax, names, hidden, how)
            if names is not None:
                batch.name_proofs(names)
            if self.options.raises:
                batch.raise_failures(copies, partial(self.solver, given, overrides))
        outcome = batch.outcome(time.perf_counter() - begun)
        if keys is not None:
            self._remember(keys, outcome)
        return outcome

    def _known(
        self, given: ConeProgram, keys: Sequence[Hashable] | None, start: Start | None
    ) -> tuple[Array, ...] | None:
        """Samples with a guess or, failing that, a remembered solution, in order, and these points."""
        known = None if keys is None else self._memory.recall(keys, given.n, given.m, given.m)
        if start is None:
            return known
        guessed = start.complete(given)
        if guessed is None or known is None:
            return guessed or known
        rest = ~np.isin(known[0], guessed[0])
        joined = [np.concatenate([g, k[rest]]) for g, k in zip(guessed, known, strict=True)]
        order = np.argsort(joined[0])
        return tuple(v[order] for v in joined)

    def _reduced(self, given: ConeProgram, hidden: Array | None, how: _How) -> Reduction:
        program, first = given, self._substitution(given, how.check_convexity)
        if first is not None:
            program, hidden = first.apply(given), None if hidden is None else hidden[first.of.places.kept]
        units = None if is_moderate(program) else scaling(program)
        groups = missing_rows(program) if how.open_sides else None
        return Reduction(first, program, units, groups, None if groups else epigraphs(program, hidden))

    def _attempt(self, program: ConeProgram, how: _How) -> Attempt | None:
        """The answers of the first solver on all samples; None if something else comes first."""
        if self.options.retry is not None or not program.all_finite or contradictions(program) is not None:
            return None
        last, key = self._first, what_decides(program, how.check_convexity)
        if last is None or how.overrides or any(map(is_not, last[0], key)):
            last = key, self._first_solver(program, how)
            if program.P.own and program.shared_matrices and is_small(program) and not how.overrides:
                self._first = last
        return None if last[1] is None else Attempt.of(program, last[1], _DIRECT)

    def _first_solver(self, program: ConeProgram, how: _How) -> Solver | None:
        """The solver to call first on programs with these matrices; None if something else comes first."""
        if self._suits_newton(program, how.overrides):
            return None
        solver, P = self.solver(program, how.overrides), program.P
        if self.way(program, lambda: solver) is not _DIRECT:
            return None
        if how.check_convexity and (self.matrices.indefinite(P) if P.shared else not solver.capabilities.convexity):
            return None
        return solver

    def _holds(self, given: ConeProgram, outcome: Outcome, how: _How) -> bool:
        """Whether answers that were found in other units hold in the given ones."""
        if how.check_convexity and self.matrices.indefinite(given.P):
            return False
        return holds(given, point := (outcome.x, outcome.y, outcome.s)) and not units_are_lost(given, *point).any()

    def _solve(
        self, given: ConeProgram, known: tuple[Array, ...] | None, reduction: Reduction, how: _How,
        attempt: Attempt | None = None,
    ) -> Batch:  # fmt: skip
        """Every sample through the stages, and back; `known`: remembered solutions of some."""
        first, program, units, groups, epigraph_rows = reduction
        parts: list[tuple[Array, MissingRows | None]] = [*groups] if groups else [(np.arange(program.batch), None)]
        stages: Callable[..., None] = self._stages if how.deadline is None else how.deadline.around(self._stages)
        again = partial(stages, overrides=how.overrides)
        solved = []
        for samples, rows in parts:
            before, rest, origin, reduced = Presolve.of(first), Presolve.of(units, rows, epigraph_rows), given, program
            if len(parts) > 1:
                before, rest = before.take(samples), rest.take(samples)
                origin, reduced = origin.take(samples), reduced.take(samples)
            presolve, part = before.then(rest), Batch.of(rest.apply(reduced))
            stages(part, how.overrides, how.check_convexity, _recalled(known, samples, presolve), attempt)
            solved.append((samples, part.undo(presolve, origin)))
        batch = Batch.joined(given, solved)
        if units is not None:
            check_in_given_units(batch, self.matrices.indefinite if how.check_convexity else None)
            for samples, rows in parts:
                solve_in_given_units(batch, samples, (first, rows, epigraph_rows), again)
            reduce_forces(batch, self.way(given, partial(self.solver, given, how.overrides)))
        for retry in (solve_without_distant_rows, solve_balanced):
            retry(batch, first, again)
        return batch

    def _relax(self, batch: Batch, relax: Relax, names: Names, hidden: Array | None, how: _How) -> None:
        """Solve provably infeasible samples with slack on the constraints that may be violated."""
        samples = np.flatnonzero((batch.status == Status.INFEASIBLE) & batch.proven)
        if not len(samples):
            return
        step = Relaxation(names.rows(relax.constraints), relax.weight)
        origin = batch.part(samples)
        if self._slack is None:
            self._slack = Engine(replace(self.options, on_fail="nan"))
        if hidden is not None:
            hidden = np.append(hidden, np.ones(len(step.rows), dtype=bool))
        program = self._slack.matrices.recognized(step.apply(origin))
        relaxed = self._slack._solve(program, None, self._slack._reduced(program, hidden, how), how)
        by = np.zeros(origin.b.shape)
        by[:, step.rows] = relaxed.point[0][:, origin.n :]
        violations = {k: Violation(by[k], names) for k in range(len(samples))}
        batch.relax(samples, relaxed.undo(Presolve.of(step), origin), violations)

    def _substitution(self, program: ConeProgram, check_convexity: bool) -> Substitution | None:
        found = self.matrices.once(Definitions.of, program)
        if found is None or (check_convexity and len(found.places.in_P)):  # a substitution could hide an indefinite P
            return None
        return Substitution(found, program.q, program.b)

    def _remember(self, keys: Sequence[Hashable], outcome: Outcome) -> None:
        x, y, s, ok = outcome.x, outcome.y, outcome.s, outcome.info.ok
        if not ok.all():
            keys, x, y, s = [key for key, good in zip(keys, ok, strict=True) if good], x[ok], y[ok], s[ok]
        self._memory.remember(keys, x, y, s)

    def _stages(
        self,
        batch: Batch,
        overrides: dict[str, object] | None,
        check_convexity: bool = False,
        recalled: tuple[Array, Array, Array, Array] | None = None,
        attempt: Attempt | None = None,
    ) -> None:
        """Run the stages on a batch of reduced programs; `attempt`: the first solver's answers, if it was called."""
        program = batch.program
        find = partial(self.solver, program, overrides)
        _ = overrides and find()  # checks the settings, whether or not a solver will be called
        way = self.way(program, find)
        if check_convexity and recalled is None and not program.P.shared:  # checking it would take a tenth of a step
            check_convexity = not find().capabilities.convexity
        if attempt is None:
            reject_bad_data(batch, self.matrices.indefinite if check_convexity else None)
        if recalled is not None:
            from_memory(batch, way, recalled[0], recalled[1:])
        if self._suits_newton(program, overrides) and way.factorizes:
            self._try_newton(batch)
        ask(batch, self._in_turn(program, overrides), way, attempt)
        refine_on_faces(batch, way)
        if np.count_nonzero(batch.status) > len(batch.proofs):
            rescue(batch, way)
            seek_proofs(batch)
        reduce_forces(batch, way)
        if expired():
            batch.out_of_time()

    def _in_turn(self, program: ConeProgram, overrides: dict[str, object] | None) -> Iterator[Solver]:
        """The solver and those after it; all that the user named must support the program."""
        first = self.solver(program, overrides)
        if self.options.retry is not None:
            for solver in (first, *self.others(program, first, overrides)):
                solver.check(program)
        yield first
        yield from self.others(program, first, overrides)

    def _suits_newton(self, program: ConeProgram, overrides: dict[str, object] | None) -> bool:
        """Whether Newton's method from zero is likely to succeed: second-order cones, quadratic objective."""
        kinds = program.cones.kinds
        return bool(
            SecondOrder in kinds and program.P.nnz and self._ours(overrides) and kinds <= {Zero, Nonneg, SecondOrder}
        )

    def _try_newton(self, batch: Batch) -> None:
        """Newton's method from zero."""
        left = len(batch.open)
        if not left or not self._newton.due():
            return
        solve_from_nothing(batch)
        self._newton.record(paid=len(batch.open) < PAYING * left)


def _recalled(
    known: tuple[Array, ...] | None, samples: Array, presolve: Presolve
) -> tuple[Array, Array, Array, Array] | None:
    """The remembered solutions of some samples as points of their reduced programs, by position among the samples."""
    if known is None:
        return None
    places, x, y, s = known
    mine = np.isin(places, samples)
    local = np.searchsorted(samples, places[mine])
    return local, *presolve.take(local).inward(x[mine], y[mine], s[mine])
