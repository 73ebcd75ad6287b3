"""Solve a batch of dense quadratic programs: a point, its active set, and a verified solution.

The point comes from the batched interior-point method. Its active set is taken to the ghost, whose solution is kept
only where it satisfies the optimality conditions; where it does not, the active set is read off anew (a semismooth
Newton step), a few times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ffo.torch.dense.ghost import DenseGhost
from ffo.torch.dense.interior import interior_point
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor
from ffo.torch.dense.verify import Verdict, judge

STEPS = 6
#: natural residual up to which a point on an active set is the solution
ACCEPT = 1e-10
#: natural residual up to which a point needs no polish
EXACT = 1e-13
#: how solutions of it are reported
INTERIOR_POINT = "batched interior point"


@dataclass(frozen=True)
class DenseSolution:
    """Verified solutions and their active sets (see `Verdict`); `solved` is false if for some sample no active
    set satisfies the conditions. `ghost` is the one of these active sets, if verification had to make it;
    `warm_hits` counts the samples for which no solver was asked."""

    point: DensePoint
    rows: Tensor
    bounds: Tensor
    verdict: Verdict
    solved: bool
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
        return DenseSolution(point, guess.rows, guess.bounds, verdict, True, iterations, solver, ghost, hits)
    which = torch.nonzero(~right).squeeze(1)
    other, counts, names = _points(program.take(which), eps)
    point = _put(point, which, other)
    iterations = torch.zeros_like(right, dtype=torch.long).index_put((which,), counts)
    asked = dict(zip(which.tolist(), names, strict=True))
    solver = tuple(asked.get(k, "") for k in range(program.batch))
    return replace(_verified(program, point, iterations, solver), warm_hits=hits)


def _verified(program: DenseProgram, point: DensePoint, iterations: Tensor, solver: tuple[str, ...]) -> DenseSolution:
    """The solution near a point, which is polished where it is not exact."""
    verdict = judge(program, point)
    rows, bounds = verdict.rows, verdict.bounds
    if float(verdict.natural.amax()) <= EXACT:
        return DenseSolution(point, rows, bounds, verdict, True, iterations, solver)
    solved = verdict.natural <= EXACT
    for _ in range(STEPS):
        ghost = DenseGhost(program, rows, bounds)
        point = point.where(solved, ghost.polished(point))
        verdict = judge(program, point)
        solved = verdict.natural <= ACCEPT
        if bool(solved.all()):
            return DenseSolution(point, rows, bounds, verdict, True, iterations, solver, ghost)
        keep = solved.unsqueeze(1)
        rows, bounds = torch.where(keep, rows, verdict.rows), torch.where(keep, bounds, verdict.bounds)
    return DenseSolution(point, rows, bounds, verdict, False, iterations, solver)


def _put(point: DensePoint, which: Tensor, other: DensePoint) -> DensePoint:
    """The point with some samples (by number) replaced."""
    pairs = ((point.z, other.z), (point.lam, other.lam), (point.mu, other.mu))
    return DensePoint(*(mine.index_put((which,), theirs) for mine, theirs in pairs))


def _points(program: DenseProgram, eps: float) -> tuple[DensePoint, Tensor, tuple[str, ...]]:
    """A point near the solution, the iterations it took, and whose it is, by sample."""
    point, _, iterations = interior_point(program, eps)
    return point, iterations, (INTERIOR_POINT,) * program.batch
