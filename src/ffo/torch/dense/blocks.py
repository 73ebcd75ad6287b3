"""FFOQPLayer on a device: its inputs are the blocks themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ffo.program.quadratic import Name
from ffo.torch.blocks import Form
from ffo.torch.dense.answer import Change
from ffo.torch.dense.program import Tensor


@dataclass(frozen=True)
class BlockFront:
    """Blocks of a form in; z out, or z, nu, lam and mu if `duals`."""

    form: Form
    duals: bool

    @property
    def names(self) -> tuple[Name, ...]:
        return self.form.names

    @property
    def shared(self) -> frozenset[Name]:
        return self.form.shared

    def blocks(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return values

    def outputs(self, z: Tensor, nu: Tensor, lam: Tensor, mu: Tensor) -> list[Tensor]:
        return [z, nu, lam, mu] if self.duals else [z]

    def incoming(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return (*gradients, *(None,) * (4 - len(gradients)))

    def wants_costs(self, wanted: Mapping[Any, bool]) -> bool:
        return wanted["p"]

    def gradients(self, change: Change, wanted: Mapping[Any, bool]) -> dict[Any, Tensor]:
        c, k = change, self.form.equalities
        parts: dict[str, Any] = {
            "p": lambda: c.u.clone(),  # copied outside of inference mode, so that users may change it
            "b": lambda: -c.t[:, :k],
            "h": lambda: _after(k, torch.where(c.rows > 0, -c.t, 0.0)),
            "lower": lambda: _after(k, torch.where(c.rows < 0, -c.t, 0.0)),
            "ub": lambda: torch.where(c.bounds > 0, -c.w, 0.0),
            "lb": lambda: torch.where(c.bounds < 0, -c.w, 0.0),
        }
        found: dict[Any, Tensor] = {}
        for name in (name for name, want in wanted.items() if want):
            shared = name in self.form.shared
            if name in parts:
                value = parts[name]()
                found[name] = value.sum(dim=0) if shared else value
            elif name == "Q":
                half = 0.5 * c.u
                found[name] = outer((half, c.z), (c.z, half), shared)
            else:
                lam, t = (v[:, :k] if name == "A" else _after(k, v) for v in (c.lam, c.t))
                found[name] = outer((lam, c.u), (t, c.z), shared)
        return found


def _after(k: int, v: Tensor) -> Tensor:
    """(batch, r) -> (batch, r - k), all but the first."""
    return v[:, k:] if k else v


def outer(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], summed: bool) -> Tensor:
    """a b' + c d' of every sample, or the sum over the batch, as one product."""
    (a, b), (c, d) = first, second
    if summed:
        return torch.cat([a, c]).mT @ torch.cat([b, d])
    return torch.addcmul(a.unsqueeze(2) * b.unsqueeze(1), c.unsqueeze(2), d.unsqueeze(1))
