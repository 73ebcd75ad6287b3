"""FFOQPLayer where torch traces, compiles or batches what it is part of."""

from __future__ import annotations

import pytest
import torch
from qps import ORDER, around, call, gradients, known_qp, loss_of, tensors
from torch.autograd.functional import jacobian

from ffo.errors import DerivativeError
from ffo.torch import FFOQPLayer

TORCHS_OWN = ("ignore::DeprecationWarning", "ignore::UserWarning:torch", "ignore::FutureWarning:torch")


def test_a_failed_export_leaves_nothing_behind() -> None:
    """Tensors without numbers are not remembered for the next call of the same shape."""
    layer, blocks = FFOQPLayer(), around(known_qp(3, n=6, rows=13, equalities=0), 3)

    class Model(torch.nn.Module):
        def forward(self, *values: torch.Tensor) -> object:
            return call(layer, dict(zip(blocks, values, strict=True)))

    with pytest.raises(Exception, match="equal"):  # a solve is no graph
        torch.export.export(Model(), tuple(tensors(blocks, requires_grad=False).values()), strict=False)
    own, _ = gradients(layer, blocks)
    core, _ = gradients(FFOQPLayer(solver_args={"eps": 1e-10}), blocks)
    torch.testing.assert_close(own, core, rtol=1e-7, atol=1e-8)
