"""PyTorch layers."""

from ffo.engine import Relax, Smoothing
from ffo.program.quadratic import QPSolution
from ffo.torch.functional import FFOFunctionLayer
from ffo.torch.layer import FFOLayer
from ffo.torch.qp import FFOQPLayer

__all__ = ["FFOFunctionLayer", "FFOLayer", "FFOQPLayer", "QPSolution", "Relax", "Smoothing"]
