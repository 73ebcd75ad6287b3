"""Remembered solutions: they save solves, survive shuffling, and are always verified."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from layers import loss_of, make_layer, tensors

from ffo.engine.memory import Memory
from ffo.torch import FFOLayer

SIZE = 6
NAMES = [
    "constrained_least_squares",
    "general_qp",
    "linear_program",
    "ball_constrained",
    "smallest_eigenvalue",
    "softmax",
]


def answers(layer: FFOLayer, values: list[np.ndarray], **call: object) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    params = tensors(values)
    outputs = layer(*params, **call)
    loss_of(outputs, batched=True).sum().backward()
    return [o.detach() for o in outputs], [p.grad for p in params]


def same(found: tuple[list[torch.Tensor], ...], expected: tuple[list[torch.Tensor], ...]) -> None:
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_keys_survive_shuffling(name: str) -> None:
    case = zoo.build(name)
    rng = np.random.default_rng(0)
    layer, cold = make_layer(case), make_layer(case)
    values = case.batch(SIZE, rng)
    answers(layer, values, keys=range(SIZE))
    assert layer.info.warm_hits == 0
    order = rng.permutation(SIZE)
    moved = [v[order] * (1 + 1e-4) for v in values]  # a small training step
    same(answers(layer, moved, keys=order), answers(cold, moved))
    assert layer.info.warm_hits == SIZE
    assert layer.info.solver == ("",) * SIZE
    assert layer.info.iterations.tolist() == [0] * SIZE


@pytest.mark.parametrize("name", NAMES)
def test_wrong_memory_is_never_accepted(name: str) -> None:
    """The same keys with other data: answers are those of a cold solve, hit or no hit."""
    case = zoo.build(name)
    layer, cold = make_layer(case), make_layer(case)
    for seed in range(4):
        values = case.batch(SIZE, np.random.default_rng(seed), spread=0.05)
        order = np.random.default_rng(seed + 100).permutation(SIZE)
        same(answers(layer, values, keys=order), answers(cold, values))


def test_a_change_of_the_active_set_is_noticed() -> None:
    case = zoo.build("relu")
    layer = make_layer(case)
    with torch.no_grad():
        for signs in ([1, 1, 1, 1, 1, 1], [-1, -1, -1, -1, -1, -1], [1, -1, 1, -1, 1, -1]):
            x = torch.tensor(signs, dtype=torch.float64)
            torch.testing.assert_close(layer(x, keys=["one"])[0], torch.relu(x), rtol=0, atol=1e-7)


def test_infeasible_data_after_a_good_memory() -> None:
    import cvxpy as cp

    from ffo.errors import InfeasibleError

    x, b = cp.Variable(2), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x)), [x >= 1, cp.sum(x) <= b]), [b], [x], warm_start=True)
    layer(torch.tensor(3.0))
    with pytest.raises(InfeasibleError):
        layer(torch.tensor(1.0))
    assert layer(torch.tensor(3.0))[0].tolist() == pytest.approx([1.0, 1.0])


def test_keys_may_be_a_tensor_or_any_hashable() -> None:
    case = zoo.build("constrained_least_squares")
    values = case.batch(3, np.random.default_rng(0))
    for keys in (torch.tensor([5, 1, 7]), np.array([5, 1, 7]), ["a", "b", "c"], [("x", 1), ("x", 2), ("y", 1)]):
        layer = make_layer(case)
        layer(*tensors(values), keys=keys)
        layer(*tensors(values), keys=list(keys) if not hasattr(keys, "tolist") else keys.tolist())
        assert layer.info.warm_hits == 3


@pytest.mark.parametrize("derivative", [True, False])
def test_warm_start_by_position(derivative: bool) -> None:
    case = zoo.build("constrained_least_squares")
    layer, values = make_layer(case, warm_start=True), case.batch(SIZE, np.random.default_rng(0))
    (first,) = layer(*tensors(values, requires_grad=derivative))
    (second,) = layer(*tensors(values, requires_grad=derivative))
    assert layer.info.warm_hits == SIZE
    torch.testing.assert_close(first, second, rtol=0, atol=1e-7)
    layer(*tensors(values), warm_start=False)
    assert layer.info.warm_hits == 0


def test_warm_start_for_one_call() -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case)
    hits = []
    for warm in (True, True, False, None):
        layer(*tensors(case.values), warm_start=warm)
        hits.append(layer.info.warm_hits)
    assert hits == [0, 1, 0, 0]


def test_failed_samples_are_not_remembered() -> None:
    case = zoo.build("constrained_least_squares")
    layer, values = make_layer(case, on_fail="nan"), case.batch(3, np.random.default_rng(0))
    spoiled = [values[0], values[1].copy()]
    spoiled[1][1] = np.nan
    layer(*tensors(spoiled), keys=range(3))
    layer(*tensors(values), keys=range(3))
    assert layer.info.warm_hits == 2
    assert all(s.ok for s in layer.info.status)


def test_memory_is_bounded() -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case)
    layer.engine._memory = Memory(max_bytes=4 * 8 * _row(layer))
    values = case.batch(SIZE, np.random.default_rng(0))
    layer(*tensors(values), keys=range(SIZE))
    assert len(layer.engine._memory) == 4
    layer(*tensors(values), keys=range(SIZE))
    assert layer.info.warm_hits == 4


def _row(layer: FFOLayer) -> int:
    n, m = layer.canonical.map.P.shape[0], layer.canonical.map.A.shape[0]
    return n + 2 * m


@pytest.mark.parametrize("backward", ["iterative", "resolve"])
def test_other_ways_may_start_warm_too(backward: str) -> None:
    case = zoo.build("constrained_least_squares")
    layer, values = make_layer(case, backward=backward), case.batch(3, np.random.default_rng(0))
    expected = answers(make_layer(case), values)
    for _ in range(2):
        found = answers(layer, values, keys=range(3))
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-6)
