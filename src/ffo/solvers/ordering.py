"""The rows of a program in the order of cones that a solver requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, Power, SecondOrder, Zero
from ffo.cones.base import Cone
from ffo.cones.product import Product
from ffo.program.cone import ConeProgram
from ffo.solvers.split import pick_rows

Array = np.ndarray
C = TypeVar("C", bound=Cone)
#: all cones, as SCS and Moreau order them
ORDER = (Zero, Nonneg, SecondOrder, PSD, Exponential, Power)


class Ordering:
    """A program with its blocks sorted by type of cone.

    Args:
        kinds: the types of cone in the solver's order.
        lower_psd: whether the solver stacks the lower triangle of a matrix by columns
            (this package stacks the upper triangle).

    Attributes:
        program: the reordered program; cones: its cones, one entry per block (scalar cones merged).
        rows: (m,) row of the original program at each position.
    """

    def __init__(self, program: ConeProgram, kinds: Sequence[type[Cone]], lower_psd: bool = False) -> None:
        start, found = 0, []
        for cone, count in program.cones.blocks:
            rows = start + np.arange(count * cone.dim).reshape(count, cone.dim)
            start += rows.size
            if lower_psd and isinstance(cone, PSD):
                rows = rows[:, _lower(cone.order)]
            found.append((cone, count, rows.ravel()))
        found.sort(key=lambda item: kinds.index(type(item[0])))  # stable
        self.blocks: tuple[tuple[Cone, int], ...] = tuple((cone, count) for cone, count, _ in found)
        self.rows = np.concatenate([rows for *_, rows in found]) if found else np.zeros(0, dtype=np.intp)
        if np.array_equal(self.rows, np.arange(program.m)):
            self.program = program
        else:
            A, b = pick_rows(program.A, self.rows), np.ascontiguousarray(program.b[:, self.rows])
            self.program = replace(program, A=A, b=b, cones=Product(self.blocks))

    def count(self, kind: type[Cone]) -> int:
        """Number of blocks of a type."""
        return sum(count for cone, count in self.blocks if type(cone) is kind)

    def each(self, kind: type[C]) -> list[C]:
        """The blocks of a type, one by one."""
        return [cone for cone, count in self.blocks if isinstance(cone, kind) for _ in range(count)]

    def back(self, v: Array) -> Array:
        """(..., m) from the solver's order to the program's."""
        out = np.empty(v.shape)
        out[..., self.rows] = v
        return out


def _lower(order: int) -> Array:
    """Positions of the lower triangle, stacked by columns, in the upper one stacked by columns."""
    column, row = np.triu_indices(order)  # of the lower triangle: row >= column, columns in order
    return row * (row + 1) // 2 + column
