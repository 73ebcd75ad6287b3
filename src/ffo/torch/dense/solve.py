"""Solve a batch of dense quadratic programs: a point, its active set, and a verified solution.

Programs with a diagonal Q are solved by Newton's method on the dual, definite ones by pivoting; their steps are the
same for all samples and wait for nothing, so that a GPU runs them as recorded (see `graphs`). Others are solved by the
batched interior-point method: its point is taken to the ghost on its active set, whose solution is kept only where it
satisfies the optimality conditions; where it does not, the active set is read off anew (a semismooth Newton step), a
few times.
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
#: natural residual up to which a point on an active set is the solution
ACCEPT = 1e-10
#: how solutions of it are reported
INTERIOR_POINT = "batched interior point"


@dataclass(frozen=True)
class DenseSolution:
    """Points, what they show, and where they satisfy the conditions, `solved` (batch,); the iterations taken. `ghost`
    is the one of their active sets, if a derivative is wanted, and `doubt` (batch,) marks samples that are not solved,
    or of which something could be held against the derivative."""

    point: DensePoint
    verdict: Verdict
    solved: Tensor
    iterations: Tensor
    ghost: DenseGhost | None
    doubt: Tensor


@dataclass(frozen=True)
class Guess:
    """Active sets to be tried (as those of `Verdict`) of the samples that have one, `known` (batch,)."""

    rows: Tensor
    bounds: Tensor
    known: Tensor


@dataclass(frozen=True)
class Begun:
    """A program, what a method prepares of it, its first state, and whether the program suits the method ()."""

    program: DenseProgram
    made: Any
    state: Any
    valid: Tensor


def begin(program: DenseProgram, method: Any) -> Begun:
    made = method.prepare(program)
    return Begun(program, made, method.start(made), made.valid)


def finish(begun: Begun, method: Any, derivative: bool, run: Eager) -> DenseSolution | None:
    """The solution by a method, `pivoting` or `separable`; None where programs turn out not to suit it."""
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
    """(batch,) whether nothing can be held against the derivative: no constraint is nearly active or inactive, and the
    active ones hold the solution without depending on each other. The core looks at the others."""
    near = (_meet(program.low, program.upp) & ~program.equal).any(dim=1)
    clear = (verdict.margin > WEAK) & (verdict.natural <= torch.clamp(MARGIN_RATIO * verdict.margin, max=ERROR))
    clear = clear & ghost.sound & ~near
    return clear & ~_meet(program.lb, program.ub).any(dim=1) if program.bounded else clear


def _meet(low: Tensor, upp: Tensor) -> Tensor:
    return (upp - low <= WEAK * upp.abs()) & upp.isfinite()


def solve_interior(program: DenseProgram, derivative: bool, eps: float = 1e-7) -> DenseSolution:
    """The solution by the interior point and Newton's method."""
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
    """The solution, and where remembered active sets gave it (batch,); the other samples are solved by the method (by
    the interior point without one). None where they do not suit it."""
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
