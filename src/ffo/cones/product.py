"""The product of cones that a problem's constraints form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from ffo.cones.base import Array, Cone
from ffo.cones.zero import Zero


@dataclass(frozen=True)
class Group:
    """All blocks of one cone: `index` (count, dim) holds the rows of each block."""

    cone: Cone
    index: Array


class Product:
    """K = K_1 x ... x K_p, blocks in the order of the rows of A.

    Args:
        blocks: (cone, count) pairs: `count` consecutive blocks of `cone`.
    """

    def __init__(self, blocks: Sequence[tuple[Cone, int]]) -> None:
        self.blocks = tuple((cone, int(count)) for cone, count in blocks if count)
        self._hash = hash(self.blocks)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Product) and self.blocks == other.blocks)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return Product, (self.blocks,)

    def __repr__(self) -> str:
        return "Product(" + " x ".join(f"{count}*{cone!r}" for cone, count in self.blocks) + ")"

    @cached_property
    def dim(self) -> int:
        return sum(cone.dim * count for cone, count in self.blocks)

    @cached_property
    def kinds(self) -> frozenset[type[Cone]]:
        """The types of cone that occur."""
        return frozenset(type(cone) for cone, _ in self.blocks)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Equal cones grouped, wherever they occur, so that each group takes one array operation."""
        found: dict[Cone, list[Array]] = {}
        start = 0
        for cone, count in self.blocks:
            rows = start + np.arange(count * cone.dim).reshape(count, cone.dim)
            found.setdefault(cone, []).append(rows)
            start += count * cone.dim
        return tuple(Group(cone, np.concatenate(rows)) for cone, rows in found.items())

    @cached_property
    def equalities(self) -> Array:
        """(dim,) true for the rows of zero cones."""
        kinds = np.array([isinstance(cone, Zero) for cone, _ in self.blocks], dtype=bool)
        return np.repeat(kinds, [cone.dim * count for cone, count in self.blocks])

    @cached_property
    def scalar_rows(self) -> Array:
        """(dim,) true for the rows of scalar cones."""
        kinds = np.array([cone.scalar for cone, _ in self.blocks], dtype=bool)
        return np.repeat(kinds, [cone.dim * count for cone, count in self.blocks])

    @cached_property
    def interior(self) -> Array:
        """(dim,) a point of the relative interior of K; zero on equalities."""
        found = np.zeros(self.dim)
        for g in self.groups:
            found[g.index] = g.cone.interior
        return found

    def only(self, kept: Array) -> Product:
        """The product of only some rows (dim,), from which no rows of curved cones are missing."""
        ends = list(accumulate(cone.dim * count for cone, count in self.blocks))
        blocks = zip(self.blocks, np.split(kept, ends)[:-1], strict=True)
        return Product([(cone, int(part.sum()) // cone.dim) for (cone, _), part in blocks])

    def project(self, w: Array) -> Array:
        """(batch, dim) -> (batch, dim), Euclidean projection onto K."""
        out = np.empty_like(w)
        for g in self.groups:
            out[:, g.index] = g.cone.project(w[:, g.index].reshape(-1, g.cone.dim)).reshape(len(w), *g.index.shape)
        return out

    def project_dual(self, v: Array) -> Array:
        """(batch, dim) -> (batch, dim), Euclidean projection onto K*."""
        return v + self.project(-v)

    def block_means(self, v: Array) -> Array:
        """(batch, dim): v averaged over each block of a curved cone, unchanged on scalar cones."""
        out = np.array(v, dtype=float)
        for g in self.groups:
            if not g.cone.scalar:
                out[:, g.index] = v[:, g.index].mean(axis=2, keepdims=True)
        return out
