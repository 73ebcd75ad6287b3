"""FFOQPLayer and bad input: errors name the block or sample; nothing is silently wrong."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import qps
import torch
from qps import KINDS, around, call, loss_of, tensors

from ffo.engine.memory import Memory
from ffo.errors import (
    DerivativeError,
    GradientWarning,
    InfeasibleError,
    InputError,
    InvalidDataError,
    MissingSolverError,
    Status,
    UnboundedError,
)
from ffo.torch import FFOQPLayer

#: the layer's own choice of route, and the sparse core
ROUTES = {"own": {}, "core": {"solver": "CLARABEL"}}
route = pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
D = torch.float64


def double(*values: object) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=D)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": None}, "p, the linear term, is required"),
        ({"p": double(1.0)}, r"p must be \(n,\) or \(batch, n\), got \(\)"),
        ({"Q": torch.eye(3, dtype=D)}, r"Q must be \(4, 4\) or \(batch, 4, 4\), got \(3, 3\) \(p has 4 entries\)"),
        ({"Q": torch.ones(4, dtype=D)}, r"Q must be \(4, 4\)"),
        ({"Q": torch.ones(2, 3, 4, dtype=D)}, r"Q must be .* got \(2, 3, 4\)"),
        ({"G": torch.ones(5, 3, dtype=D)}, r"G must be \(rows, 4\)"),
        ({"h": torch.ones(4, dtype=D)}, r"h must be \(5,\) or \(batch, 5\), got \(4,\)"),
        ({"lower": torch.ones(3, dtype=D)}, r"lower must be \(5,\)"),
        ({"A": torch.ones(4, dtype=D)}, r"A must be \(rows, 4\)"),
        ({"b": torch.ones(1, 1, 1, dtype=D)}, r"b must be \(1,\)"),
        ({"lb": torch.ones(5, dtype=D)}, r"lb must be \(4,\)"),
        ({"ub": torch.ones(2, 5, dtype=D)}, r"ub must be \(4,\)"),
        ({"h": None}, "G needs a right-hand side: give h or lower"),
        ({"G": None}, "h was given without G"),
        ({"b": None}, "A needs a right-hand side: give b"),
        ({"A": None}, "b was given without A"),
        ({"p": torch.ones(0, 4, dtype=D)}, "batch is empty"),
        ({"p": torch.ones(2, 4, dtype=D), "h": torch.ones(3, 5, dtype=D)}, "Inconsistent batch sizes: p: 2, h: 3"),
        ({"p": np.ones(4)}, "p must be a torch tensor, got ndarray"),
        ({"Q": [[1.0]]}, "Q must be a torch tensor, got list"),
        ({"p": torch.ones(4, dtype=torch.complex128)}, "p must have a floating-point dtype"),
    ],
)
def test_shapes_and_types_are_named_by_their_block(change: dict[str, object], message: str) -> None:
    blocks = tensors(KINDS["inequalities and equalities"].blocks, requires_grad=False) | change
    with pytest.raises(InputError, match=message):
        call(FFOQPLayer(), blocks)


def test_options_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="reduction must be 'sum' or 'mean'"):
        FFOQPLayer(reduction="max")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="on_fail"):
        FFOQPLayer(on_fail="ignore")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown solver"):
        FFOQPLayer(solver="nosuch")
    with pytest.raises((MissingSolverError, InputError), match="qpsolvers"):
        FFOQPLayer(solver="qpsolvers:nosuch")
    with pytest.raises(InputError, match="Q must be dense, COO, CSR or CSC without dense dimensions"):
        FFOQPLayer()(torch.eye(2, dtype=D).to_sparse(1), torch.ones(2, dtype=D))


@route
def test_infeasible_samples_are_named(options: dict[str, object]) -> None:
    p, ub = torch.zeros(4, 2, dtype=D), torch.ones(4, 2, dtype=D)
    ub[[1, 3], 0] = -1.0
    with pytest.raises(InfeasibleError) as caught:
        FFOQPLayer(**options)(torch.eye(2, dtype=D), p, lb=torch.zeros(2, dtype=D), ub=ub)
    assert caught.value.samples == (1, 3)


@route
def test_unbounded_samples_are_named(options: dict[str, object]) -> None:
    p = double([[1.0, 1.0], [-1.0, 1.0]])
    with pytest.raises(UnboundedError) as caught:
        FFOQPLayer(**options)(None, p, lb=torch.zeros(2, dtype=D))
    assert caught.value.samples == (1,)
    with pytest.raises(UnboundedError):
        FFOQPLayer(**options)(None, p)


@route
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("block", ["Q", "p", "G", "h", "A", "b", "lb", "ub"])
def test_bad_numbers_are_refused(block: str, value: float, options: dict[str, object]) -> None:
    known = KINDS["everything"]
    if (block, value) in [("h", torch.inf), ("ub", torch.inf), ("lb", -torch.inf)]:
        pytest.skip("means no constraint")
    blocks = tensors(around(known, 3), requires_grad=False)
    blocks[block][1].view(-1)[0] = value
    with pytest.raises(InvalidDataError) as caught:
        call(FFOQPLayer(**options), blocks)
    assert caught.value.samples == (1,)
    layer = FFOQPLayer(on_fail="nan", **options)
    z = call(layer, blocks)
    assert z[1].isnan().all()
    assert z[[0, 2]].isfinite().all()
    assert layer.info.status[1] is Status.INVALID_INPUT


@route
def test_a_q_that_is_not_convex_is_named_with_its_eigenvalue(options: dict[str, object]) -> None:
    Q = torch.eye(3, dtype=D).repeat(3, 1, 1)
    Q[2, 0, 1] = Q[2, 1, 0] = 1.5  # eigenvalues -0.5, 1, 2.5
    box = torch.ones(3, dtype=D)
    with pytest.raises(InvalidDataError, match=r"smallest eigenvalue -0\.5") as caught:
        FFOQPLayer(**options)(Q, torch.zeros(3, dtype=D), lb=-box, ub=box)
    assert caught.value.samples == (2,)
    layer = FFOQPLayer(on_fail="nan", **options)
    z = layer(Q, torch.ones(3, dtype=D), lb=-box, ub=box)
    assert z[2].isnan().all()
    assert z[:2].isfinite().all()


@route
def test_a_failed_sample_keeps_its_batch_and_has_no_gradient(options: dict[str, object]) -> None:
    Q = torch.eye(2, dtype=D, requires_grad=True)
    p = torch.tensor([[1.0, -1.0], [0.5, -2.0], [2.0, 1.0]], dtype=D, requires_grad=True)
    ub = torch.full((3, 2), 0.5, dtype=D)
    ub[1] = -1.0
    lb = torch.zeros(2, dtype=D)
    layer = FFOQPLayer(on_fail="nan", duals=True, **options)
    found = layer(Q, p, lb=lb, ub=ub)
    assert all(v[1].isnan().all() for v in found if v.numel())
    assert layer.info.ok.tolist() == [True, False, True]
    loss_of([v.nan_to_num() for v in found]).backward()
    assert (p.grad[1] == 0).all()
    assert p.grad.isfinite().all()
    assert Q.grad.isfinite().all()
    good = [0, 2]
    q2, p2 = Q.detach().requires_grad_(), p.detach()[good].requires_grad_()
    loss_of(FFOQPLayer(duals=True)(q2, p2, lb=lb, ub=ub[good])).backward()
    torch.testing.assert_close(Q.grad, q2.grad)
    torch.testing.assert_close(p.grad[good], p2.grad)


def test_retry_asks_the_next_solver() -> None:
    known = KINDS["everything"]
    layer = FFOQPLayer(solver="OSQP", solver_args={"max_iters": 1}, retry=["CLARABEL"], backward="resolve")
    z = call(layer, tensors(known.blocks, requires_grad=False))
    np.testing.assert_allclose(z.numpy(), known.z, atol=1e-5)
    assert layer.info.retried.all()
    assert layer.info.solver == ("CLARABEL",)


@route
def test_a_kink_is_flagged(options: dict[str, object]) -> None:
    """max(p, 0) at p = 0."""
    p = torch.tensor([0.0, 1.0], dtype=D, requires_grad=True)
    layer = FFOQPLayer(**options)
    z = layer(torch.eye(2, dtype=D), -p, lb=torch.zeros(2, dtype=D))
    with pytest.warns(GradientWarning, match="weakly active"):
        z.sum().backward()
    assert not layer.info.certificate.good[0]


@route
def test_a_second_derivative_is_refused(options: dict[str, object]) -> None:
    p = torch.tensor([1.0, -1.0], dtype=D, requires_grad=True)
    z = FFOQPLayer(**options)(torch.eye(2, dtype=D), p, lb=torch.zeros(2, dtype=D))

    def twice() -> None:
        (g,) = torch.autograd.grad(z.sum(), p, create_graph=True)
        (g.sum() + (p**2).sum()).backward()

    with pytest.raises(DerivativeError, match="differentiable once"):
        twice()


@route
@pytest.mark.parametrize("changed", ["Q", "G"])
def test_values_changed_in_place_before_backward_are_refused(changed: str, options: dict[str, object]) -> None:
    """torch's rule for all functions: the derivative is the one at the values of the forward pass, or none."""
    blocks = {"Q": 2 * torch.eye(2, dtype=D), "p": double(1.0, -1.0).requires_grad_(), "G": double([[1.0, 2.0]])}
    z = FFOQPLayer(**options)(**blocks, h=double([0.1]))
    blocks[changed].mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@route
def test_repeated_backward_gives_the_same_gradient(options: dict[str, object]) -> None:
    params = tensors(KINDS["everything"].blocks)
    loss = loss_of(call(FFOQPLayer(**options), params))
    first, second = (torch.autograd.grad(loss, list(params.values()), retain_graph=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@route
def test_copies_and_pickles_serve_as_well(options: dict[str, object]) -> None:
    blocks = around(KINDS["everything"], 2)
    layer = FFOQPLayer(duals=True, reduction="mean", **options)
    found, expected = qps.gradients(layer, blocks)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        again, gradients = qps.gradients(other, blocks)
        for a, b in zip(again, found, strict=True):
            torch.testing.assert_close(a, b)
        for k, g in gradients.items():
            np.testing.assert_allclose(g, expected[k], atol=1e-10)


@route
def test_float32_in_float32_out(options: dict[str, object]) -> None:
    known = KINDS["everything"]
    params = tensors(known.blocks, dtype=torch.float32)
    z = call(FFOQPLayer(**options), params)
    assert z.dtype == torch.float32
    np.testing.assert_allclose(z.detach().numpy(), known.z, atol=1e-4)
    loss_of(z).backward()
    _, expected = qps.gradients(FFOQPLayer(), known.blocks)
    for k, p in params.items():
        assert p.grad.dtype == torch.float32
        np.testing.assert_allclose(
            p.grad.numpy(), expected[k], rtol=1e-2, atol=1e-2 * np.abs(expected[k]).max(), err_msg=k
        )


# Remembered solutions


@pytest.mark.parametrize("name", ["inequalities and equalities", "everything", "linear"])
def test_keys_survive_shuffling(name: str) -> None:
    size, rng = 6, np.random.default_rng(0)
    blocks = around(KINDS[name], size, ("G", "A"))
    layer = FFOQPLayer()
    qps.gradients(layer, blocks, keys=range(size))
    assert layer.info.warm_hits == 0
    order = rng.permutation(size)
    moved = {k: v if k in ("G", "A") else v[order] * (1 + 1e-4) for k, v in blocks.items()}
    found, gradients = qps.gradients(layer, moved, keys=order.tolist())
    assert layer.info.warm_hits == size
    expected, wanted = qps.gradients(FFOQPLayer(), moved)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    for k, g in gradients.items():
        np.testing.assert_allclose(g, wanted[k], rtol=1e-6, atol=1e-7, err_msg=k)


def test_wrong_memory_is_never_accepted() -> None:
    """Other programs under the same keys, of the same and of other shapes."""
    layer = FFOQPLayer()
    for seed in range(3):
        for name in ("everything", "inequalities", "bounds", "linear with bounds"):
            blocks = around(KINDS[name], 3, seed=seed, spread=0.1 if name != "linear with bounds" else 0.02)
            order = np.random.default_rng(seed).permutation(3).tolist()
            z = call(layer, tensors(blocks, requires_grad=False), keys=order)
            expected = call(FFOQPLayer(solver="CLARABEL", solver_args={"eps": 1e-10}), tensors(blocks))
            torch.testing.assert_close(z, expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"solver": "DAQP"}], ids=["own", "core"])
def test_memory_is_bounded(options: dict[str, object]) -> None:
    layer = FFOQPLayer(**options)
    layer.engine._memory = Memory(max_bytes=4 * 8 * (3 + 2 * 3))  # four solutions of three variables and bounds
    p = torch.randn(6, 3, dtype=D, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        layer(torch.eye(3, dtype=D), p, lb=torch.zeros(3, dtype=D), keys=range(6))
    assert len(layer.engine._memory) == 4
    assert layer.info.warm_hits == 4


def test_warm_start_by_position() -> None:
    blocks = tensors(around(KINDS["everything"], 3))
    layer = FFOQPLayer(warm_start=True)
    hits = []
    for _ in range(2):
        call(layer, blocks)
        hits.append(layer.info.warm_hits)
    call(layer, blocks, warm_start=False)
    assert [*hits, layer.info.warm_hits] == [0, 3, 0]
    with pytest.raises(InputError, match="keys must name every sample"):
        call(layer, blocks, keys=[1, 2])
