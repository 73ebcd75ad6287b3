"""Answers and gradients do not depend on the units of the data."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwad

from ffo.errors import GradientWarning, Status
from ffo.torch import FFOLayer, FFOQPLayer

SIZES = [1e-8, 1e-5, 1e-2, 1e3, 1e6]
RANDOM = np.random.default_rng(0)
FACTOR, LINEAR, WEIGHTS = RANDOM.normal(size=(3, 3)), RANDOM.normal(size=3), torch.tensor([1.0, 2.0, 3.0]).double()


def factor_problem() -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    """1/2 |Lx|^2 + q'x on a simplex of size r: the factor has its own scale in the canonical form."""
    x, L, q, r = cp.Variable(3), cp.Parameter((3, 3)), cp.Parameter(3), cp.Parameter()
    objective = 0.5 * cp.sum_squares(L @ x) + q @ x
    return cp.Problem(cp.Minimize(objective), [x >= 0, cp.sum(x) <= r]), [L, q, r], x


def solved(layer: FFOLayer, values: list[object]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    params = [torch.tensor(np.asarray(v, dtype=float), requires_grad=True) for v in values]
    (x,) = layer(*params)
    (x @ WEIGHTS).backward()
    return x.detach(), [p.grad for p in params]


@pytest.mark.parametrize("solver", [None, "CLARABEL", "PIQP", "SCS", "OSQP"])
@pytest.mark.parametrize("size", SIZES)
def test_size_of_the_objective(size: float, solver: str | None) -> None:
    problem, parameters, x = factor_problem()
    layer = FFOLayer(problem, parameters, [x], solver=solver)
    expected, (dL, dq, dr) = solved(layer, [FACTOR, LINEAR, 1.0])
    found, (dL2, dq2, dr2) = solved(layer, [FACTOR * np.sqrt(size), LINEAR * size, 1.0])
    assert layer.info.certificate.good.all()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    for f, e, unit in ((dL2, dL, np.sqrt(size)), (dq2, dq, size), (dr2, dr, 1.0)):
        torch.testing.assert_close(f * unit, e, rtol=1e-7, atol=1e-9)
    with torch.no_grad():
        plain = layer(*(torch.tensor(np.asarray(v)) for v in (FACTOR * np.sqrt(size), LINEAR * size, 1.0)))[0]
    torch.testing.assert_close(plain, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("size", SIZES)
def test_size_of_the_right_hand_sides(size: float) -> None:
    """min 1/2 |Lx|^2 / size + q'x has its solution at size times the one for size 1."""
    problem, parameters, x = factor_problem()
    layer = FFOLayer(problem, parameters, [x])
    expected, _ = solved(layer, [FACTOR, LINEAR, 1.0])
    found, _ = solved(layer, [FACTOR / np.sqrt(size), LINEAR, size])
    assert layer.info.certificate.good.all()
    torch.testing.assert_close(found / size, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sizes", [(1e-4, 1e3), (1e5, 1e-4), (1e-6, 1e-6)])
def test_semidefinite(sizes: tuple[float, float]) -> None:
    X, C, t = cp.Variable((2, 2), PSD=True), cp.Parameter((2, 2), symmetric=True), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.trace(C @ X)), [cp.trace(X) == t]), [C, t], [X])
    weights = torch.tensor([[1.0, 2.0], [2.0, -1.0]]).double()

    def gradient(c: float, trace: float) -> tuple[torch.Tensor, torch.Tensor]:
        cost = torch.tensor(c * np.array([[1.0, 0.5], [0.5, 2.0]]), requires_grad=True)
        (found,) = layer(cost, torch.tensor(trace).double())
        (found * weights).sum().backward()
        assert layer.info.certificate.good.all()
        return found.detach() / trace, cost.grad * c / trace

    for found, expected in zip(gradient(*sizes), gradient(1.0, 1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_mixed_sizes_in_one_batch() -> None:
    problem, parameters, x = factor_problem()
    layer = FFOLayer(problem, parameters, [x])
    sizes = np.array([1.0, 1e-7, 1e5])
    L = torch.tensor(FACTOR * np.sqrt(sizes)[:, None, None])
    q = torch.tensor(LINEAR * sizes[:, None], requires_grad=True)
    (found,) = layer(L, q, torch.tensor(1.0).double())
    torch.testing.assert_close(found, found[:1].expand(3, 3), rtol=0, atol=1e-9)
    assert layer.info.certificate.good.all()


def test_large_values_are_not_infeasible() -> None:
    """The optimal value is 6e7, and solvers end close to it: refused if the other entries are not right."""
    x, b = cp.Variable(3), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.power(x - b, 4))), [x <= 2])
    layer = FFOLayer(problem, [b], [x], on_fail="nan")
    (found,) = layer(torch.tensor([[90.0, 1.0, -5.0], [9.0, 1.0, -5.0]]).double().requires_grad_())
    assert layer.info.status[0] not in (Status.INFEASIBLE, Status.UNBOUNDED)
    assert layer.info.status[1] is Status.SOLVED
    right = torch.tensor([2.0, 1.0, -5.0], dtype=torch.float64).expand(2, 3)
    solved = torch.tensor(layer.info.ok)
    torch.testing.assert_close(found[solved], right[solved], rtol=0, atol=1e-3)  # quartic: flat around these


def test_an_indefinite_matrix_is_found_beside_a_bad_sample() -> None:
    x, P, q = cp.Variable(2), cp.Parameter((2, 2), PSD=True), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.quad_form(x, P) / 2 + q @ x), [x >= -1, x <= 1])
    layer = FFOLayer(problem, [P, q], [x], on_fail="nan")
    (found,) = layer(
        torch.diag(torch.tensor([1.0, -1.0])), torch.tensor([[0.0, 0.01], [float("nan"), 0.0], [0.2, 0.3]])
    )
    assert layer.info.status == [Status.INVALID_INPUT] * 3
    assert found.isnan().all()
    assert "not positive semidefinite" in layer.info.detail[0]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_forward_mode_warns_too() -> None:
    x, a = cp.Variable(), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize((x - a) ** 2), [x >= 0]), [a], [x])
    with pytest.warns(GradientWarning, match="weakly active"), fwad.dual_level():
        layer(fwad.make_dual(torch.tensor(0.0).double(), torch.tensor(1.0).double()))


def test_warm_start_can_be_declined_for_a_call_with_keys() -> None:
    x, a = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [x >= 0]), [a], [x])
    values = torch.randn(3, 2).double()
    layer(values, keys=[0, 1, 2])
    layer(values, keys=[0, 1, 2], warm_start=False)
    assert layer.info.warm_hits == 0
    layer(values, keys=[0, 1, 2])
    assert layer.info.warm_hits == 3


@pytest.mark.parametrize(("curvature", "costs"), [(1e-12, 1e6), (1e-15, 1e3), (1e-18, 1.0), (1e-18, 1e3), (1e-8, 1e9)])
def test_curvature_without_effect_excuses_nothing(curvature: float, costs: float) -> None:
    """Newton's step from the origin is 1e18, but x is bounded by 1: it is no unit for the rows."""
    x, p = cp.Variable(2), cp.Parameter(2)
    rows = [cp.sum(x) == 1, x >= 0, x <= 0.9]
    layer = FFOLayer(cp.Problem(cp.Minimize(p @ x + curvature * cp.sum_squares(x)), rows), [p], [x])
    (found,) = layer(torch.tensor([costs, 2 * costs], dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), [0.9, 0.1], atol=1e-9)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("solver", [None, "INTERIOR", "DENSE", "CLARABEL", "PIQP"])
@pytest.mark.parametrize("upper", [0.5, -1.0])
def test_contradictions_are_not_averaged(
    upper: float, solver: str | None, device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """z >= 1 and z <= upper, large costs, and hardly any curvature."""
    monkeypatch.setattr("ffo.torch.qp.worthwhile", lambda given: device)
    layer = FFOQPLayer(solver=solver, on_fail="nan")
    blocks = [torch.tensor(v, dtype=torch.float64) for v in ([[1e-12]], [1e8], [[-1.0], [1.0]], [-1.0, upper])]
    assert layer(*blocks).isnan().all()
    assert layer.info.status == [Status.INFEASIBLE]
