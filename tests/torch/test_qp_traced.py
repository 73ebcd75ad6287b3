"""FFOQPLayer where torch batches what it is part of."""

from __future__ import annotations

import pytest
from qps import ORDER, call, known_qp, tensors
from torch.autograd.functional import jacobian

from ffo.errors import DerivativeError
from ffo.torch import FFOQPLayer


@pytest.mark.parametrize("options", [{}, {"solver_args": {"eps": 1e-10}}], ids=["own", "core"])
def test_vectorized_jacobians_are_refused_in_words(options: dict[str, object]) -> None:
    layer, blocks = FFOQPLayer(**options), tensors(known_qp(5).blocks, requires_grad=False)
    values = tuple(blocks[name] for name in ORDER if name in blocks)
    with pytest.raises(DerivativeError, match=r"vectorize=True"):
        jacobian(lambda *v: call(layer, dict(zip(blocks, v, strict=True))), values, vectorize=True)
