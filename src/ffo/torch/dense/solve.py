"""Solve a batch of dense quadratic programs: a point, its active set, and a verified solution.

Programs with a diagonal Q are solved by Newton's method on the dual, definite ones by pivoting, others, and samples on
which these do not end, by the batched interior-point method. A point that is not exact is taken to the ghost on its
active set, whose solution is kept only where it satisfies the optimality conditions; where it does not, the active set
is read off anew (a semismooth Newton step), a few times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ffo.torch.dense.ghost import DenseGhost
from ffo.torch.dense.interior import interior_point
from ffo.torch.dense.pivoting import pivot
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor
from ffo.torch.dense.separable import dual_newton
from ffo.torch.dense.verify import Verdict, judge

STEPS = 6
#: natural residual up to which a point on an active set is the solution
ACCEPT = 1e-10
#: natural residual up to which a point needs no polish
EXACT = 1e-13
#: how solutions of it are reported
INTERIOR_POINT, PIVOTING, DUAL_NEWTON = "batched interior point", "batched pivoting", "batched dual Newton"


@dataclass(frozen=True)
class DenseSolution:
    """Points and their active sets (see `Verdict`), `solved` (batch,) where they satisfy the conditions. `ghost` is the
    one of these active sets, if verification had to make it; `warm_hits` counts the samples for which no solver was
    asked."""

    point: DensePoint
    rows: Tensor
    bounds: Tensor
    verdict: Verdict
    solved: Tensor
    iterations: Tensor
    solver: tuple[str, ...]
    ghost: DenseGhost | None = None
    warm_hits: int = 0


@dataclass(frozen=True)
class Guess:
    """Active sets to be tried (as those of `Verdict`) of the samples that have one, `known` (batch,)."""

    rows: Tensor
    bounds: Tensor
    known: Tensor


def solve_dense(program: DenseProgram, eps: float = 1e-7, guess: Guess | None = None) -> DenseSolution:
    """Solve and verify every sample; those whose guess is right are not given to a solver."""
    if guess is None:
        return _verified(program, *_points(program, eps))
    ghost = DenseGhost(program, guess.rows, guess.bounds)
    point = ghost.polished(DensePoint(*(torch.zeros_like(v) for v in (program.p, program.upp, program.p))))
    verdict = judge(program, point)
    right = guess.known & (verdict.natural <= ACCEPT)
    hits = int(right.sum())
    if hits == program.batch:
        iterations, solver = torch.zeros_like(right, dtype=torch.long), ("",) * hits
        return DenseSolution(point, guess.rows, guess.bounds, verdict, right, iterations, solver, ghost, hits)
    which = torch.nonzero(~right).squeeze(1)
    other, counts, names = _points(program.take(which), eps)
    iterations = torch.zeros_like(right, dtype=torch.long).index_put((which,), counts)
    asked = dict(zip(which.tolist(), names, strict=True))
    solver = tuple(asked.get(k, "") for k in range(program.batch))
    return replace(_verified(program, point.put(which, other), iterations, solver), warm_hits=hits)


def _verified(program: DenseProgram, point: DensePoint, iterations: Tensor, solver: tuple[str, ...]) -> DenseSolution:
    """The solution near a point, which is polished where it is not exact."""
    verdict = judge(program, point)
    rows, bounds, ghost = verdict.rows, verdict.bounds, None
    todo = verdict.natural > EXACT
    for _ in range(STEPS):
        count = int(todo.sum())
        if not count:
            break
        which = torch.nonzero(todo).squeeze(1)
        few = program if count == program.batch else program.take(which)
        ghost = DenseGhost(few, rows[which], bounds[which])
        point = point.put(which, ghost.polished(point.take(which)))
        verdict = verdict.put(which, judge(few, point.take(which)))
        ghost = ghost if count == program.batch else None
        todo = verdict.natural > ACCEPT
        rows, bounds = (torch.where(todo.unsqueeze(1), new, old) for new, old in
                        ((verdict.rows, rows), (verdict.bounds, bounds)))  # fmt: skip
    else:
        ghost = None
    return DenseSolution(point, rows, bounds, verdict, verdict.natural <= ACCEPT, iterations, solver, ghost)


def _points(program: DenseProgram, eps: float) -> tuple[DensePoint, Tensor, tuple[str, ...]]:
    """A point near the solution, the iterations it took, and whose it is, by sample."""
    method = _method(program)
    if method is None:
        point, _, iterations = interior_point(program, eps)
        return point, iterations, (INTERIOR_POINT,) * program.batch
    name, solve = method
    point, ended, iterations = solve(program)
    if bool(ended.all()):
        return point, iterations, (name,) * program.batch
    which = torch.nonzero(~ended).squeeze(1)
    other, _, counts = interior_point(program.take(which), eps)
    names = [name] * program.batch
    for k in which.tolist():
        names[k] = INTERIOR_POINT
    return point.put(which, other), iterations.index_put((which,), counts), tuple(names)


def _method(program: DenseProgram) -> tuple[str, Callable[[DenseProgram], tuple[DensePoint, Tensor, Tensor]]] | None:
    """What solves programs of this structure in a few steps, None where nothing but the interior point does."""
    if program.diagonal is not None:
        return DUAL_NEWTON, dual_newton
    return (PIVOTING, pivot) if program.white is not None and program.r else None
