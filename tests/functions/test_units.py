"""Problems whose variables differ in scale by orders of magnitude: solved as in good units, or refused."""

from __future__ import annotations

import pytest
import torch
from function_problems import D, leaves, quadratic, quadratic_layer, tensor

from ffo.functions.ghost import Local
from ffo.functions.problem import Functions, Problem, Tensor
from ffo.functions.products import Constraints, Differences
from ffo.functions.units import balance, metric
from ffo.torch import FFOFunctionLayer

N = 6


def in_units(theta: list[Tensor], d: Tensor) -> list[Tensor]:
    """The quadratic program in x = y / d."""
    Q, q, G, h, A, b = theta
    return [d.unsqueeze(1) * Q * d, d * q, G * d, h, A * d, b]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("samples", [1, 5])  # SLSQP and AUGLAG
@pytest.mark.parametrize("spread", [1e2, 1e6])
def test_units_change_neither_solutions_nor_gradients(spread: float, samples: int, seed: int) -> None:
    theta = quadratic(N, 5, seed=seed)
    mixed = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    d = spread ** torch.linspace(-0.5, 0.5, N, dtype=D)[mixed]
    layer = quadratic_layer(N)
    c = torch.linspace(-1, 1, N, dtype=D)
    found = []
    for program, loss in ((theta, c), (in_units(theta, d), c * d)):
        program = leaves(*(t.expand(samples, *t.shape) for t in program))
        y = layer(*program)
        (y * loss).sum().backward()
        assert layer.info.certificate.good.all()
        with torch.no_grad():
            torch.testing.assert_close(layer(*program), y, rtol=0.0, atol=1e-8 * float(y.abs().max()))
        found.append((y.detach(), program[1].grad))
    (y, gradient), (x, scaled) = found
    size = float(y.abs().max())
    torch.testing.assert_close(x * d, y, rtol=0.0, atol=1e-8 * size)
    torch.testing.assert_close(scaled * d, gradient, rtol=0.0, atol=1e-6 * float(gradient.abs().max()))


def test_units_are_those_of_the_diagonal_of_the_hessian() -> None:
    """Up to a small factor, also for coupled variables, and for differences of gradients."""
    source = torch.Generator().manual_seed(0)
    root = torch.randn(8, N, generator=source, dtype=D)
    d = 10.0 ** torch.linspace(-5, 5, N, dtype=D)
    Q = root.T @ root / d / d.unsqueeze(1)
    problem = Problem(Functions(lambda y: 0.5 * y @ Q @ y), (), (), {}, 1, (N,))
    y, none = d * torch.randn(1, N, generator=source, dtype=D), torch.zeros(1, 0, dtype=D)
    units = balance(y, Constraints(problem, y), lambda m: Differences(problem, y, none, m))
    ratio = units[0] * Q.diagonal().sqrt()
    assert 0.1 < float(ratio.min()) < float(ratio.max()) < 10


def test_a_variable_without_curvature_is_as_large_as_its_constraints_allow() -> None:
    problem = Problem(
        Functions(lambda y: 0.5 * y[0] ** 2 + y[1], lambda y: (y[0] - 1e-6 * y[1]).reshape(1)), (), (), {}, 1, (2,), 1
    )
    y, zero = tensor([[1.0, 1e6]]), torch.zeros(1, 1, dtype=D)
    found = metric(y, Constraints(problem, y), lambda m: Differences(problem, y, zero, m))
    assert bool(found.unlike)
    assert 1e5 < float(found.units[0, 1] / found.units[0, 0]) < 1e8


def test_variables_in_different_units_are_judged_in_their_own() -> None:
    """A program of the fuzzer (batch 1652 of "scaled columns", seed 20261123) at its minimizer over y2 and y3, with
    y1 = 1 and the constraint active, which used to have a residual of 1e-10. The minimizer over all three has
    y1 = 1687.5. A solver that returns the former point is corrected, with and without gradients."""
    p, a = tensor([-2e-2, 3e3, 1e4]), tensor([0.0, -600.0, -4000.0])
    Q = tensor([[2e-5, -4.0, 10.0], [-4.0, 1e6, -5e6], [10.0, -5e6, 9e7]])
    K = torch.zeros(3, 3, dtype=D)
    K[:2, :2], K[:2, 2], K[2, :2] = Q[1:, 1:], a[1:], a[1:]
    y2, y3, m = torch.linalg.solve(K, torch.cat([-p[1:] - Q[1:, 0], tensor([2.0625])])).tolist()
    point = tensor([1.0, y2, y3])
    given = (lambda p, y: 0.5 * y @ Q @ y + p @ y, lambda p, y: (a @ y - 2.0625).reshape(1))
    assert m > 0
    problem = Problem(Functions(*given), (p,), (False,), {}, 1, (3,), 1)
    assert float(Local(problem, point[None], tensor([[m]])).natural) > 1e-6
    layer = FFOFunctionLayer(*given, shape=3, dims=(1,), solver=lambda g, h, e, y0: point)
    for y in (layer(p), layer(p.clone().requires_grad_())):
        torch.testing.assert_close(y.detach(), torch.linalg.solve(Q, -p), rtol=1e-9, atol=0.0)


def test_a_nearly_linear_variable_does_not_hide_the_forces_of_others() -> None:
    """softplus(y1) has a curvature of 1e-13 and a slope of 1 at y1 = 30: in the units of that curvature, the force on
    y1 is 1e6 times that on y2, which is not at its minimum."""
    functions = Functions(
        lambda y: torch.nn.functional.softplus(y[0], threshold=100.0) + 0.5 * (y[1] - 1) ** 2,
        lambda y: (30 - y[0]).reshape(1),
    )
    problem = Problem(functions, (), (), {}, 1, (2,), 1)
    assert float(Local(problem, tensor([[30.0, 1.5]]), tensor([[1.0]]), True).natural) > 1e-3


def test_solutions_without_gradients_are_as_accurate() -> None:
    """A point with a small residual can be far away along a variable with little curvature."""
    a, d = tensor([3.0, -2.0, 0.5]), tensor([1e4, 1.0, 1e-4])
    layer = FFOFunctionLayer(
        lambda a, y: 0.5 * (y / d - a).square().sum() + (y[1:] / d[1:]).sum().exp(), shape=3, dims=(1,)
    )
    with torch.no_grad():
        y = layer(a)
    assert abs(float(y[0]) - 3e4) < 1e-8 * 3e4
