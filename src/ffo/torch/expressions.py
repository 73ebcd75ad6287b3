"""Expressions of parameters in torch: the namespace for `program.expressions`, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite

import numpy as np
import torch

from ffo.program.canonical import CanonicalProblem
from ffo.program.expressions.evaluate import Expressions
from ffo.program.expressions.namespace import beside
from ffo.torch.function import inside_transform

Tensor = torch.Tensor
Axis = int | tuple[int, ...]


def with_expressions(
    canonical: CanonicalProblem, parameters: Sequence[Tensor], batched: tuple[bool, ...]
) -> tuple[list[Tensor], tuple[bool, ...]]:
    """The user's tensors, followed by those of the parameter expressions, in double precision."""
    lifted = canonical.lifted
    assert lifted is not None
    double = [p if p.dtype is torch.float64 else p.to(torch.float64) for p in parameters]
    xp = _namespace(parameters[0].device)
    values = lifted(xp, double)
    # Inside torch.func, code must not depend on values.
    if inside_transform() or (any(v.requires_grad for v in values) and not _all_finite(values)):
        values = _failing_alone(xp, lifted, double, batched, values)
    entering = canonical.map.entering
    kept = [p if k in entering else p.detach() for k, p in enumerate(parameters)]
    return [*kept, *values], (*batched, *lifted.batched(batched))


def _all_finite(values: Sequence[Tensor]) -> bool:
    """Whether all entries are finite, judged by their sums; also false if a sum overflows."""
    return all(isfinite(v.detach().sum().item()) for v in values)


def _failing_alone(
    xp: TorchNamespace,
    lifted: Expressions,
    parameters: Sequence[Tensor],
    batched: Sequence[bool],
    values: Sequence[Tensor],
) -> list[Tensor]:
    """The values, without a derivative in samples outside the domain of an expression.

    Such a sample fails, and the gradient of its solution is zero. But zero times the derivative of a logarithm at -1 is
    NaN, and a parameter shared by the batch would pass it on to all samples. So the expression is computed again at the
    values of a sample inside the domain, and its result is replaced by NaN.
    """
    found = list(values)
    for numbers, group in lifted.groups:
        own = sorted(group.depends[0])
        lead = int(any(batched[k] for k in own))
        finite = [torch.isfinite(values[k]) for k in numbers]
        inside = torch.stack([f.reshape((*f.shape[:lead], -1)).all(dim=-1) for f in finite]).all(dim=0)
        arrays = list(parameters)
        for k in own:
            arrays[k] = _moved_inside(parameters[k], inside, batched[k])
        for k, v in zip(numbers, group(xp, arrays), strict=True):
            found[k] = torch.where(beside(inside, v), v, torch.nan)
    return found


def _moved_inside(p: Tensor, inside: Tensor, batched: bool) -> Tensor:
    """A parameter, in which samples outside have the value of the first sample inside; detached if there is none."""
    fixed = p.detach()
    if not batched:
        return torch.where(inside.any(), p, fixed)
    first = torch.arange(len(inside), device=p.device) == inside.to(torch.int8).argmax()
    return torch.where(beside(inside, p), p, torch.where(beside(first, p), fixed, 0.0).sum(dim=0))


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
        found, info = torch.linalg.cholesky_ex(x)
        return torch.where((info != 0)[..., None, None], torch.nan, found)


def _spectrum(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not inside_transform() and _all_finite([x]):
        return function(x)
    finite = torch.isfinite(x).all(dim=-1).all(dim=-1)
    return torch.where(finite[..., None], function(torch.where(finite[..., None, None], x, 0.0)), torch.nan)
