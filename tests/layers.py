"""Helpers of the layer tests: losses, gradients and finite differences of tight solves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from zoo import Case

from ffo.torch import FFOLayer

Array = np.ndarray
TIGHT = {"eps": 1e-11}


def make_layer(case: Case, **options: object) -> FFOLayer:
    return FFOLayer(case.problem, case.parameters, case.variables, gp=case.gp, **options)


def tensors(
    values: Sequence[Array], requires_grad: bool = True, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    return [torch.tensor(v, dtype=dtype, requires_grad=requires_grad) for v in values]


def weights(shape: Sequence[int], first: int = 0) -> torch.Tensor:
    """Irregular weights of a loss, the same on every call."""
    count = int(np.prod(shape))
    return torch.cos(1.7 * torch.arange(first, first + count, dtype=torch.float64)).reshape(tuple(shape))


def loss_of(outputs: Sequence[torch.Tensor], batched: bool = False) -> torch.Tensor:
    """A weighted sum of all outputs: a number, or (batch,) of them with the weights of one sample."""
    total: torch.Tensor | float = 0.0
    for k, out in enumerate(outputs):
        shape = out.shape[1:] if batched else out.shape
        terms = out * weights(shape, first=11 * k).to(out)
        total = total + (terms.reshape(len(out), -1).sum(1) if batched else terms.sum())
    assert isinstance(total, torch.Tensor)
    return total


def gradients(layer: FFOLayer, values: Sequence[Array], **call: object) -> list[Array]:
    """Gradient of `loss_of` in every parameter of an unbatched call."""
    params = tensors(values)
    loss_of(layer(*params, **call)).backward()
    return [p.grad.numpy() for p in params]


def finite_difference(case: Case, values: Sequence[Array], directions: Sequence[Array], step: float = 1e-4) -> Array:
    """Derivative of `loss_of` along each parameter's direction separately, (parameters,).

    Fourth-order central differences of solves at eps 1e-11, whose optimality conditions are checked
    on the spot; all of them run as one batch.
    """
    layer = make_layer(case, solver_args=TIGHT)
    count = len(values)
    stacked = []
    for i, (v, d) in enumerate(zip(values, directions, strict=True)):
        offsets = np.zeros((count, 4, *(1,) * v.ndim))
        offsets[i] = step * np.reshape([1.0, -1.0, 2.0, -2.0], (4, *(1,) * v.ndim))
        stacked.append((v + offsets * d).reshape(4 * count, *v.shape))
    loss = loss_of(layer(*tensors(stacked)), batched=True).detach().numpy().reshape(count, 4)
    assert layer.info is not None
    assert layer.info.residual.max() < 1e-11, "the reference itself is not accurate"
    return (8 * (loss[:, 0] - loss[:, 1]) - (loss[:, 2] - loss[:, 3])) / (12 * step)


def relative_error(found: Array, expected: Array) -> float:
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
    return float(np.abs(np.asarray(found) - np.asarray(expected)).max(initial=0.0)) / scale
