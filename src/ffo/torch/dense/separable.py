"""Newton's method on the dual of programs whose Q is diagonal and whose rows are equalities.

In the units w = Q^(1/2) z, with the columns of U the rows of R Q^(-1/2) scaled to unit length,

    minimize 1/2 |w|^2 + c'w   subject to  U'w = b,  lo <= w <= hi

has the convex, piecewise quadratic dual  phi(lam) = b'lam - min over the box of 1/2 |w|^2 + (c + U lam)'w,
whose minimiser w = clip(-c - U lam) is had at once. Newton's matrix U_F'U_F sums over the variables F off
their bounds. It is kept up to date by those that came or went, fewer at every step, and starts from U'U,
which a batch that shares Q and R shares. A handful of steps ends in the solution, to rounding, unless
nearly all variables are at bounds; what does not arrive is left to another method.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from ffo.torch.dense.ghost import Chosen, picked
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, largest, positive, raised, times

ITERATIONS, HALVINGS = 25, 10
#: residual of the rows, relative to their terms, at which Newton's method has arrived
ARRIVED = 1e-12
#: share of the predicted decrease of phi that a step must bring, and what rounding leaves in phi
DECREASE, ROUNDING = 1e-4, 1e-13
#: added to Newton's matrix, whose diagonal is 1 when all variables are free; the damping, in proportion
#: to the residual, keeps steps short where too few variables are free to determine them
REGULARISATION, DAMPING = 1e-10, 3e-2


@dataclass(frozen=True)
class _Iterate:
    """lam (batch, r); w (batch, n) and which variables are free; U'w - b (batch, r) and the size of its
    terms (batch,); phi (batch,) and the size of its terms."""

    lam: Tensor
    w: Tensor
    free: Tensor
    left: Tensor
    scale: Tensor
    phi: Tensor
    terms: Tensor

    def take(self, samples: Tensor) -> _Iterate:
        return _Iterate(*(getattr(self, f.name)[samples] for f in fields(self)))

    def where(self, mine: Tensor, other: _Iterate) -> _Iterate:
        """This one where `mine` (batch,), else the other."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return _Iterate(*(torch.where(mine.reshape(-1, *(1,) * (a.ndim - 1)), a, b) for a, b in pairs))

    @property
    def residual(self) -> Tensor:
        return largest(self.left) / positive(self.scale)


@dataclass(frozen=True)
class _Dual:
    """U (batch or 1, n, r), b (batch, r), c, lo and hi (batch, n)."""

    U: Tensor
    c: Tensor
    b: Tensor
    lo: Tensor
    hi: Tensor

    def take(self, samples: Tensor) -> _Dual:
        part = {name: getattr(self, name)[samples] for name in ("c", "b", "lo", "hi")}
        return replace(self, U=self.U if len(self.U) == 1 else self.U[samples], **part)

    def at(self, lam: Tensor) -> _Iterate:
        v = -(self.c + times(self.U, lam))
        w = torch.minimum(torch.maximum(v, self.lo), self.hi)
        value = times(self.U.mT, w)
        terms = torch.stack([self.b * lam, -lam * value]).sum(dim=2)
        terms = torch.cat([terms, -(w * (0.5 * w + self.c)).sum(dim=1).unsqueeze(0)])
        return _Iterate(
            lam,
            w,
            (v > self.lo) & (v < self.hi),
            value - self.b,
            torch.maximum(largest(value), largest(self.b)),
            terms.sum(dim=0),
            terms.abs().sum(dim=0),
        )


def separable(program: DenseProgram, diagonal: Tensor) -> tuple[DensePoint, Tensor]:
    """A point and the iterations taken (batch,), -1 where it was not found.

    Args:
        program: its rows are equalities.
        diagonal: (batch or 1, n) of Q, positive.
    """
    root = diagonal.sqrt()
    U = program.R.mT / root.unsqueeze(2)
    length = positive(U.norm(dim=1))  # (batch or 1, r)
    U = (U / length.unsqueeze(1)).contiguous()
    dual = _Dual(U, program.p / root, program.upp / length, program.lb * root, program.ub * root)
    lam, iterations = _newton(dual)
    last = dual.at(lam)
    z, lam = last.w / root, lam / length
    force = -program.stationarity(z, lam)
    return DensePoint(z, lam, torch.where(last.free, 0.0, force)), iterations


def _newton(dual: _Dual) -> tuple[Tensor, Tensor]:
    """lam (batch, r) and the iterations taken."""
    found = torch.zeros_like(dual.b)
    iterations = torch.full_like(dual.b[:, 0], -1, dtype=torch.long)
    gram = dual.U.mT @ dual.U  # (batch or 1, r, r)
    # The first step: the solution but for the bounds.
    now = dual.at(_solve(gram, -times(dual.U.mT, dual.c) - dual.b, gram.new_zeros(1)))
    who = torch.arange(len(found), device=found.device)
    gram, free = gram.expand(len(found), -1, -1), torch.ones_like(now.free)
    for k in range(ITERATIONS):
        there = now.residual <= ARRIVED
        if bool(there.any()):
            found[who[there]], iterations[who[there]] = now.lam[there], k + 1
            going = torch.nonzero(~there).squeeze(1)
            who, dual, now, gram, free = who[going], dual.take(going), now.take(going), gram[going], free[going]
        if not len(who):
            break
        gram, free = _updated(gram, dual.U, free, now.free), now.free
        now = _searched(dual, now, _solve(gram, now.left, DAMPING * now.residual))
    return found, iterations


def _updated(gram: Tensor, U: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """U_F'U_F for the variables that are free after, from that for those before."""
    changed = Chosen.of(before != after, gram.dtype)
    rows, sign = picked(U, changed.index), changed.take(torch.where(after, 1.0, -1.0).to(gram.dtype))
    return torch.baddbmm(gram, (rows * sign.unsqueeze(2)).mT, rows.expand(len(gram), -1, -1))


def _solve(gram: Tensor, left: Tensor, damping: Tensor) -> Tensor:
    """(batch, r) Newton's step, damped (batch or 1,); of a shared matrix, all from one factorization."""
    factor, _ = torch.linalg.cholesky_ex(raised(gram, (REGULARISATION + damping).unsqueeze(1)))
    if len(factor) == 1:
        return torch.cholesky_solve(left.mT, factor[0]).mT
    return torch.cholesky_solve(left.unsqueeze(2), factor).squeeze(2)


def _searched(dual: _Dual, now: _Iterate, step: Tensor) -> _Iterate:
    """The point along the step where phi has decreased enough; where none has, the point as it was."""
    length = torch.ones_like(now.phi)
    slope = -(now.left * step).sum(dim=1)
    best = now
    for _ in range(HALVINGS):
        trial = dual.at(now.lam + length.unsqueeze(1) * step)
        good = trial.phi <= now.phi + DECREASE * length * slope + ROUNDING * now.terms
        best = trial.where(good, best)
        if bool(good.all()):
            break
        length = torch.where(good, length, 0.5 * length)
    return best
