"""The same gradients through every front end, for tests that are one for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from layers import loss_of, make_layer, tensors, weights
from zoo import Case

from ffo.engine import Info
from ffo.jax import FFOLayer as JaxLayer

Array = np.ndarray
#: outputs, gradients of `loss_of` summed over the batch, and the report
Found = tuple[list[Array], list[Array], Info]


def with_torch(case: Case, values: Sequence[Array], **options: object) -> Found:
    layer, params = make_layer(case, **options), tensors(values)
    outputs = layer(*params)
    loss_of(outputs, batched=True).sum().backward()
    assert layer.info is not None
    return [v.detach().numpy() for v in outputs], [p.grad.numpy() for p in params], layer.info


def with_jax(case: Case, values: Sequence[Array], compiled: bool = True, **options: object) -> Found:
    layer = make_jax_layer(case, **options)

    def loss(*params: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        outputs = layer(*params)
        return jax_loss(outputs, batched=True), outputs

    with jax.enable_x64(True):
        step = jax.value_and_grad(loss, argnums=tuple(range(len(values))), has_aux=True)
        (_, outputs), found = (jax.jit(step) if compiled else step)(*map(jnp.asarray, values))
        arrays = [np.asarray(v) for v in outputs], [np.asarray(g) for g in found]
    assert layer.info is not None
    return *arrays, layer.info


def make_jax_layer(case: Case, **options: object) -> JaxLayer:
    return JaxLayer(case.problem, case.parameters, case.variables, gp=case.gp, **options)


def jax_loss(outputs: Sequence[jax.Array], batched: bool = False) -> jax.Array:
    """`loss_of` for JAX, summed over the batch."""
    total = jnp.zeros(())
    for k, out in enumerate(outputs):
        shape = out.shape[1:] if batched else out.shape
        total = total + (out * weights(shape, first=11 * k).numpy()).sum()
    return total


FRONT_ENDS: dict[str, Callable[..., Found]] = {"torch": with_torch, "jax": with_jax}
