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
    """Tensors without values are not remembered for the next call of the same shape."""
    layer, blocks = FFOQPLayer(), around(known_qp(3, n=6, rows=13, equalities=0), 3)

    class Model(torch.nn.Module):
        def forward(self, *values: torch.Tensor) -> object:
            return call(layer, dict(zip(blocks, values, strict=True)))

    with pytest.raises(Exception, match="numpy"):  # a solve cannot be traced
        torch.export.export(Model(), tuple(tensors(blocks, requires_grad=False).values()), strict=False)
    own, _ = gradients(layer, blocks)
    core, _ = gradients(FFOQPLayer(solver_args={"eps": 1e-10}), blocks)
    torch.testing.assert_close(own, core, rtol=1e-7, atol=1e-8)


@pytest.mark.filterwarnings(*TORCHS_OWN)
def test_compiled_models_break_their_graph_at_the_layer() -> None:
    layer, blocks = FFOQPLayer(duals=True), around(known_qp(4, lower=True, bounds=True), 3)
    _, expected = gradients(layer, blocks)

    def model(*values: torch.Tensor) -> torch.Tensor:
        return 2.0 * loss_of(call(layer, {name: 1.0 * v for name, v in zip(blocks, values, strict=True)}))

    params = tensors(blocks)
    torch.compile(model, backend="aot_eager")(*params.values()).backward()
    for name, p in params.items():
        torch.testing.assert_close(p.grad, 2.0 * torch.from_numpy(expected[name]), msg=name)


@pytest.mark.parametrize("options", [{}, {"solver_args": {"eps": 1e-10}}], ids=["own", "core"])
def test_vectorized_jacobians_are_refused_in_words(options: dict[str, object]) -> None:
    layer, blocks = FFOQPLayer(**options), tensors(known_qp(5).blocks, requires_grad=False)
    values = tuple(blocks[name] for name in ORDER if name in blocks)
    with pytest.raises(DerivativeError, match=r"vectorize=True"):
        jacobian(lambda *v: call(layer, dict(zip(blocks, v, strict=True))), values, vectorize=True)
