"""Problems that are not DPP through JAX: the same as through torch, which is compared with twins and differences."""

from __future__ import annotations

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from lift_catalogue import PAIRS
from program.test_expressions import ALL, EXPRESSIONS, values_of

from ffo.jax import FFOLayer
from ffo.jax.expressions import JAX
from ffo.program.expressions.evaluate import compiled
from ffo.torch import FFOLayer as TorchLayer
from ffo.torch.expressions import TorchNamespace


@pytest.mark.parametrize("name", PAIRS)
def test_solutions_and_gradients_are_those_of_torch(name: str) -> None:
    """A batch of two, whose last parameter is shared if there are several."""
    pair = PAIRS[name]()
    rng = np.random.default_rng(3)
    samples = [pair.draw(rng) for _ in range(2)]
    values = [np.stack(column) for column in zip(*samples, strict=True)]
    if len(values) > 1:
        values[-1] = samples[0][-1]
    own = pair.own
    layer = FFOLayer(own.problem, own.parameters, own.outputs, gp=pair.gp)
    other = TorchLayer(own.problem, own.parameters, own.outputs, gp=pair.gp)
    outputs, back = jax.vjp(lambda *v: layer(*v), *map(jnp.asarray, values))
    gradients = back(tuple(jnp.cos(v + 1.0) for v in outputs))
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    expected = other(*tensors)
    torch.autograd.backward(expected, [torch.cos(v.detach() + 1.0) for v in expected])
    for found, known in zip([*outputs, *gradients], [*expected, *(t.grad for t in tensors)], strict=True):
        reference = known.detach().numpy()
        assert np.allclose(found, reference, rtol=1e-8, atol=1e-8 * (1 + np.abs(reference).max()))


def test_transforms() -> None:
    x, a, b = cp.Variable(2), cp.Parameter(nonneg=True), cp.Parameter(2)
    P = cp.Parameter((2, 2), PSD=True)
    problem = cp.Problem(
        cp.Minimize(a * cp.sum_squares(x - b) + cp.exp(a) * cp.sum(x)), [cp.quad_form(x, P) <= cp.norm(b)]
    )
    layer = FFOLayer(problem, [a, b, P], [x])
    values = jnp.asarray(0.7), jnp.asarray([0.5, -1.3]), jnp.asarray([[2.0, 0.3], [0.3, 0.0]]).at[1, 1].set(0.045)

    def solve(*v: jax.Array) -> jax.Array:
        return layer(*v)[0]

    for k in range(3):
        forward, reverse = jax.jacfwd(solve, k)(*values), jax.jit(jax.jacrev(solve, k))(*values)
        if k == 2:  # a direction that is not symmetric stands for its symmetric part
            forward, reverse = (0.5 * (J + jnp.swapaxes(J, -1, -2)) for J in (forward, reverse))
        assert np.allclose(forward, reverse, atol=1e-9)
    several = jnp.stack([values[1], 2 * values[1]])
    mapped = jax.vmap(jax.grad(lambda b: solve(values[0], b, values[2]).sum()))(several)
    for row, b in zip(mapped, several, strict=True):
        alone = jax.grad(lambda b: solve(values[0], b, values[2]).sum())(b)
        assert np.allclose(row, alone, atol=1e-9)


def test_single_precision() -> None:
    x, a = cp.Variable(2), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x) + cp.exp(a) * cp.sum(x))), [a], [x])
    found, back = jax.vjp(lambda a: layer(a)[0], jnp.asarray(0.3, dtype=jnp.float32))
    assert found.dtype == jnp.float32
    assert np.allclose(found, -0.5 * np.exp(0.3), atol=1e-5)
    assert np.allclose(back(jnp.ones_like(found))[0], -np.exp(0.3), atol=1e-5)


def test_the_table_has_the_same_values_and_gradients() -> None:
    """Atoms that use a library in different ways, weighed and added up."""
    names = [
        "bmat", "diag off", "convolve", "cummax", "dotsort", "entropy", "normcdf", "log det", "generalized eigenvalue",
        "spectral radius", "matrix fraction", "weighted geometric mean", "logistic", "norm 3", "sum of axes",
    ]  # fmt: skip
    function = compiled([EXPRESSIONS[n] for n in names], ALL, names)
    values = list(values_of().values())

    def total(xp: object, arrays: list) -> object:
        return sum((v * (k % 7 + 1)).sum() for k, v in enumerate(function(xp, arrays)))

    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    expected = total(TorchNamespace(torch.device("cpu")), tensors)
    expected.backward()
    found, gradients = jax.value_and_grad(lambda v: total(JAX, v))([jnp.asarray(v) for v in values])
    assert np.allclose(found, expected.item(), rtol=1e-10)
    for g, t in zip(gradients, tensors, strict=True):
        assert np.allclose(g, t.grad.numpy(), rtol=1e-8, atol=1e-8)
