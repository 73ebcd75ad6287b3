"""Random cone programs whose solutions are known and lie on chosen faces.

A complementary pair (s, y) of every case of every cone comes from that cone's contract (tests/cones),
which makes it from the cone's definition. For any x, b = Ax + s and q = -(Px + A'y) make
(x, y, s) optimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cones import test_exponential, test_power, test_psd, test_scalar, test_soc
from cones.contract import ConeContract

from ffo.cones import PSD, Product
from ffo.program.cone import ConeProgram, Solution
from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray


class _Order3(test_psd.PSDContract):
    cone = PSD(3)
    cases = {f"rank {r}": r for r in range(4)}


CONTRACTS: dict[str, ConeContract] = {
    "zero": test_scalar.TestZero(),
    "nonneg": test_scalar.TestNonneg(),
    "soc1": test_soc.TestRay(),
    "soc2": test_soc.TestPlane(),
    "soc3": test_soc.TestThree(),
    "soc7": test_soc.TestSeven(),
    "psd1": test_psd.TestOrder1(),
    "psd2": test_psd.TestOrder2(),
    "psd3": _Order3(),
    "exp": test_exponential.TestExponential(),
    "pow.2": test_power.TestFifth(),
    "pow.5": test_power.TestHalf(),
    "pow.7": test_power.TestSevenTenths(),
}

#: (cone, case): every face of every cone
FACES = [(name, case) for name, contract in CONTRACTS.items() for case in contract.cases]

#: (cone, case or None for one drawn per sample)
Blocks = Sequence[tuple[str, str | None]]

#: every cone at once, cases drawn per sample; equal cones are not adjacent, so that grouping is tested. The rays
#: of pow(0.7), where finite differences converge slowly, are left out.
MIXED: Blocks = [
    (name, "surface" if name == "pow.7" else None)
    for name in ("nonneg", "soc3", "exp", *CONTRACTS, "nonneg", "exp", "soc3")
]


def beside(name: str, case: str) -> Blocks:
    """One block on a given face, among an equality and inequalities of both kinds."""
    return [("nonneg", "vertex"), (name, case), ("zero", "vertex"), ("nonneg", "interior")]


@dataclass(frozen=True)
class Known:
    """A batch of programs and the solutions (x, y, s) they were built from."""

    program: ConeProgram
    x: Array
    y: Array
    s: Array

    @property
    def solution(self) -> Solution:
        return point(self.x, self.y, self.s)

    def disturbed(self, noise: float, seed: int = 0) -> Solution:
        """The solution with an error of relative size `noise` in every entry."""
        rng = np.random.default_rng([seed, 77])
        return point(*(v + noise * np.abs(v).max() * rng.normal(size=v.shape) for v in (self.x, self.y, self.s)))


def rescaled(known: Known, power: float, seed: int = 0) -> Known:
    """The same problem in other units: variables and blocks scaled by 10^u, u in [-power, power]."""
    rng = np.random.default_rng([seed, 8])
    p = known.program
    column, row = 10.0 ** rng.uniform(-power, power, p.n), np.empty(p.m)
    for g in p.cones.groups:  # one factor per block: cones allow no more
        row[g.index] = 10.0 ** rng.uniform(-power, power, (len(g.index), 1))
    P, A = p.P, p.A
    program = ConeProgram(
        SymmetricBatch(P.indptr, P.indices, P.values * column[P.indices] * column[P.columns], P.shape),
        p.q * column,
        SparseBatch(A.indptr, A.indices, A.values * row[A.indices] * column[A.columns], A.shape),
        p.b * row,
        p.cones,
    )
    return Known(program, known.x / column, known.y / row, known.s * row)


def nearly_degenerate(known: Known, power: float, seed: int = 0) -> Known:
    """The same matrices and x with the pair (s, y) of each block shrunk by 10^-u, u in [0, power]."""
    rng = np.random.default_rng([seed, 9])
    p, factor = known.program, np.empty_like(known.s)
    for g in p.cones.groups:
        factor[:, g.index] = 10.0 ** rng.uniform(-power, 0, (p.batch, len(g.index), 1))
    return with_pair(known, known.s * factor, known.y * factor)


def with_pair(known: Known, s: Array, y: Array) -> Known:
    """The same matrices and x with another complementary pair."""
    blank = known.program.with_vectors(q=np.zeros_like(known.program.q), b=np.zeros_like(known.program.b))
    program = blank.with_vectors(q=-blank.stationarity(known.x, y), b=s - blank.slack(known.x))
    return Known(program, known.x, y, s)


def point(x: Array, y: Array, s: Array) -> Solution:
    """A `Solution` without a solver's report."""
    return Solution(x, y, s, np.zeros(len(x), dtype=int), np.full(len(x), -1))


def known_program(
    blocks: Blocks, n: int, batch: int = 2, *, batched: bool = False, rank: int | None = None, seed: int = 0
) -> Known:
    """Random programs over the given faces.

    Args:
        batched: whether the matrices differ between samples.
        rank: rank of P; n (positive definite) by default, 0 for no quadratic term.
    """
    rng = np.random.default_rng([seed, n, *(ord(c) for name, case in blocks for c in f"{name}{case}")])
    contracts = [CONTRACTS[name] for name, _ in blocks]
    cones = Product([(c.cone, 1) for c in contracts])
    pairs = [_pairs(c, case, batch, rng) for c, (_, case) in zip(contracts, blocks, strict=True)]
    s, y = (np.concatenate(part, axis=1) for part in zip(*pairs, strict=True))
    matrices = batch if batched else None
    x = rng.normal(size=(batch, n))
    blank = ConeProgram(
        random_semidefinite(n, n if rank is None else rank, matrices, rng),
        np.zeros((batch, n)),
        random_matrix(cones.dim, n, matrices, rng),
        np.zeros((batch, cones.dim)),
        cones,
    )
    return with_pair(Known(blank, x, y, s), s, y)


def _pairs(contract: ConeContract, case: str | None, batch: int, rng: np.random.Generator) -> tuple[Array, Array]:
    if case is not None:
        return contract.pair(case, rng, batch)
    drawn = [contract.pair(rng.choice(list(contract.cases)), rng, 1) for _ in range(batch)]
    return np.concatenate([s for s, _ in drawn]), np.concatenate([y for _, y in drawn])


def random_matrix(m: int, n: int, batch: int | None, rng: np.random.Generator) -> SparseBatch:
    """Normal entries on a random pattern with 70 % of the entries, at least two in each row."""
    pattern = rng.random((m, n)) < 0.7
    for row in pattern:
        row[rng.permutation(n)[:2]] = True
    base = SparseBatch.from_matrix(pattern.astype(float))
    values = rng.normal(size=(base.nnz,) if batch is None else (batch, base.nnz))
    return SparseBatch(base.indptr, base.indices, values, base.shape)


def random_semidefinite(n: int, rank: int, batch: int | None, rng: np.random.Generator) -> SymmetricBatch:
    """Dense positive semidefinite matrices of a given rank; rank 0 stores nothing."""
    if rank == 0:
        none = np.zeros(0)
        return SymmetricBatch(np.zeros(n + 1, dtype=np.int32), none.astype(np.int32), none, (n, n))
    M = rng.normal(size=(batch or 1, n, rank))
    P = M @ M.transpose(0, 2, 1) / rank + (0.2 * np.eye(n) if rank == n else 0.0)
    upper = SparseBatch.from_matrix(np.triu(np.ones((n, n))))
    values = P[:, upper.indices, upper.columns]
    return SymmetricBatch(upper.indptr, upper.indices, values if batch else values[0], (n, n))
