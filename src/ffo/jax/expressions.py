"""Expressions of parameters in JAX: what `program.expressions` needs, and JAX differentiates."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.special import erf

from ffo.program.canonical import CanonicalProblem
from ffo.program.expressions.namespace import Namespace

JAX = Namespace(jnp, erf)


def with_expressions(canonical: CanonicalProblem, parameters: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays of a problem's own parameters after the user's."""
    assert canonical.lifted is not None
    entering = canonical.map.entering
    kept = [p if k in entering else jax.lax.stop_gradient(p) for k, p in enumerate(parameters)]
    return [*kept, *canonical.lifted(JAX, parameters)]
