"""Arrays on a GPU: accepted, and results come back on it, equal to the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from front_ends import jax_loss, make_jax_layer

from ffo.jax import solve_qp


def _gpus() -> list[jax.Device]:
    try:
        return jax.devices("gpu")
    except RuntimeError:  # no such platform
        return []


pytestmark = pytest.mark.skipif(not _gpus(), reason="JAX has no GPU here")
Wrapped = Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", ["constrained_least_squares", "ball_constrained", "box_volume"])
def test_values_and_gradients_are_those_of_the_cpu(name: str, wrap: Wrapped) -> None:
    case = zoo.build(name)
    layer = make_jax_layer(case)
    values = case.batch(3, np.random.default_rng(0))

    def step(*params: jax.Array) -> tuple[jax.Array, ...]:
        run = jax.value_and_grad(lambda *p: jax_loss(layer(*p), batched=True), argnums=tuple(range(len(params))))
        value, gradients = wrap(run)(*params)
        return value, *gradients

    here = step(*(jax.device_put(v, jax.devices("cpu")[0]) for v in values))
    there = step(*(jax.device_put(v, _gpus()[0]) for v in values))
    for mine, theirs in zip(there, here, strict=True):
        assert mine.devices() == {_gpus()[0]}
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def _data(batch: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(1)
    root, p, G = rng.normal(size=(4, 4)), rng.normal(size=(batch, 4)), rng.normal(size=(6, 4))
    return tuple(jax.device_put(v, _gpus()[0]) for v in (root @ root.T + np.eye(4), p, G, np.ones(6)))


def test_vmap_of_grad_and_jacobians() -> None:
    Q, p, G, h = _data(5)
    loss = lambda p: (solve_qp(Q, p, G, h) ** 2).sum()  # noqa: E731
    found = jax.jit(jax.vmap(jax.grad(loss)))(p)
    assert found.devices() == {_gpus()[0]}
    np.testing.assert_allclose(found, np.stack([jax.grad(loss)(each) for each in p]), rtol=1e-10, atol=1e-12)
    solve = lambda p: solve_qp(Q, p, G, h)  # noqa: E731
    reverse, forward = jax.jit(jax.jacrev(solve))(p[0]), jax.jit(jax.jacfwd(solve))(p[0])
    np.testing.assert_allclose(reverse, forward, rtol=1e-10, atol=1e-12)


def test_scan_and_work_before_and_after() -> None:
    Q, p, G, h = _data(3)

    def chain(start: jax.Array) -> jax.Array:
        """Three solves, each of which depends on the one before, between products on the GPU."""

        def step(z: jax.Array, each: jax.Array) -> tuple[jax.Array, None]:
            return solve_qp(Q, jnp.tanh(Q @ z) + each, G, h), None

        return jax.lax.scan(step, start, p)[0].sum()

    start = jnp.zeros(4)
    found = jax.jit(jax.grad(chain))(start)
    step = 1e-5
    differences = [(chain(start.at[k].add(step)) - chain(start.at[k].add(-step))) / (2 * step) for k in range(4)]
    np.testing.assert_allclose(found, np.array(differences), rtol=1e-5, atol=1e-8)


def test_failed_samples_are_nan_under_jit() -> None:
    Q, p, G, h = _data(2)
    sides = jnp.stack([h, h.at[0].set(jnp.nan)])
    z = jax.jit(lambda h: solve_qp(Q, p, G, h, on_fail="nan"))(sides)
    assert np.isfinite(z[0]).all()
    assert np.isnan(z[1]).all()
