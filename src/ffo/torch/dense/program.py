"""A batch of dense quadratic programs, and what it means to solve it.

    minimize 1/2 z'Qz + p'z   subject to  low <= Rz <= upp,  lb <= z <= ub

Equalities are rows with low = upp. Multipliers are signed: positive on an active upper side,
negative on an active lower one, so that Qz + p + R'lam + mu = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

Tensor = torch.Tensor
#: curvature, relative to the largest, below which a direction counts as flat
SINGULAR = 1e-5


@dataclass(frozen=True)
class DenseProgram:
    """Q (batch or 1, n, n), p (batch, n), R (batch or 1, r, n), low and upp (batch, r), lb and ub
    (batch, n), all float64 on one device; infinite sides are +-inf. The first `equalities` rows are such.
    Where it is known that no variable has a bound, `bounded` is false."""

    Q: Tensor
    p: Tensor
    R: Tensor
    low: Tensor
    upp: Tensor
    lb: Tensor
    ub: Tensor
    equalities: int
    bounded: bool = True

    @property
    def batch(self) -> int:
        return self.p.shape[0]

    @property
    def n(self) -> int:
        return self.p.shape[1]

    @property
    def r(self) -> int:
        return self.R.shape[1]

    @cached_property
    def diagonal(self) -> Tensor | None:
        """(batch or 1, n) of Q if that is all there is of it and none of it is flat, else None."""
        if not self.n or not diagonal_only(self.Q):
            return None
        diagonal = self.Q.diagonal(dim1=1, dim2=2)
        least, most = torch.aminmax(diagonal, dim=1)
        return None if bool((least <= SINGULAR * most).any()) else diagonal

    @cached_property
    def factor(self) -> Factor | None:
        """Of Q, plus a shift in the size of rounding if it needs one (see `ffo.program.convexity`); None where Q
        is not positive semidefinite."""
        L, info = torch.linalg.cholesky_ex(self.Q)
        if not bool(info.any()):
            return Factor(L, shifted=False)
        size = positive(self.Q.abs().amax(dim=(1, 2)))
        L, info = torch.linalg.cholesky_ex(raised(self.Q, 1e-9 * math.sqrt(self.n) * size.unsqueeze(1)))
        return None if bool(info.any()) else Factor(L, shifted=True)

    @cached_property
    def convex(self) -> bool:
        return self.diagonal is not None or self.factor is not None

    @cached_property
    def white(self) -> White | None:
        """The program in units in which Q is the identity; None where Q is not definite enough for them."""
        if self.factor is None or self.factor.shifted or not self.n:
            return None
        L = self.factor.L
        diagonal = L.diagonal(dim1=1, dim2=2)
        most = diagonal.amax(dim=1, keepdim=True)
        if float((diagonal.amin(dim=1, keepdim=True) / most).amin()) < math.sqrt(SINGULAR):
            return None
        size = most * most
        if len(L) < self.batch or len(self.R) < self.batch:
            p = triangular(L, self.p.unsqueeze(2), upper=False).squeeze(2)
            return White(L, triangular(L, self.R.mT, upper=False).mT.contiguous(), p, size)
        both = triangular(L, torch.cat([self.R, self.p.unsqueeze(1)], dim=1).mT, upper=False).mT
        return White(L, both[:, :-1], both[:, -1], size)

    @cached_property
    def norms(self) -> Tensor:
        """(batch or 1, r) lengths of the rows, 1 for those that are zero."""
        return positive(torch.linalg.vector_norm(self.R, dim=2))

    @cached_property
    def equal(self) -> Tensor:
        """(r,) marks equalities."""
        return torch.arange(self.r, device=self.p.device) < self.equalities

    def take(self, samples: Tensor) -> DenseProgram:
        """The program of some samples."""
        Q, R = (M if len(M) == 1 else M[samples] for M in (self.Q, self.R))
        p, low, upp, lb, ub = (v[samples] for v in (self.p, self.low, self.upp, self.lb, self.ub))
        return DenseProgram(Q, p, R, low, upp, lb, ub, self.equalities, self.bounded)

    def all_rows(self) -> DenseProgram:
        """The same program with its bounds as the last n rows."""
        if not self.bounded:
            return self
        eye = torch.eye(self.n, dtype=self.p.dtype, device=self.p.device).expand(len(self.R), -1, -1)
        R, low, upp = (
            torch.cat([self.R, eye], dim=1),
            torch.cat([self.low, self.lb], 1),
            torch.cat([self.upp, self.ub], 1),
        )
        none = torch.full_like(self.p, torch.inf)
        rows = DenseProgram(self.Q, self.p, R, low, upp, -none, none, self.equalities, bounded=False)
        vars(rows).update({name: vars(self)[name] for name in ("factor", "diagonal") if name in vars(self)})
        return rows

    def curved(self, z: Tensor) -> Tensor:
        """(batch, n) Qz."""
        return times(self.Q, z) if self.diagonal is None else self.diagonal * z

    def gradient(self, z: Tensor) -> Tensor:
        """(batch, n) Qz + p."""
        return added(self.p, self.Q, z) if self.diagonal is None else torch.addcmul(self.p, self.diagonal, z)

    def rows(self, z: Tensor) -> Tensor:
        """(batch, r) Rz."""
        return times(self.R, z)

    @cached_property
    def curvature(self) -> Tensor:
        """(batch or 1,) largest magnitude in Q."""
        return self.Q.abs().amax(dim=(1, 2)) if self.n else self.p.new_zeros(1)

    @cached_property
    def _absolute(self) -> tuple[Tensor, Tensor]:
        return self.Q.abs(), self.R.abs()

    def magnitudes(self, z: Tensor, lam: Tensor) -> Tensor:
        """(batch, n) |Q||z| + |R|'|lam|: the sizes of what Qz + R'lam adds up."""
        Q, R = self._absolute
        curved = times(Q, z.abs()) if self.diagonal is None else (self.diagonal * z).abs()
        return added(curved, R.mT, lam.abs())

    def reach(self, z: Tensor) -> Tensor:
        """(batch, r) |R||z|."""
        return times(self._absolute[1], z.abs())

    def pull(self, lam: Tensor) -> Tensor:
        """(batch, n) R'lam."""
        return times(self.R.mT, lam)

    def stationarity(self, z: Tensor, lam: Tensor) -> Tensor:
        """(batch, n) Qz + p + R'lam, which is -mu at a solution."""
        return added(self.gradient(z), self.R.mT, lam)


@dataclass(frozen=True)
class Factor:
    """L (batch or 1, n, n) with LL' = Q, or Q plus a small shift."""

    L: Tensor
    shifted: bool


@dataclass(frozen=True)
class White:
    """w = L'z, in which Q = LL' is the identity: L (batch or 1, n, n), and what the rows and costs become,
    R L'^-1 (batch or 1, r, n) and L^-1 p (batch, n); `size` (batch or 1, 1) is about the largest curvature, 1 where
    there is none."""

    L: Tensor
    R: Tensor
    p: Tensor
    size: Tensor


@dataclass(frozen=True)
class DensePoint:
    """z and mu (batch, n), lam (batch, r)."""

    z: Tensor
    lam: Tensor
    mu: Tensor

    def take(self, which: Tensor) -> DensePoint:
        """Some samples, by number."""
        return DensePoint(self.z[which], self.lam[which], self.mu[which])

    def put(self, which: Tensor, other: DensePoint) -> DensePoint:
        """This one with some samples (by number) replaced."""
        pairs = ((self.z, other.z), (self.lam, other.lam), (self.mu, other.mu))
        return DensePoint(*(mine.index_put((which,), theirs) for mine, theirs in pairs))


def diagonal_only(Q: Tensor) -> bool:
    """Whether nothing in Q (batch or 1, n, n) stands off the diagonal."""
    if Q.shape[1] > 1 and Q[0, 0, -1].item():  # a corner answers most of the time
        return False
    return int(torch.count_nonzero(Q)) == int(torch.count_nonzero(Q.diagonal(dim1=1, dim2=2)))


def times(M: Tensor, v: Tensor) -> Tensor:
    """(batch or 1, a, b) and (batch, b) -> (batch, a)."""
    return product(M, v.unsqueeze(2)).squeeze(2)


def added(c: Tensor, M: Tensor, v: Tensor, weight: float = 1.0) -> Tensor:
    """c + weight * Mv, for c (batch, a) and the others as in `times`."""
    return plus(c.unsqueeze(2), M, v.unsqueeze(2), weight).squeeze(2)


def product(M: Tensor, x: Tensor) -> Tensor:
    """(batch or 1, a, b) and columns (batch, b, 1) -> (batch, a, 1), one product when M is shared."""
    return (x.squeeze(2) @ M[0].mT).unsqueeze(2) if len(M) == 1 else torch.bmm(M, x)


def plus(c: Tensor, M: Tensor, x: Tensor, weight: float = 1.0) -> Tensor:
    """c + weight * Mx, for c (batch, a, 1) and the others as in `product`."""
    if len(M) == 1:
        return torch.addmm(c.squeeze(2), x.squeeze(2), M[0].mT, alpha=weight).unsqueeze(2)
    return torch.baddbmm(c, M, x, alpha=weight)


def raised(H: Tensor, shift: Tensor) -> Tensor:
    """H (batch or 1, k, k) with a shift (batch or 1, k or 1) on its diagonal."""
    H = H.expand(max(len(H), len(shift)), -1, -1).clone()
    H.diagonal(dim1=1, dim2=2).add_(shift)
    return H


def triangular(L: Tensor, X: Tensor, upper: bool) -> Tensor:
    """L^-1 X for L (batch or 1, k, k) and X (batch or 1, k, c), one solve when L is shared."""
    if len(L) > 1 or len(X) == 1:
        return torch.linalg.solve_triangular(L, X, upper=upper)
    columns = X.permute(1, 0, 2).reshape(X.shape[1], -1)  # of all samples side by side
    found = torch.linalg.solve_triangular(L[0], columns, upper=upper)
    return found.reshape(X.shape[1], X.shape[0], X.shape[2]).permute(1, 0, 2)


def positive(v: Tensor) -> Tensor:
    """v (none of it negative), 1 where it is zero."""
    return v + (v == 0)


def largest(v: Tensor) -> Tensor:
    """(batch, k) -> (batch,) largest magnitude, 0 of nothing."""
    return v.abs().amax(dim=1) if v.shape[1] else v.new_zeros(v.shape[0])


def unit(*vectors: Tensor) -> Tensor:
    """(batch, k) each -> (batch, 1) largest magnitude in any of them, 1 where that is zero."""
    v = torch.cat(vectors, dim=1) if len(vectors) > 1 else vectors[0]
    return positive(v.abs().amax(dim=1, keepdim=True)) if v.shape[1] else v.new_ones(v.shape[0], 1)
