"""Right-hand sides that mean infinity."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import Status
from ffo.torch import FFOLayer, FFOQPLayer

Problem = tuple[cp.Minimize, list[cp.Constraint], cp.Variable]


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values, dtype=float))


def disc(x: cp.Variable) -> Problem:
    return cp.Minimize(3 * x[0] - 2 * x[1]), [cp.norm(x - np.array([-1.0, -2.0])) <= 1, x[0] + x[1] <= 10], x


def exponentials(x: cp.Variable) -> Problem:
    return cp.Minimize(cp.sum(cp.exp(x)) + np.array([-1.0, -2.0]) @ x), [], x


def matrix(x: cp.Variable) -> Problem:
    X = cp.bmat([[1 + x[0], x[1]], [x[1], 2 - x[0]]])
    return cp.Minimize(x[0] + 3 * x[1]), [X >> 0], x


def logistic(x: cp.Variable) -> Problem:
    return cp.Minimize(cp.logistic(x[0] - 2 * x[1]) + cp.sum_squares(x) + x[0]), [x[0] >= -3], x


@pytest.mark.parametrize("far", [1e4, 1e8, 1e9, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("build", [disc, exponentials, matrix, logistic])
def test_distant_rows_of_cone_programs_change_nothing(build: Callable[[cp.Variable], Problem], far: float) -> None:
    """From 1e10 on, most programs with curved cones were refused, or called unbounded."""
    objective, constraints, x = build(cp.Variable(2))
    side = cp.Parameter()
    layer = FFOLayer(cp.Problem(objective, [*constraints, x[0] + 3 * x[1] <= side]), [side], [x])
    (expected,), h = layer(tensor(100.0)), tensor(far).requires_grad_()
    (found,), info = layer.call(h)
    assert torch.allclose(found, expected, rtol=0.0, atol=1e-8)
    assert torch.equal(layer(h.detach())[0], found)
    found.sum().backward()
    assert info.certificate.good.all()
    assert h.grad is not None
    assert float(h.grad) == 0.0


def test_distant_rows_that_differ_by_sample() -> None:
    objective, constraints, x = disc(cp.Variable(2))
    side = cp.Parameter()
    layer = FFOLayer(cp.Problem(objective, [*constraints, x[0] + 3 * x[1] <= side]), [side], [x], on_fail="nan")
    (found,) = layer(tensor([1e12, -7.5, 1e10, -1e12]))
    assert [s.name for s in layer.info.status] == ["SOLVED", "SOLVED", "SOLVED", "INFEASIBLE"]
    assert torch.allclose(found[0], found[2], rtol=0.0, atol=1e-8)
    assert float(found[1, 0] + 3 * found[1, 1]) == pytest.approx(-7.5)


def test_a_distant_row_that_is_active_is_kept() -> None:
    """Without it, the program is unbounded, and with it, the solution is as large."""
    layer = FFOQPLayer(on_fail="nan")
    G, h = tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), tensor([1e10, 1.0, 1.0])
    found = layer(tensor(np.diag([0.0, 1.0])), tensor([-1.0, 0.5]), G, h)
    assert layer.info.status == [Status.SOLVED]
    np.testing.assert_allclose(found.numpy(), [1e10, -0.5], rtol=1e-8)


def test_distant_rows_of_a_quadratic_program_with_small_costs() -> None:
    """It was called unbounded."""
    layer = FFOQPLayer()
    G, h = tensor([[-2, -3, 1], [-2, 2, -1], [1, -1, -2]]), tensor([-1, 8, 1e10])
    found = layer(tensor(np.diag([0, 0, 1])), tensor([4e-5, 1e-5, 2]), G, h)
    np.testing.assert_allclose(found.numpy(), [-2, 1, -2], atol=1e-8)
