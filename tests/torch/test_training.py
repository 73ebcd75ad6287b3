"""Training: in one process, in several, and in worker processes."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import workers
import zoo
from layers import make_layer, tensors


def test_training_lowers_the_loss() -> None:
    z, target = workers.data()
    model = workers.Model()
    before = (model(z) - target).square().mean().item()
    workers.train(model, z, target)
    assert (model(z) - target).square().mean().item() < before


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_distributed_training_agrees_with_one_process(tmp_path: Path) -> None:
    z, target = workers.data()
    expected = workers.train(workers.Model(), z, target)
    results = tmp_path / "trained.pt"
    arguments = (2, str(tmp_path / "rendezvous"), str(results))
    processes = torch.multiprocessing.spawn(workers.train_distributed, arguments, nprocs=2, join=False)
    deadline = time.monotonic() + 120
    while not processes.join(timeout=5):
        if time.monotonic() > deadline:
            for process in processes.processes:
                process.kill()
            pytest.fail("the processes hang")
    for found, e in zip(torch.load(results), expected, strict=True):
        torch.testing.assert_close(found, e, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes_after_a_first_solve(method: str) -> None:
    """A layer that has solved (and may own threads) is sent to another process."""
    case = zoo.build("ball_constrained")
    layer = make_layer(case)
    params = tensors(case.values)
    (x,) = layer(*params)
    x.sum().backward()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        found = pool.submit(workers.solve_in_a_worker, layer, case.values).result(timeout=60)
    for f, e in zip(found, [x.detach(), *(p.grad for p in params)], strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-9, atol=1e-12)
