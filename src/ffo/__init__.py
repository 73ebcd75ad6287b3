"""Differentiable convex optimization layers whose backward pass is fully first-order.

The forward pass solves a convex problem with any solver; the backward pass solves one perturbed,
equality-constrained *ghost problem* instead of differentiating and inverting a KKT system.

The layers are in the front ends; `import ffo` itself imports no framework and no solver:

    from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer
    from ffo.jax import FFOLayer, FFOQPLayer, solve_qp
    from ffo import solve_qp_batch  # NumPy, no gradients
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffo.quadratic import QPBatch, solve_qp_batch

__all__ = ["QPBatch", "__version__", "solve_qp_batch"]

__version__ = "0.1.0.dev0"

_LAZY = ("QPBatch", "solve_qp_batch")


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from ffo import quadratic

        return getattr(quadratic, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
