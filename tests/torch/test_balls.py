"""Norm balls in batches, which Newton's method solves before a solver is called."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.torch import FFOLayer

N, BATCH = 40, 48


def ball() -> tuple[cp.Problem, list[cp.Parameter], cp.Variable, cp.Constraint]:
    """min 1/2 y'Dy - q'y, 0 <= y <= 1, sum y <= k, |y| <= c."""
    q, c, k, D = cp.Parameter(N), cp.Parameter(nonneg=True), cp.Parameter(), np.linspace(0.5, 2.0, N)
    y = cp.Variable(N)
    norm = cp.norm(y, 2) <= c
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(y, np.diag(D)) - q @ y), [y >= 0, y <= 1, cp.sum(y) <= k, norm])
    return problem, [q, c, k], y, norm


def values(batch: int = BATCH) -> list[torch.Tensor]:
    """Costs so small that half of the samples stay inside the ball, with different radii and budgets per sample."""
    generator = torch.Generator().manual_seed(0)
    q, c, k = (torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in ((N,), (), ()))
    q[::2] *= 0.05
    return [v.requires_grad_() for v in (q, 1.0 + 0.1 * c.tanh(), 4.0 + k.tanh())]


def gradients(layer: FFOLayer, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = layer(*inputs)
    generator = torch.Generator().manual_seed(1)
    loss = sum((out * torch.randn(out.shape, generator=generator, dtype=out.dtype)).sum() for out in outputs)
    return [*outputs, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("dual", [False, True], ids=["solution", "multiplier too"])
@pytest.mark.parametrize("other", [{"solver": "CLARABEL"}, {"solver": "SCS", "backward": "iterative"}], ids=str)
def test_agrees_with_solvers(dual: bool, other: dict[str, str]) -> None:
    problem, parameters, y, norm = ball()
    variables = [y, norm.dual_variables[0]] if dual else [y]
    layer = FFOLayer(problem, parameters=parameters, variables=variables)
    reference = FFOLayer(problem, parameters=parameters, variables=variables, **other)
    found, expected = gradients(layer, values()), gradients(reference, values())
    assert set(layer.info.solver) == {"Newton"}
    assert set(reference.info.solver) == {other["solver"]}
    assert layer.info.certificate.good.all()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8)
    inside = found[0].norm(dim=1) < values()[1] - 1e-6
    assert 0.2 < inside.double().mean() < 0.8
    assert (found[-2][inside].abs() < 1e-18).all()  # an inactive ball has no influence
    assert (found[-2][~inside].abs() > 1e-9).all()


def test_agrees_with_finite_differences() -> None:
    problem, parameters, y, _ = ball()
    layer = FFOLayer(problem, parameters=parameters, variables=[y])
    tight = FFOLayer(problem, parameters=parameters, variables=[y], solver="CLARABEL", solver_args={"eps": 1e-12})
    inputs = values()
    weights = torch.randn(BATCH, N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = torch.autograd.grad((layer(*inputs)[0] * weights).sum(), inputs)
    for k, value in enumerate(inputs):
        move = torch.randn(value.shape, generator=torch.Generator().manual_seed(k), dtype=value.dtype)
        losses = []
        for step in (1e-6, -1e-6):
            changed = [v + step * move if i == k else v for i, v in enumerate(inputs)]  # with gradients: polished
            losses.append((tight(*changed)[0] * weights).sum(dim=1).detach())
        along = (losses[0] - losses[1]) / 2e-6
        mine = (found[k] * move).reshape(BATCH, -1).sum(dim=1)
        torch.testing.assert_close(mine, along, rtol=1e-5, atol=1e-6)


def test_single_precision_comes_back_in_single_precision() -> None:
    problem, parameters, y, _ = ball()
    layer = FFOLayer(problem, parameters=parameters, variables=[y])
    inputs = [v.detach().float().requires_grad_() for v in values()]
    (out,) = layer(*inputs)
    assert out.dtype == torch.float32
    assert set(layer.info.solver) == {"Newton"}
    out.sum().backward()
    assert all(v.grad is not None and v.grad.dtype == torch.float32 for v in inputs)
