"""Every method that runs here, against finite differences of tight solves and against the reference."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from ffo.errors import GradientWarning
from ffo.lab.baselines import BASELINES, Baseline, Settings
from ffo.lab.reference import NoReferenceError, Reference, compare, reference, solutions
from ffo.lab.step import accuracy, first_batch, take_step, true_gradient
from ffo.lab.tasks import Task, TaskSizes, make_task

SIZES = TaskSizes(d_y=9, samples=10, d_x=5, hidden=4)
CASES = ("qp", "qp_dense", "socp", "sudoku4")
#: how wrong each may be: relative Euclidean distance of the gradient; the others must be right to 1e-6
COARSE = {
    "FFOCP (paper)": 1e-4,
    "CvxpyLayer": 5e-3,
    "CvxpyLayer (constants)": 5e-3,
    "LPGD": 1.0,
    "BPQP": 1e-3,
    "Alt-Diff": 1e-3,
    "QPLayer": 2e-4,
}
#: exact once the active set is found
ACTIVE_SET = ("FFOQP (paper)", "dQP")
#: known to be silently wrong: its solution violates the constraints
KNOWN_WRONG = {("Moreau (cvxpylayers)", "sudoku4")}
#: gradients that are the batch size too long, or wrong in A
WRONG_GRADIENT = {("ffolayer FFOQP", "qp"), ("ffolayer FFOQP", "sudoku4"), ("ffolayer FFOCP", "sudoku4")}


def batch_of(name: str, count: int = 4) -> tuple[Task, dict[str, torch.Tensor], torch.Tensor]:
    task = make_task(name, SIZES)
    data = task.data(2)
    with torch.no_grad():
        values = task.model(2)(data.train_inputs[:count])
    if name.startswith("qp"):  # large enough costs for bounds of both kinds to be active
        values["q"] = 4 * values["q"]
    return task, values, data.train_targets[:count]


@pytest.mark.parametrize("name", CASES)
def test_reference_agrees_with_finite_differences(name: str) -> None:
    task, values, targets = batch_of(name)
    rng = np.random.default_rng(0)
    true = true_gradient(task, values, targets)

    def loss(moved: Mapping[str, torch.Tensor]) -> float:
        return task.loss(torch.tensor(reference(task.inner, moved, torch.sum).y), targets).item()

    for learnt in task.inner.learnt:
        direction = torch.tensor(rng.standard_normal(values[learnt].shape))
        t = 1e-6
        ends = [loss({**values, learnt: values[learnt] + sign * t * direction}) for sign in (1, -1)]
        slope = (true.gradient[learnt] * direction.numpy()).sum()
        assert (ends[0] - ends[1]) / (2 * t) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES)
def test_gradients_are_right(baseline: Baseline, name: str) -> None:
    task, values, targets = batch_of(name)
    reason = baseline.why_not(task.inner)
    if reason:
        pytest.skip(reason)
    true = true_gradient(task, values, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages issue their own warnings
        step = take_step(task, baseline.build(task.inner), values, targets)
    found = accuracy(step, true)
    if (baseline.name, name) in KNOWN_WRONG:
        assert found.cosine < 0.99, "no longer wrong: take it off the list"
        assert found.solution > 0.01
        return
    assert found.solution < 5e-3
    if (baseline.name, name) in WRONG_GRADIENT:
        assert found.l2 > 0.5, "no longer wrong: take it off the list"
        return
    tolerance = COARSE.get(baseline.name, 2e-5)
    assert found.l2 < tolerance
    assert found.cosine > 1 - max(tolerance**2, 1e-9)
    assert np.abs(step.y.numpy() - true.y).max() < 5e-3
    assert step.total_s == step.forward_s + step.backward_s > 0


@pytest.mark.parametrize("name", ["FFOQP (paper)", "BPQP", "dQP", "Alt-Diff"])
@pytest.mark.parametrize("case", ["qp", "sudoku4"])
def test_own_implementations_get_as_right_as_they_are_asked_to(name: str, case: str) -> None:
    task, values, targets = batch_of(case)
    true = true_gradient(task, values, targets)
    steps = [
        accuracy(take_step(task, BASELINES[name].build(task.inner, Settings(tolerance=eps)), values, targets), true).l2
        for eps in (1e-3, 1e-9)
    ]
    assert steps[1] < 1e-5
    assert steps[1] <= steps[0] or name in ACTIVE_SET


@pytest.mark.parametrize("name", CASES)
def test_the_paper_s_configuration_is_right_at_its_tolerance(name: str) -> None:
    """Algorithm 1 with SCS: a cosine of 0.9999 on all tasks, whatever the accuracy of the backward solve."""
    sizes = TaskSizes(d_y=40, samples=20, d_x=16, hidden=16)
    task = make_task(name, sizes)
    values, targets = first_batch(task, 0, 8)
    true = true_gradient(task, values, targets)
    for backward in (None, 1e-3):
        layer = BASELINES["FFOCP (paper)"].build(task.inner, Settings(backward_tolerance=backward))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientWarning)
            found = accuracy(take_step(task, layer, values, targets), true)
        assert found.cosine >= 0.9999


def test_comparison() -> None:
    true = {"A": np.array([3.0, 4.0]), "b": np.array([1.0])}
    y = np.array([[3.0, 4.0], [0.0, 0.3]])
    reference_ = Reference(y, true)
    same = compare(y, true, reference_)
    assert (same.cosine, same.l2, same.linf, same.solution) == (pytest.approx(1.0), 0.0, 0.0, 0.0)
    moved = y + np.array([[0.0, 1.0], [0.1, 0.0]])
    off = compare(moved, {"A": np.array([4.0, -3.0]), "b": np.array([np.nan])}, reference_)
    assert off.cosine == pytest.approx(0.0)
    assert off.l2 == pytest.approx(np.sqrt(2))
    assert off.linf == pytest.approx(7 / 4)
    assert off.solution == pytest.approx(0.2)  # relative where the solution is long, absolute where it is short
    assert compare(y * np.nan, true, reference_).solution == np.inf


def test_dependent_active_constraints_have_a_solution_and_no_derivative() -> None:
    """At y = (1, 1, 0, ...) two upper bounds are active, and the budget, which is their sum."""
    task = make_task("qp", replace(SIZES, d_y=10))
    q = torch.zeros(1, 10, dtype=torch.float64)
    q[0, :2] = 9.0
    assert np.abs(solutions(task.inner, {"q": q}) - (q.numpy() > 0)).max() < 1e-9
    with pytest.raises(NoReferenceError, match="dependent"):
        reference(task.inner, {"q": q}, torch.sum)
    step = take_step(task, BASELINES["dQP"].build(task.inner), {"q": q}, torch.ones_like(q))
    assert torch.isfinite(step.gradient["q"]).all()


def test_what_cannot_run_says_why() -> None:
    qp, socp = make_task("qp", SIZES).inner, make_task("socp", SIZES).inner
    assert "second-order" in BASELINES["QPTH"].why_not(socp)
    assert BASELINES["FFOQP"].why_not(qp) == ""
    assert "backward_tolerance" in BASELINES["FFOQP"].why_not(qp, Settings(backward_tolerance=1e-3))
    assert "delta" in BASELINES["FFOCP"].why_not(qp, Settings(delta=1e-3))
    missing = Baseline("x", "qp", lambda inner, settings: lambda values: values["q"], packages=("no_such_package",))
    assert "no_such_package" in missing.why_not(qp)


@pytest.mark.parametrize("name", ["QPTH (GPU)", "FFOQP (GPU)"])
def test_without_a_device_the_row_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, qp = replace(BASELINES[name], packages=()), make_task("qp", SIZES).inner
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert method.why_not(qp) == "no CUDA device that torch can use"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert method.why_not(qp, Settings(device="cuda")) == ""
    assert method.why_not(qp, Settings(device="cuda:1")) == "no device cuda:1: torch can use 1"


@pytest.mark.parametrize("case", ["qp", "sudoku4"])
@pytest.mark.parametrize("name", ["QPTH (GPU)", "FFOQP (GPU)"])
def test_methods_on_a_device_are_right(name: str, case: str) -> None:
    """With the CPU as their device: the same code, from host to host."""
    task, values, targets = batch_of(case)
    if importlib.util.find_spec("qpth") is None and name.startswith("QPTH"):
        pytest.skip("not installed: qpth")
    step = take_step(task, BASELINES[name].build(task.inner, Settings(device="cpu")), values, targets)
    assert accuracy(step, true_gradient(task, values, targets)).l2 < 2e-5


def test_families() -> None:
    conic = {b.name for b in BASELINES.values() if b.family == "conic"}
    assert {"FFOCP", "CvxpyLayer", "LPGD", "BPQP", "Moreau (direct)"} <= conic
    assert conic.isdisjoint({"FFOQP", "QPTH", "dQP", "Alt-Diff", "QPLayer"})
