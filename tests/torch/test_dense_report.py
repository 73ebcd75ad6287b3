"""The report of a call on a device: made on demand, and the same whenever it is made."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from ffo.engine.outcome import Outcome
from ffo.errors import GradientWarning, InfeasibleError
from ffo.torch import FFOQPLayer, qp
from ffo.torch.blocks import Form
from ffo.torch.dense import layer as dense_layer
from ffo.torch.dense.answer import answered
from ffo.torch.dense.program import DenseProgram

D = torch.float64


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are treated like device tensors."""
    monkeypatch.setattr(qp, "worthwhile", lambda given: True)


def solved() -> tuple[FFOQPLayer, torch.Tensor]:
    """A layer that has projected four points onto z <= 1, and the projections."""
    layer = FFOQPLayer()
    p = torch.tensor([[0.3, -2.0], [-3.0, 0.1], [0.5, 0.4], [-2.0, -2.0]], dtype=D, requires_grad=True)
    eye = torch.eye(2, dtype=D)
    return layer, layer(eye + 0.1, p, eye, torch.ones(2, dtype=D, requires_grad=True))


def test_an_info_read_before_backward_learns_of_it() -> None:
    layer, z = solved()
    before = layer.info
    assert before is not None
    assert before.certificate is not None
    assert np.isnan(before.certificate.ghost_residual).all()
    assert before.times.backward == 0
    z.sum().backward()
    assert layer.info is before
    assert (before.certificate.ghost_residual <= 1e-12).all()
    assert before.certificate.good.all()
    assert before.times.backward > 0


def test_an_info_read_after_backward_says_the_same() -> None:
    (early, z), (late, w) = solved(), solved()
    assert early.info is not None
    for v in (z, w):
        v.sum().backward()
    assert late.info is not None
    one, other = early.info, late.info
    assert (one.status, one.solver, one.warm_hits) == (other.status, other.solver, other.warm_hits)
    for name in ("residual", "iterations", "retried", "rescued"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.certificate is not None
    assert other.certificate is not None
    for name, value in vars(one.certificate).items():
        np.testing.assert_array_equal(value, getattr(other.certificate, name))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_layer_that_was_called_can_be_copied(copied: object) -> None:
    layer, z = solved()
    z.sum().backward()
    other = copied(layer)  # type: ignore[operator]
    assert layer.info is not None
    np.testing.assert_array_equal(other.info.residual, layer.info.residual)
    np.testing.assert_array_equal(other.info.certificate.ghost_residual, layer.info.certificate.ghost_residual)  # type: ignore[union-attr]
    assert other.info is not layer.info


def kinked(reduction: str, kink: float = -1.1) -> tuple[FFOQPLayer, list[torch.Tensor]]:
    """A layer, its solutions and their gradients: the second sample is at a kink, unless another number is given,
    the fourth has two equal active rows."""
    layer, eye = FFOQPLayer(reduction=reduction), torch.eye(2, dtype=D)  # type: ignore[arg-type]
    p = torch.tensor([[0.3, -2.0], [kink, -0.1], [0.5, 0.4], [-8.0, -8.0]], dtype=D, requires_grad=True)
    G = torch.cat([eye, torch.ones(2, 2, dtype=D)]).requires_grad_()
    h = torch.tensor([[1.0, 5, 10, 10], [1, 5, 10, 10], [1, 5, 10, 10], [5, 5, 3, 3]], dtype=D, requires_grad=True)
    Q = (eye + 0.1).requires_grad_()
    z = layer(Q, p, G, h)
    with pytest.warns(GradientWarning):
        z.square().sum().backward()
    return layer, [z.detach(), *(v.grad for v in (Q, p, G, h))]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_what_is_in_doubt_is_left_to_the_core(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, found = kinked(reduction)
    monkeypatch.setattr(qp, "worthwhile", lambda given: False)
    core, expected = kinked(reduction)
    assert layer.info is not None
    assert core.info is not None
    assert [name.startswith("batched") for name in layer.info.solver] == [True, False, True, False]
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-12)
    assert layer.info.certificate is not None
    assert core.info.certificate is not None
    assert layer.info.certificate.good.tolist() == core.info.certificate.good.tolist()
    assert not layer.info.certificate.good[3]


def test_a_report_read_before_backward_learns_of_doubts_of_the_core() -> None:
    layer, eye = FFOQPLayer(), torch.eye(2, dtype=D)
    p = torch.tensor([[0.3, -2.0], [-1.0, -0.1]], dtype=D, requires_grad=True)
    z, info = layer.call(eye, p, eye, torch.ones(2, dtype=D))
    with pytest.warns(GradientWarning):
        z.sum().backward()
    assert info.certificate.good.tolist() == [True, False]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_batch_without_room_goes_in_parts(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as fits into memory: here, two samples."""

    def scarce(values: Any, form: Form, *rest: Any) -> Any:
        if (form.batch or 1) > 2:
            raise torch.OutOfMemoryError
        return answered(values, form, *rest)

    expected = kinked(reduction, kink=-2.0)
    monkeypatch.setattr(dense_layer, "answered", scarce)
    layer, found = kinked(reduction, kink=-2.0)
    assert layer.info is not None
    assert all(name.endswith("batch split") for name in layer.info.solver)
    for f, e in zip(found, expected[1], strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-12)
    whole = expected[0].info
    assert whole is not None
    assert whole.certificate is not None
    assert layer.info.certificate is not None
    np.testing.assert_array_equal(layer.info.certificate.good, whole.certificate.good)
    with pytest.raises(InfeasibleError, match="sample 3"):
        FFOQPLayer()(torch.eye(1, dtype=D), torch.ones(4, 1, dtype=D), *infeasible_rows())


def test_what_is_kept_is_given_back_before_a_batch_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def first_time(values: Any, form: Form, *rest: Any) -> Any:
        tries.append(form.batch or 1)
        if len(tries) == 1:
            raise torch.OutOfMemoryError
        return answered(values, form, *rest)

    monkeypatch.setattr(dense_layer, "answered", first_time)
    layer, _ = solved()
    assert tries == [4, 4]
    assert layer.info is not None
    assert not any("split" in name for name in layer.info.solver)


def infeasible_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """z <= 1 and -z <= 1, in the last of four samples -2."""
    h = torch.ones(4, 2, dtype=D)
    h[3, 1] = -2.0
    return torch.tensor([[1.0], [-1.0]], dtype=D), h


def test_an_info_of_parts_learns_of_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(values: Any, form: Form, *rest: Any) -> Any:
        if (form.batch or 1) > 1:
            raise torch.OutOfMemoryError
        return answered(values, form, *rest)

    monkeypatch.setattr(dense_layer, "answered", scarce)
    layer, z = solved()
    info = layer.info
    assert info is not None
    assert info.certificate is not None
    assert np.isnan(info.certificate.ghost_residual).all()
    z.sum().backward()
    assert layer.info is info
    assert (info.certificate.ghost_residual <= 1e-12).all()


def test_failures_are_named_by_their_place_in_the_batch() -> None:
    layer, eye = FFOQPLayer(), torch.eye(2, dtype=D)
    h = torch.ones(3, 4, dtype=D)
    h[2, 2] = -5.0
    blocks = (eye + 0.1, torch.ones(3, 2, dtype=D), torch.cat([eye, -eye]), h)
    with pytest.raises(InfeasibleError, match="sample 2"):
        layer(*blocks)
    layer = FFOQPLayer(on_fail="nan")
    z = layer(*blocks)
    assert z.isnan().any(dim=1).tolist() == [False, False, True]
    assert layer.info is not None
    assert layer.info.ok.tolist() == [True, True, False]
    assert list(layer.info.proofs) == [2]


@pytest.mark.parametrize("kept", [DenseProgram, Outcome], ids=["device", "core"])
@pytest.mark.parametrize("change", ["state", "cost", "side"])
def test_inputs_that_take_in_outputs_are_freed(change: str, kept: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is updated in place by the solution must not keep the graphs of all steps alive."""
    monkeypatch.setattr(qp, "worthwhile", lambda given: kept is DenseProgram)
    layer, eye = FFOQPLayer(), torch.eye(3, dtype=D)
    weight = torch.ones((), dtype=D, requires_grad=True)
    gc.collect()
    before = sum(type(o) is kept for o in gc.get_objects())
    for _ in range(10):
        state, side = torch.ones(4, 3, dtype=D), torch.ones(3, dtype=D)
        z = layer((eye + 0.1) * weight, state, eye, side)
        z.sum().backward()
        if change == "state":
            state += 0.01 * z
        elif change == "cost":
            state[:] = z
        else:
            side += z.sum()
    del z, state, side
    gc.collect()
    assert sum(type(o) is kept for o in gc.get_objects()) <= before + 1
