"""Samples whose parameters break their declared attributes are refused, with the parameter's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy import sparse

from ffo.errors import InputError, InvalidDataError, Status
from ffo.program.declared import declarations
from ffo.torch import FFOLayer, FFOQPLayer, Smoothing
from ffo.torch.dense.declared import doubtful

D = torch.float64


def layer_of(parameter: cp.Parameter, **options: Any) -> FFOLayer:
    """min |x - p|^2 over a box: any value has a solution."""
    x = cp.Variable(parameter.shape)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - parameter)), [cp.abs(x) <= 9])
    return FFOLayer(problem, [parameter], [x], **options)


def matrix(*rows: list[float]) -> np.ndarray:
    return np.array(rows)


CASES: dict[str, tuple[Callable[[], cp.Parameter], np.ndarray, np.ndarray]] = {
    "nonneg": (lambda: cp.Parameter(2, nonneg=True), np.array([0.0, 1.0]), np.array([1.0, -1e-3])),
    "pos": (lambda: cp.Parameter(2, pos=True), np.array([0.5, 1.0]), np.array([1.0, -1e-3])),
    "nonpos": (lambda: cp.Parameter(2, nonpos=True), np.array([0.0, -1.0]), np.array([1e-3, -1.0])),
    "neg": (lambda: cp.Parameter(2, neg=True), np.array([-0.5, -1.0]), np.array([1e-3, -1.0])),
    "symmetric": (
        lambda: cp.Parameter((2, 2), symmetric=True), matrix([1.0, 2.0], [2.0, 1.0]), matrix([1.0, 2.0], [1.9, 1.0])
    ),
    "diag": (lambda: cp.Parameter((2, 2), diag=True), matrix([1.0, 0.0], [0.0, 2.0]), matrix([1.0, 0.1], [0.0, 2.0])),
    "PSD": (lambda: cp.Parameter((2, 2), PSD=True), matrix([1.0, 1.0], [1.0, 1.0]), matrix([1.0, 2.0], [2.0, 1.0])),
    "NSD": (lambda: cp.Parameter((2, 2), NSD=True), -matrix([1.0, 1.0], [1.0, 1.0]), matrix([-1.0, 2.0], [2.0, -1.0])),
    "boolean": (lambda: cp.Parameter(2, boolean=True), np.array([0.0, 1.0]), np.array([1.0, -0.5])),
    "integer": (lambda: cp.Parameter(2, integer=True), np.array([3.0, -2.0]), np.array([3.0, -1.9])),
    "sparse": (
        lambda: cp.Parameter((2, 2), sparsity=[(0, 1), (0, 1)]), matrix([1.0, 0.0], [0.0, 2.0]),
        matrix([1.0, 0.1], [0.0, 2.0]),
    ),
}  # fmt: skip
#: declared for some entries only: of a vector or a matrix, as CVXPY's coordinates or as entries
PARTS: dict[str, tuple[dict[str, Any], list[float], list[float]]] = {
    "coordinates": ({"shape": 3, "boolean": [(0, 2)]}, [1.0, 0.3, 0.0], [1.0, 0.0, 0.3]),
    "entries": ({"shape": 3, "integer": [(0,), (2,)]}, [1.0, 0.3, 7.0], [0.3, 1.0, 1.0]),
    "numbers": ({"shape": 3, "integer": [0, 2]}, [1.0, 0.3, 7.0], [0.3, 1.0, 1.0]),
    "arrays": (
        {"shape": (2, 2), "boolean": (np.array([0, 1]), np.array([0, 0]))}, [1.0, 0.3, 0.0, 0.2], [1.0, 1.0, 0.2, 0.0]
    ),
    "entries of a matrix": (
        {"shape": (2, 3), "boolean": [(0, 2), (1, 0)]}, [0.2, 0.2, 1.0, 0.0, 0.2, 0.2], [1.0, 1.0, 0.2, 0.0, 0.0, 0.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("declared", CASES)
def test_a_value_of_another_kind_is_refused_and_harms_no_other(declared: str) -> None:
    make, good, bad = CASES[declared]
    both = torch.tensor(np.stack([good, bad, good]), dtype=D)
    with pytest.raises(InvalidDataError, match=rf"sample 1 .*declared {declared} but"):
        layer_of(make())(both)
    layer = layer_of(make(), on_fail="nan")
    (x,) = layer(both.requires_grad_())
    assert layer.info.status == [Status.SOLVED, Status.INVALID_INPUT, Status.SOLVED]
    assert x.isnan().flatten(1).any(1).tolist() == [False, True, False]
    torch.testing.assert_close(x[0], both[0].detach(), atol=1e-9, rtol=0)
    x[[0, 2]].sum().backward()
    assert not both.grad[1].any()
    with pytest.raises(InvalidDataError, match=f"declared {declared} but"):
        layer_of(make())(torch.tensor(bad, dtype=D))  # shared by all samples
    layer_of(make())(torch.tensor(good - 1e-13, dtype=D))  # rounding is tolerated


def test_curvature_that_rests_on_a_sign() -> None:
    """x + p|x| <= 1 is convex only for p >= 0: with p = -0.5 its relaxation has another solution."""
    x, p = cp.Variable(name="x"), cp.Parameter(nonneg=True, name="slope")
    layer = FFOLayer(cp.Problem(cp.Maximize(x), [x + p * cp.abs(x) <= 1, x <= 9]), [p], [x])
    with pytest.raises(InvalidDataError, match=r"parameter 0 \(slope\) was declared nonneg but has the entry -0.5"):
        layer(torch.tensor(-0.5, dtype=D))


def test_curvature_that_rests_on_a_boolean() -> None:
    """CVXPY takes a boolean parameter as nonnegative."""
    x, p = cp.Variable(name="x"), cp.Parameter(boolean=True, name="slope")
    layer = FFOLayer(cp.Problem(cp.Maximize(x), [x + p * cp.abs(x) <= 1, x <= 9]), [p], [x])
    with pytest.raises(InvalidDataError, match=r"parameter 0 \(slope\) was declared boolean but has the entry -0.5"):
        layer(torch.tensor(-0.5, dtype=D))
    torch.testing.assert_close(layer(torch.tensor(1.0, dtype=D))[0], torch.tensor(0.5, dtype=D))


@pytest.mark.parametrize("case", PARTS)
def test_entries_of_another_kind(case: str) -> None:
    arguments, good, bad = PARTS[case]
    parameter = cp.Parameter(**arguments)
    layer = layer_of(parameter)
    (found,) = layer(torch.tensor(good, dtype=D).reshape(parameter.shape))
    torch.testing.assert_close(found, torch.tensor(good, dtype=D).reshape(parameter.shape), atol=1e-9, rtol=0)
    with pytest.raises(InvalidDataError, match=r"declared (boolean|integer) but has the entry 0\.[23]"):
        layer(torch.tensor(bad, dtype=D).reshape(parameter.shape))


def test_a_pattern_and_bounds() -> None:
    pattern = [(0, 1), (0, 1)]
    upper = sparse.coo_array((np.array([2.0, 3.0]), pattern), shape=(2, 2))
    lower = sparse.coo_array((np.array([0.5, 0.5]), pattern), shape=(2, 2))
    for bounds in ([lower, upper], [lower, 3.0]):
        layer = layer_of(cp.Parameter((2, 2), sparsity=pattern, bounds=bounds))
        layer(torch.diag(torch.tensor([1.0, 3.0], dtype=D)))
        layer(torch.diag(torch.tensor([0.5, 3.0], dtype=D)))
        with pytest.raises(InvalidDataError, match=r"declared bounded but is outside its bounds by 0\.4"):
            layer(torch.diag(torch.tensor([1.0, 0.1], dtype=D)))
        with pytest.raises(InvalidDataError, match=r"declared sparse but has the entry 0\.7 outside its pattern"):
            layer(torch.tensor([[1.0, 0.7], [0.0, 2.0]], dtype=D))


@pytest.mark.parametrize("declared", CASES)
def test_devices_leave_the_same_samples_to_the_core(declared: str) -> None:
    make, good, bad = CASES[declared]
    found = declarations([make()], [False], [], 1)
    both = torch.tensor(np.stack([good, bad]), dtype=D).reshape(2, -1)
    assert doubtful(found, [both]).tolist() == [False, True]


def test_draws_of_a_refused_sample() -> None:
    layer = layer_of(cp.Parameter(2, nonneg=True), on_fail="nan", smoothing=Smoothing(0.1, draws=3))
    (x,) = layer(torch.tensor([[1.0, 2.0], [-1.0, 2.0]], dtype=D))
    assert x.isnan().any(1).tolist() == [False, True]


def test_meta_tensors_are_refused() -> None:
    with pytest.raises(InputError, match="meta tensors"):
        layer_of(cp.Parameter(2))(torch.zeros(2, dtype=D, device="meta"))


@pytest.mark.parametrize("settings", [{"radius": float("inf")}, {"radius": float("nan")}, {"costs": float("inf")}])
def test_smoothing_is_finite(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match="finite"):
        Smoothing(**settings)


def test_smoothing_is_refused_where_it_would_do_nothing() -> None:
    X, x, c = cp.Variable((3, 3), PSD=True), cp.Variable(3), cp.Parameter(3)
    for variable, rows in ((X, []), (x, [cp.sum(x) == 1])):
        cost = cp.sum_squares((cp.diag(X) if variable is X else x) - c)
        layer = FFOLayer(cp.Problem(cp.Minimize(cost), rows), [c], [variable], smoothing=0.1)
        with pytest.raises(InputError, match=r"has neither|semidefinite"):
            layer(torch.ones(3, dtype=D))
    equal = torch.ones(1, 3, dtype=D)
    with pytest.raises(InputError, match="has neither"):
        FFOQPLayer(smoothing=0.1)(torch.eye(3, dtype=D), torch.ones(3, dtype=D), A=equal, b=equal[:, 0])
