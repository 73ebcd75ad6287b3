"""Quadratic programs with known solutions and multipliers, for the tests of FFOQPLayer and solve_qp_batch.

A solution is chosen first, then which bounds are active, with multipliers away from zero, and slacks away
from zero elsewhere; the vectors follow. Solution, multipliers and derivative are thus unique.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

Array = np.ndarray
ORDER = ("Q", "p", "G", "h", "A", "b", "lb", "ub", "lower")
MATRICES = ("Q", "G", "A")


@dataclass(frozen=True)
class KnownQP:
    """Blocks by name, and the solution: Qz + p + A'nu + G'lam + mu = 0."""

    blocks: dict[str, Array]
    z: Array
    nu: Array
    lam: Array
    mu: Array

    @property
    def answer(self) -> tuple[Array, ...]:
        return self.z, self.nu, self.lam, self.mu


def known_qp(
    seed: int = 0,
    n: int = 4,
    rows: int = 5,
    equalities: int = 1,
    *,
    rank: int | None = None,
    lower: bool = False,
    bounds: bool = False,
) -> KnownQP:
    """One program. `rank` of Q (default n, 0: no Q); `lower`: two-sided rows; `bounds`: lb and ub."""
    rng = np.random.default_rng([seed, n, rows, equalities])
    rank = n if rank is None else rank
    M = rng.normal(size=(n, rank))
    z, nu = rng.normal(size=n), rng.normal(size=equalities)
    G, A = rng.normal(size=(rows, n)), rng.normal(size=(equalities, n))
    candidates = rows + (n if bounds else 0)
    needed = max(n - equalities - rank, 0)
    room = max(n - equalities, 0)
    count = min(candidates, room, max(needed, (room + 1) // 2))
    assert count >= needed, "too few constraints for a unique solution"
    side = np.zeros(candidates, dtype=int)
    chosen = rng.permutation(candidates)[:count]
    side[chosen] = rng.choice([1, -1], size=count)
    if not lower:
        side[:rows] = np.abs(side[:rows])
    multiplier = side * rng.uniform(0.5, 1.5, size=candidates)
    upper_gap = np.where(side > 0, 0.0, rng.uniform(0.5, 1.5, size=candidates))
    lower_gap = np.where(side < 0, 0.0, rng.uniform(0.5, 1.5, size=candidates))
    lam, mu = multiplier[:rows], np.zeros(n)
    blocks: dict[str, Array] = {}
    if rank:
        blocks["Q"] = M @ M.T + (0.3 * np.eye(n) if rank == n else 0.0)
    if rows:
        blocks |= {"G": G, "h": G @ z + upper_gap[:rows]}
        if lower:
            blocks["lower"] = G @ z - lower_gap[:rows]
    if equalities:
        blocks |= {"A": A, "b": A @ z}
    if bounds:
        mu = multiplier[rows:]
        blocks |= {"ub": z + upper_gap[rows:], "lb": z - lower_gap[rows:]}
    Qz = blocks["Q"] @ z if rank else 0.0
    blocks["p"] = -(Qz + A.T @ nu + G.T @ lam + mu)
    return KnownQP({name: blocks[name] for name in ORDER if name in blocks}, z, nu, lam, mu)


#: shapes of programs for most tests
KINDS: dict[str, KnownQP] = {
    "inequalities and equalities": known_qp(0),
    "inequalities": known_qp(1, equalities=0),
    "equalities": known_qp(2, rows=0, equalities=2),
    "no constraints": known_qp(3, rows=0, equalities=0),
    "two-sided rows": known_qp(4, lower=True),
    "bounds": known_qp(5, rows=0, equalities=0, bounds=True),
    "everything": known_qp(6, n=6, rows=4, equalities=2, lower=True, bounds=True),
    "singular Q": known_qp(7, n=5, rank=2, bounds=True),
    "linear": known_qp(8, n=4, rows=6, rank=0),
    "linear with bounds": known_qp(9, n=4, rows=3, rank=0, bounds=True, lower=True),
    "one variable": known_qp(10, n=1, rows=2, equalities=0),
    "one variable, bounds": known_qp(11, n=1, rows=0, equalities=0, bounds=True),
    "one variable, equality": known_qp(12, n=1, rows=1, equalities=1),
}


def tensors(
    blocks: dict[str, Array], requires_grad: bool = True, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, dtype=dtype, requires_grad=requires_grad) for k, v in blocks.items()}


def stacked(programs: Sequence[dict[str, Array]], shared: Sequence[str] = ()) -> dict[str, Array]:
    """A batch of programs; blocks in `shared` are taken from the first."""
    first = programs[0]
    return {k: v if k in shared else np.stack([b[k] for b in programs]) for k, v in first.items()}


def around(
    known: KnownQP, size: int, shared: Sequence[str] = (), seed: int = 0, spread: float = 0.02
) -> dict[str, Array]:
    """A batch of programs near a known one, with its active set."""
    rng = np.random.default_rng(seed)
    near = []
    for _ in range(size):
        blocks = {k: v + spread * rng.normal(size=v.shape) for k, v in known.blocks.items()}
        if "Q" in blocks:  # keep Q symmetric and its rank
            blocks["Q"] = known.blocks["Q"] * (1 + spread * rng.normal())
        near.append(blocks)
    return stacked(near, shared)


def call(layer: object, blocks: dict[str, torch.Tensor], **options: object) -> object:
    """Call a layer in qpth's argument order, absent blocks as None."""
    first = [blocks.get(name) for name in ORDER[:6]]
    return layer(*first, **{k: blocks[k] for k in ORDER[6:] if k in blocks}, **options)


def loss_of(outputs: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
    """Irregularly weighted sum over all outputs, the same weights for each sample."""
    total = torch.zeros((), dtype=torch.float64)
    for k, out in enumerate([outputs] if isinstance(outputs, torch.Tensor) else outputs):
        weights = torch.cos(1.7 * torch.arange(11 * k, 11 * k + out.shape[-1], dtype=torch.float64)).to(out.device)
        total = total + (out * weights).sum().to(total)
    return total


def gradients(layer: object, blocks: dict[str, Array], **options: object) -> tuple[object, dict[str, Array]]:
    """Outputs and gradients of `loss_of` in every block."""
    params = tensors(blocks)
    outputs = call(layer, params, **options)
    loss_of(outputs).backward()
    return outputs, {k: p.grad.numpy() for k, p in params.items()}


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Outputs and gradients of two routes to one answer."""
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-8, atol=1e-8)
