"""Solve a batch of dense quadratic programs: a point, its active set, and a verified solution.

Programs with diagonal Q are solved by Newton's method on the dual, definite ones by pivoting. Others, and those with
second-order cones, are solved by the interior-point method, followed by the ghost on its active set. That solution is
kept only if it satisfies the optimality conditions; if not, the active set is identified again (a semismooth Newton
step), a few times. Steps are the same for all samples and need no synchronization, so that a GPU can run them as
recorded (see `graphs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ffo.ghost.certificate import ERROR
from ffo.kernels.point import MARGIN_RATIO, WEAK
from ffo.torch.dense import interior, pivoting, separable
from ffo.torch.dense.ghost import DenseGhost, Faces, factorize
from ffo.torch.dense.graphs import Eager
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, chosen, put
from ffo.torch.dense.verify import Verdict, judge

T = TypeVar("T")
#: largest natural residual of a solution, and the one at which Newton's method stops even if it still converges:
#: solutions on curved cones approach rounding in several steps
ACCEPT, EXACT = 1e-10, 1e-14


@dataclass(frozen=True)
class DenseSolution:
    """Points, what they show, and where they satisfy the conditions, `solved` (batch,); the iterations taken. `ghost`
    is the one of their active sets, if a derivative is wanted, and `doubt` (batch,) marks samples that are not solved,
    or whose derivative could be doubtful. `counts` (2,): how many are not solved, and in doubt."""

    point: DensePoint
    verdict: Verdict
    solved: Tensor
    iterations: Tensor
    ghost: DenseGhost | None
    doubt: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Guess:
    """Active sets to try (in the form of `Verdict`) for the samples that have one, `known` (batch,)."""

    rows: Tensor
    bounds: Tensor
    known: Tensor


@dataclass(frozen=True)
class Begun:
    """A program, the data a method prepares from it, its first state, and whether the program suits the method (). The
    solution, if the method takes all steps at once."""

    program: DenseProgram
    made: Any
    state: Any
    valid: Tensor
    solution: DenseSolution | None


def begin(program: DenseProgram, method: Any, derivative: bool) -> Begun:
    made = method.prepare(program)
    whole = method.whole(made)
    if whole is None:
        return Begun(program, made, method.start(made), made.valid, None)
    state = whole(made)
    solution = _end(_judged(state, made, program, method), state, made, program, method, derivative)
    return Begun(program, made, state, made.valid, solution)


def finish(begun: Begun, method: Any, derivative: bool, run: Eager) -> DenseSolution | None:
    """The solution by a method of `METHODS`; None if programs turn out not to suit it."""
    if not bool(begun.valid):
        return None
    if begun.solution is not None:
        return begun.solution
    state = run.steps(method.step, begun.state, method.STEPS, begun.made)
    found = run.run(_judged, state, begun.made, begun.program, method=method)
    for _ in range(method.POLISH):
        if not bool(found.going):
            break
        found = run.step(_polish, found, begun.program)
    return run.run(_end, found, state, begun.made, begun.program, method=method, derivative=derivative)


@dataclass(frozen=True)
class PolishedPoints:
    """Points, what they show, whether Newton's method goes on from them (batch,), and whether it does anywhere ()."""

    point: DensePoint
    verdict: Verdict
    todo: Tensor
    going: Tensor


def _judged(state: Any, made: Any, program: DenseProgram, method: Any) -> PolishedPoints:
    point = method.point(state, made, program)
    verdict = judge(program, point)
    todo = torch.ones_like(verdict.natural, dtype=torch.bool)
    return PolishedPoints(point, verdict, todo, todo.any())


def _polish(now: PolishedPoints, program: DenseProgram) -> PolishedPoints:
    """A Newton step on the active set, for the samples that need one."""
    before = now.verdict
    ghost = factorize(program, before.rows, before.bounds, Faces.of(program, before))
    point = ghost.polished(now.point)
    verdict = judge(program, point)
    taken = now.todo & ((verdict.natural < before.natural) | (before.natural > ACCEPT))
    point, verdict = chosen(taken, point, now.point), chosen(taken, verdict, before)
    todo = (verdict.natural > ACCEPT) | (taken & (verdict.natural > EXACT) & (verdict.natural < 0.1 * before.natural))
    return PolishedPoints(point, verdict, todo, todo.any())


def _end(
    found: PolishedPoints, state: Any, made: Any, program: DenseProgram, method: Any, derivative: bool
) -> DenseSolution:
    ghost = method.ghost(made, found.verdict) if derivative else None
    return _solution(program, found.point, found.verdict, state.steps, ghost)


def _solution(
    program: DenseProgram, point: DensePoint, verdict: Verdict, iterations: Tensor, ghost: DenseGhost | None
) -> DenseSolution:
    solved = verdict.natural <= ACCEPT
    doubt = ~solved if ghost is None else ~solved | ~_clear(program, verdict, ghost)
    counts = torch.stack([(~solved).sum(), doubt.sum()])
    return DenseSolution(point, verdict, solved, iterations, ghost, doubt, counts)


def _clear(program: DenseProgram, verdict: Verdict, ghost: DenseGhost) -> Tensor:
    """(batch,) whether there is no reason to doubt the derivative: no constraint is nearly active or inactive, and the
    active ones are independent and determine the solution. The core examines the others."""
    near = (_meet(program.low, program.upp) & ~program.equal).any(dim=1)
    clear = (verdict.margin > WEAK) & (verdict.natural <= torch.clamp(MARGIN_RATIO * verdict.margin, max=ERROR))
    clear = clear & ghost.sound & ~near
    return clear & ~_meet(program.lb, program.ub).any(dim=1) if program.bounded else clear


def _meet(low: Tensor, upp: Tensor) -> Tensor:
    return (upp - low <= WEAK * upp.abs()) & upp.isfinite()


def solve_guessed(
    program: DenseProgram, guess: Guess, method: Any, derivative: bool
) -> tuple[DenseSolution | None, Tensor]:
    """The solution, and where remembered active sets gave it (batch,). The other samples are solved by the method. None
    if they do not suit it."""
    point = factorize(program, guess.rows, guess.bounds).polished(
        DensePoint(*(torch.zeros_like(v) for v in (program.p, program.upp, program.p)))
    )
    verdict = judge(program, point)
    hits = guess.known & (verdict.natural <= ACCEPT)
    iterations = torch.zeros_like(hits, dtype=torch.long)
    which = torch.nonzero(~hits).squeeze(1)
    if len(which):
        few = program.take(which)
        other = finish(begin(few, method, False), method, False, Eager())
        if other is None:
            return None, hits
        point, verdict = put(point, which, other.point), put(verdict, which, other.verdict)
        iterations = iterations.index_put((which,), other.iterations)
    ghost = factorize(program, verdict.rows, verdict.bounds) if derivative else None
    return _solution(program, point, verdict, iterations, ghost), hits


METHODS = {"diagonal": separable, "definite": pivoting, "general": interior, "few rows": interior}
