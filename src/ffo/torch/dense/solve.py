"""Solve a batch of dense quadratic programs: a point, its active set, and a verified solution.

On the CPU the point comes from DAQP (a dual active-set method: exact, and the fastest there is on small
dense problems), or from Newton's method on the dual where Q is diagonal and the rows are equalities; on
other devices from the batched interior-point method. The active set is then taken to the ghost, whose
solution is kept only where it satisfies the optimality conditions; where it does not, the active set is
read off anew (a semismooth Newton step), a few times.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from ffo.solvers.pool import share
from ffo.torch.dense.ghost import DenseGhost
from ffo.torch.dense.interior import interior_point
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, triangular
from ffo.torch.dense.separable import separable
from ffo.torch.dense.verify import Verdict, judge

Array = np.ndarray

STEPS = 6
#: natural residual up to which a point on an active set is the solution
ACCEPT = 1e-10
#: natural residual up to which a point needs no polish
EXACT = 1e-13
#: variables from which Newton's method on the dual is faster than DAQP
NEWTON_SIZE = 120
#: variables from which one solve takes long enough for threads
THREADED = 40
#: DAQP's infinity, its code for an equality, and the violation that makes it pivot
_INF, _EQUALITY, _PIVOT = 1e30, 5, 1e-6


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
    batch = program.batch
    if program.p.device.type != "cpu":
        point, _, iterations = interior_point(program, eps)
        return point, iterations, ("batched interior point",) * batch
    diagonal = program.diagonal if program.n >= NEWTON_SIZE and program.equalities == program.r else None
    if diagonal is None:
        return *_daqp(program), ("DAQP",) * batch
    point, iterations = separable(program, diagonal)
    missed = iterations < 0
    if bool(missed.any()):
        which = torch.nonzero(missed).squeeze(1)
        other, counts = _daqp(program.take(which))
        point, iterations = _put(point, which, other), iterations.index_put((which,), counts)
    return point, iterations, tuple("DAQP" if m else "dual Newton" for m in missed.tolist())


def _daqp(program: DenseProgram) -> tuple[DensePoint, Tensor]:
    """One DAQP solve a sample; a sample that fails is left at zero, for verification to find.

    Half of its time would go into the factors of Q and what they make of the rows. Where no bounds are
    in the way, all of that is done here for the whole batch, and serves the ghost too.
    """
    white = None if program.bounded or program.diagonal is not None else program.white
    if white is None:
        return _daqp_on(program, _samples(program.Q), program.p, program.R)
    point, iterations = _daqp_on(program, _identity(program.n), white.p, white.R)
    z = triangular(white.L.mT, point.z.unsqueeze(2), upper=True).squeeze(2)
    return DensePoint(z, point.lam, point.mu), iterations


def _daqp_on(program: DenseProgram, H: Array, p: Tensor, R: Tensor) -> tuple[DensePoint, Tensor]:
    """DAQP on these matrices and costs within the sides of the program."""
    import daqp

    n, r, first = program.n, program.r, program.n if program.bounded else 0
    F, C = _samples(p), _samples(R)
    upper, lower = program.upp.numpy(), program.low.numpy()
    if first:
        upper = np.concatenate([program.ub.numpy(), upper], axis=1)
        lower = np.concatenate([program.lb.numpy(), lower], axis=1)
    elif not (program.two_sided or program.equalities):
        lower = lower[:1]  # the batch shares them, all infinite
    upper, lower = np.minimum(upper, _INF, order="C"), np.maximum(lower, -_INF, order="C")
    sense = np.zeros(first + r, dtype=np.int32)
    if program.equalities:
        sense[first : first + program.equalities] = _EQUALITY
    z, lam, iterations = np.zeros(F.shape), np.zeros(upper.shape), np.empty(len(F), dtype=np.int64)
    iterations.fill(-1)

    def run(samples: range) -> None:
        some, own = slice(samples.start, samples.stop), sense.copy()
        h, c, low = (itertools.repeat(v[0]) if len(v) == 1 else v[some] for v in (H, C, lower))
        each = zip(samples, h, F[some], c, upper[some], low, strict=False)  # what is shared has no end
        for k, h_k, f_k, c_k, upper_k, lower_k in each:
            x, _, flag, info = daqp.solve(h_k, f_k, c_k, upper_k, lower_k, own, primal_tol=_PIVOT)
            if flag == 1:
                z[k], lam[k], iterations[k] = x, info["lam"], info["iterations"]

    share(run, program.batch, cheap=n < THREADED)
    mu = lam[:, :first].copy() if first else np.zeros(F.shape)
    rest = np.ascontiguousarray(lam[:, first:])
    return DensePoint(torch.from_numpy(z), torch.from_numpy(rest), torch.from_numpy(mu)), torch.from_numpy(iterations)


@lru_cache(maxsize=8)
def _identity(n: int) -> Array:
    """(1, n, n)."""
    return np.eye(n)[None]


def _samples(v: Tensor) -> Array:
    """(batch or 1, ...) with every sample in one piece."""
    a = v.numpy()
    return a if a[0].flags.c_contiguous else np.ascontiguousarray(a)
