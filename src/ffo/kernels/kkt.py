"""One fixed KKT pattern per structure; rows are switched off instead of removed.

The ghost system of a sample (P3 of the paper), unknowns (u | t | k):

    [ P   (TA)'    .  ]       T: rows of the face of every cone block, delta: their weights,
    [ TA  -delta  -C  ]       C: one column u per second-order block on its boundary, which keeps T sparse.
    [ .   -C'      .  ]

The pattern covers every face a block can have. A row of T that the current face lacks has zeros off the diagonal and
-1 on it, so it changes nothing and costs nothing. If T is a rotation (semidefinite, exponential and power blocks of d
rows), an entry of A goes to d positions, in a second-order block to two, else to one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import qdldl
import scipy.sparse as sp
from numba import types
from numba.extending import lower_builtin, type_callable
from numba.np import arrayobj

from ffo.kernels.jit import inner_kernel
from ffo.kernels.ldl import dense_from, symbolic
from ffo.kernels.vectors import fill

Array = np.ndarray

#: kinds of cone blocks; from ROTATED on, the rows of a face are a rotation of the block's coordinates
ZERO, NONNEG, SECOND_ORDER, SEMIDEFINITE, EXPONENTIAL, POWER = range(6)
ROTATED = SEMIDEFINITE


#: the parts of `Structure.wide`, in order; not Python integers, for each of which Numba would compile `part` again
(
    KIND, START, DIM, EXTRA, OWNER, PROW, PCOL, PPOS, AROW, ACOL, FAN, FANP, COUPLING, DIAGONAL, INV, KP, LP, RP, BOUND,
) = np.arange(19)  # fmt: skip
#: the parts of `Structure.slim`
KI, LI, RI = np.arange(3)


class Structure(NamedTuple):
    """What all samples of a program share. Unknowns are numbered x, rows, auxiliaries; INV is their position in K.

    Lists of integers are concatenated in two arrays (`part` extracts them): a kernel that passes twenty arrays to
    another one takes several times longer to compile.

    Attributes:
        n, m, aux, rotation, blocks: numbers of variables, rows, auxiliary unknowns, entries of all rotations, blocks.
        head: the unknown (in K's order) from which on K is factorized as a dense matrix.
        alpha: (blocks,) exponents of power cones; sign: (n + m + aux,) signs of the pivots, in K's order.
        wide: KIND, START, DIM, EXTRA of each block: kind, first row, rows, number of its auxiliary unknown (-1: none)
            or offset of its rotation; OWNER: block of each row; PROW, PCOL, PPOS: entries of P (upper triangle) and
            their places in K; AROW, ACOL, FAN, FANP: entries of A, entry t landing on FAN[FANP[t]:FANP[t + 1]];
            COUPLING: place of a row's entry in C (-1: none); DIAGONAL: places; KP, LP, RP: column pointers of K and
            of its factor L, row pointers of L; BOUND: the entry of A that is the only one of a scalar row (-1: none).
        slim: KI, LI: row indices of K (upper triangle) and of L by columns; RI: column indices of L by rows. Unsigned
            and short: a tenth faster.
    """

    n: int
    m: int
    aux: int
    rotation: int
    blocks: int
    head: int
    alpha: Array
    sign: Array
    wide: Array
    slim: Array


def part(packed: Array, which: np.int_) -> Array:
    """One of the lists of `Structure.wide` or `Structure.slim`; in kernels without an owner, like references."""
    return packed[packed[which] : packed[which + 1]]


@type_callable(part)
def _type_part(context: Any) -> Any:
    return lambda packed, which: types.Array(packed.dtype, 1, "C")


@lower_builtin(part, types.Array, types.Integer)  # type: ignore[untyped-decorator]
def _lower_part(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Numba's own slices count references, and take several times as long to compile."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    first = context.cast(builder, args[1], signature.args[1], types.intp)
    start, end = (
        context.cast(builder, builder.load(builder.gep(array.data, [at])), signature.return_type.dtype, types.intp)
        for at in (first, builder.add(first, context.get_constant(types.intp, 1)))
    )
    found = context.make_array(signature.return_type)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(array.data.type.pointee))
    data, shape = builder.gep(array.data, [start]), [builder.sub(end, start)]
    arrayobj.populate_array(found, data, shape, [size], size, None)
    return found._getvalue()


class ConeBlocks(NamedTuple):
    """Kind, rows and exponent of each cone block, in the order of the rows."""

    kind: Array
    dim: Array
    alpha: Array


class Face(NamedTuple):
    """The face of one sample: switches and weights of its rows, and the data of T.

    Attributes:
        on: (m + aux,) whether a row (an auxiliary unknown) takes part; delta: (m,) weights.
        u: (m,) directions of second-order blocks on their boundary; R: rotations of the others, row by row.
        case, margin: (blocks,) code of the case, and distance of w to another one; of a block of scalar cones (a
            range of rows), zero and the smallest distance.
    """

    on: Array
    delta: Array
    u: Array
    R: Array
    case: Array
    margin: Array


class Full(NamedTuple):
    """Kernels with everything compiled in (None stands for the light ones), and how they solve ghost systems.

    iterations: at most so many of MINRES before a restart from the true residual; 0: by factors.
    rtol: relative residual at which MINRES is done; restarts: how often it is run.
    """

    iterations: int
    rtol: float
    restarts: int


def build(
    P: tuple[Array, Array], A: tuple[Array, Array], n: int, m: int, blocks: ConeBlocks, factors: bool = True
) -> Structure:
    """The structure of a program: (rows, columns) of the entries of P (upper triangle) and of A, column by column.

    Without `factors` unknowns keep their order, and there is no L: K can be multiplied with, not factorized.
    """
    for rows, columns in (P, A):  # kernels rely on this order to recognise full columns
        if (np.diff(columns.astype(np.int64) * (n + m) + rows) <= 0).any():
            raise ValueError("entries must be ordered column by column, then by row, without duplicates")
    start = np.concatenate([[0], np.cumsum(blocks.dim)])[:-1]
    extra, aux, rotation = _extras(blocks)
    block = np.repeat(np.arange(len(blocks.dim)), blocks.dim)
    Arow, Acol = A
    fanned, fanp = _fan(Arow, blocks, start, block)
    coupled = np.flatnonzero((extra[block] >= 0) & (blocks.kind[block] == SECOND_ORDER) & (np.arange(m) > start[block]))
    size = n + m + aux
    every = np.arange(size)
    row = np.concatenate([every, P[0], np.repeat(Acol, np.diff(fanp)), n + coupled])
    col = np.concatenate([every, P[1], n + fanned, n + m + extra[block[coupled]]])
    sign = np.concatenate([np.ones(n), -np.ones(m), np.ones(aux)])
    inv = _ordering(row, col, sign) if factors else every
    low, high = np.minimum(inv[row], inv[col]), np.maximum(inv[row], inv[col])
    places, where = np.unique(high.astype(np.int64) * size + low, return_inverse=True)
    Kp = np.searchsorted(places, np.arange(size + 1, dtype=np.int64) * size).astype(np.int64)
    Ki = (places % max(size, 1)).astype(np.uint32)
    ends = np.cumsum([size, len(P[0]), len(fanned)])
    coupling = np.full(m, -1)
    coupling[coupled] = where[ends[2] :]
    in_order = np.empty(size)
    in_order[inv] = sign
    Lp, Li, Rp, Ri = symbolic(size, Kp, Ki) if factors else (every[:0],) * 4
    head = dense_from(Lp, Li) if factors else 0
    fan = where[ends[1] : ends[2]]
    wide = _packed(
        [
            blocks.kind, start, blocks.dim, extra, block, *P, where[size : ends[1]], Arow, Acol, fan, fanp, coupling,
            where[:size], inv, Kp, Lp, Rp, _bounds(Arow, blocks.kind[block]),
        ],
        np.int64,
    )  # fmt: skip
    slim = _packed([Ki, Li, Ri], np.uint32)
    alpha = np.array(blocks.alpha, dtype=float)
    return Structure(n, m, aux, rotation, len(start), head, alpha, in_order, wide, slim)


def _bounds(Arow: Array, kind: Array) -> Array:
    """(m,) the place in A of the entry of each scalar row with only one, else -1; `kind` (m,): of the rows' blocks."""
    single = np.flatnonzero((np.bincount(Arow, minlength=len(kind))[Arow] == 1) & (kind[Arow] <= NONNEG))
    found = np.full(len(kind), -1)
    found[Arow[single]] = single
    return found


def _packed(parts: list[Array], dtype: type[np.generic]) -> Array:
    """The start of each part, the end of the last one, then the parts, concatenated."""
    ends = len(parts) + 1 + np.concatenate([[0], np.cumsum([len(p) for p in parts])])
    return np.concatenate([np.asarray(p, dtype) for p in (ends, *parts)])


def _extras(blocks: ConeBlocks) -> tuple[Array, int, int]:
    """Numbers of auxiliary unknowns and offsets of rotations of the blocks, and their counts."""
    extra, aux, rotation = np.full(len(blocks.dim), -1), 0, 0
    for b, (kind, dim) in enumerate(zip(blocks.kind.tolist(), blocks.dim.tolist(), strict=True)):
        if kind >= ROTATED:
            extra[b], rotation = rotation, rotation + dim * dim
        elif kind == SECOND_ORDER and dim > 2:  # in size 2 the cone is polyhedral
            extra[b], aux = aux, aux + 1
    return extra, aux, rotation


def _fan(Arow: Array, blocks: ConeBlocks, start: Array, block: Array) -> tuple[Array, Array]:
    """Rows of TA that each entry of A goes to, and where the list of each entry begins."""
    mine = block[Arow]
    kind, dim = blocks.kind[mine], blocks.dim[mine]
    count = np.where(kind >= ROTATED, dim, np.where(kind == SECOND_ORDER, 2, 1))
    fanp = np.concatenate([[0], np.cumsum(count)])
    within = np.arange(fanp[-1]) - np.repeat(fanp[:-1], count)
    own, first = np.repeat(Arow, count), np.repeat(start[mine], count)
    rotated = np.repeat(kind >= ROTATED, count)
    return np.where(rotated, first + within, np.where(within == 0, own, first)), fanp


def _ordering(row: Array, col: Array, sign: Array) -> Array:
    """Position of each unknown in an order that keeps the factor sparse (approximate minimum degree)."""
    size = len(sign)
    if not size:
        return np.zeros(0, np.int64)
    test = sp.csc_array((np.full(len(row), 1e-3), (np.minimum(row, col), np.maximum(row, col))), shape=(size, size))
    test.setdiag(10.0 * len(row) * sign)  # dominant, so that the factorization cannot fail
    order = np.asarray(qdldl.Solver(test, upper=True).factors()[2])
    inv = np.empty(size, np.int64)
    inv[order] = np.arange(size)
    return inv


@inner_kernel
def assemble(S: Structure, Pv: Array, Av: Array, face: Face, coupling: Array, corner: Array, Kx: Array) -> None:
    """K at a face; `coupling` (m,) is the column C of second-order blocks, `corner` (aux,) its diagonal."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    owner, Ppos, Arow, fan = part(S.wide, OWNER), part(S.wide, PPOS), part(S.wide, AROW), part(S.wide, FAN)
    fanp, couplings, diagonals = part(S.wide, FANP), part(S.wide, COUPLING), part(S.wide, DIAGONAL)
    on, delta, n, m = face.on, face.delta, S.n, S.m
    fill(Kx, 0.0)
    for t in range(Pv.size):
        Kx[Ppos[t]] += Pv[t]
    for i in range(m):
        Kx[diagonals[n + i]] = -delta[i] if on[i] else -1.0
        if couplings[i] >= 0 and on[m + extras[owner[i]]]:
            Kx[couplings[i]] = -coupling[i]
    for k in range(S.aux):
        Kx[diagonals[n + m + k]] = corner[k] if on[m + k] else 1.0
    plain = fan.size == Av.size  # only scalar cones: entry by entry
    for t in range(Av.size if plain else 0):
        if on[Arow[t]]:
            Kx[fan[t]] += Av[t]
    for t in range(0 if plain else Av.size):
        i, f, v = Arow[t], fanp[t], Av[t]
        b = owner[i]
        kind = kinds[b]
        if kind < ROTATED:
            if on[i]:
                Kx[fan[f]] += v
            if kind == SECOND_ORDER and on[starts[b]]:
                Kx[fan[f + 1]] -= face.u[i] * v  # row 0 becomes a0 - u'A1 (u is 0 on row 0 itself)
        else:
            first, d = starts[b], dims[b]
            offset = extras[b] + i - first
            for r in range(d):
                if on[first + r]:
                    Kx[fan[f + r]] += face.R[offset + r * d] * v


@inner_kernel
def onto_face(S: Structure, face: Face, v: Array, out: Array) -> None:
    """out := T v, zero in rows that are off."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    on, u = face.on, face.u
    for b in range(S.blocks):
        kind, first, d = kinds[b], starts[b], dims[b]
        if kind < ROTATED:
            dot = 0.0
            for i in range(first, first + d):
                out[i] = v[i] if on[i] else 0.0
                if kind == SECOND_ORDER:
                    dot += u[i] * v[i]
            if kind == SECOND_ORDER and face.on[first]:
                out[first] -= dot
        else:
            for r in range(d):
                total = 0.0
                if face.on[first + r]:
                    offset = extras[b] + r * d
                    for i in range(d):
                        total += face.R[offset + i] * v[first + i]
                out[first + r] = total


@inner_kernel
def from_face(S: Structure, face: Face, t: Array, out: Array) -> None:
    """out := T't."""
    kinds, starts, dims, extras = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM), part(S.wide, EXTRA)
    on, u = face.on, face.u
    for b in range(S.blocks):
        kind, first, d = kinds[b], starts[b], dims[b]
        if kind < ROTATED:
            for i in range(first, first + d):
                out[i] = t[i] if on[i] else 0.0
            if kind == SECOND_ORDER and on[first]:
                for i in range(first + 1, first + d):
                    out[i] -= u[i] * t[first]
        else:
            for i in range(d):
                out[first + i] = 0.0
            for r in range(d):
                if face.on[first + r]:
                    offset = extras[b] + r * d
                    for i in range(d):
                        out[first + i] += face.R[offset + i] * t[first + r]
