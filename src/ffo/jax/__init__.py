"""JAX layers."""

from ffo.engine import Relax, Smoothing
from ffo.jax.base import CallReport
from ffo.jax.layer import FFOLayer
from ffo.jax.qp import FFOQPLayer, solve_qp
from ffo.program.quadratic import QPSolution

__all__ = ["CallReport", "FFOLayer", "FFOQPLayer", "QPSolution", "Relax", "Smoothing", "solve_qp"]
