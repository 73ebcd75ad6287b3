"""Expressions of parameters in JAX: the namespace for `program.expressions`, differentiated by JAX.

A sample outside the domain of an expression fails, and the cotangent of its value is zero. But zero times the
derivative of a logarithm at -1 is NaN, and a parameter shared by the batch would pass it on to all samples. So the
derivative of such a sample is set to zero: it is evaluated at the values of a sample inside the domain, and its
inputs and outputs are replaced by zeros. If no sample is inside, all derivatives are zero. The same rule applies to the
single sample inside `jax.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import erf

from ffo.program.canonical import CanonicalProblem
from ffo.program.expressions.evaluate import Expressions
from ffo.program.expressions.namespace import Namespace, beside


class JaxNamespace(Namespace):
    """`jax.numpy`, except that the spectrum of a matrix with NaN entries is NaN (JAX may return numbers)."""

    def __init__(self) -> None:
        super().__init__(jnp, erf)

    def eigvalsh(self, x: jax.Array) -> jax.Array:
        return _of_finite(super().eigvalsh, x)

    def eigvals(self, x: jax.Array) -> jax.Array:
        return _of_finite(super().eigvals, x)

    def svdvals(self, x: jax.Array) -> jax.Array:
        return _of_finite(super().svdvals, x)


def _of_finite(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    finite = jnp.isfinite(x).all(axis=(-2, -1))
    return jnp.where(finite[..., None], function(_or_zero(finite, x)), jnp.nan)


JAX = JaxNamespace()


def with_expressions(canonical: CanonicalProblem, parameters: Sequence[jax.Array]) -> list[jax.Array]:
    """The user's arrays, followed by those of the parameter expressions: in double precision if JAX may use it."""
    lifted = canonical.lifted
    assert lifted is not None
    wide = [p.astype(jnp.promote_types(p.dtype, jnp.result_type(float))) for p in parameters]
    values: list[Any] = [None] * len(lifted.results)
    # Those of one group are differentiated together, and mapped together by jax.vmap.
    for numbers, group in lifted.groups:
        own = sorted(group.depends[0])
        for k, value in zip(numbers, _evaluated(group, own)(*(wide[k] for k in own)), strict=True):
            values[k] = value
    entering = canonical.map.entering
    kept = [p if k in entering else jax.lax.stop_gradient(p) for k, p in enumerate(parameters)]
    return [*kept, *values]


def _evaluated(group: Expressions, own: Sequence[int]) -> Any:
    """The values of expressions as a function of those parameters that occur in them, with the rule above."""
    dims = [len(group.shapes[k]) for k in own]

    def plain(*given: jax.Array) -> tuple[jax.Array, ...]:
        arrays: list[Any] = [None] * len(group.shapes)
        for k, value in zip(own, given, strict=True):
            arrays[k] = value
        return tuple(group(JAX, arrays))

    evaluated = jax.custom_jvp(plain)

    @partial(evaluated.defjvp, symbolic_zeros=True)
    def rule(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> Any:
        values = plain(*primals)
        batched = [p.ndim > d for p, d in zip(primals, dims, strict=True)]
        lead = int(any(batched))
        inside = jnp.stack([jnp.isfinite(v).all(axis=tuple(range(lead, v.ndim))) for v in values]).all(axis=0)
        at = [_moved_inside(p, inside) if b else p for p, b in zip(primals, batched, strict=True)]
        which = [k for k, t in enumerate(tangents) if type(t) is not SymbolicZero]
        directions = [_or_zero(inside if batched[k] else inside.any(), tangents[k]) for k in which]

        def moving(*given: jax.Array) -> tuple[jax.Array, ...]:
            arrays = list(at)
            for k, value in zip(which, given, strict=True):
                arrays[k] = value
            return plain(*arrays)

        _, changes = jax.jvp(moving, [at[k] for k in which], directions)
        return values, tuple(_or_zero(inside, change) for change in changes)

    return evaluated


def _moved_inside(p: jax.Array, inside: jax.Array) -> jax.Array:
    """The batch, in which samples outside the domain have the values of the first sample inside."""
    first = jnp.arange(len(inside)) == jnp.argmax(inside)
    good = jnp.sum(_or_zero(first, p), axis=0)  # a sum, since the batch may be on several devices
    return jnp.where(beside(inside, p), p, good)


def _or_zero(where: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.where(beside(where, v), v, 0.0)
