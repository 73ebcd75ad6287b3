"""Problems that are not DPP, against their DPP twins and against CVXPY's own solves of the original."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from lift_catalogue import PAIRS, Pair, Written

from ffo.torch import FFOLayer

Array = np.ndarray
TIGHT = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
NAMES = pytest.mark.parametrize("name", PAIRS)


def layer_of(written: Written, gp: bool) -> FFOLayer:
    return FFOLayer(written.problem, written.parameters, written.outputs, gp=gp)


def weights(k: int, size: int) -> torch.Tensor:
    return torch.cos(1.3 * torch.arange(11 * k, 11 * k + size, dtype=torch.float64))


def loss_of(outputs: Sequence[torch.Tensor], batched: bool) -> torch.Tensor:
    flat = [out.reshape(len(out), -1) if batched else out.reshape(1, -1) for out in outputs]
    return sum((out * weights(k, out.shape[1])).sum() for k, out in enumerate(flat))


def drawn(pair: Pair, count: int) -> list[list[Array]]:
    rng = np.random.default_rng(3)
    return [pair.draw(rng) for _ in range(count)]


def agree(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance * (1 + b.abs().max())


@NAMES
def test_solutions_duals_and_gradients_are_those_of_the_twin(name: str) -> None:
    pair = PAIRS[name]()
    layer, twin = layer_of(pair.own, pair.gp), layer_of(pair.twin, pair.gp)
    samples = drawn(pair, 2)
    # The last of several parameters is shared by the batch.
    shared = len(pair.own.parameters) > 1
    stacked = [torch.tensor(np.stack(column), requires_grad=True) for column in zip(*samples, strict=True)]
    if shared:
        stacked[-1] = torch.tensor(samples[0][-1], requires_grad=True)
    outputs = layer(*stacked)
    rows = [[p[k] if p.ndim > len(q.shape) else p for p, q in zip(stacked, pair.own.parameters, strict=True)]
            for k in range(2)]  # fmt: skip
    computed = [pair.values(*row) for row in rows]
    others = twin(*(torch.stack(column) for column in zip(*computed, strict=True)))
    agree(outputs, others, 1e-8)
    found = torch.autograd.grad(loss_of(outputs, True), stacked)
    expected = torch.autograd.grad(loss_of(others, True), stacked)
    agree(found, expected, 1e-8)
    assert layer.info.certificate.good.all()
    alone = layer(*rows[1])
    agree(alone, [out[1] for out in outputs], 1e-10)


def solved(pair: Pair, values: Sequence[Array]) -> float:
    """The loss at CVXPY's solution of the problem as it was written."""
    problem = pair.own.problem
    for p, v in zip(pair.own.parameters, values, strict=True):
        p.value = v
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver="CLARABEL", ignore_dpp=True, gp=pair.gp, **TIGHT)
    return float(loss_of([torch.tensor(np.asarray(out.value)) for out in pair.own.outputs], False))


# CVXPY does not put values into the bound of huber, and cannot solve that problem.
@pytest.mark.parametrize("name", [name for name in PAIRS if name != "huber_with_a_computed_bound"])
def test_losses_and_their_differences_are_those_of_the_original(name: str) -> None:
    pair = PAIRS[name]()
    layer = layer_of(pair.own, pair.gp)
    (values,) = drawn(pair, 1)
    rng, step = np.random.default_rng(5), 1e-3
    directions = [q - v for q, v in zip(pair.draw(rng), values, strict=True)]  # towards another value of this kind
    params = [torch.tensor(v, requires_grad=True) for v in values]
    loss_of(layer(*params), False).backward()
    slope = sum(float((p.grad * torch.tensor(d)).sum()) for p, d in zip(params, directions, strict=True))
    points = [[v + s * step * d for v, d in zip(values, directions, strict=True)] for s in (-2, -1, 1, 2)]
    ends = np.array([solved(pair, point) for point in points])
    own = np.array([loss_of(layer(*map(torch.tensor, point)), False).item() for point in points])
    noise = np.abs(ends - own).max()
    assert noise <= 2e-5 * (1 + np.abs(own).max())
    expected = np.dot(ends, [1, -8, 8, -1]) / (12 * step)
    assert abs(slope - expected) <= 1e-4 * (1 + abs(expected)) + 2 * noise / step
