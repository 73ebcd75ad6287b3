"""Alt-Diff, from its description: ADMM, differentiated alternately with its own iterations.

    minimize 1/2 x'Qx - q'x   subject to   Ax = b,  Gx + s = h,  s >= 0

    x    <- K^-1 (q - A'nu - G'lam + rho A'b + rho G'(h - s)),   K = Q + rho A'A + rho G'G
    s    <- max(0, h - Gx - lam/rho)
    nu   <- nu + rho (Ax - b)
    lam  <- lam + rho (Gx + s - h)

Each line is differentiated in q and b as it is run, which carries Jacobians of n rows and n + p columns
for every sample. The gradient in A follows from those: a change dA acts like -dA'nu on q and -dA x on b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from ffo.lab.baselines.base import Baseline, Layer, Settings
from ffo.lab.tasks.inner import Inner

Tensor = torch.Tensor
TOLERANCE, ITERATIONS, RHO = 1e-6, 20_000, 1.0


@dataclass
class _AltDiffIterate:
    """x, s, nu, lam of a batch, or their Jacobians: (batch, size, columns)."""

    x: Tensor
    s: Tensor
    nu: Tensor
    lam: Tensor


@dataclass(frozen=True)
class AltDiff:
    """Problem data as dense tensors, with K factorized once."""

    Q: Tensor
    G: Tensor
    h: Tensor
    tolerance: float

    def solve(self, q: Tensor, A: Tensor, b: Tensor, derivative: bool) -> tuple[_AltDiffIterate, Tensor | None]:
        """The last iterate for q (batch, n), and the Jacobian of x in (q, b): (batch, n, n + p)."""
        batch, n = q.shape
        m, p = len(self.h), len(b)
        K = torch.linalg.cholesky(self.Q + RHO * (A.T @ A + self.G.T @ self.G))
        columns = n + p if derivative else 0
        at = _zeros(batch, n, m, p, 1, q)
        slope = _zeros(batch, n, m, p, columns, q)
        # right-hand sides of the first line: values, and their Jacobian
        force = (q + RHO * (b @ A) + RHO * (self.h @ self.G))[..., None]
        moved = torch.cat([torch.eye(n, dtype=q.dtype), RHO * A.T], dim=1)[None, :, :columns]
        shift = torch.cat([q.new_zeros(p, n), torch.eye(p, dtype=q.dtype)], dim=1)[None, :, :columns]
        for _ in range(ITERATIONS):
            before = at.x
            self._step(at, A, K, force, b[:, None], self.h[:, None])
            if derivative:
                previous = slope.x
                self._step(slope, A, K, moved, shift, None, open_rows=at.s > 0)
            change = _relative(at.x, before)
            if derivative:
                change = max(change, _relative(slope.x, previous))
            if change < self.tolerance:
                return at, slope.x if derivative else None
        raise RuntimeError(f"Alt-Diff did not converge in {ITERATIONS} iterations")

    def _step(
        self,
        z: _AltDiffIterate,
        A: Tensor,
        K: Tensor,
        force: Tensor,
        b: Tensor,
        h: Tensor | None,
        open_rows: Any = None,
    ) -> None:
        G = self.G
        z.x = torch.cholesky_solve(force - A.T @ z.nu - G.T @ (z.lam + RHO * z.s), K)
        room = -(G @ z.x) - z.lam / RHO
        if h is None:
            z.s = room * open_rows
            z.lam = z.lam + RHO * (G @ z.x + z.s)
        else:
            z.s = (room + h).clamp(min=0)
            z.lam = z.lam + RHO * (G @ z.x + z.s - h)
        z.nu = z.nu + RHO * (A @ z.x - b)


def _zeros(batch: int, n: int, m: int, p: int, columns: int, like: Tensor) -> _AltDiffIterate:
    return _AltDiffIterate(*(like.new_zeros(batch, size, columns) for size in (n, m, p, m)))


def _relative(new: Tensor, old: Tensor) -> float:
    return float((new - old).norm() / new.norm().clamp(min=1e-12))


class _AltDiffStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, method: AltDiff, q: Tensor, A: Any, b: Any) -> Tensor:
        n = q.shape[1]
        ctx.learnt = A is not None
        matrix, sides = (A, b) if ctx.learnt else (q.new_zeros(0, n), q.new_zeros(0))
        at, jacobian = method.solve(q, matrix, sides, derivative=any(ctx.needs_input_grad))
        x, nu = at.x[..., 0], at.nu[..., 0]
        ctx.save_for_backward(x, nu, jacobian)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, nu, jacobian = ctx.saved_tensors
        n = x.shape[1]
        both = (jacobian.mT @ gradients[0][..., None])[..., 0]
        in_q, in_b = both[:, :n], both[:, n:]
        if not ctx.learnt:
            return None, in_q, None, None
        return None, in_q, -(nu.T @ in_q + in_b.T @ x), in_b.sum(dim=0)


def _make(inner: Inner, settings: Settings) -> Layer:
    fixed = inner.fixed
    method = AltDiff(fixed["Q"], fixed["G"], fixed["h"], settings.tolerance or TOLERANCE)

    def solve(values: Mapping[str, Tensor]) -> Tensor:
        return cast(Tensor, _AltDiffStep.apply(method, values["q"], values.get("A"), values.get("b")))

    return solve


ALTDIFF_BASELINE = Baseline("Alt-Diff", "qp", _make, settings=frozenset({"tolerance"}))
