"""Projection onto the null space of the held rows B of the Jacobian, in the metric of a diagonal D.

    P r = D^-1 (r - B't),    (B D^-1 B') t = B D^-1 r.

For few rows, the Gram matrix B D^-1 B' is built column by column from products and factorized; B itself is
never stored. For many rows, conjugate gradients on the Gram matrix are used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ffo.functions.problem import Tensor
from ffo.functions.products import Constraints

Product = Callable[[Tensor], Tensor]

#: most held rows for which the Gram matrix is always built; above that, its most entries per unknown
FEW, PER_UNKNOWN = 256, 8
#: eigenvalue of the Gram matrix of unit rows, relative to the largest, up to which rows count as dependent; and the one
#: that is rounding: in between they are not quite
DEPENDENT, ROUNDING = 1e-11, 1e-14
#: pivot below which rows are at a small angle, and how often multipliers are then refined
LOOSE, REFINEMENTS = 1e-3, 2


class Projection:
    """For held rows (batch, k) of a Jacobian; `inverse` (batch, n) is the diagonal of D^-1.

    Attributes:
        dependent: (batch,) whether held rows count as dependent; inexact: and are not quite.
        least: (batch,) smallest eigenvalue of the Gram matrix of unit rows, apart from zero, if it is small, else 1.
    """

    def __init__(self, constraints: Constraints, held: Tensor, inverse: Tensor, rows: Tensor) -> None:
        self._constraints, self._held, self._inverse = constraints, held, inverse
        self.dependent = self.inexact = torch.zeros(len(held), dtype=torch.bool, device=held.device)
        self.least = torch.ones(len(held), dtype=torch.float64, device=held.device)
        count = int(held.sum(1).max()) if held.numel() else 0
        unknowns = inverse.shape[1] + held.shape[1]
        self._factors: _Gram | _Iterative | None = None
        self._refinements = 0
        if count and (count <= FEW or count**2 <= PER_UNKNOWN * unknowns):
            self._factors = _Gram(self._gram, held, count)
            self.dependent, self.inexact, self.least = (
                self._factors.dependent,
                self._factors.inexact,
                self._factors.least,
            )
            self._refinements = self._factors.refinements
        elif count:
            self._factors = _Iterative(self._gram, torch.where(held, 1.0 / rows**2, 0.0))

    def _gram(self, t: Tensor) -> Tensor:
        """B D^-1 B' t."""
        return self._down(self._inverse * self._constraints.pull(t))

    def _down(self, v: Tensor) -> Tensor:
        return torch.where(self._held, self._constraints.push(v), 0.0)

    def pull(self, t: Tensor) -> Tensor:
        """B't."""
        return self._constraints.pull(t)

    def solve(self, b: Tensor) -> Tensor:
        """t with B D^-1 B' t = b, (batch, k); b is zero off the held rows."""
        return b if self._factors is None else self._factors.solve(b)

    def multipliers(self, r: Tensor) -> Tensor:
        """Least-squares multipliers t of r: (batch, n) -> (batch, k)."""
        if self._factors is None:
            return torch.zeros_like(self._constraints.value)
        return self.solve(self._down(self._inverse * r))

    def reduce(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """r - B't, the part of r not explained by multipliers, and t.

        For rows at an angle a, the Gram matrix gives t with an error of eps / a^2. Each refinement reduces the error by
        that factor, down to eps / a.
        """
        t = self.multipliers(r)
        if self._factors is None:
            return r, t
        left = r - self._constraints.pull(t)
        for _ in range(self._refinements):
            more = self.multipliers(left)
            left, t = left - self._constraints.pull(more), t + more
        return left, t

    def null(self, b: Tensor) -> Tensor:
        """The part w of b (batch, k) with B'w = 0; zero if held rows are independent, or too many to factorize."""
        return self._factors.null(b) if isinstance(self._factors, _Gram) else torch.zeros_like(b)

    def onto_rows(self, u: Tensor, b: Tensor | None) -> Tensor:
        """u (batch, n) moved to the nearest point with B u = b (batch, k; None: zero): sums of many projections drift
        away from it, and with a large curvature across the rows even a little is too far."""
        if self._factors is None:
            return u
        return u + self.particular((0.0 if b is None else b) - self._down(u))

    def particular(self, b: Tensor) -> Tensor:
        """The shortest v with B v = b, (batch, n)."""
        v = self._inverse * self._constraints.pull(self.solve(b))
        left = torch.where(self._held, b, 0.0) - self._down(v)
        return v + self._inverse * self._constraints.pull(self.solve(left))


class _Gram:
    """Dense factors of the Gram matrix on the held rows of each sample, which are moved to the front."""

    _spectrum: tuple[Tensor, Tensor] | None

    def __init__(self, product: Product, held: Tensor, count: int) -> None:
        self._index = held.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
        self._valid = held.gather(1, self._index)
        gram = self._columns(product, held)
        diagonal = gram.diagonal(dim1=1, dim2=2)
        self._unit = torch.where(self._valid & (diagonal > 0), diagonal.clamp_min(1e-300).rsqrt(), 1.0)
        gram *= self._unit.unsqueeze(1) * self._unit.unsqueeze(2)
        gram.diagonal(dim1=1, dim2=2).copy_(torch.ones_like(self._unit))
        self._lower, failed = torch.linalg.cholesky_ex(gram)
        pivots = self._lower.diagonal(dim1=1, dim2=2) ** 2
        loose = (failed > 0) | (pivots < LOOSE).any(1) | ~pivots.isfinite().all(1)
        self.dependent, self.inexact, self._spectrum = torch.zeros_like(loose), torch.zeros_like(loose), None
        self.refinements, self.least = 0, torch.ones_like(self._unit[:, 0])
        if bool(loose.any()):
            # after a small pivot, rounding hides whether further rows depend on the others
            values, vectors = torch.linalg.eigh(gram[loose])
            keep = values > DEPENDENT * values[:, -1:]
            singular = ~keep.all(1)
            self.dependent[loose], self.refinements = singular, REFINEMENTS
            self.least[loose] = torch.where(keep, values, 1.0).amin(1)
            self.inexact[loose] = (~keep & (values > ROUNDING * values[:, -1:])).any(1)
            self._spectrum = (torch.where(keep, 1.0 / values, 0.0)[singular], vectors[singular])
            self._lower[self.dependent] = torch.eye(count, dtype=gram.dtype, device=gram.device)

    def _columns(self, product: Product, held: Tensor) -> Tensor:
        batch, count = self._index.shape
        gram = torch.empty(batch, count, count, dtype=torch.float64, device=held.device)
        for j in range(count):
            one = torch.zeros(held.shape, dtype=torch.float64, device=held.device)
            one.scatter_(1, self._index[:, j : j + 1], self._valid[:, j : j + 1].to(torch.float64))
            gram[:, :, j] = product(one).gather(1, self._index) * self._valid
        return gram.add_(gram.mT.clone()).mul_(0.5)

    def solve(self, b: Tensor) -> Tensor:
        scaled = b.gather(1, self._index) * self._valid * self._unit
        t = self._once(scaled)
        return torch.zeros_like(b).scatter_(1, self._index, t * self._unit * self._valid)

    def null(self, b: Tensor) -> Tensor:
        w = torch.zeros_like(self._unit)
        if self._spectrum is not None:
            inverse, vectors = self._spectrum
            mine = b.gather(1, self._index)[self.dependent].unsqueeze(1)
            w[self.dependent] = ((mine @ vectors) * (inverse == 0).unsqueeze(1) @ vectors.mT).squeeze(1)
        return torch.zeros_like(b).scatter_(1, self._index, w * self._unit * self._valid)

    def _once(self, b: Tensor) -> Tensor:
        t = torch.cholesky_solve(b.unsqueeze(2), self._lower).squeeze(2)
        if self._spectrum is not None:
            inverse, vectors = self._spectrum
            mine = b[self.dependent].unsqueeze(1)
            t[self.dependent] = ((mine @ vectors) * inverse.unsqueeze(1) @ vectors.mT).squeeze(1)
        return t


class _Iterative:
    """Conjugate gradients on the Gram matrix with the row norms as preconditioner."""

    def __init__(self, product: Product, weight: Tensor) -> None:
        self._product, self._weight = product, weight

    def solve(self, b: Tensor) -> Tensor:
        x, r = torch.zeros_like(b), torch.where(self._weight > 0, b, 0.0)
        z = self._weight * r
        p, rz = z, (r * z).sum(1)
        target, best, since = 1e-14**2 * rz, rz, 0
        for _ in range(10 * b.shape[1] + 50):
            if bool((rz <= target).all()) or since > 50:
                break
            q = self._product(p)
            curvature = (p * q).sum(1)
            step = torch.where((rz > target) & (curvature > 0), rz / curvature.clamp_min(1e-300), 0.0).unsqueeze(1)
            x, r = x + step * p, r - step * q
            z = self._weight * r
            new = (r * z).sum(1)
            p = z + (new / rz.clamp_min(1e-300)).unsqueeze(1) * p
            rz = new
            since = 0 if bool((rz < best).any()) else since + 1
            best = torch.minimum(best, rz)
        return x
