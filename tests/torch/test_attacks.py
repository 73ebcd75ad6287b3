"""Small programs that once gave wrong answers without a word, or raw errors: with the numbers of the attack."""

from __future__ import annotations

from collections.abc import Iterator

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo import solve_qp_batch
from ffo.errors import GradientWarning, Status
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer

tensor = torch.tensor


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("far", [1e8, 1e10])
@pytest.mark.parametrize("gradients", [False, True])
def test_distant_bounds_of_a_linear_program(gradients: bool, far: float) -> None:
    """Residuals were divided by the largest side: (0.891, 0.090) counted as a solution."""
    with torch.set_grad_enabled(gradients):
        z = FFOQPLayer()(
            None, tensor([1.0, 2.0], requires_grad=True), tensor([[-1.0, -1.0]]), tensor([-1.0]),
            lb=torch.zeros(2), ub=torch.full((2,), far),
        )  # fmt: skip
    torch.testing.assert_close(z.detach(), tensor([1.0, 0.0]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("far", [1e5, 1e9, 1e20])
def test_distant_rows_of_a_dense_program(far: float) -> None:
    rng = np.random.default_rng(0)
    p, G, h = rng.normal(size=50), rng.normal(size=(30, 50)), np.abs(rng.normal(size=30))
    expected = solve_qp_batch(np.eye(50), p, G, h).z
    more = solve_qp_batch(np.eye(50), p, np.vstack([G, rng.normal(size=(20, 50))]), np.append(h, np.full(20, far)))
    assert more.status == [Status.SOLVED]
    np.testing.assert_allclose(more.z, expected, rtol=0, atol=1e-10)


def test_curved_cones_without_gradients() -> None:
    """The solver's own point, off by 1e-4, was returned as it was."""
    rng = np.random.default_rng(1)
    x, b = cp.Variable(4), cp.Parameter(8)
    problem = cp.Problem(cp.Minimize(cp.norm(rng.normal(size=(8, 4)) @ x - b) + 0.5 * cp.norm(x)))
    layer, given = FFOLayer(problem, [b], [x]), tensor(rng.normal(size=(5, 8)), requires_grad=True)
    with torch.no_grad():
        (plain,) = layer(given)
    (polished,) = layer(given)
    torch.testing.assert_close(plain, polished.detach(), rtol=0, atol=1e-10)
    assert layer.info.residual.max() <= 1e-10


def test_a_gradient_with_pivots_far_apart() -> None:
    """-9.54 was called good."""
    Q, loss = tensor([[115.0, 0.0026], [0.0026, 1.02e-6]]), tensor([-5.0, -1e-4])
    layer, p = FFOQPLayer(), tensor([19.0, -8e-4], requires_grad=True)
    (loss * layer(Q, p, tensor([[8.0, -3e-4]]), tensor([0.1]))).sum().backward()
    det = 115 * 1.02e-6 - 0.0026**2
    exact = tensor([(1.02e-6 * 5 - 0.0026 * 1e-4) / det, (-0.0026 * 5 + 115 * 1e-4) / det])
    torch.testing.assert_close(p.grad, exact, rtol=1e-7, atol=0)
    assert layer.info.certificate.good.all()


def test_a_kink_at_the_origin() -> None:
    """Margins were measured beside |z|, which is rounding there."""
    layer, p = FFOQPLayer(), tensor([2.0, -3.0, 3.0], requires_grad=True)
    Q = tensor([[4.0, 0.0, 0.0], [0.0, 3.0, -1.0], [0.0, -1.0, 3.0]])
    G = tensor([[0.0, 1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, 1.0, 1.0]])
    with pytest.warns(GradientWarning):
        layer(Q, p, G, torch.zeros(3)).sum().backward()
    assert not layer.info.certificate.good.any()


def test_functions_whose_gradients_are_expanded() -> None:
    """The derivative of a sum is an expanded tensor, which cannot be changed in place."""
    layer = FFOFunctionLayer(lambda a, y: (y.sum() - a.sum()).square(), shape=2, dims=(1,))
    a = tensor([1.0, 2.0], requires_grad=True)
    layer(a).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(2), rtol=0, atol=1e-8)


def test_a_distant_ball() -> None:
    x, q = cp.Variable(3), cp.Parameter(3)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - q)), [cp.norm(x) <= 1e12, x <= 1e9]), [q], [x])
    given = tensor([0.5, -1.0, 2.0], requires_grad=True)
    (found,) = layer(given)
    found.sum().backward()
    torch.testing.assert_close(found.detach(), given.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(given.grad, torch.ones(3), rtol=0, atol=1e-12)
    assert layer.info.certificate.good.all()


def test_views_with_a_negative_bit() -> None:
    p = torch.view_as_complex(tensor([[0.3, 1.0], [0.1, -2.0]])).conj().imag
    assert p.is_neg()
    torch.testing.assert_close(FFOQPLayer()(torch.eye(2), p), -p.resolve_neg())
