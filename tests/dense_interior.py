"""The batched interior-point method on its own, without polish."""

from __future__ import annotations

import torch

from ffo.torch.dense import interior
from ffo.torch.dense.graphs import Eager
from ffo.torch.dense.program import DensePoint, DenseProgram


def interior_point(program: DenseProgram, eps: float) -> tuple[DensePoint, torch.Tensor, torch.Tensor]:
    """A point, the worst relative residual (batch,) and the iterations taken (batch,)."""
    made = interior.prepare(program, eps)
    state = Eager().steps(interior.step, interior.start(made), interior.STEPS, made)
    return interior.point(state, made, program), state.best, state.steps
