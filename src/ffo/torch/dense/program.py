"""A batch of dense quadratic programs, and its points.

    minimize 1/2 z'Qz + p'z   subject to  low <= Rz <= upp,  lb <= z <= ub

Equalities are rows with low = upp. Multipliers are signed: positive at an active upper bound,
negative at an active lower one, so that Qz + p + R'lam + mu = 0. The last rows may be those of second-order cones K,
upp - Rz in K, with multipliers in K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch

from ffo.torch.dense.second_order import ConeLayout, cone_layout

Tensor = torch.Tensor
T = TypeVar("T")
#: curvature, relative to the largest, below which a direction counts as singular
SINGULAR = 1e-5


@dataclass(frozen=True)
class DenseProgram:
    """Q (batch or 1, n, n), or (batch or 1, n) if it is diagonal; p (batch, n), R (batch or 1, r, n), low and
    upp (batch, r), lb and ub (batch, n), all float64 on one device; missing bounds are +-inf. The first `equalities`
    rows are equalities. `bounded` is false if it is known that no variable has a bound. `cones` are the sizes of the
    second-order cones; if there are any, and Q is given as a diagonal, each of their rows has at most one entry."""

    Q: Tensor
    p: Tensor
    R: Tensor
    low: Tensor
    upp: Tensor
    lb: Tensor
    ub: Tensor
    equalities: int
    bounded: bool = True
    cones: tuple[int, ...] = ()

    @property
    def batch(self) -> int:
        return self.p.shape[0]

    @property
    def n(self) -> int:
        return self.p.shape[1]

    @property
    def r(self) -> int:
        return self.R.shape[1]

    @property
    def curved_rows(self) -> int:
        """How many rows belong to cones."""
        return sum(self.cones)

    @property
    def layout(self) -> ConeLayout:
        return cone_layout(self.cones, self.p.device)

    @property
    def diagonal(self) -> bool:
        """Whether Q is given as a diagonal."""
        return self.Q.ndim == 2

    @property
    def norms(self) -> Tensor:
        """(batch or 1, r) norms of the rows, 1 for zero rows; the rows of a cone share the root of their mean square,
        to which zero rows contribute the mean of all rows."""
        found = torch.linalg.vector_norm(self.R, dim=2)
        if not self.cones:
            return positive(found)
        k, squares = self.r - self.curved_rows, found.square()
        typical = positive(squares.sum(dim=1) / (squares > 0).sum(dim=1).clamp_min(1)).unsqueeze(1)
        shared = torch.where(squares > 0, squares, typical)[:, k:]
        mean = self.layout.spread(self.layout.total(shared) / self.layout.sizes).sqrt()
        return torch.cat([positive(found[:, :k]), mean], dim=1)

    @property
    def equal(self) -> Tensor:
        """(1, r) marks equalities."""
        return (torch.arange(self.r, device=self.p.device) < self.equalities).unsqueeze(0)

    @property
    def curvature(self) -> Tensor:
        """(batch or 1,) largest magnitude in Q."""
        return self.Q.abs().amax(dim=tuple(range(1, self.Q.ndim))) if self.n else self.p.new_zeros(1)

    def take(self, samples: Tensor) -> DenseProgram:
        """The program of some samples."""
        Q, R = (M if len(M) == 1 else M[samples] for M in (self.Q, self.R))
        p, low, upp, lb, ub = (v[samples] for v in (self.p, self.low, self.upp, self.lb, self.ub))
        return DenseProgram(Q, p, R, low, upp, lb, ub, self.equalities, self.bounded, self.cones)

    def all_rows(self) -> DenseProgram:
        """The same program with its bounds as the last n rows."""
        if not self.bounded:
            return self
        eye = torch.eye(self.n, dtype=self.p.dtype, device=self.p.device).expand(len(self.R), -1, -1)
        low, upp = torch.cat([self.low, self.lb], dim=1), torch.cat([self.upp, self.ub], dim=1)
        none = torch.full_like(self.p, torch.inf)
        R = torch.cat([self.R, eye], dim=1)
        return replace(self, R=R, low=low, upp=upp, lb=-none, ub=none, bounded=False)

    def curved(self, z: Tensor) -> Tensor:
        """(batch, n) Qz."""
        return self.Q * z if self.diagonal else times(self.Q, z)

    def rows(self, z: Tensor) -> Tensor:
        """(batch, r) Rz."""
        return times(self.R, z)

    def pull(self, lam: Tensor) -> Tensor:
        """(batch, n) R'lam."""
        return times(self.R.mT, lam)

    def stationarity(self, z: Tensor, lam: Tensor) -> Tensor:
        """(batch, n) Qz + p + R'lam, which is -mu at a solution."""
        return self.curved(z) + self.p + self.pull(lam)


@dataclass(frozen=True)
class DensePoint:
    """z and mu (batch, n), lam (batch, r)."""

    z: Tensor
    lam: Tensor
    mu: Tensor


def chosen(where: Tensor, first: T, second: T) -> T:
    """The first where the condition (batch,) holds, else the second: dataclasses of tensors (batch, ...)."""
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return type(first)(*(torch.where(where if a.ndim == 1 else where.unsqueeze(1), a, b) for a, b in pairs))


def put(mine: T, which: Tensor, other: T) -> T:
    """A copy of a dataclass of tensors (batch, ...) with some samples (by number) replaced."""
    pairs = zip(vars(mine).values(), vars(other).values(), strict=True)
    return type(mine)(*(a.index_put((which,), b) for a, b in pairs))


def times(M: Tensor, v: Tensor) -> Tensor:
    """(batch or 1, a, b) and (batch, b) -> (batch, a), one product when M is shared."""
    return v @ M[0].mT if len(M) == 1 else torch.bmm(M, v.unsqueeze(2)).squeeze(2)


def triangular(L: Tensor, X: Tensor, upper: bool) -> Tensor:
    """L^-1 X for L (batch or 1, k, k) and X (batch or 1, k, c), one solve when L is shared."""
    if len(L) > 1 or len(X) == 1:
        return torch.linalg.solve_triangular(L, X, upper=upper)
    columns = X.permute(1, 0, 2).reshape(X.shape[1], -1)  # the columns of all samples
    found = torch.linalg.solve_triangular(L[0], columns, upper=upper)
    return found.reshape(X.shape[1], X.shape[0], X.shape[2]).permute(1, 0, 2)


def solved(C: Tensor, v: Tensor) -> Tensor:
    """(CC')^-1 v for C (batch or 1, k, k) and v (batch, k), one solve when C is shared. (torch's cholesky_solve for
    batches on a GPU cannot be recorded.)"""
    return triangular(C.mT, triangular(C, v.unsqueeze(2), upper=False), upper=True).squeeze(2)


def are_definite(L: Tensor, info: Tensor) -> Tensor:
    """() whether matrices with these Cholesky factors (batch or 1, k, k) are all clearly definite."""
    least, most = torch.aminmax(L.diagonal(dim1=1, dim2=2), dim=1)
    return ((info == 0) & (least >= math.sqrt(SINGULAR) * most)).all()


def raised(H: Tensor, shift: Tensor) -> Tensor:
    """H (batch or 1, k, k) with a shift (batch or 1, k or 1) on its diagonal."""
    return H + torch.diag_embed(shift.expand(-1, H.shape[1]))


def positive(v: Tensor) -> Tensor:
    """v (nonnegative), with 1 in place of zeros."""
    return v + (v == 0)


def largest(v: Tensor) -> Tensor:
    """(batch, k) -> (batch,) largest magnitude, 0 if k is 0."""
    return torch.linalg.vector_norm(v, torch.inf, dim=1) if v.shape[1] else v.new_zeros(v.shape[0])


def only(where: Tensor, v: Tensor) -> Tensor:
    """v where the condition holds, zero elsewhere (for torch.where, a number is filled into a tensor by a kernel of its
    own)."""
    return torch.where(where, v, _zero(v.device))


@cache
def _zero(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=device)
