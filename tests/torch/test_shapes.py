"""Shapes, batching and broadcasting of a small QP, whatever the sizes (hypothesis)."""

from __future__ import annotations

from functools import cache

import cvxpy as cp
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import loss_of, tensors

from ffo.torch import FFOLayer

quick = settings(max_examples=40, deadline=None, derandomize=True)


@cache
def layer_of(n: int, m: int, matrix: bool) -> FFOLayer:
    """min 1/2 |x - q|^2 + ..., Gx <= h with a scalar weight; x a vector or a matrix."""
    shape = (n, 2) if matrix else (n,)
    x, q = cp.Variable(shape), cp.Parameter(shape)
    G, h, w = cp.Parameter((m, n)), cp.Parameter((m, 2) if matrix else m), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - q) + w * cp.sum(x)), [G @ x <= h])
    return FFOLayer(problem, [q, G, h, w], [x])


@st.composite
def calls(draw: st.DrawFn) -> tuple[FFOLayer, list[np.ndarray], int | None]:
    n, m, matrix = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.booleans())
    batch = draw(st.one_of(st.none(), st.integers(1, 4)))
    which = draw(st.lists(st.booleans(), min_size=4, max_size=4)) if batch else [False] * 4
    if batch and not any(which):
        which[draw(st.integers(0, 3))] = True
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    shapes = [(n, 2) if matrix else (n,), (m, n), (m, 2) if matrix else (m,), ()]
    values = []
    for i, shape in enumerate(shapes):
        v = rng.normal(size=((batch, *shape) if which[i] else shape))
        # h positive: zero is feasible, whatever G
        values.append(np.abs(v) + 0.1 if i >= 2 else v)
    return layer_of(n, m, matrix), values, batch


@given(calls())
@quick
def test_output_shapes(call: tuple[FFOLayer, list[np.ndarray], int | None]) -> None:
    layer, values, batch = call
    (x,) = layer(*tensors(values))
    shape = layer.canonical.shapes[0]
    assert x.shape == (shape if batch is None else (batch, *shape))
    assert len(layer.info.status) == (batch or 1)


@given(calls())
@quick
def test_a_batch_is_its_samples_and_shared_gradients_are_sums(
    call: tuple[FFOLayer, list[np.ndarray], int | None],
) -> None:
    layer, values, batch = call
    params = tensors(values)
    outputs = layer(*params)
    dims = [len(s) for s in layer.canonical.shapes]
    if batch is None:
        loss_of(outputs).backward()
    else:
        loss_of(outputs, batched=True).sum().backward()
    totals = [np.zeros(v.shape) for v in values]
    for k in range(batch or 1):
        alone = tensors([v[k] if v.ndim > d else v for v, d in zip(values, dims, strict=True)])
        (x,) = layer(*alone)
        torch.testing.assert_close(outputs[0] if batch is None else outputs[0][k], x, rtol=1e-7, atol=1e-8)
        loss_of([x]).backward()
        for total, a, d in zip(totals, alone, dims, strict=True):
            total[(k,) if total.ndim > d else ()] += a.grad.numpy()
    for p, total in zip(params, totals, strict=True):
        assert p.grad.shape == p.shape
        np.testing.assert_allclose(p.grad, total, rtol=1e-6, atol=1e-7)


@given(calls(), st.integers(0, 3))
@quick
def test_only_what_is_wanted_is_given(call: tuple[FFOLayer, list[np.ndarray], int | None], which: int) -> None:
    layer, values, _ = call
    params = tensors(values, requires_grad=False)
    params[which].requires_grad_()
    layer(*params)[0].sum().backward()
    everything = tensors(values)
    layer(*everything)[0].sum().backward()
    torch.testing.assert_close(params[which].grad, everything[which].grad, rtol=1e-7, atol=1e-9)
    assert all(p.grad is None for i, p in enumerate(params) if i != which)


def test_a_batch_of_one_is_not_unbatched() -> None:
    layer = layer_of(3, 2, False)
    rng = np.random.default_rng(0)
    values = [rng.normal(size=3), rng.normal(size=(2, 3)), np.ones(2), np.array(0.5)]
    for which in range(4):
        params = tensors([v[None] if i == which else v for i, v in enumerate(values)])
        (x,) = layer(*params)
        assert x.shape == (1, 3)
        x.sum().backward()
        assert [p.grad.shape for p in params] == [p.shape for p in params]
    assert layer(*tensors(values))[0].shape == (3,)
