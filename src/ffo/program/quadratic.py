"""Quadratic programs given by matrices, as parametrised cone programs.

    minimize 1/2 z'Qz + p'z   subject to  Az = b,  lower <= Gz <= h,  lb <= z <= ub

Rows of the cone program: equalities, then Gz <= h, -Gz <= -lower, z <= ub, -z <= -lb; bounds that
are infinite in every sample are left out. A matrix enters through all of its entries, or through the nonzeros of
a given pattern. Parameters are flattened in C order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from ffo import cones
from ffo.program.affine import AffineMap, Block, Entry
from ffo.program.canonical import CanonicalProblem
from ffo.program.names import Named, Names
from ffo.program.pattern import Pattern
from ffo.program.recovery import Output, Recovery

Array = np.ndarray
T = TypeVar("T")
Name = Literal["Q", "p", "G", "h", "A", "b", "lb", "ub", "lower"]
#: the order in which blocks are given
NAMES: tuple[Name, ...] = ("Q", "p", "G", "h", "A", "b", "lb", "ub", "lower")


class QPSolution(NamedTuple, Generic[T]):
    """A solution with its multipliers.

    z (*batch, n); nu (*batch, p) of Az = b; lam (*batch, m) of lower <= Gz <= h and mu (*batch, n) of
    lb <= z <= ub, both negative where the lower side is active: Qz + p + A'nu + G'lam + mu = 0.
    """

    z: T
    nu: T
    lam: T
    mu: T


@dataclass(frozen=True)
class MatrixPattern:
    """Which entries of a (rows, cols) matrix are given, in the order they are given."""

    rows: Array
    cols: Array
    shape: tuple[int, int]
    dense: bool = False

    @staticmethod
    @lru_cache(maxsize=32)
    def full(rows: int, cols: int) -> MatrixPattern:
        """All entries, in C order."""
        i, j = np.divmod(np.arange(rows * cols, dtype=np.int64), max(cols, 1))
        return MatrixPattern(i, j, (rows, cols), dense=True)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal keys mean equal patterns."""
        return (self.shape,) if self.dense else (self.shape, self.rows.tobytes(), self.cols.tobytes())


@dataclass(frozen=True, eq=False)
class QuadraticStructure:
    """The shape of a quadratic program; compared by its key.

    Attributes:
        n: number of variables.
        matrices: patterns of those of Q, G, A that are present.
        sides: which entries of h, lower, ub, lb are finite in some sample; absent if not given.
    """

    n: int
    matrices: Mapping[Name, MatrixPattern]
    sides: Mapping[Name, Array]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal keys mean equal structures."""
        matrices = frozenset([(name, pattern.key) for name, pattern in self.matrices.items()])
        return self.n, matrices, frozenset([(name, side.tobytes()) for name, side in self.sides.items()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuadraticStructure) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def parameters(self) -> tuple[Name, ...]:
        """The blocks that are present, in the order their values are given."""
        vectors = {"p", *self.sides} | ({"b"} if "A" in self.matrices else set())
        return tuple([name for name in NAMES if name in self.matrices or name in vectors])

    def size(self, name: Name) -> tuple[int, ...]:
        """Shape of a block's values: nonzeros of a matrix, length of a vector."""
        if name in self.matrices:
            return (len(self.matrices[name].rows),)
        rows = {"p": self.n, "lb": self.n, "ub": self.n}
        if name in rows:
            return (rows[name],)
        return (self.matrices["A" if name == "b" else "G"].shape[0],)


#: structures whose canonical form is cached
KEPT = 16


@lru_cache(maxsize=KEPT)
def quadratic_problem(structure: QuadraticStructure, duals: bool = False) -> CanonicalProblem:
    """The parametrised cone program of a structure.

    Its output is z (n,). With `duals`, its outputs are z (n,), the multipliers nu of Az = b, lam of
    Gz <= h (negative where the lower bound is active) and mu of the bounds (negative where lb is active).
    """
    layout = _Layout(structure)
    maps: dict[Name, dict[Block, sp.csc_array]] = {name: {} for name in structure.parameters}
    P, A = _quadratic(structure, maps), layout.constraints(maps)
    maps["p"]["q"] = sp.csc_array(sp.eye_array(structure.n))
    layout.sides(maps)
    entries = [Entry(i, False, maps[name]) for i, name in enumerate(structure.parameters)]
    constants: dict[Block, Array] = {
        "P": np.zeros(P.nnz),
        "q": np.zeros(structure.n),
        "A": layout.bound_entries,
        "b": np.zeros(layout.m),
    }
    sizes = [structure.size(name) for name in structure.parameters]
    cone = cones.Product([(cones.Zero(), layout.equalities), (cones.Nonneg(), layout.m - layout.equalities)])
    affine = AffineMap([s[0] for s in sizes], entries, constants, P, A, cone)
    return CanonicalProblem(
        affine, layout.recovery(duals), tuple(sizes), structure.parameters, open_sides=True, names=layout.names()
    )


def _quadratic(structure: QuadraticStructure, maps: dict[Name, dict[Block, sp.csc_array]]) -> Pattern:
    """The upper triangle of (Q + Q')/2."""
    n = structure.n
    if "Q" not in structure.matrices:
        return Pattern.of(np.zeros(n + 1, dtype=np.int32), np.zeros(0, dtype=np.int32), (n, n))
    given = structure.matrices["Q"]
    i, j = np.minimum(given.rows, given.cols), np.maximum(given.rows, given.cols)
    pattern, entry = Pattern.of_positions(i + n * j, (n, n))
    weight = np.where(given.rows == given.cols, 1.0, 0.5)
    maps["Q"]["P"] = sp.csc_array((weight, (entry, np.arange(len(entry)))), shape=(pattern.nnz, len(entry)))
    return pattern


class _Layout:
    """Which row of the cone program belongs to each bound of each constraint."""

    def __init__(self, structure: QuadraticStructure) -> None:
        self.structure = structure
        n, matrices, sides = structure.n, structure.matrices, structure.sides
        self.equalities = matrices["A"].shape[0] if "A" in matrices else 0
        self.inequalities = matrices["G"].shape[0] if "G" in matrices else 0
        start = self.equalities
        #: name of a bound -> its row in the cone program for each entry, -1 if it is infinite
        self.rows: dict[Name, Array] = {}
        for name in ("h", "lower", "ub", "lb"):
            length = n if name in ("ub", "lb") else self.inequalities
            finite = sides.get(name, np.zeros(length, dtype=bool))  # type: ignore[call-overload]
            rows = np.full(length, -1)
            rows[finite] = start + np.arange(finite.sum())
            self.rows[name] = rows  # type: ignore[index]
            start += int(finite.sum())
        self.m = start

    def constraints(self, maps: dict[Name, dict[Block, sp.csc_array]]) -> Pattern:
        """The pattern of the constraint matrix; records how A and G enter it."""
        none = np.zeros(0, dtype=np.int64)
        parts: list[tuple[Name | None, Array, Array, Array, Array]] = []  # parameter, entry of it, row, col, sign
        if "A" in self.structure.matrices:
            given = self.structure.matrices["A"]
            count = len(given.rows)
            parts.append(("A", np.arange(count), given.rows, given.cols, np.ones(count)))
        if "G" in self.structure.matrices:
            given = self.structure.matrices["G"]
            for side, sign in (("h", 1.0), ("lower", -1.0)):
                row = self.rows[side][given.rows]  # type: ignore[index]
                at = np.flatnonzero(row >= 0)
                parts.append(("G", at, row[at], given.cols[at], np.full(len(at), sign)))
        for side, sign in (("ub", 1.0), ("lb", -1.0)):
            column = np.flatnonzero(self.rows[side] >= 0)  # type: ignore[index]
            parts.append((None, none, self.rows[side][column], column, np.full(len(column), sign)))  # type: ignore[index]
        rows = np.concatenate([p[2] for p in parts])
        cols = np.concatenate([p[3] for p in parts])
        pattern, place = Pattern.of_positions(rows + self.m * cols, (self.m, self.structure.n))
        self.bound_entries = np.zeros(pattern.nnz)
        triplets: dict[Name, list[tuple[Array, Array, Array]]] = {}
        start = 0
        for parameter, entry, row, _, signs in parts:
            mine = place[start : start + len(row)]
            start += len(row)
            if parameter is None:
                self.bound_entries[mine] = signs
            else:
                triplets.setdefault(parameter, []).append((mine, entry, signs))
        for name, found in triplets.items():
            where, places, weights = (np.concatenate(column) for column in zip(*found, strict=True))
            shape = (pattern.nnz, len(self.structure.matrices[name].rows))
            maps[name]["A"] = sp.csc_array((weights, (where, places)), shape=shape)
        return pattern

    def sides(self, maps: dict[Name, dict[Block, sp.csc_array]]) -> None:
        """How right-hand sides enter b."""
        if self.equalities:
            eye = np.arange(self.equalities)
            ones = np.ones(self.equalities)
            maps["b"]["b"] = sp.csc_array((ones, (eye, eye)), shape=(self.m, self.equalities))
        for name, sign in (("h", 1.0), ("lower", -1.0), ("ub", 1.0), ("lb", -1.0)):
            rows = self.rows[name]  # type: ignore[index]
            at = np.flatnonzero(rows >= 0)
            if name in maps:
                data = (np.full(len(at), sign), (rows[at], at))
                maps[name]["b"] = sp.csc_array(data, shape=(self.m, len(rows)))  # type: ignore[index]

    def names(self) -> Names:
        """Names of the rows of A and G, and of the bounds."""
        found = [Named("b", np.arange(self.equalities)[:, None], (self.equalities,), "row {index} of A")]
        for side, rows in self.rows.items():
            form = {"h": "row {index} of G", "lower": "row {index} of G (lower)"}.get(side, "{name}[{index}]")
            found.append(Named(side, rows[:, None], (len(rows),), form))
        n = self.structure.n
        return Names(tuple(found), (Named("z", np.arange(n)[:, None], (n,)),))

    def recovery(self, duals: bool) -> Recovery:
        n, m = self.structure.n, self.m
        primal = Output(sp.csr_array(sp.eye_array(n)), dual=False, exponential=False, shape=(n,))
        if not duals:
            return Recovery([primal], n, m)
        nu = sp.csr_array(sp.eye_array(self.equalities, m))
        outputs = [
            primal,
            Output(nu, dual=True, exponential=False, shape=(self.equalities,)),
            self._two_sided("h", "lower", self.inequalities),
            self._two_sided("ub", "lb", n),
        ]
        return Recovery(outputs, n, m)

    def _two_sided(self, upper: Name, lower: Name, size: int) -> Output:
        select = sp.csr_array((size, self.m))
        for rows, sign in ((self.rows[upper], 1.0), (self.rows[lower], -1.0)):
            at = np.flatnonzero(rows >= 0)
            select = select + sp.csr_array((np.full(len(at), sign), (at, rows[at])), shape=(size, self.m))
        return Output(sp.csr_array(select), dual=True, exponential=False, shape=(size,))
