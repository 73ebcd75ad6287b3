"""One batch from starting points to verified solutions, and back to gradients.

The order is that of `ffo.engine`: samples that cannot be evaluated are set aside; remembered solutions are tried first;
the rest go to the solver, and where it fails to others (`retry=`, or the other built-in one); multipliers that a solver
does not return are recovered; points that need it get Newton steps. A sample has failed unless the optimality
conditions, as measured here, hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ffo.engine.batch import UNFINISHED
from ffo.engine.info import Info, Times
from ffo.engine.memory import Memory
from ffo.engine.options import Options
from ffo.errors import FFOError, Status, solver_error
from ffo.functions.active import largest
from ffo.functions.augmented import Answer
from ffo.functions.feasibility import contradicting, infeasible
from ffo.functions.ghost import GhostSystem, Local
from ffo.functions.multipliers import recover
from ffo.functions.oracle import LinearGhost, SolvedGhost
from ffo.functions.polish import Polished, at_origin, polish
from ffo.functions.problem import Problem, Tensor
from ffo.functions.resolve import ACCURACY, ResolvedGhost
from ffo.functions.solvers import FunctionSolver, choose, further, get_solver
from ffo.ghost.certificate import Certificate
from ffo.kernels.deadline import Deadline, expired
from ffo.solvers.workspace import OUT_OF_TIME

Array = np.ndarray

#: largest natural residual of a solved sample: for a solver's point, and for the end of Newton steps
SOLVED, POLISHED = 1e-6, 1e-8
#: the same for Newton's method from a remembered point
REMEMBERED = 1e-10
#: size of y, relative to the start, beyond which a point is diverging
FAR = 1e8


@dataclass
class FunctionOutcome:
    """A solved batch: y (batch, n), NaN where a sample failed, and its derivative if requested.

    `solved` are the numbers of solved samples; `ghost` are their ghost problems.
    """

    problem: Problem
    y: Tensor
    info: Info
    solved: Tensor
    ghost: SolvedGhost | None

    def adjoint(self, c: Tensor, wanted: Sequence[bool], delta: float | None, use: Tensor) -> list[Tensor | None]:
        """Loss gradients (batch, n) -> gradients in theta and weights; samples outside `use` (batch,) add zero."""
        start = time.perf_counter()
        problem = self.problem
        total: list[Tensor | None] = [
            torch.zeros_like(t) if w else None
            for t, w in zip([*problem.theta, *problem.weights.values()], wanted, strict=True)
        ]
        if self.ghost is not None:
            kept = torch.where(use[self.solved].unsqueeze(1), c[self.solved], 0.0)
            pulled = self.ghost.pull(kept, wanted, delta)
            for k, part in enumerate(pulled.gradients):
                if part is None:
                    continue
                whole = total[k]
                assert whole is not None
                if k < len(problem.theta) and problem.batched[k]:
                    whole[self.solved] = part
                else:
                    whole += part
            residual, indefinite = torch.full_like(self.y[:, 0], torch.nan), torch.zeros_like(use)
            residual[self.solved], indefinite[self.solved] = pulled.residual, pulled.indefinite
            dependent = torch.zeros_like(use)
            dependent[self.solved] = pulled.dependent
            given = self.info.certificate
            self.info.evidence = replace(given, indefinite=given.indefinite | indefinite.cpu().numpy())
            self.info.add_pass(time.perf_counter() - start, residual.cpu().numpy(), dependent.cpu().numpy())
        return total


@dataclass
class Runner:
    """Options, and the memory between calls."""

    options: Options
    exact: bool

    def __post_init__(self) -> None:
        self._memory = Memory()
        # raise errors now, not at the first call
        if self.options.solver is not None:
            get_solver(self.options.solver, self.options.solver_args)
        for other in self.options.retry or ():
            get_solver(other, {})
        self._named_solver(self.options.backward_solver or self.options.solver)

    def _named_solver(self, named: Any) -> FunctionSolver | None:
        """The solver of re-solves, if it is named; with the settings of the forward solver if it is the same one."""
        if named is None:
            return None
        eps = self.options.backward_eps
        settings = dict(self.options.solver_args) if self.options.backward_solver is None else {}
        return get_solver(named, settings if eps is None else {**settings, "eps": eps})

    def ghost(self, local: Local) -> SolvedGhost:
        """The ghost problems at solutions, solved as the options say."""
        if self.options.backward != "resolve":
            return LinearGhost(GhostSystem(local))
        named = self.options.backward_solver or self.options.solver
        solver = self._named_solver(named or choose(local.problem, local.y, local.active.held.shape[1]))
        assert solver is not None
        return ResolvedGhost(local, solver, self.options.backward_eps or ACCURACY)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "exact": self.exact}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def run(
        self,
        problem: Problem,
        y: Tensor,
        derivative: bool,
        keys: Sequence[Hashable] | None = None,
        overrides: Mapping[str, Any] | None = None,
        copies: int = 1,
    ) -> FunctionOutcome:
        """Solve every sample from y (batch, n); `copies` as in `ffo.engine.Engine.run`."""
        start = time.perf_counter()
        run = _FunctionRun(problem, y, self.options, self.exact)
        limit = self.options.time_limit
        with nullcontext() if limit is None else Deadline(limit):
            run.reject()
            constraints = run.points.multipliers.shape[1]
            if keys is not None and run.polishes:
                run.from_memory(*self._memory.recall(keys, y.shape[1], constraints))
            settings = {**self.options.solver_args, **(overrides or {})}
            named = self.options.solver if self.options.solver is not None else choose(problem, y, constraints)
            run.solve(get_solver(named, settings), derivative, run.where(_untried))
            for other in self.options.retry or ():
                run.solve(get_solver(other, {}), derivative, run.where(_retriable), retry=True)
            if self.options.retry is None and self.options.solver is None and settings.keys() <= {"eps"}:
                for name in further(y, constraints, str(named)):
                    run.fall_back(get_solver(name, settings), derivative)
            if expired():
                run.out_of_time()
        run.raise_failures(copies)
        outcome = run.outcome(self.ghost if derivative else None)
        if keys is not None:
            good = outcome.solved.cpu().numpy()
            y_np, m_np = (v[outcome.solved].cpu().numpy() for v in (run.points.y, run.points.multipliers))
            self._memory.remember([keys[int(k)] for k in good], y_np, m_np)
        outcome.info.times = replace(outcome.info.times, forward=time.perf_counter() - start)
        return outcome


class _FunctionRun:
    """One call, step by step."""

    def __init__(self, problem: Problem, y: Tensor, options: Options, exact: bool) -> None:
        self.problem, self.start, self.options, self.exact = problem, y, options, exact
        batch = problem.batch
        self.status: list[Status | None] = [None] * batch
        self.answered = [""] * batch
        self.iterations = np.full(batch, -1)
        self.retried, self.rescued = np.zeros(batch, dtype=bool), np.zeros(batch, dtype=bool)
        self.detail: dict[int, str] = {}
        self.hits = 0
        self.times = Times()

    @property
    def polishes(self) -> bool:
        """Whether Newton's method may be used: re-solves take the solver's answers as they are."""
        return self.options.backward != "resolve"

    def reject(self) -> None:
        """Set aside samples whose parameters, or functions at the starting point, are not finite."""
        problem, y = self.problem, self.start
        good = torch.ones(problem.batch, dtype=torch.bool, device=y.device)
        for t, batched in zip(problem.theta, problem.batched, strict=True):
            finite = t.isfinite()
            good &= finite.reshape(len(t), -1).all(1) if batched else finite.all()
        for k in (~good).nonzero().squeeze(1).tolist():
            self._fail(k, Status.INVALID_INPUT, "theta has NaN or infinite entries")
        with torch.no_grad():
            value, c = problem.objective(y), problem.constraints(y)
        self.points = Polished.unknown(y, torch.zeros_like(c))
        finite = value.isfinite() & c.isfinite().all(1)
        for k in (good & ~finite).nonzero().squeeze(1).tolist():
            self._fail(
                k,
                Status.INVALID_INPUT,
                "the functions are not finite at the starting point: pass y0= inside their domain",
            )

    def _fail(self, sample: int, status: Status, detail: str = "") -> None:
        self.status[sample] = status
        if detail:
            self.detail[sample] = detail

    def from_memory(self, known: Array, y: Array, multipliers: Array) -> None:
        """Newton's method from remembered solutions; results are kept if they are solutions."""
        fresh = [i for i, k in enumerate(known) if self.status[int(k)] is None]
        if not fresh:
            return
        began = time.perf_counter()
        samples = torch.as_tensor(known[fresh], device=self.start.device)
        at, given = (torch.tensor(v[fresh], device=self.start.device) for v in (y, multipliers))
        polished = polish(self.problem.take(samples), at, given, self.exact)
        last = polished.last or Local(self.problem.take(samples), polished.y, polished.multipliers, self.exact)
        good = (polished.natural <= REMEMBERED) & polished.settled & ~contradicting(last)
        self.points.put(samples[good], polished, good)
        for k in samples[good].tolist():
            self.status[k], self.iterations[k] = Status.SOLVED, 0
        self.hits = int(good.sum())
        self.times = replace(self.times, polish=time.perf_counter() - began)

    def where(self, chosen: Callable[[Status | None], bool]) -> list[int]:
        """Numbers of the samples with such a status."""
        return [k for k, status in enumerate(self.status) if chosen(status)]

    def fall_back(self, solver: FunctionSolver, derivative: bool) -> None:
        """Run another built-in solver on the samples that the default one fails on without a verdict, each alone: where
        a function raises an error, the sample keeps its first failure."""
        for k in self.where(_undecided):
            try:
                self.solve(solver, derivative, [k], retry=True)
            except FFOError:
                raise
            except Exception:
                self.retried[k] = True

    def solve(self, solver: FunctionSolver, derivative: bool, open_: list[int], retry: bool = False) -> None:
        """Run a solver on some samples. A failure does not replace an earlier one; a verdict that there is no solution
        does."""
        if not open_ or expired():
            return
        began = time.perf_counter()
        samples = torch.tensor(open_, device=self.start.device)
        problem = self.problem.take(samples)
        answer = solver.solve(problem, self.start[samples], self.exact)
        solved = time.perf_counter()
        points, rescued = self._judged(problem, answer, derivative)
        if self.polishes:
            rescued |= at_origin(problem, points, ~(points.natural <= SOLVED), POLISHED, self.exact)
        points.last = points.last or Local(problem, points.y, points.multipliers, self.exact)
        done = time.perf_counter()
        self.times = replace(
            self.times, solve=self.times.solve + solved - began, polish=self.times.polish + done - solved
        )
        self.points.put(samples, points, torch.arange(len(samples), device=samples.device))
        iterations = answer.iterations.cpu().numpy()
        verdicts = _verdicts(problem, points, answer, self.start[samples])
        for i, k in enumerate(open_):
            self.retried[k] = retry
            if retry and _undecided(verdicts[i]):
                continue
            self.status[k], self.answered[k], self.iterations[k] = verdicts[i], solver.name, iterations[i]
            self.rescued[k] = bool(rescued[i]) and verdicts[i].ok
            self.detail.pop(k, None)
            if not verdicts[i].ok and i in answer.detail:
                self.detail[k] = answer.detail[i]

    def _judged(self, problem: Problem, answer: Answer, derivative: bool) -> tuple[Polished, Array]:
        """The points with their measured residuals, polished if a derivative is wanted, they are not solved, or their
        variables differ in scale: a small residual may then be a large error."""
        batch = problem.batch
        rescued = np.zeros(batch, dtype=bool)
        if answer.polished is not None:
            return answer.polished, rescued
        y = torch.where(answer.y.isfinite(), answer.y, self.start.new_zeros(()))
        multipliers = answer.multipliers if answer.multipliers is not None else recover(problem, y)
        local = Local(problem, y, multipliers, self.exact)
        points = Polished.unknown(y, local.active.multipliers)
        points.natural, points.last = local.natural.clone(), local
        rough = ~(local.natural <= SOLVED)
        todo = ((rough | derivative | local.unlike) & self.polishes).nonzero().squeeze(1)
        if len(todo):
            better = polish(problem.take(todo), y[todo], local.active.multipliers[todo], self.exact)
            points.put(todo, better, torch.arange(len(todo), device=todo.device))
            rescued = (rough & (points.natural <= POLISHED)).cpu().numpy()
        return points, rescued

    def out_of_time(self) -> None:
        """Give unfinished samples that might have been solved the status TIME_LIMIT."""
        for k, status in enumerate(self.status):
            if status is None or UNFINISHED[status]:
                self._fail(k, Status.TIME_LIMIT, OUT_OF_TIME)

    def raise_failures(self, copies: int) -> None:
        """With on_fail="raise", raise the first failure and name the samples that share it."""
        failed = [k for k, s in enumerate(self.status) if s is not Status.SOLVED]
        if not failed or not self.options.raises:
            return
        first = failed[0]
        status = self.status[first]
        assert status is not None
        same = sorted({k // copies for k in failed if self.status[k] is status})
        raise solver_error(status, same, self.answered[first] or "FFOFunctionLayer", self.detail.get(first, ""))

    def outcome(self, ghost_at: Callable[[Local], SolvedGhost] | None) -> FunctionOutcome:
        """The results; NaN where samples failed. `ghost_at` makes ghost problems, if a derivative is wanted."""
        began = time.perf_counter()
        status = [s if s is not None else Status.NUMERICAL for s in self.status]
        ok = torch.tensor([s.ok for s in status], device=self.start.device)
        solved = ok.nonzero().squeeze(1)
        points = self.points
        y = torch.where(ok.unsqueeze(1), points.y, torch.nan)
        ghost, evidence = None, None
        if ghost_at is not None:
            evidence = Certificate.unsolved(self.problem.batch)
            if len(solved):
                problem = self.problem.take(solved)
                local = points.last if len(solved) == self.problem.batch else None
                local = local or Local(problem, points.y[solved], points.multipliers[solved], self.exact)
                ghost = ghost_at(local)
                mine = Polished.unknown(points.y[solved], points.multipliers[solved])
                mine.put(torch.arange(len(solved), device=solved.device), points, solved)
                evidence = evidence.put(solved.cpu().numpy(), ghost.certificate(mine))
        info = Info(
            status=status,
            solver=tuple(self.answered),
            residual=np.where(ok.cpu().numpy(), points.natural.cpu().numpy(), np.nan),
            iterations=self.iterations,
            warm_hits=self.hits,
            retried=self.retried,
            rescued=self.rescued,
            evidence=evidence,
            times=replace(self.times, polish=self.times.polish + time.perf_counter() - began),
            detail=self.detail,
        )
        return FunctionOutcome(self.problem, y, info, solved, ghost)


def _untried(status: Status | None) -> bool:
    return status is None


def _retriable(status: Status | None) -> bool:
    return status is None or not (status.ok or status is Status.INVALID_INPUT)


def _undecided(status: Status | None) -> bool:
    """Whether a sample failed, and may have a solution."""
    return status in (Status.INACCURATE, Status.ITERATION_LIMIT, Status.NUMERICAL)


def _verdicts(problem: Problem, points: Polished, answer: Answer, start: Tensor) -> list[Status]:
    """Statuses by the measured optimality conditions; where these do not hold, the solver's own status."""
    assert points.last is not None
    empty = contradicting(points.last)
    good = (points.natural <= SOLVED) & ~empty
    if bool(good.all()):
        return [Status.SOLVED] * len(good)
    failed = (~good & ~empty).nonzero().squeeze(1)
    y = answer.y.nan_to_num(posinf=torch.inf, neginf=-torch.inf)
    far = largest(y) > FAR * (1 + largest(start))
    if len(failed):
        empty[failed] = infeasible(problem.take(failed), torch.where(far.unsqueeze(1), start, y)[failed])
    begun = problem.constraints(start)
    begun[:, : problem.inequalities].clamp_(min=0.0)
    feasible, found = (begun == 0.0).all(1) & ~empty, []  # some point is: whatever a solver says
    for k, said in enumerate(answer.status):
        if bool(good[k]):
            found.append(Status.SOLVED)
        elif bool(empty[k]):
            found.append(Status.INFEASIBLE)
        elif bool(far[k]):
            found.append(Status.UNBOUNDED)
        elif said is Status.INFEASIBLE and bool(feasible[k]):
            found.append(Status.NUMERICAL)
        else:
            found.append(Status.INACCURATE if said is Status.SOLVED else said)
    return found
