"""FFOQPLayer in training: keys make steps cheap, and everything remembered is verified."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from qps import same

from ffo.torch import FFOQPLayer

BATCH, N = 6, 40
Blocks = dict[str, torch.Tensor]


def decision(seed: int = 0, batch: int = BATCH, n: int = N) -> Blocks:
    """The decision-focused problem of the paper: a box and a budget, all blocks dense."""
    rng = np.random.default_rng(seed)
    eye = np.eye(n)
    blocks = {
        "Q": eye,
        "p": rng.standard_normal((batch, n)),
        "G": np.vstack([eye, -eye, np.ones((1, n))]),
        "h": np.concatenate([np.ones(n), np.zeros(n), [0.2 * n]]),
    }
    return {name: torch.tensor(v, dtype=torch.float64) for name, v in blocks.items()}


def step(layer: FFOQPLayer, blocks: Blocks, wanted: str = "p", **call: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The solution, and the gradient of a fixed loss in one block."""
    leaf = blocks[wanted].detach().clone().requires_grad_()
    z = layer(**{**blocks, wanted: leaf}, **call)
    weights = torch.linspace(-1.0, 1.0, z.numel(), dtype=z.dtype).reshape(z.shape)
    (gradient,) = torch.autograd.grad((z * weights).sum(), [leaf])
    return z.detach(), gradient


@pytest.mark.parametrize("wanted", ["Q", "p", "G", "h"])
def test_a_warm_epoch_asks_no_solver(wanted: str) -> None:
    layer, blocks = FFOQPLayer(), decision()
    step(layer, blocks, wanted, keys=range(BATCH))
    assert layer.info.warm_hits == 0
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = {**blocks, "p": blocks["p"][order] + 1e-7}
    found = step(layer, moved, wanted, keys=order)
    assert layer.info.warm_hits == BATCH
    assert layer.info.certificate.good.all()
    same(found, step(FFOQPLayer(solver_args={"eps": 1e-9}), moved, wanted))


@pytest.mark.parametrize("name", ["Q", "G", "h"])
def test_blocks_changed_in_place_are_noticed(name: str) -> None:
    layer, blocks = FFOQPLayer(), decision()
    for k in range(3):
        same(step(layer, blocks, keys=range(BATCH)), step(FFOQPLayer(solver_args={"eps": 1e-9}), blocks))
        blocks[name].data.mul_(1.0 + 0.01 * (k + 1))  # a change that torch's own counter does not see
    assert layer.info.warm_hits > 0


def test_learned_matrices_may_change_under_known_keys() -> None:
    layer, blocks = FFOQPLayer(), decision()
    step(layer, blocks, "Q", keys=range(BATCH))
    blocks["Q"] = blocks["Q"] * (1 + 1e-9)
    found = step(layer, blocks, "Q", keys=range(BATCH))
    assert layer.info.warm_hits == BATCH
    same(found, step(FFOQPLayer(solver_args={"eps": 1e-9}), blocks, "Q"))


def test_a_remembered_set_that_is_wrong_falls_back() -> None:
    layer = FFOQPLayer()
    for seed in range(4):  # other data under the same keys
        blocks = decision(seed)
        same(step(layer, blocks, keys=range(BATCH)), step(FFOQPLayer(solver_args={"eps": 1e-9}), blocks))
        assert all(status.ok for status in layer.info.status)
        assert layer.info.certificate.good.all()


def test_keys_of_other_batches_keep_their_own_sets() -> None:
    layer = FFOQPLayer()
    first, second = decision(0), decision(1)
    for _ in range(2):
        step(layer, first, keys=range(BATCH))
        step(layer, second, keys=range(BATCH, 2 * BATCH))
    mixed = {**first, "p": torch.cat([second["p"][:3], first["p"][:3]])}
    found = step(layer, mixed, keys=[BATCH, BATCH + 1, BATCH + 2, 0, 1, 2])
    assert layer.info.warm_hits == BATCH
    same(found, step(FFOQPLayer(solver_args={"eps": 1e-9}), mixed))


def test_infeasible_data_under_a_known_key() -> None:
    layer, blocks = FFOQPLayer(on_fail="nan"), decision()
    step(layer, blocks, keys=range(BATCH))
    h = blocks["h"].repeat(BATCH, 1)
    h[2, -1] = -1.0  # no nonnegative point has a negative sum
    z, gradient = step(layer, {**blocks, "h": h}, keys=range(BATCH))
    assert layer.info.warm_hits == BATCH - 1
    assert z[2].isnan().all()
    assert (gradient[2] == 0).all()
    assert not z[[0, 1, 3, 4, 5]].isnan().any()


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"]
)
def test_copies_of_a_warm_layer_work(twin: object) -> None:
    layer, blocks = FFOQPLayer(), decision()
    expected = step(layer, blocks, keys=range(BATCH))
    other = twin(layer)
    same(step(other, blocks, keys=range(BATCH)), expected)
    same(step(layer, blocks, keys=range(BATCH)), expected)
    assert layer.info.warm_hits == BATCH


def test_gradients_after_a_warm_epoch_are_those_of_tight_differences() -> None:
    layer, blocks = FFOQPLayer(), decision()
    step(layer, blocks, keys=range(BATCH))
    weights = torch.linspace(-1.0, 1.0, BATCH * N, dtype=torch.float64).reshape(BATCH, N)
    _, gradient = step(layer, blocks, keys=range(BATCH))
    assert layer.info.warm_hits == BATCH
    tight = FFOQPLayer(solver="CLARABEL", solver_args={"eps": 1e-13})
    direction = torch.tensor(np.random.default_rng(5).standard_normal((BATCH, N)))
    with torch.no_grad():
        ends = [tight(**{**blocks, "p": blocks["p"] + t * direction}) for t in (1e-5, -1e-5)]
    difference = ((ends[0] - ends[1]) * weights).sum(1) / 2e-5
    torch.testing.assert_close((gradient * direction).sum(1), difference, rtol=1e-6, atol=1e-6)
