"""The same call gives the same numbers: to the last bit with one thread, within 1e-12 with several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.subjects import SUBJECTS, subject
from layers import loss_of

from ffo.kernels import pool
from ffo.solvers import pool as sample_pool
from ffo.torch import FFOFunctionLayer

COPIES = 5
every = pytest.mark.parametrize("name", SUBJECTS)


def run(name: str, **options: object) -> list[np.ndarray]:
    """Outputs and gradients of a fresh layer on a batch."""
    chosen = subject(name)
    layer = chosen.make(on_fail="nan", **options)
    given = [torch.tensor(np.repeat(v, COPIES, axis=0), requires_grad=chosen.differentiable) for v in chosen.values]
    outputs = layer(*given)
    found = [v.detach().numpy().copy() for v in outputs]
    if chosen.differentiable:
        found += [g.numpy() for g in torch.autograd.grad(loss_of(outputs, batched=True).sum(), given)]
    return found


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFO_NUM_THREADS", "1")


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is divided over threads, however small."""
    monkeypatch.setenv("FFO_NUM_THREADS", "4")
    monkeypatch.setattr(pool, "WORTH", 0.0)
    monkeypatch.setattr(sample_pool, "WORTH_TOTAL", 0.0)
    monkeypatch.setattr(sample_pool, "WORTH_SOLVE", 0.0)


@every
def test_one_thread_gives_the_same_bits(one_thread: None, name: str) -> None:
    for first, second in zip(run(name), run(name), strict=True):
        np.testing.assert_array_equal(first, second)


@every
def test_equal_samples_of_a_batch_have_equal_solutions(one_thread: None, name: str) -> None:
    """To 1e-12 of the largest entry: samples share registers, which may change the order of steps, not the answer."""
    for v in run(name):
        copies = v.reshape(-1, COPIES, *v.shape[1:])
        spread = np.abs(copies - copies[:, :1]).max(initial=0.0)
        assert spread <= 1e-12 * max(np.abs(v).max(initial=0.0), 1.0)


@every
def test_several_threads_agree_to_1e12(request: pytest.FixtureRequest, name: str) -> None:
    request.getfixturevalue("one_thread")
    expected = run(name)
    request.getfixturevalue("four_threads")
    for _ in range(3):
        for found, e in zip(run(name), expected, strict=True):
            np.testing.assert_allclose(found, e, rtol=0, atol=1e-12 * max(np.abs(e).max(initial=0.0), 1.0))


@pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP", "TRUST-CONSTR"])
def test_functions(solver: str) -> None:
    def once() -> list[torch.Tensor]:
        a = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
        layer = FFOFunctionLayer(
            lambda a, y: (y - a).exp().sum() - y.sum(), lambda a, y: y.sum() - 0.5, shape=3, dims=(1,), solver=solver
        )
        y = layer(a)
        y.square().sum().backward()
        return [y.detach(), a.grad]

    for first, second in zip(once(), once(), strict=True):
        assert torch.equal(first, second)


SCRIPT = """
import hashlib, sys
sys.path.insert(0, {tests!r})
import faults.test_determinism as t
digest = hashlib.sha256()
names = ("ball_constrained", "softmax", "matrix_inequality")
for name in ("FFOQPLayer: everything", *("FFOLayer: " + n for n in names)):
    for v in t.run(name):
        digest.update(v.tobytes())
print(digest.hexdigest())
"""


def test_processes_agree_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFO_NUM_THREADS", "1")
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    assert len({done.stdout for done in runs}) == 1
