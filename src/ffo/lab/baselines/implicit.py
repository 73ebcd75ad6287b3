"""Common code of our versions of BPQP and dQP: one solve forward, one linear system or QP backward.

At a solution x with multipliers nu (of Ay = b), lam (of Gy <= h) and mu (of |y|^2/2 <= radius^2/2), let
the active rows be N = [A; G_active; x' if the ball is active] and H = Q + mu I. For a loss with
gradient c in x, the adjoint (u, w) solves

    H u + N'w = -c,   N u = 0

and   dL/dq = -u,   dL/dA = nu u' + w_A x',   dL/db = -w_A.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch

from ffo.kernels.pool import cpus
from ffo.lab.baselines.base import Layer
from ffo.lab.tasks.inner import Inner

Array = np.ndarray


@dataclass(frozen=True)
class Solved:
    """Solutions of a batch: x (batch, n), nu (batch, p), active rows of G (batch, m), mu (batch,)."""

    x: Array
    nu: Array
    active: Array
    mu: Array


@dataclass(frozen=True)
class Equality:
    """The equality-constrained QP of one sample: H (n, n), N (rows, n), both sparse; c (n,)."""

    H: sp.csc_array
    N: sp.csc_array
    c: Array


class Method(ABC):
    """Forward and backward solves of a batch, in NumPy."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    @abstractmethod
    def solve(self, q: Array, A: sp.csc_array, b: Array) -> Solved:
        """q (batch, n), A (p, n), b (p,)."""

    @abstractmethod
    def adjoint(self, problem: Equality) -> tuple[Array, Array]:
        """(u, w) of one sample."""

    def adjoints(self, solved: Solved, A: sp.csc_array, c: Array) -> tuple[Array, Array]:
        """u (batch, n) and the part of w that belongs to A (batch, p), for c (batch, n)."""
        G, Q, p = sp.csr_array(self.inner.G), self.inner.sparse["Q"], self.inner.equalities
        identity = sp.eye_array(self.inner.n, format="csc")

        def one(k: int) -> tuple[Array, Array]:
            rows = [A, G[np.flatnonzero(solved.active[k])]]
            H = Q
            if solved.mu[k] > 0:
                rows.append(sp.csr_array(solved.x[k : k + 1]))
                H = Q + solved.mu[k] * identity
            return self.adjoint(Equality(H, sp.csc_array(sp.vstack(rows)), c[k]))

        found = in_threads(one, len(c))
        return np.stack([u for u, _ in found]), np.stack([w[:p] for _, w in found])

    def layer(self) -> Layer:
        """The method as a layer."""

        def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return cast(torch.Tensor, _Step.apply(self, values["q"], values.get("A"), values.get("b")))

        return solve


def in_threads(one: Callable[[int], Any], count: int) -> list[Any]:
    """`one(k)` for every k, one thread per core: these solvers release the GIL."""
    with ThreadPoolExecutor(cpus()) as pool:
        return list(pool.map(one, range(count)))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, method: Method, q: torch.Tensor, A: Any, b: Any) -> torch.Tensor:
        n = method.inner.n
        matrix = sp.csc_array(A.detach().numpy()) if A is not None else sp.csc_array((0, n))
        sides = b.detach().numpy() if b is not None else np.zeros(0)
        ctx.method, ctx.A = method, matrix
        ctx.solved = method.solve(q.detach().numpy(), matrix, sides)
        return torch.from_numpy(ctx.solved.x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        x, nu = ctx.solved.x, ctx.solved.nu
        u, w = ctx.method.adjoints(ctx.solved, ctx.A, gradients[0].numpy())
        if not ctx.method.inner.equalities:
            return None, torch.from_numpy(-u), None, None
        return None, torch.from_numpy(-u), torch.from_numpy(nu.T @ u + w.T @ x), torch.from_numpy(-w.sum(axis=0))
