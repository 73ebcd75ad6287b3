"""Layers in threads, forked and spawned processes, and workers of a DataLoader; two processes of DDP are in
tests/torch/test_training.py."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest
import torch
from faults.faulty import blocks
from torch.utils.data import DataLoader, Dataset

from ffo.errors import Status
from ffo.kernels import pool
from ffo.program.affine import AffineMap
from ffo.torch import FFOQPLayer

BATCH = 12
METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]
threads_and_forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


def given() -> list[torch.Tensor]:
    return [torch.tensor(v) for v in blocks(batch=BATCH).values()]


def step(layer: FFOQPLayer, tensors: list[torch.Tensor]) -> list[np.ndarray]:
    """Solutions and gradients."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    z = layer(*leaves)
    z.square().sum().backward()
    return [z.detach().numpy(), *(t.grad.numpy() for t in leaves)]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=0, atol=1e-12 * max(np.abs(e).max(), 1.0))


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are divided, so that the pool has threads before a fork."""
    monkeypatch.setenv("FFO_NUM_THREADS", "2")
    monkeypatch.setattr(pool, "WORTH", 0.0)


def in_child(layer: FFOQPLayer, tensors: list[torch.Tensor], queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put(step(layer, tensors))


@threads_and_forks
@pytest.mark.skipif("fork" not in METHODS, reason="this platform cannot fork")
@pytest.mark.parametrize("solver", [None, "CLARABEL"])
def test_a_forked_process_solves_as_its_parent(two_threads: None, solver: str | None) -> None:
    """Spawned ones are in tests/torch/test_training.py."""
    layer = FFOQPLayer(solver=solver)
    expected = step(layer, given())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=in_child, args=(layer, given(), queue), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    for _ in children:
        assert_same(queue.get(timeout=90), expected)
    for child in children:
        child.join(timeout=30)
        assert child.exitcode == 0
    assert_same(step(layer, given()), expected)  # the parent goes on


@threads_and_forks
@pytest.mark.skipif("fork" not in METHODS, reason="this platform cannot fork")
def test_a_fork_while_other_threads_are_at_work(two_threads: None) -> None:
    """Locks held by a thread at the fork are never released in the child, which must not need them."""
    layer = FFOQPLayer(warm_start=True)
    expected = step(layer, given())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(layer, given(), queue), daemon=True)
    with layer.engine._memory._lock, pool._lock:  # as another thread may, in the middle of a call
        child.start()
    assert_same(queue.get(timeout=30), expected)
    child.join(timeout=30)
    assert child.exitcode == 0
    step(layer, given())
    assert layer.info.warm_hits == BATCH  # the parent's memory is unchanged


def test_threads_that_share_a_layer(two_threads: None) -> None:
    layer = FFOQPLayer(on_fail="nan")
    tensors = given()
    expected = step(layer, tensors)
    found: dict[int, list[np.ndarray]] = {}
    bad: list[Status] = []

    def work(k: int) -> None:
        for _ in range(10):
            if k:
                found[k] = step(layer, tensors)
            else:  # this one has a sample that fails
                wrong = [t.clone() for t in tensors]
                wrong[1][3] = torch.nan
                bad.append(layer.call(*wrong)[1].status[3])

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert set(bad) == {Status.INVALID_INPUT}
    for k in (1, 2, 3):
        assert_same(found[k], expected)


def shared_blocks(k: int) -> list[torch.Tensor]:
    """The same shapes for every k, other numbers; matrices without a batch dimension."""
    rng = np.random.default_rng(k)
    root = rng.normal(size=(6, 6))
    made = root @ root.T + np.eye(6), rng.normal(size=(4, 6)), rng.normal(size=(3, 6)), rng.uniform(0.1, 1.0, 3)
    return [torch.tensor(v) for v in made]


def test_layers_of_one_structure_in_threads_of_their_own(two_threads: None) -> None:
    """They share what depends on the structure, and nothing that depends on values."""
    expected = [step(FFOQPLayer(), shared_blocks(k)) for k in range(4)]
    wrong: list[str] = []

    def work(k: int) -> None:
        layer, tensors = FFOQPLayer(), shared_blocks(k)
        for _ in range(50):
            try:
                assert_same(step(layer, tensors), expected[k])
            except AssertionError as error:
                wrong.append(f"layer {k}: {error}")

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong == []


def test_layers_of_one_structure_keep_their_own_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = AffineMap._matrix
    monkeypatch.setattr(AffineMap, "_matrix", lambda self, name, *a: made.append(name) or original(self, name, *a))
    layers = [FFOQPLayer(), FFOQPLayer()]
    for _ in range(3):
        for k, layer in enumerate(layers):
            layer(*shared_blocks(k))
    assert sorted(made) == ["A", "A", "P", "P"]


class Solved(Dataset[torch.Tensor]):
    """Solutions, found in the worker that loads them."""

    def __init__(self, layer: FFOQPLayer) -> None:
        self.layer, self.tensors = layer, given()

    def __len__(self) -> int:
        return BATCH

    def __getitem__(self, k: int) -> torch.Tensor:
        return self.layer(*(t[k] for t in self.tensors))


@threads_and_forks
@pytest.mark.parametrize("method", METHODS)
def test_workers_of_a_data_loader(two_threads: None, method: str) -> None:
    layer = FFOQPLayer()
    expected = layer(*given())
    workers = 1 if method == "spawn" else 2  # each imports everything again
    loader = DataLoader(Solved(layer), batch_size=4, num_workers=workers, multiprocessing_context=method, timeout=90)
    torch.testing.assert_close(torch.cat(list(loader)), expected, rtol=0, atol=1e-12)
