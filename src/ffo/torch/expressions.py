"""Expressions of parameters in torch: what `program.expressions` needs, and autograd does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ffo.program.canonical import CanonicalProblem

Tensor = torch.Tensor
Axis = int | tuple[int, ...]


def with_expressions(
    canonical: CanonicalProblem, parameters: Sequence[Tensor], batched: tuple[bool, ...]
) -> tuple[list[Tensor], tuple[bool, ...]]:
    """The tensors of a problem's own parameters after the user's: in double precision, as all data of a solve."""
    lifted = canonical.lifted
    assert lifted is not None
    double = [p.to(torch.float64) for p in parameters]
    values = lifted(_namespace(parameters[0].device), double)
    entering = canonical.map.entering
    kept = [p if k in entering else p.detach() for k, p in enumerate(parameters)]
    return [*kept, *values], (*batched, *lifted.batched(batched))


@lru_cache(maxsize=16)
def _namespace(device: torch.device) -> TorchNamespace:
    return TorchNamespace(device)


class TorchNamespace:
    """torch in NumPy's spelling, for tensors on one device (see `program.expressions.namespace`)."""

    # Functions of torch are builtins, which do not become methods.
    exp, log, log1p, sqrt, abs, sign = torch.exp, torch.log, torch.log1p, torch.sqrt, torch.abs, torch.sign
    sin, cos, tan, sinh, tanh = torch.sin, torch.cos, torch.tan, torch.sinh, torch.tanh
    arcsinh, arctanh, erf, logaddexp = torch.asinh, torch.atanh, torch.erf, torch.logaddexp
    round, ceil, floor = torch.round, torch.ceil, torch.floor
    maximum, minimum, where, matmul = torch.maximum, torch.minimum, torch.where, torch.matmul
    broadcast_to, transpose, reshape = torch.broadcast_to, torch.permute, torch.reshape
    eigvalsh, eigvals, svdvals = torch.linalg.eigvalsh, torch.linalg.eigvals, torch.linalg.svdvals
    slogdet, inv = torch.linalg.slogdet, torch.linalg.inv

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def asarray(self, value: np.ndarray) -> Tensor:
        return torch.as_tensor(value, device=self.device)

    def take(self, x: Tensor, places: np.ndarray, axis: int) -> Tensor:
        return x.index_select(axis, self.asarray(places))

    def sum(self, x: Tensor, axis: Axis, keepdims: bool = False) -> Tensor:
        return torch.sum(x, dim=axis, keepdim=keepdims)

    def prod(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        return torch.prod(x, dim=axis, keepdim=keepdims)

    def max(self, x: Tensor, axis: Axis, keepdims: bool = False) -> Tensor:
        return torch.amax(x, dim=axis, keepdim=keepdims)

    def min(self, x: Tensor, axis: Axis, keepdims: bool = False) -> Tensor:
        return torch.amin(x, dim=axis, keepdim=keepdims)

    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        return torch.cumsum(x, dim=axis)

    def sort(self, x: Tensor, axis: int) -> Tensor:
        return torch.sort(x, dim=axis).values

    def concatenate(self, values: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(list(values), dim=axis)

    def cholesky(self, x: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(x)[0]
