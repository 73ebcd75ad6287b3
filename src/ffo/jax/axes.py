"""Joining mapped axes to the batch of a call.

Arrays of a call are ([rows,] [batch,] *own): rows are right-hand sides or directions of one derivative, and the
mapped axis of `jax.vmap` may be anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

Dim = int | None


@dataclass(frozen=True)
class Fold:
    """A mapped axis of `size` that joins a batch of `batch` samples (None: there is no batch), mapped axis first."""

    size: int
    batch: int | None

    @property
    def joint(self) -> int:
        return self.size * (self.batch or 1)

    def join(self, x: jax.Array, dim: Dim, own: int, rows: bool = False) -> jax.Array:
        """([rows,] size * batch, *own); what is neither mapped nor batched is unchanged, shared by all."""
        lead = int(rows)
        batched = x.ndim - lead - (dim is not None) > own
        if dim is None and not batched:
            return x
        x = with_axis(x, dim, self.size, lead)
        if self.batch is None:
            return x
        if not batched:
            x = jnp.broadcast_to(jnp.expand_dims(x, lead + 1), (*x.shape[: lead + 1], self.batch, *x.shape[lead + 1 :]))
        return x.reshape(*x.shape[:lead], self.joint, *x.shape[lead + 2 :])

    def spread(self, x: jax.Array, dim: Dim, rows: bool) -> jax.Array:
        """The same for an array that has the batch: repeated if it is not mapped."""
        lead = int(rows)
        x = with_axis(x, dim, self.size, lead)
        return x if self.batch is None else x.reshape(*x.shape[:lead], self.joint, *x.shape[lead + 2 :])

    def part(self, x: jax.Array, rows: bool = False) -> jax.Array:
        """The inverse: (size, [rows,] [batch,] *own)."""
        lead = int(rows)
        if self.batch is not None:
            x = x.reshape(*x.shape[:lead], self.size, self.batch, *x.shape[lead + 1 :])
        return jnp.moveaxis(x, lead, 0)


def with_axis(x: jax.Array, dim: Dim, size: int, place: int = 0) -> jax.Array:
    """The mapped axis at a given position, added if there is none."""
    if dim is not None:
        return jnp.moveaxis(x, dim, place)
    return jnp.broadcast_to(jnp.expand_dims(x, place), (*x.shape[:place], size, *x.shape[place:]))


def mapped_size(arrays: Sequence[jax.Array], dims: Sequence[Dim]) -> int:
    return next(int(x.shape[d]) for x, d in zip(arrays, dims, strict=True) if d is not None)


def inner_batch(shapes: Sequence[tuple[int, ...]], dims: Sequence[Dim], own: Sequence[int]) -> int | None:
    """Size of the batch axis other than the mapped one; None if there is none."""
    for shape, d, k in zip(shapes, dims, own, strict=True):
        rest = [s for i, s in enumerate(shape) if i != d]
        if len(rest) > k:
            return rest[0]
    return None
