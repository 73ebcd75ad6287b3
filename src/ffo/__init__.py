"""Differentiable convex optimization layers whose backward pass is fully first-order.

The forward pass solves a convex problem with any solver; the backward pass solves one perturbed,
equality-constrained *ghost problem* instead of differentiating and inverting a KKT system.

The layers live in the front ends, and `import ffo` imports no framework and no solver:

    from ffo.torch import FFOLayer
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
