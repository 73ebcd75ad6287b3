"""What autograd does not see of the functions that users give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from function_problems import D, distance
from torch.utils.checkpoint import checkpoint

from ffo.errors import InputError
from ffo.torch import FFOFunctionLayer

A = torch.tensor([[0.9, 0.8, 0.1], [-0.2, 0.1, 0.3], [2.0, 0.0, 0.0]], dtype=D)

CUT = {
    "numpy": lambda y: torch.tensor(y.numpy(force=True)),
    "detached": lambda y: y.detach(),
    "integers": lambda y: y.long(),
}


@pytest.mark.parametrize("solver", [None, "AUGLAG", "SLSQP"])
@pytest.mark.parametrize("cut", CUT)
def test_functions_that_autograd_does_not_see_are_refused(cut: str, solver: str | None) -> None:
    """They would count as constant: the start would be returned as a solution."""
    layer = FFOFunctionLayer(lambda a, y: (CUT[cut](y) - a).square().sum(), shape=3, dims=(1,), solver=solver)
    with pytest.raises(InputError, match="objective depends on y, but autograd does not see how"):
        layer(A)
    layer = FFOFunctionLayer(distance, lambda a, y: CUT[cut](y) - 0.5, shape=3, dims=(1,), solver=solver)
    with pytest.raises(InputError, match="inequality depends on y"):
        layer(A)


PARTLY_CUT = {
    "numpy": lambda y: float(np.sum((y.detach().numpy() - 5) ** 2)),
    "detached": lambda y: (y.detach() - 5).square().sum(),
    "item": lambda y: sum((v.item() - 5) ** 2 for v in y),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("cut", PARTLY_CUT)
def test_functions_are_refused_if_autograd_misses_a_part(cut: str, grad: bool) -> None:
    """The part counts as constant: a point that minimizes the rest was called a solution."""
    layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum() + PARTLY_CUT[cut](y), shape=3, dims=(1,))
    with torch.set_grad_enabled(grad), pytest.raises(InputError, match="objective depends on y, but autograd"):
        layer(A)
    layer = FFOFunctionLayer(distance, lambda a, y: y - PARTLY_CUT[cut](y), shape=3, dims=(1,))
    with torch.set_grad_enabled(grad), pytest.raises(InputError, match="inequality depends on y"):
        layer(A)


@pytest.mark.parametrize(
    "objective",
    [
        lambda a, y: (y - a).square().sum() + (y - 0.7).abs().sum() * 1e-3,
        lambda a, y: ((y - y.max().detach()).exp().sum().log() + y.max().detach()) + (y - a).square().sum(),
        lambda a, y: (y.float() - a.float()).square().sum() + (1e3 * y.float()).cos().sum() * 1e-3,
        lambda a, y: (y - a).square().sum() - (y + 1e-3).log().sum(),
        lambda a, y: (y - a).abs().pow(1.5).sum() + y.round().detach().sum() * 0.0,
        lambda a, y: (y - a).square().sum() + torch.cat([y, y[:1]]).median(),
        lambda a, y: (y - a).square().sum() + 1e-4 * (3000 * y).sin().sum(),
    ],
    ids=["kinks", "a stable maximum", "single precision", "the edge of its domain", "roots", "ties", "oscillations"],
)
def test_functions_that_autograd_sees_are_not_refused(objective: Callable[..., torch.Tensor]) -> None:
    layer = FFOFunctionLayer(objective, shape=3, dims=(1,), on_fail="nan")
    for start in (None, torch.full((3,), 0.5, dtype=D)):
        assert layer(A, y0=start).shape == A.shape


@pytest.mark.parametrize("row", [(0.75, i * 0.5, k * 0.25) for i in (1, -1) for k in (1, -1)])
def test_a_direction_along_which_a_function_does_not_change(row: tuple[float, ...]) -> None:
    """Along one of four signs of a direction, its derivative and its differences are nothing but rounding errors."""
    coefficients = torch.tensor(row, dtype=D)
    layer = FFOFunctionLayer(distance, None, lambda a, y: (coefficients @ y - 2).reshape(1), shape=3, dims=(1,))
    for k in range(3):
        torch.testing.assert_close(layer(A[k]) @ coefficients, torch.tensor(2.0, dtype=D))


def test_functions_with_checkpoints() -> None:
    """Their backward pass evaluates them again, outside vmap."""

    def term(y: torch.Tensor) -> torch.Tensor:
        return y.exp().sum()

    def objective(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y - a).square().sum() + checkpoint(term, y, use_reentrant=False)

    a, b = A.clone().requires_grad_(), A.clone().requires_grad_()
    found = FFOFunctionLayer(objective, shape=3, dims=(1,))(a)
    plain = FFOFunctionLayer(lambda a, y: (y - a).square().sum() + term(y), shape=3, dims=(1,))(b)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), v)[0] for y, v in ((found, a), (plain, b))))
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softplus(), torch.nn.Linear(4, 1))

    def with_module(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y - a).square().sum() + checkpoint(net, y, use_reentrant=False).sum()

    with pytest.raises(InputError, match="checkpoint on modules"):
        FFOFunctionLayer(with_module, shape=3, dims=(1,), modules=[net])(A)
