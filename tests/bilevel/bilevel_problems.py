"""Nonsmooth bilevel problems with known answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import torch

from ffo.torch import FFOLayer, FFOQPLayer

D = torch.float64
A = 2.0  # a > 1 of the paper's example


def kink_layer(**options: Any) -> FFOLayer:
    """The paper's example g = (y - a)^2 / 2, h = y - a x: y = min(a, a x)."""
    y, x = cp.Variable(), cp.Parameter()
    return FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.square(y - A)), [y - A * x <= 0]), [x], [y], **options)


def kink_by_qp(**options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    qp = FFOQPLayer(**options)
    one = torch.ones(1, 1, dtype=D)
    p = torch.full((1,), -A, dtype=D)
    return lambda x: qp(one, p, one, (A * x).reshape(1))[..., 0]


def kink_by_autograd(x: torch.Tensor) -> torch.Tensor:
    """A stand-in for any other differentiable layer."""
    return torch.minimum(torch.full_like(x, A), A * x)


def above(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """F(x) = x - min(a, a x) = |x - 1| - 1 for a = 2."""
    return x - y
