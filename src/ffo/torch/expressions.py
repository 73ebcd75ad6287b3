"""Expressions of parameters in torch: the namespace for `program.expressions`, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite

import numpy as np
import torch

from ffo.program.canonical import CanonicalProblem
from ffo.program.expressions.evaluate import Expressions
from ffo.torch.function import inside_transform

Tensor = torch.Tensor
Axis = int | tuple[int, ...]


def with_expressions(
    canonical: CanonicalProblem, parameters: Sequence[Tensor], batched: tuple[bool, ...]
) -> tuple[list[Tensor], tuple[bool, ...]]:
    """The tensors of a problem's own parameters after the user's: in double precision, as all data of a solve."""
    lifted = canonical.lifted
    assert lifted is not None
    double = [p if p.dtype is torch.float64 else p.to(torch.float64) for p in parameters]
    xp = _namespace(parameters[0].device)
    values, own = lifted(xp, double), list(batched)
    if any(v.requires_grad for v in values) and not inside_transform() and not _all_finite(values):
        finite = [torch.isfinite(v) for v in values]
        double, own = _without_failed(lifted, double, batched, finite)
        values = lifted(xp, double)
    entering = canonical.map.entering
    kept = [p if k in entering else p.detach() for k, p in enumerate(parameters)]
    return [*kept, *values], (*batched, *lifted.batched(own))


def _all_finite(values: Sequence[Tensor]) -> bool:
    """Whether all entries are finite, told by their sums; false, too, where these overflow."""
    return all(isfinite(v.detach().sum().item()) for v in values)


def _without_failed(
    lifted: Expressions, parameters: Sequence[Tensor], batched: Sequence[bool], finite: Sequence[Tensor]
) -> tuple[list[Tensor], list[bool]]:
    """Parameters without a gradient in samples whose expressions are not finite, and which of them are batched now.

    Such a sample fails. The gradient of its solution is zero, but zero times the derivative of a logarithm of a
    negative number is NaN, which a shared parameter would hand on to the other samples.
    """
    failed = torch.zeros((), dtype=torch.bool, device=parameters[0].device)
    involved: set[int] = set()
    for one, many, depends in zip(finite, lifted.batched(batched), lifted.depends, strict=True):
        failed = failed | ~(one.reshape(len(one), -1).all(dim=1) if many else one.all())
        involved |= frozenset() if bool(one.all()) else depends
    found, own = list(parameters), list(batched)
    for k in involved:
        p, shape = parameters[k], lifted.shapes[k]
        found[k] = torch.where(failed.reshape((*failed.shape, *(1,) * len(shape))), p.detach(), p)
        own[k] = batched[k] or failed.ndim == 1
    return found, own


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
    slogdet = torch.linalg.slogdet

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

    # Where torch raises an error for the whole batch, a matrix without a spectrum or an inverse has NaN instead.

    def eigvalsh(self, x: Tensor) -> Tensor:
        return _spectrum(torch.linalg.eigvalsh, x)

    def eigvals(self, x: Tensor) -> Tensor:
        return _spectrum(torch.linalg.eigvals, x)

    def svdvals(self, x: Tensor) -> Tensor:
        return _spectrum(torch.linalg.svdvals, x)

    def inv(self, x: Tensor) -> Tensor:
        found, info = torch.linalg.inv_ex(x)
        return torch.where((info != 0)[..., None, None], torch.nan, found)

    def cholesky(self, x: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(x)[0]


def _spectrum(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not inside_transform() and _all_finite([x]):
        return function(x)
    finite = torch.isfinite(x).all(dim=-1).all(dim=-1)
    return torch.where(finite[..., None], function(torch.where(finite[..., None, None], x, 0.0)), torch.nan)
