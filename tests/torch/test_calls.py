"""Reports belong to calls, and combine the verdicts of several derivatives through one call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import make_layer, tensors

from ffo.engine import Info
from ffo.errors import GradientWarning
from ffo.program.sparse import SparseBatch
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer

Call = Callable[[torch.Tensor], tuple[object, Info]]


def of_problem() -> tuple[torch.nn.Module, Call]:
    layer = make_layer(zoo.build("relu"))
    return layer, lambda v: layer.call(v)


def of_matrices(**options: object) -> tuple[torch.nn.Module, Call]:
    layer = FFOQPLayer(**options)
    Q, low = torch.eye(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    return layer, lambda v: layer.call(Q, -v, lb=low)


def of_functions() -> tuple[torch.nn.Module, Call]:
    layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum(), lambda a, y: -y, shape=6, dims=(1,))
    return layer, lambda v: layer.call(v)


BUILDERS = {
    "problem": of_problem,
    "matrices": lambda: of_matrices(solver="CLARABEL"),
    "dense": of_matrices,
    "functions": of_functions,
}


def values(batch: int) -> torch.Tensor:
    """Half of the entries are negative, none is near zero; projected onto the nonnegative ones."""
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    return (signs * (1 + torch.rand(batch, 6, dtype=torch.float64))).requires_grad_()


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_call_comes_with_its_own_report(build: Callable[[], tuple[torch.nn.Module, Call]]) -> None:
    layer, call = build()
    first, mine = call(values(1))
    _, other = call(values(3))
    assert layer.info is other
    assert (len(mine.status), len(other.status)) == (1, 3)
    out = first[0] if isinstance(first, tuple) else first
    out.sum().backward()
    assert np.isfinite(mine.certificate.ghost_residual).all()
    assert np.isnan(other.certificate.ghost_residual).all()
    assert mine.times.backward > 0
    assert other.times.backward == 0


def test_threads_get_the_reports_on_their_own_calls() -> None:
    layer = make_layer(zoo.build("relu"))
    wrong: list[int] = []

    def work(size: int) -> None:
        for _ in range(20):
            (x,), info = layer.call(values(size))
            if not len(x) == len(info.status) == size:
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_hooks_and_settings_reach_a_call() -> None:
    layer = make_layer(zoo.build("relu"), solver="CLARABEL")
    seen: list[int] = []
    layer.register_forward_hook(lambda *_: seen.append(1))
    _, info = layer.call(values(2), keys=["a", "b"])
    _, again = layer.call(values(2), keys=["a", "b"])
    assert seen == [1, 1]
    assert (info.warm_hits, again.warm_hits) == (0, 2)


def not_unique() -> tuple[FFOLayer, torch.Tensor]:
    """min (x0 - q0)^2 + (x1 + x2 - q1)^2 in a box: x1 and x2 are not unique."""
    x, q = cp.Variable(3), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.square(x[0] - q[0]) + cp.square(x[1] + x[2] - q[1])), [x >= -2, x <= 2])
    return FFOLayer(problem, [q], [x], solver="CLARABEL"), torch.tensor([0.3, 0.4], dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_every_row_of_a_jacobian_counts() -> None:
    layer, q = not_unique()
    torch.func.jacrev(lambda v: layer(v)[0].flip(0))(q)  # the last row is that of x0, which is unique
    assert not layer.info.certificate.good.any()


def test_the_worst_of_several_passes_stays() -> None:
    layer, q = not_unique()
    (x,), info = layer.call(q.requires_grad_())
    x[0].backward(retain_graph=True)
    assert info.certificate.good.all()
    with pytest.warns(GradientWarning):
        x[1].backward(retain_graph=True)
    with pytest.warns(GradientWarning):
        x[0].backward()
    assert not info.certificate.good.any()


@pytest.mark.parametrize("expand", [True, False], ids=["expanded", "copied"])
def test_matrices_that_are_equal_across_the_batch_are_shared(expand: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored once; their gradients are still one per sample."""
    case = zoo.build("constrained_least_squares")
    A, b = tensors(case.values)
    batch = torch.stack([b.detach() + 0.1 * k for k in range(4)]).requires_grad_()
    full = A.detach().expand(4, *A.shape) if expand else A.detach().repeat(4, 1, 1)
    full = full.requires_grad_()
    layer = make_layer(case, solver="CLARABEL")
    stored: list[bool] = []
    original = SparseBatch.pruned
    monkeypatch.setattr(SparseBatch, "pruned", lambda M: stored.append(M.shared) or original(M))
    (x,) = layer(full, batch)
    assert stored
    assert all(stored)
    x.square().sum().backward()
    assert full.grad.shape == full.shape
    monkeypatch.undo()
    for k in range(4):
        one, rhs = A.detach().clone().requires_grad_(), batch[k].detach().clone().requires_grad_()
        (y,) = layer(one, rhs)
        y.square().sum().backward()
        torch.testing.assert_close(x[k], y, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(full.grad[k], one.grad, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(batch.grad[k], rhs.grad, rtol=1e-7, atol=1e-9)
