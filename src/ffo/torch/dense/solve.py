"""Solve a batch of dense quadratic programs: a point, its active set, and a verified solution.

Programs with diagonal Q are solved by Newton's method on the dual, definite ones by pivoting. Their steps are the same
for all samples and need no synchronization, so that a GPU can run them as recorded (see `graphs`). Others are solved by
the batched interior-point method, followed by the ghost on its active set. That solution is kept only if it satisfies
the optimality conditions; if not, the active set is identified again (a semismooth Newton step), a few times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ffo.ghost.certificate import ERROR
from ffo.kernels.point import MARGIN_RATIO, WEAK
from ffo.torch.dense import pivoting, separable
from ffo.torch.dense.ghost import DenseGhost, factorize
from ffo.torch.dense.graphs import Eager
from ffo.torch.dense.interior import interior_point
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor
from ffo.torch.dense.verify import Verdict, judge

#: Newton steps after the interior point
STEPS = 6
#: largest natural residual of a solution
ACCEPT = 1e-10
#: its name in reports
INTERIOR_POINT = "batched interior point"


@dataclass(frozen=True)
class DenseSolution:
    """Points, what they show, and where they satisfy the conditions, `solved` (batch,); the iterations taken. `ghost`
    is the one of their active sets, if a derivative is wanted, and `doubt` (batch,) marks samples that are not solved,
    or whose derivative could be doubtful."""

    point: DensePoint
    verdict: Verdict
    solved: Tensor
    iterations: Tensor
    ghost: DenseGhost | None
    doubt: Tensor


@dataclass(frozen=True)
class Guess:
    """Active sets to try (in the form of `Verdict`) for the samples that have one, `known` (batch,)."""

    rows: Tensor
    bounds: Tensor
    known: Tensor


@dataclass(frozen=True)
class Begun:
    """A program, the data a method prepares from it, its first state, and whether the program suits the method ()."""

    program: DenseProgram
    made: Any
    state: Any
    valid: Tensor


def begin(program: DenseProgram, method: Any) -> Begun:
    made = method.prepare(program)
    return Begun(program, made, method.start(made), made.valid)


def finish(begun: Begun, method: Any, derivative: bool, run: Eager) -> DenseSolution | None:
    """The solution by a method, `pivoting` or `separable`; None if programs turn out not to suit it."""
    if not bool(begun.valid):
        return None
    whole = method.whole(begun.made)
    state = begun.state if whole is None else run.run(whole, begun.made)
    for _ in range(method.STEPS):
        if not bool(state.going):
            break
        state = run.step(method.step, state, begun.made)
    return run.run(_end, state, begun.made, begun.program, method, derivative)


def _end(state: Any, made: Any, program: DenseProgram, method: Any, derivative: bool) -> DenseSolution:
    point = method.point(state, made, program)
    verdict = judge(program, point)
    ghost = method.ghost(made, verdict) if derivative else None
    return _solution(program, point, verdict, state.steps, ghost)


def _solution(
    program: DenseProgram, point: DensePoint, verdict: Verdict, iterations: Tensor, ghost: DenseGhost | None
) -> DenseSolution:
    solved = verdict.natural <= ACCEPT
    doubt = ~solved if ghost is None else ~solved | ~_clear(program, verdict, ghost)
    return DenseSolution(point, verdict, solved, iterations, ghost, doubt)


def _clear(program: DenseProgram, verdict: Verdict, ghost: DenseGhost) -> Tensor:
    """(batch,) whether there is no reason to doubt the derivative: no constraint is nearly active or inactive, and the
    active ones are independent and determine the solution. The core examines the others."""
    near = (_meet(program.low, program.upp) & ~program.equal).any(dim=1)
    clear = (verdict.margin > WEAK) & (verdict.natural <= torch.clamp(MARGIN_RATIO * verdict.margin, max=ERROR))
    clear = clear & ghost.sound & ~near
    return clear & ~_meet(program.lb, program.ub).any(dim=1) if program.bounded else clear


def _meet(low: Tensor, upp: Tensor) -> Tensor:
    return (upp - low <= WEAK * upp.abs()) & upp.isfinite()


def solve_interior(program: DenseProgram, derivative: bool, eps: float = 1e-7) -> DenseSolution:
    """The solution by the interior-point method and Newton's method."""
    point, _, iterations = interior_point(program, eps)
    verdict = judge(program, point)
    todo = verdict.natural >= 0
    for _ in range(STEPS):
        which = torch.nonzero(todo).squeeze(1)
        if not len(which):
            break
        few = program.take(which)
        point = point.put(which, factorize(few, verdict.rows[which], verdict.bounds[which]).polished(point.take(which)))
        verdict = verdict.put(which, judge(few, point.take(which)))
        todo = ~(verdict.natural <= ACCEPT)
    ghost = factorize(program, verdict.rows, verdict.bounds) if derivative else None
    return _solution(program, point, verdict, iterations, ghost)


def solve_guessed(
    program: DenseProgram, guess: Guess, method: Any, derivative: bool
) -> tuple[DenseSolution | None, Tensor]:
    """The solution, and where remembered active sets gave it (batch,). The other samples are solved by the method, or
    by the interior-point method without one. None if they do not suit it."""
    point = factorize(program, guess.rows, guess.bounds).polished(
        DensePoint(*(torch.zeros_like(v) for v in (program.p, program.upp, program.p)))
    )
    verdict = judge(program, point)
    hits = guess.known & (verdict.natural <= ACCEPT)
    iterations = torch.zeros_like(hits, dtype=torch.long)
    which = torch.nonzero(~hits).squeeze(1)
    if len(which):
        few = program.take(which)
        other = solve_interior(few, False) if method is None else finish(begin(few, method), method, False, Eager())
        if other is None:
            return None, hits
        point, verdict = point.put(which, other.point), verdict.put(which, other.verdict)
        iterations = iterations.index_put((which,), other.iterations)
    ghost = factorize(program, verdict.rows, verdict.bounds) if derivative else None
    return _solution(program, point, verdict, iterations, ghost), hits


METHODS = {"diagonal": separable, "definite": pivoting}
