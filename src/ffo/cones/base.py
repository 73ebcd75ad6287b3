"""The contract of a cone: project onto it, and describe its face at a point.

A `Cone` describes one block; its methods take many blocks at once, `(N, dim)` arrays, where N runs over the
samples of a batch and over the equal blocks of a problem. The numerics of one block are compiled: `ffo.kernels.cones`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, VERTEX

__all__ = ["BOUNDARY", "INTERIOR", "VERTEX", "Array", "Cone", "Faces"]

Array = np.ndarray


def _no_index() -> Array:
    return np.zeros(0, dtype=np.intp)


def _no_value() -> Array:
    return np.zeros(0)


@dataclass(frozen=True)
class Faces:
    """Active manifolds of N blocks of one cone, as rows of the ghost system.

    Block k contributes `rows[k]` rows T with weights delta >= 0 (0: a normal row, held as an
    equality; 1/h: a row with curvature h) and `aux[k]` auxiliary unknowns coupled to these rows
    through C. The ghost system of a block is

        [ .   (TA)'  . ] [u]
        [ TA  -delta C ] [t]        w = T't
        [ .    C'    . ] [k]

    C is empty except where it keeps T sparse (the second-order cone).

    Entries are triplets: `t_block, t_row, t_col, t_value` for T (row numbers local to the block,
    columns 0..dim-1), `c_block, c_row, c_col, c_value` for C. `delta` lists the weights of all rows,
    blocks in order, rows of a block in order; it is finite (`ffo.kernels.cones.rows.weight` says how). Triplets
    come in no particular order.

    Attributes:
        s, y: (N, dim) cleaned primal and dual points, s in K, y in K*, <s, y> = 0.
        case: (N,) integers; within one cone, equal codes mean the same active structure.
        margin: (N,) distance of s - tau y to the nearest change of case (a lower bound where no
            closed form exists: interior and vertex of exp and pow; inf where no change is possible).
    """

    rows: Array
    delta: Array
    t_block: Array
    t_row: Array
    t_col: Array
    t_value: Array
    s: Array
    y: Array
    case: Array
    margin: Array
    aux: Array
    c_block: Array = field(default_factory=_no_index)
    c_row: Array = field(default_factory=_no_index)
    c_col: Array = field(default_factory=_no_index)
    c_value: Array = field(default_factory=_no_value)


class Cone(ABC):
    """One block of a product cone. Instances are immutable, hashable and compare by value."""

    name: ClassVar[str]
    #: True where every block is one coordinate and blocks are independent (zero, nonneg).
    scalar: ClassVar[bool] = False

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of coordinates of one block."""

    @abstractmethod
    def project(self, w: Array) -> Array:
        """Euclidean projection onto K, (N, dim) -> (N, dim)."""

    def project_dual(self, v: Array) -> Array:
        """Euclidean projection onto the dual cone K* (Moreau: v + Pi_K(-v))."""
        return v + self.project(-v)

    @abstractmethod
    def faces(self, w: Array, tau: Array) -> Faces:
        """Faces at the points whose residual is w = s - tau y; w (N, dim), tau (N,) > 0.

        The case is decided by where w projects (interior, vertex or boundary), never by a tolerance
        on s or y alone; the cleaned pair is s = Pi_K(w), y = (s - w) / tau. Where w lies on a change
        of case, the side nearer the interior is taken (w = 0 has no rows).

        The rows say, for changes ds of s and dy = T't of y, that T ds + delta t - C k = 0 and C't = 0:
        without C this is D Pi_K(w) = I - T' diag(tau / (tau + delta)) T for orthonormal T.

        A block with NaN passes it on to s and y, has no rows (but for the zero cone, which always has
        its own), and does not disturb its neighbours.
        """
