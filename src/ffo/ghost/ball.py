"""The ghost matrix of linear and second-order cone constraints, laid out once for every active set.

With second-order blocks (s0, s1) on their boundary, u the direction of s1 and h the curvature, the sparse form
of `kernels.cones.soc` leads to the unknowns (x, k, nu, t):

    [ P + h A1'A1   -h A1'u   A0' - A1'u   A_R' ]      rows of A1 with one entry, eliminated: they cost nothing
    [     .           h           .         .   ]      one k for every block
    [     .           .           .         .   ]      one nu for every block, its normal row
    [     .           .           .        -d   ]      other rows R: general ones (d = 0), and those rows of A1
                                                       with several entries (d = 1/h, coupled to k by -u)

Every active set uses some of these unknowns, all of them the same pattern: variables at active bounds, blocks in
the interior of their cone and inactive rows drop out. A block at its vertex has the row A0 in the place of its
normal row, and its other rows are equalities like any.

Norms come with variables of their own: |x| <= t, t <= 1. Where t has no cost and is in no other constraint, the
larger the better: t <= 1 is an equality, without which t would be open wherever |x| < 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ffo.cones.nonneg import Nonneg
from ffo.cones.soc import SecondOrder
from ffo.cones.zero import Zero
from ffo.ghost.bordered import BORDER, ENTRIES, Pattern
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray


@dataclass(frozen=True)
class Blocks:
    """Where the second-order blocks of a product are.

    Attributes:
        top: (blocks,) rows of their first coordinates.
        row, block: (tangents,) rows of the others, and the block of each.
        unequal, equal: rows of inequalities and of equalities.
        lid: (lids,) inequalities t <= ... that are held as equalities, `lid_variable` their t, `lid_block` the
            block that t is the size of.
    """

    top: Array
    row: Array
    block: Array
    unequal: Array
    equal: Array
    lid: Array
    lid_variable: Array
    lid_block: Array

    @classmethod
    def of(cls, program: ConeProgram) -> Blocks:
        cones = program.cones
        nothing = np.zeros(0, dtype=np.intp)
        curved = [g.index for g in cones.groups if isinstance(g.cone, SecondOrder)]
        sizes = np.concatenate([np.full(len(index), index.shape[1] - 1) for index in curved] or [nothing])
        flat = {kind: [g.index.ravel() for g in cones.groups if type(g.cone) is kind] for kind in (Nonneg, Zero)}
        unequal, equal = (np.concatenate(rows or [nothing]) for rows in flat.values())
        top = np.concatenate([index[:, 0] for index in curved] or [nothing])
        lid, variable, block = _lids(program, top, unequal)
        return cls(
            top,
            np.concatenate([index[:, 1:].ravel() for index in curved] or [nothing]),
            np.repeat(np.arange(len(sizes)), sizes),
            np.setdiff1d(unequal, lid),
            np.concatenate([equal, lid]),
            lid,
            variable,
            block,
        )


def _lids(program: ConeProgram, top: Array, unequal: Array) -> tuple[Array, Array, Array]:
    """Rows, variables and blocks of variables without costs that are in one inequality, which bounds them from
    above, and in one top, which grows with them."""
    P, A = program.P, program.A
    kind = np.zeros(program.m, dtype=int)
    kind[unequal], kind[top] = 1, 2
    values, mine = np.atleast_2d(A.values), kind[A.indices]
    upward = (mine == 1) & (values > 0).all(axis=0)
    beneath = (mine == 2) & (values < 0).all(axis=0)
    found = [np.bincount(A.columns[which], minlength=program.n) for which in (upward, beneath)]
    lidded = (found[0] == 1) & (found[1] == 1) & (np.diff(A.indptr) == 2) & ~program.q.any(axis=0)
    lidded[P.indices] = lidded[P.columns] = False
    variable = np.flatnonzero(lidded)
    row, block = np.empty((2, program.n), dtype=np.intp)
    place = np.zeros(program.m, dtype=np.intp)
    place[top] = np.arange(len(top))
    row[A.columns[upward]], block[A.columns[beneath]] = A.indices[upward], place[A.indices[beneath]]
    _, first = np.unique(row[variable], return_index=True)  # one variable for each row
    variable = variable[first]
    return row[variable], variable, block[variable]


class BallLayout:
    """The pattern of the matrix above, and what fills it.

    Attributes:
        blocks: see `Blocks`.
        bound: rows with a single entry other than tops, `column` their variables, `entry` their places in A.
        bare: rows without entries; wide: all rows that are unknowns of their own.
        single, spread: of `blocks.row`, which have one entry or none (eliminated), and which have more.
        curving: of `bound`, those that are rows of A1; tangent: their numbers among `blocks.row`.
        size: number of unknowns, in the order x, k, nu, wide rows; pattern: of the matrix.
        to_variables, to_blocks: (n, bounds) and (blocks, tangents), what belongs to what.
    """

    def __init__(self, program: ConeProgram) -> None:
        P, A = program.P, program.A
        self.n, self.m = program.n, program.m
        self.blocks = Blocks.of(program)
        count = np.bincount(A.indices, minlength=self.m)
        entry = np.zeros(self.m, dtype=np.intp)
        entry[A.indices] = np.arange(A.nnz)
        alone = count == 1
        if A.nnz:
            alone &= (np.atleast_2d(A.values)[:, entry] != 0).all(axis=0)
        top = np.zeros(self.m, dtype=bool)
        top[self.blocks.top] = True
        self.bound = np.flatnonzero(alone & ~top)
        self.entry = entry[self.bound]
        self.column = A.columns[self.entry]
        self.bare = np.flatnonzero((count == 0) & ~top)
        self.wide = np.flatnonzero(~alone & (count > 0) & ~top)
        eliminated = ~np.isin(self.blocks.row, self.wide)
        self.single, self.spread = np.flatnonzero(eliminated), np.flatnonzero(~eliminated)
        balls = len(self.blocks.top)
        self.k, self.nu, self.t = self.n, self.n + balls, self.n + 2 * balls
        self.size = self.t + len(self.wide)
        self._place(P, A)

    def _place(self, P: SymmetricBatch, A: SparseBatch) -> None:
        """The pattern: coordinates of all contributions, in the order in which `values` lists them."""
        blocks, every = self.blocks, np.arange(self.size)
        at = np.full(self.m, -1)
        at[self.wide] = self.t + np.arange(len(self.wide))
        self._wide_entries = np.flatnonzero(at[A.indices] >= 0)
        tangent = np.full(self.m, -1)
        tangent[blocks.row] = np.arange(len(blocks.row))
        ball = np.full(self.m, -1)
        ball[blocks.top], ball[blocks.row] = np.arange(len(blocks.top)), blocks.block
        self._normal_entries = np.flatnonzero(ball[A.indices] >= 0)
        self._normal_tangent = tangent[A.indices[self._normal_entries]]  # -1 for tops
        mine = tangent[self.bound]
        self.curving = np.flatnonzero(mine >= 0)
        self.tangent = mine[self.curving]
        owner, column = blocks.block[self.tangent], self.column[self.curving]
        single, spread = self.single, self.spread
        spread_at = at[blocks.row[spread]]
        where = [
            (P.indices, P.columns),
            (A.columns[self._wide_entries], at[A.indices[self._wide_entries]]),
            (column, column),
            (column, self.k + owner),
            (self.k + blocks.block[single], self.k + blocks.block[single]),
            (A.columns[self._normal_entries], self.nu + ball[A.indices[self._normal_entries]]),
            (self.k + blocks.block[spread], spread_at),
            (spread_at, spread_at),
            (every, every),
        ]
        row, col = (np.concatenate([pair[i] for pair in where]).astype(np.int64) for i in (0, 1))
        name, place = np.unique(col * self.size + row, return_inverse=True)
        column_of, row_of = np.divmod(name, self.size)
        self.pattern = Pattern(self.size, row_of, column_of, self._core(P), every < self.nu)
        count = len(row) - self.size
        self._sum = sp.csr_array((np.ones(count), (place[:count], np.arange(count))), shape=(len(name), count))
        ones = np.ones(len(self.bound))
        self.to_variables = sp.csr_array((ones, (self.column, np.arange(len(ones)))), shape=(self.n, len(ones)))
        ones = np.ones(len(blocks.row))
        shape = (len(blocks.top), len(ones))
        self.to_blocks = sp.csr_array((ones, (blocks.block, np.arange(len(ones)))), shape=shape)

    def _core(self, P: SymmetricBatch) -> Array:
        """(size,) variables of their own positive curvature that P does not couple with others."""
        core = np.zeros(self.size, dtype=bool)
        core[: self.n] = (P.diagonal > 0).all(axis=0)
        apart = P.indices != P.columns
        core[P.indices[apart]] = core[P.columns[apart]] = False
        return core

    def values(self, program: ConeProgram, u: Array, h: Array, delta: Array) -> Array:
        """(batch, nnz) upper triangle, nothing dropped; u (batch, tangents), h and delta (batch, blocks).

        u and h are zero for blocks that are not on their boundary.
        """
        P, A, blocks = program.P, program.A, self.blocks
        batch = len(u)
        a = A.values[..., self.entry[self.curving]]
        mine = blocks.block[self.tangent]
        bent = h[:, mine] * a
        direction = np.concatenate([-u, np.ones((batch, 1))], axis=1)[:, self._normal_tangent]
        parts = [
            P.values,
            A.values[..., self._wide_entries],
            bent * a,
            -bent * u[:, self.tangent],
            h[:, blocks.block[self.single]] * u[:, self.single] ** 2,
            direction * A.values[..., self._normal_entries],
            -u[:, self.spread],
            -delta[:, blocks.block[self.spread]],
        ]
        every = np.concatenate([np.broadcast_to(v, (batch, v.shape[-1])) for v in parts], axis=1)
        return total(self._sum, every)


def layout_of(program: ConeProgram) -> BallLayout | None:
    """The layout of a program, None where there is none: constraints other than linear ones and second-order cones
    (of a size that curves), none of the latter, or a matrix with many entries, for which it would not pay."""
    curved = [cone for cone, _ in program.cones.blocks if not cone.scalar]
    if not curved or not all(isinstance(cone, SecondOrder) and cone.size > 2 for cone in curved):
        return None
    if program.P.nnz + program.A.nnz > (BORDER + ENTRIES) * (program.n + program.m):
        return None
    layout = BallLayout(program)
    return layout if layout.pattern.is_bordered or layout.pattern.is_sparse else None


def total(indicator: sp.csr_array, v: Array) -> Array:
    """(batch, parts) -> (batch, wholes): sums over the parts of each whole."""
    return np.ascontiguousarray((indicator @ v.T).T)
