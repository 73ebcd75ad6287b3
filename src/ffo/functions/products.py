"""Products with first and second derivatives at a point; no matrix is formed.

For the constraints, J'w is one backward pass through a graph that is kept. J v is one too: u(w) = J'w is
linear in w, and its transpose is the gradient of u in w along v. If a function cannot be differentiated
twice, J v is a central difference of the constraints.

For the Lagrangian, H v is a central difference of gradients (first-order, the default),

    H v ~ (grad L(y + t v) - grad L(y - t v)) / 2t,      t |v| = eps^(1/3) |y|,

with an error of about 1e-10 of the largest gradients, or exact by autograd. Lengths are measured in a
diagonal metric close to that of H, in which steps are short where the curvature is large.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ffo.errors import DerivativeError
from ffo.functions.problem import Problem, Tensor, is_cut, pull

#: relative step of central differences
STEP = torch.finfo(torch.float64).eps ** (1 / 3)
#: how often a step that leaves the domain of the functions is divided by ten
SHORTER = 8


class Constraints:
    """Constraints at y (batch, n), and products with their Jacobian.

    Attributes:
        value: c (batch, k).
    """

    def __init__(self, problem: Problem, y: Tensor) -> None:
        self._problem, self._y = problem, y.detach()
        self._transposed: tuple[Tensor, Tensor] | None = None
        self._differences = False
        with torch.enable_grad():
            self._at = self._y.clone().requires_grad_()
            self._output = problem.constraints(self._at)
        self.value = self._output.detach()

    def pull(self, w: Tensor) -> Tensor:
        """J'w: (batch, k) -> (batch, n)."""
        return pull(self._output, self._at, w, keep=True)

    def push(self, v: Tensor) -> Tensor:
        """J v: (batch, n) -> (batch, k)."""
        if not self._output.requires_grad:
            return torch.zeros_like(self.value)
        if not self._differences:
            try:
                return self._push(v)
            except RuntimeError:  # some operation has no second backward pass
                self._differences = True
        t = difference_step(self._y, v, torch.ones_like(v)).unsqueeze(1)
        with torch.no_grad():
            return (self._problem.constraints(self._y + t * v) - self._problem.constraints(self._y - t * v)) / (2 * t)

    def jacobian(self) -> Tensor:
        """(k, n) for a batch of one; for solvers that need a dense matrix."""
        k, n = self.value.shape[1], self._y.shape[1]
        if k <= n:
            units = torch.eye(k, dtype=torch.float64, device=self.value.device)
            return torch.cat([self.pull(w.unsqueeze(0)) for w in units]) if k else self._y.new_zeros(0, n)
        units = torch.eye(n, dtype=torch.float64, device=self.value.device)
        return torch.cat([self.push(v.unsqueeze(0)) for v in units]).mT

    def _push(self, v: Tensor) -> Tensor:
        if self._transposed is None:
            with torch.enable_grad():
                w = torch.zeros_like(self.value, requires_grad=True)
                u = pull(self._output, self._at, w, graph=True)
            if is_cut(u):
                raise DerivativeError("the constraints cannot be differentiated twice")
            self._transposed = (w, u)
        w, u = self._transposed
        return pull(u, w, v, keep=True)


class Curvature(Protocol):
    """H v of the Lagrangian: (batch, n) -> (batch, n)."""

    def __call__(self, v: Tensor) -> Tensor: ...


def difference_step(y: Tensor, v: Tensor, metric: Tensor) -> Tensor:
    """(batch,) t of a central difference along v at y, (batch, n) both; `metric` is a positive diagonal."""
    size, norm = ((metric * x * x).sum(1).sqrt() for x in (y, v))
    size = torch.where(size > 0, size, metric.mean(1).sqrt())
    return torch.where(norm > 0, STEP * size / norm.clamp_min(1e-300), 1.0)


class Differences:
    """Hessian products by central differences of gradients at y, for fixed multipliers."""

    def __init__(self, problem: Problem, y: Tensor, multipliers: Tensor, metric: Tensor) -> None:
        self._problem, self._y, self._multipliers, self._metric = problem, y, multipliers, metric

    def __call__(self, v: Tensor) -> Tensor:
        first = t = difference_step(self._y, v, self._metric).unsqueeze(1)
        for _ in range(SHORTER):
            found = self._central(v, t)
            finite = found.isfinite().all(dim=1, keepdim=True)
            if bool(finite.all()):
                break
            t = torch.where(finite, t, 0.1 * t)
        if t is not first:  # keep a distance from the edge of the domain
            found = self._central(v, torch.where(t < first, 0.1 * t, t))
        return found

    def _central(self, v: Tensor, t: Tensor) -> Tensor:
        upper = self._problem.gradient(self._y + t * v, self._multipliers)
        return upper.sub_(self._problem.gradient(self._y - t * v, self._multipliers)).div_(2 * t)


class Exact:
    """Hessian products by a second backward pass."""

    def __init__(self, problem: Problem, y: Tensor, multipliers: Tensor) -> None:
        with torch.enable_grad():
            self._at = y.detach().clone().requires_grad_()
            value = problem.lagrangian(self._at, multipliers).sum()
            self._gradient = pull(value, self._at, graph=True)
        if is_cut(self._gradient):
            raise DerivativeError(
                "hvp='autograd' needs functions that can be differentiated twice, and one of them is marked as "
                "once_differentiable: use hvp='difference'"
            )

    def __call__(self, v: Tensor) -> Tensor:
        return pull(self._gradient, self._at, v, keep=True)
