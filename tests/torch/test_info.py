"""`layer.info` and the certificate: what was done, how well, and whether to trust the gradient."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import loss_of, make_layer, tensors

from ffo.errors import GradientWarning, NotCalledError, Status
from ffo.torch import FFOLayer


def test_nothing_is_known_before_the_first_call() -> None:
    with pytest.raises(NotCalledError, match="call the layer first"):
        make_layer(zoo.build("relu")).info  # noqa: B018


@pytest.mark.parametrize("name", zoo.CASES)
def test_well_posed_problems_are_called_good(name: str) -> None:
    """No GradientWarning (warnings are errors here), and every piece of evidence is in place."""
    case, size = zoo.build(name), 3
    layer = make_layer(case)
    outputs = layer(*tensors(case.batch(size, np.random.default_rng(5))))
    info = layer.info
    assert info.status == [Status.SOLVED] * size
    assert all(info.solver)
    assert info.ok.shape == info.residual.shape == info.iterations.shape == (size,)
    assert info.residual.max() < 1e-9
    assert not info.retried.any()
    assert not info.rescued.any()
    assert np.isnan(info.certificate.ghost_residual).all()
    loss_of(outputs, batched=True).sum().backward()
    certificate = info.certificate
    assert certificate.good.all(), [certificate.reasons(k) for k in range(size)]
    assert certificate.reasons(0) == []
    assert certificate.error.max() < 1e-6
    assert certificate.natural_residual.max() < 1e-9
    assert certificate.ghost_residual.max() < 1e-8


def test_times_add_up() -> None:
    case = zoo.build("ball_constrained")
    layer = make_layer(case, solver="CLARABEL")
    outputs = layer(*tensors(case.batch(4, np.random.default_rng(0))))
    times = layer.info.times
    assert times.solve > 0
    assert times.polish > 0
    assert times.backward == 0
    assert times.setup + times.solve + times.polish <= times.forward
    loss_of(outputs, batched=True).sum().backward()
    assert layer.info.times.backward > 0


def test_info_belongs_to_its_call() -> None:
    """The report of an earlier call is not rewritten by a later one."""
    case = zoo.build("relu")
    layer = make_layer(case)
    (first,) = layer(*tensors(case.values))
    report = layer.info
    layer(*tensors(case.batch(3, np.random.default_rng(0))))
    assert layer.info is not report
    first.sum().backward()
    assert len(report.status) == 1
    assert report.certificate.ghost_residual.shape == (1,)
    assert layer.info.times.backward == 0


def test_weakly_active_points_are_flagged() -> None:
    """relu at zero: the derivative jumps, a one-sided one is returned, and a warning is issued."""
    case = zoo.build("relu")
    layer = make_layer(case)
    x = torch.tensor([[1.0, -1, 2, 0, -2, 3], [1, -1, 2, 0.5, -2, 3]], dtype=torch.float64, requires_grad=True)
    (y,) = layer(x)
    with pytest.warns(GradientWarning, match=r"1 of 2 samples is in doubt .* sample 0: .*weakly active.*smoothing="):
        y.sum().backward()
    assert layer.info.certificate.good.tolist() == [False, True]
    assert layer.info.certificate.weakly_active.tolist() == [True, False]
    assert "weakly active" in layer.info.certificate.reasons(0)[0]
    np.testing.assert_allclose(x.grad[1], [1, 0, 1, 1, 0, 1], atol=1e-9)
    slope = float(x.grad[0, 3])  # a one-sided derivative, not a number in between
    assert min(abs(slope), abs(slope - 1)) < 1e-9


def test_a_solution_that_is_not_unique_is_flagged() -> None:
    x, c, b = cp.Variable(2), cp.Parameter(2), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(c @ x), [cp.sum(x) >= b, x >= 0]), [c, b], [x])
    params = [torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True), torch.tensor(1.0, dtype=torch.float64)]
    (y,) = layer(*params)
    with pytest.warns(GradientWarning):
        (y * torch.tensor([1.0, 2.0])).sum().backward()
    assert not layer.info.certificate.good[0]
    assert params[0].grad.isfinite().all()


def test_a_failed_sample_is_not_a_reason_to_warn() -> None:
    x, u = cp.Variable(2), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), [x >= 0, cp.sum(x) <= u])
    layer = FFOLayer(problem, [u], [x], on_fail="nan")
    u_t = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    (y,) = layer(u_t)
    y.nan_to_num().sum().backward()
    assert layer.info.certificate.good.tolist() == [True, False]
    assert layer.info.certificate.reasons(1) == ["the sample was not solved"]


def test_certificate_of_a_gradient_computed_late() -> None:
    """Without requires_grad at the call there is none; forward mode makes it on demand."""
    case = zoo.build("relu")
    layer = make_layer(case)
    values = tensors(case.values, requires_grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, in forward mode
        _, slope = torch.func.jvp(lambda x: layer(x)[0], tuple(values), (torch.ones(6, dtype=torch.float64),))
    assert layer.info.certificate.good.all()
    torch.testing.assert_close(slope, (values[0] > 0).double())


def test_repr_names_what_matters() -> None:
    text = repr(make_layer(zoo.build("ball_constrained"), solver="CLARABEL"))
    assert "CLARABEL" in text
    assert "SecondOrder" in text
