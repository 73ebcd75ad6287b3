from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ffo.lab.baselines import BASELINES
from ffo.lab.bilevel.jobs import BilevelJob
from ffo.lab.experiments import CATALOGUE, PRESETS, plan
from ffo.lab.experiments.presets import as_the_authors
from ffo.lab.rows import TASKS
from ffo.lab.step import accuracy, take_step, true_gradient
from ffo.lab.tasks import Task, TaskSizes, make_task

SIZES = TaskSizes(d_y=7, samples=10, d_x=5, hidden=4)


def values_of(task: Task, count: int = 4) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        values = task.model(1)(task.data(1).train_inputs[:count])
    return {name: v.detach() for name, v in values.items()}


@pytest.mark.parametrize("name", TASKS)
def test_data_depend_on_the_seed_alone(name: str) -> None:
    task = make_task(name, SIZES)
    first, again, other = task.draw(0), task.draw(0), task.draw(1)
    assert len(first.train_inputs) == 8
    assert len(first.test_targets) == 2
    assert torch.equal(first.train_targets, again.train_targets)
    assert not torch.equal(first.train_targets, other.train_targets)
    parameters = [torch.cat([p.flatten() for p in task.model(seed).parameters()]) for seed in (0, 0, 1)]
    assert torch.equal(parameters[0], parameters[1])
    assert not torch.equal(parameters[0], parameters[2])


def test_the_paper_s_sizes() -> None:
    task = make_task("qp", TaskSizes())
    assert (task.sizes.d_x, task.sizes.d_y, task.sizes.samples) == (640, 800, 2048)
    data = task.data(0)
    assert (len(data.train_inputs), len(data.test_inputs)) == (1638, 410)
    layers = [p.shape for p in task.model(0).parameters() if p.ndim == 2]
    assert layers == [(128, 640), (800, 128)]
    assert make_task("sudoku9", TaskSizes()).inner.n == 729


@pytest.mark.parametrize("name", ["qp", "qp_dense", "socp", "sudoku4"])
def test_all_forms_of_the_problem_have_one_solution(name: str) -> None:
    task = make_task(name, SIZES)
    values = values_of(task, 1)
    found = []
    for form, constant in (("quad_form", False), ("factor", False), ("quad_form", True), ("factor", True)):
        problem, parameters, y = task.inner.cvxpy(form, constant=constant)
        for parameter, tensor in zip(parameters, task.inner.arguments(values, form, constant=constant), strict=True):
            parameter.value = tensor[0].numpy() if parameter.name() == "q" else tensor.numpy()
        problem.solve(solver="CLARABEL", ignore_dpp=True)
        found.append(y.value)
    assert np.ptp(found, axis=0).max() < 1e-5
    x, inner = found[0], task.inner
    assert (inner.G @ x <= inner.h + 1e-6).all()
    assert np.linalg.norm(x) <= inner.radius + 1e-6
    if inner.equalities:
        assert np.abs(values["A"].numpy() @ x - values["b"].numpy()).max() < 1e-6


@pytest.mark.parametrize("size", [4, 9])
def test_learnt_rules_are_feasible_and_the_true_ones_solve_puzzles(size: int) -> None:
    task = make_task(f"sudoku{size}", SIZES)
    model = task.model(0)
    with torch.no_grad():
        model.log_z0.copy_(torch.randn(size**3, dtype=torch.float64))  # type: ignore[operator]
        values = model(task.data(0).train_inputs)
        inside = model.log_z0.exp()  # type: ignore[operator]
    assert torch.allclose(values["A"] @ inside, values["b"])
    assert (inside > 0).all()
    assert values["A"].shape == (task.inner.equalities, size**3)
    # the rank of the true rules: every cell one digit, every unit each digit once
    cells = np.eye(size**2)
    units = np.zeros((3 * size, size**2))
    from ffo.lab.tasks.puzzles import grid

    for cell, places in enumerate(grid(size).units):
        units[list(places), cell] = 1
    rules = np.vstack([np.kron(cells, np.ones(size)), np.kron(units, np.eye(size))])
    assert np.linalg.matrix_rank(rules) == task.inner.equalities


def test_sudoku_error_counts_boards() -> None:
    task = make_task("sudoku4", SIZES)
    targets = task.data(0).train_targets[:4]
    right = task.scores(0.3 * targets + 0.1, targets)
    assert (right["error"], right["cells"]) == (0.0, 0.0)
    wrong = targets.clone()
    wrong[2, :4] = wrong[2, :4].roll(1)
    scores = task.scores(wrong, targets)
    assert (scores["error"], scores["cells"]) == (0.25, 1 / 64)
    assert list(make_task("qp", SIZES).scores(targets, targets)) == ["loss"]
    assert task.loss(torch.zeros_like(targets), targets).item() == 16.0


AUTHORS = replace(SIZES, samples=20, setting="authors")


@pytest.mark.parametrize("name", ["qp", "qp_dense", "socp"])
def test_the_authors_decisions(name: str) -> None:
    """Costs in [0, 1], -1 <= y <= 0, three linear layers with batch normalisation, clipped outputs, a mean as loss."""
    task = make_task(name, AUTHORS)
    data = task.data(0)
    assert (len(data.train_inputs), len(data.test_inputs)) == (16, 4)
    assert 0 <= data.train_targets.min() < data.train_targets.max() <= 1
    assert torch.equal(task.draw(0).train_inputs, data.train_inputs)
    model = task.model(0)
    kinds = [type(part).__name__ for part in model.modules()]
    assert (kinds.count("Linear"), kinds.count("BatchNorm1d")) == (3, 2)
    assert model(1e6 * data.train_inputs[:1])["q"].abs().max() == 10  # one sample is not normalised
    values = model(data.train_inputs)
    layer = BASELINES["FFOCP"].build(task.inner)
    y = layer(values).detach()
    assert -1 - 1e-9 <= y.min() < y.max() <= 1e-9
    assert task.loss(y, data.train_targets).item() == pytest.approx(float((y * data.train_targets).mean()))
    step, true = take_step(task, layer, values, data.train_targets), true_gradient(task, values, data.train_targets)
    assert accuracy(step, true).l2 < 1e-8


def test_a_batch_of_one_is_not_normalised() -> None:
    task = make_task("qp", AUTHORS)
    one = task.data(0).train_inputs[:1]
    assert task.model(0)(one)["q"].isfinite().all()


def test_the_authors_sudoku() -> None:
    """A split of 90/10, and the mean over all entries."""
    task = make_task("sudoku4", AUTHORS)
    data = task.data(0)
    assert (len(data.train_inputs), len(data.test_inputs)) == (18, 2)
    assert task.loss(torch.zeros_like(data.train_targets), data.train_targets).item() == 16 / 64
    paper = make_task("sudoku4", replace(AUTHORS, setting="paper"))
    assert paper.loss(torch.zeros_like(data.train_targets), data.train_targets).item() == 16


def test_the_authors_presets() -> None:
    preset = as_the_authors(PRESETS["paper"])
    courses = [preset.decision, preset.dense, preset.ablation, preset.adam, preset.lpgd, *preset.boards.values()]
    assert {course.sizes.setting for course in courses} == {"authors"}
    assert (preset.decision.sizes.learning_rate, preset.decision.sizes.samples) == (1e-3, 2000)
    assert {course.sizes.learning_rate for course in preset.boards.values()} == {0.1}
    layers = plan(preset, list(CATALOGUE), ["FFOCP"])
    assert {job.sizes.setting for job in layers if not isinstance(job, BilevelJob)} == {"authors"}
