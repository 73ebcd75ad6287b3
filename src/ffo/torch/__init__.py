"""PyTorch layers."""

from ffo.torch.layer import FFOLayer

__all__ = ["FFOLayer"]
