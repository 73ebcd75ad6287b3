"""Flat minima, whose residual says little about the error of the solution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from function_problems import tensor

from ffo.torch import FFOFunctionLayer

Tensor = torch.Tensor

doubtful = pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
SAMPLES = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def quartic(a: Tensor, y: Tensor) -> Tensor:
    return (y - a).pow(4).sum()


def half_flat(a: Tensor, y: Tensor) -> Tensor:
    return (y[0] - a[0]).pow(4) + (y[1] - a[1]).square()


def turned(a: Tensor, y: Tensor) -> Tensor:
    """Flat along a direction that is not an axis."""
    return (y - a).sum().pow(4) + (y - a).diff().square().sum()


def box(a: Tensor, y: Tensor) -> Tensor:
    return torch.cat([y - 1, -y - 1])


def good(layer: FFOFunctionLayer, a: Tensor) -> bool:
    a = a.clone().requires_grad_()
    layer(a).sum().backward()
    assert layer.info.ok.all()
    return bool(layer.info.certificate.good.all())


@doubtful
@pytest.mark.parametrize("objective", [quartic, half_flat, turned])
@pytest.mark.parametrize("a", SAMPLES)
@pytest.mark.parametrize("hvp", ["difference", "autograd"])
def test_gradients_at_flat_minima_are_flagged(objective: Callable[..., Tensor], a: Tensor, hvp: str) -> None:
    layer = FFOFunctionLayer(objective, shape=2, dims=(1,), solver="AUGLAG", hvp=hvp)
    assert not good(layer, a)
    assert "flat" in " ".join(layer.info.certificate.reasons(0))


@doubtful
@pytest.mark.parametrize("first", [0.1354, -0.6, 0.9])
def test_a_minimum_that_is_flat_along_a_bound_is_flagged(first: float) -> None:
    layer = FFOFunctionLayer(quartic, box, shape=2, dims=(1,), solver="AUGLAG")
    assert not good(layer, tensor([first, -1.7819]))


@pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP"])
def test_curvature_that_only_vanishes_elsewhere_is_no_reason_for_doubt(solver: str) -> None:
    at_corner = FFOFunctionLayer(quartic, box, shape=2, dims=(1,), solver=solver)
    assert good(at_corner, tensor([2.0, -3.0]))
    curved = FFOFunctionLayer(
        lambda a, y: quartic(a, y) + 1e-3 * (y - a).square().sum(), shape=2, dims=(1,), solver=solver
    )
    assert good(curved, tensor([0.3, -1.2]))
    badly_scaled = FFOFunctionLayer(
        lambda a, y: 1e-6 * (y[0] - a[0]).square() + (y[1] - a[1]).cosh(), shape=2, dims=(1,), solver=solver
    )
    assert good(badly_scaled, tensor([0.3, -1.2]))


def cubic(a: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (y - a).square().sum() + y.abs().pow(3).sum()


def steep(a: Tensor, y: Tensor) -> Tensor:
    """Steps of differences at y = 0, where nothing says how long they should be, overflow."""
    return torch.cosh(1e9 * y).sum() - 1e9 * a @ y


@doubtful
@pytest.mark.parametrize(("objective", "derivative"), [(cubic, 1.0), (steep, 1e-9)])
def test_differences_that_are_coarse_at_zero_are_flagged(objective: Callable[..., Tensor], derivative: float) -> None:
    layer, a = FFOFunctionLayer(objective, shape=3, dims=(1,)), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    y = layer(a)
    y.sum().backward()
    assert not y.any()
    assert a.grad is not None
    assert (a.grad / derivative - 1).abs().max() > 1e-6  # else this test says nothing
    assert not layer.info.certificate.good.any()


@pytest.mark.parametrize("scale", [1e-5, 1e-9, 1e-11])
def test_a_bound_at_zero_with_a_small_force_is_active(scale: float) -> None:
    layer = FFOFunctionLayer(lambda a, y: 0.5 * (y - scale * a).square().sum(), lambda a, y: y, shape=3, dims=(1,))
    assert good(layer, tensor([0.5, 0.5, 0.5]))
