"""The report of a call on a device: made when asked for, and saying the same whenever that is."""

from __future__ import annotations

import copy
import gc
import math
import pickle

import numpy as np
import pytest
import torch

from ffo.engine.info import Times
from ffo.engine.outcome import Outcome
from ffo.torch import FFOQPLayer, qp
from ffo.torch.dense.program import DensePoint, DenseProgram
from ffo.torch.dense.report import Backward, DenseReport
from ffo.torch.dense.solve import DenseSolution
from ffo.torch.dense.verify import Verdict

D = torch.float64


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are treated as those of a device."""
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


@pytest.mark.parametrize("natural", [0.0, 1e-14, 1e-10, 0.9e-5, 1.1e-5])
@pytest.mark.parametrize("margin", [math.inf, 1.0, 1e-5, 1.1e-9, 0.9e-9, 0.0])
@pytest.mark.parametrize("residual", [0.0, 0.9e-6, 2e-6])
def test_the_worst_of_a_batch_is_judged_as_the_certificate_judges_it(
    natural: float, margin: float, residual: float
) -> None:
    """Warnings follow the worst numbers of a batch: they have to, and may, where one sample is not good."""

    def batch(value: float, harmless: float) -> torch.Tensor:
        return torch.tensor([harmless, value, harmless], dtype=D)

    sides = torch.zeros(3, 1, dtype=torch.int8)
    verdict = Verdict(batch(natural, 0.0), batch(margin, 1.0), sides, sides)
    empty = torch.zeros(3, 1, dtype=D)
    solution = DenseSolution(
        DensePoint(empty, empty, empty), sides, sides, verdict, True, torch.zeros(3, dtype=int), ("somebody",) * 3
    )
    report, done = DenseReport(solution, Times()), Backward(batch(residual, 0.0), None, 0.0)
    report.backward = done
    certificate = report.info().certificate
    assert certificate is not None
    assert report._quiet(done) == certificate.good.all()


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
