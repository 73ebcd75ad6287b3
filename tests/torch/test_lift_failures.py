"""Samples for which an expression of parameters has no finite value: they fail alone, and without a trace."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.func import grad, jacfwd, jacrev, vmap

from ffo.errors import GradientWarning
from ffo.torch import FFOLayer

Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

EYE, SINGULAR = np.eye(3), np.diag([1.0, 1.0, 0.0])
GOOD = np.diag([1.0, 2.0, 3.0])
NAN = np.where(np.eye(3, k=1) > 0, np.nan, np.eye(3))


def layer_of(bound: cp.Expression, parameters: list[cp.Parameter]) -> FFOLayer:
    """Minimize |x - 1|^2 so that the sum of x is equal to an expression."""
    x = cp.Variable(3)
    return FFOLayer(
        cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), [cp.sum(x) == bound]), parameters, [x], on_fail="nan"
    )


@pytest.mark.parametrize(
    ("atom", "bad"),
    [
        (cp.normNuc, NAN),
        (cp.sigma_max, NAN),
        (cp.lambda_max, NAN),
        (cp.lambda_max, np.diag([np.inf, 1.0, 1.0])),
        (lambda A: cp.matrix_frac(np.ones(3), A), SINGULAR),
        (lambda A: cp.gen_lambda_max(EYE, A), SINGULAR),
        (cp.tr_inv, SINGULAR),
    ],
)
def test_matrices_without_a_spectrum_or_inverse_fail_alone(atom, bad: np.ndarray) -> None:
    A = cp.Parameter((3, 3), symmetric=True)
    layer = layer_of(atom(A), [A])
    given = torch.tensor(np.stack([GOOD, bad, 2 * GOOD]), requires_grad=True)
    (x,) = layer(given)
    assert torch.isnan(x).all(dim=1).tolist() == [False, True, False]
    x[[0, 2]].sum().backward()
    assert torch.isfinite(given.grad).all()
    assert (given.grad[1] == 0).all()
    assert all((given.grad[k] != 0).any() for k in (0, 2))


def test_a_failed_sample_adds_nothing_to_the_gradient_of_a_shared_parameter() -> None:
    shared, own = cp.Parameter(name="shared"), cp.Parameter(name="own")
    layer = layer_of(cp.sqrt(own) * shared, [shared, own])
    s = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([4.0, -1.0, 9.0], dtype=torch.float64, requires_grad=True)
    (x,) = layer(s, t)
    assert torch.isnan(x).all(dim=1).tolist() == [False, True, False]
    x.nansum().backward()
    assert s.grad.item() == pytest.approx(2.0 + 3.0)
    assert t.grad.tolist() == pytest.approx([0.5, 0.0, 1 / 3])


def shared_and_own() -> tuple[FFOLayer, Tensor, Tensor]:
    """The sum of x is sqrt(own) times shared; the second of three samples is outside of the domain."""
    shared, own = cp.Parameter(name="shared"), cp.Parameter(name="own")
    layer = layer_of(cp.sqrt(own) * shared, [shared, own])
    return layer, torch.tensor(2.0, dtype=torch.float64), torch.tensor([4.0, -1.0, 9.0], dtype=torch.float64)


def test_the_same_inside_of_transforms() -> None:
    layer, s, t = shared_and_own()

    def total(s: Tensor, t: Tensor) -> Tensor:
        return layer(s, t)[0].nansum()

    def mapped(s: Tensor, t: Tensor) -> Tensor:
        return vmap(lambda one: layer(s, one)[0])(t).nansum()

    for function in (total, mapped):
        by_s, by_t = grad(function, (0, 1))(s, t)
        assert by_s.item() == pytest.approx(5.0)
        assert by_t.tolist() == pytest.approx([0.5, 0.0, 1 / 3])
    each, _ = vmap(grad(total, (0, 1)), (None, 0))(s, t)
    assert each.tolist() == pytest.approx([2.0, 0.0, 3.0])
    for jacobian in (jacrev, jacfwd):
        rows = jacobian(lambda s: layer(s, t)[0].sum(dim=1))(s)
        assert rows.tolist() == pytest.approx([2.0, 0.0, 3.0])


def test_an_expression_outside_of_its_domain_for_all_samples() -> None:
    shared, own = cp.Parameter(name="shared"), cp.Parameter(name="own")
    layer = layer_of(cp.sqrt(shared) * own, [shared, own])
    s = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([4.0, 1.0], dtype=torch.float64, requires_grad=True)
    (x,) = layer(s, t)
    assert torch.isnan(x).all()
    x.nansum().backward()
    assert s.grad.item() == 0.0
    assert (t.grad == 0).all()


@pytest.mark.parametrize("atom", [cp.norm, lambda v: cp.norm(v, 3), cp.norm1, lambda v: cp.sum(cp.sign(v))])
def test_a_parameter_that_is_nan_fails_its_sample(atom) -> None:
    v = cp.Parameter(2)
    given = torch.tensor([[1.0, 2.0], [np.nan, 1.0]], dtype=torch.float64)
    (x,) = layer_of(atom(v), [v])(given)
    assert torch.isnan(x).all(dim=1).tolist() == [False, True]


# Expressions without a derivative


def irregular(atom, values: list) -> tuple[FFOLayer, Tensor, Tensor]:
    v, w = cp.Parameter(np.shape(values[0]), name="v"), cp.Parameter(name="w")
    layer = layer_of(atom(v) * w, [v, w])
    return layer, torch.tensor(values, dtype=torch.float64, requires_grad=True), torch.tensor(2.0).double()


@pytest.mark.parametrize(
    ("atom", "values", "slopes"),
    [
        (cp.sqrt, [4.0, 0.0], [0.25, 0.0]),
        (cp.abs, [-4.0, 0.0], [-1.0, 0.0]),
        (lambda v: cp.maximum(v, 0), [4.0, 0.0], [1.0, 0.5]),
        (cp.norm, [[3.0, 4.0], [0.0, 0.0]], [[0.6, 0.8], [0.0, 0.0]]),
        (cp.floor, [0.5, 3.0], [0.0, 0.0]),
    ],
)
def test_samples_without_a_derivative_are_flagged(atom, values: list, slopes: list) -> None:
    """The first sample is regular, the second has a finite number for a derivative."""
    layer, v, w = irregular(atom, values)
    (x,) = layer(v, w)
    assert layer.info.certificate.good.tolist() == [True, False]  # as far as is known before a derivative
    with pytest.warns(GradientWarning, match=r"1 of 2 samples.*sample 1: .*no derivative.*v"):
        x.sum().backward()
    assert torch.allclose(v.grad, 2 * torch.tensor(slopes, dtype=torch.float64))
    assert layer.info.certificate.irregular.tolist() == [False, True]
    assert layer.info.certificate.good.tolist() == [True, False]
    assert "v" in layer.info.detail[1]
    with pytest.warns(GradientWarning):
        torch.func.jvp(lambda v: layer(v, w)[0], (v.detach(),), (torch.ones_like(v),))
    assert layer.info.certificate.good.tolist() == [True, False]


def test_a_derivative_that_does_not_go_there_is_good() -> None:
    """Of data without gradients, and of another expression."""
    x_free, y, c = cp.Variable(3), cp.Variable(), cp.Parameter(name="c")
    own = cp.Parameter(name="own")
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x_free - cp.exp(c) * c) + cp.square(y - cp.abs(own) * own)))
    layer = FFOLayer(problem, [c, own], [x_free, y])
    c_t, own_t = (torch.tensor([0.3, 0.0], dtype=torch.float64, requires_grad=True) for _ in range(2))
    x, y_t = layer(c_t, own_t)
    x.sum().backward(retain_graph=True)
    assert layer.info.certificate.good.all()
    with pytest.warns(GradientWarning):
        y_t.sum().backward()
    assert layer.info.certificate.good.tolist() == [True, False]
    x, y_t = layer(c_t, own_t.detach())
    (x.sum() + y_t.sum()).backward()
    assert layer.info.certificate.good.all()


def test_an_expression_that_the_batch_shares_is_flagged_in_all_samples() -> None:
    v, w = cp.Parameter(name="v"), cp.Parameter(name="w")
    layer = layer_of(cp.sqrt(v) + cp.exp(w) * w, [v, w])
    v_t = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    with pytest.warns(GradientWarning, match="2 of 2"):
        layer(v_t, torch.tensor([1.0, 2.0]).double())[0].sum().backward()
    assert v_t.grad.item() == 0.0


def test_an_overflow_inside_of_an_expression_is_flagged() -> None:
    layer, v, w = irregular(lambda v: 1 / (1 + cp.exp(v)), [0.0, 800.0])
    (x,) = layer(v, w)
    with pytest.warns(GradientWarning, match="overflow"):
        x.sum().backward()
    assert layer.info.certificate.good.tolist() == [True, False]


def test_smoothed_layers_flag_every_draw() -> None:
    x, v = cp.Variable(3), cp.Parameter(name="v")
    rows = [x <= cp.sqrt(v) * v]
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), rows), [v], [x], smoothing=0.01)
    v_t = torch.tensor([0.5, 0.0], dtype=torch.float64, requires_grad=True)
    with pytest.warns(GradientWarning):
        layer(v_t)[0].sum().backward()
    flagged = layer.info.certificate.irregular.reshape(2, -1)
    assert not flagged[0].any()
    assert flagged[1].all()


def test_a_single_sample_that_fails_has_no_gradient() -> None:
    own = cp.Parameter(name="own")
    t = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    (x,) = layer_of(cp.sqrt(own), [own])(t)
    assert torch.isnan(x).all()
    x.nansum().backward()
    assert t.grad.item() == 0.0


def test_a_matrix_of_one_entry_multiplies_a_vector() -> None:
    x, a, b = cp.Variable(3), cp.Parameter((1, 1)), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a * (b * np.arange(3))))), [a, b], [x])
    a_t = torch.tensor([[[2.0]], [[3.0]]], dtype=torch.float64, requires_grad=True)
    (found,) = layer(a_t, torch.tensor(0.5, dtype=torch.float64))
    assert torch.allclose(found, a_t.detach()[:, 0] * 0.5 * torch.arange(3))
    found.sum().backward()
    assert a_t.grad.ravel().tolist() == pytest.approx([1.5, 1.5])
