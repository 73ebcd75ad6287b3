"""Problems given by functions, and references for their tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ffo.torch import FFOFunctionLayer

D = torch.float64


def distance(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1/2 |y - a|^2, whose minimizers are projections."""
    return 0.5 * (y - a).square().sum()


def tensor(*values: object) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=D)


def leaves(*values: torch.Tensor) -> list[torch.Tensor]:
    return [v.detach().clone().requires_grad_() for v in values]


def weights_of(y: torch.Tensor) -> torch.Tensor:
    return torch.cos(1.7 * torch.arange(y.numel(), dtype=y.dtype, device=y.device)).reshape(y.shape)


def gradients(layer: torch.nn.Module, theta: Sequence[torch.Tensor], **call: object) -> list[torch.Tensor]:
    """Gradients of a weighted sum of the solution in theta."""
    moving = leaves(*theta)
    y = layer(*moving, **call)
    y = y[0] if isinstance(y, tuple) else y
    (weights_of(y) * y).sum().backward()
    return [t.grad for t in moving]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def quadratic(n: int = 8, m: int = 6, condition: float = 100.0, seed: int = 0) -> list[torch.Tensor]:
    """Q (n, n), q (n,), G (m, n), h (m,), A (2, n), b (2,), with some of the inequalities active."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=D)

    vectors, _ = torch.linalg.qr(normal(n, n))
    Q = (vectors * torch.logspace(0, float(torch.log10(tensor(condition))), n, dtype=D)) @ vectors.T
    return [0.5 * (Q + Q.T), 3 * normal(n), normal(m, n), 0.1 * normal(m).abs(), normal(2, n), 0.1 * normal(2)]


def quadratic_layer(n: int = 8, **options: object) -> FFOFunctionLayer:
    """minimize 1/2 y'Qy + q'y  subject to  Gy <= h, Ay = b."""
    return FFOFunctionLayer(
        lambda Q, q, G, h, A, b, y: 0.5 * y @ (0.5 * (Q + Q.T) @ y) + q @ y,
        lambda Q, q, G, h, A, b, y: G @ y - h,
        lambda Q, q, G, h, A, b, y: A @ y - b,
        shape=n,
        dims=(2, 1, 2, 1, 2, 1),
        **options,
    )
