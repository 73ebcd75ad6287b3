"""PyTorch layers."""

from ffo.engine import Smoothing
from ffo.torch.layer import FFOLayer

__all__ = ["FFOLayer", "Smoothing"]
