"""Cone programs with known solutions, one of every kind, and their derivatives by dense linear algebra.

The matrices, multipliers and faces come from `problems`; what is added here is structure (bounds, dependent
rows, active sets that differ between the samples of a batch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from balls import ball_program
from ghost.yardstick import Entries, Loss, projection_jacobian
from problems import MIXED, Known, known_program, with_pair

from ffo.cones import Nonneg, SecondOrder, Zero
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution
from ffo.program.sparse import SparseBatch
from ffo.torch.dense.program import DensePoint, DenseProgram

Array = np.ndarray
BATCH = 3

ACTIVE, INACTIVE, EQUAL, ANY = ("nonneg", "vertex"), ("nonneg", "interior"), ("zero", "vertex"), ("nonneg", None)


def shuffled(known: Known, seed: int = 0) -> Known:
    """Pairs (s, y) of the inequalities permuted in every sample: different active sets of the same size."""
    rng = np.random.default_rng([seed, 21])
    s, y = known.s.copy(), known.y.copy()
    index = np.concatenate([g.index.ravel() for g in known.program.cones.groups if isinstance(g.cone, Nonneg)])
    for k in range(len(s)):
        order = rng.permutation(index)
        s[k, index], y[k, index] = known.s[k, order], known.y[k, order]
    return with_pair(known, s, y)


def with_rows(known: Known, A: SparseBatch) -> Known:
    """The same P, x, s and y with other rows."""
    return with_pair(replace(known, program=replace(known.program, A=A)), known.s, known.y)


def bounds(batched: bool) -> Known:
    """One-entry rows of both signs and sizes 0.5 to 2, at most one of them active on a variable, and one dense row."""
    n = 8
    known = shuffled(known_program([ACTIVE] * 4 + [INACTIVE] * 4 + [EQUAL], n, BATCH, batched=batched))
    rng = np.random.default_rng(3)
    size = rng.uniform(0.5, 2.0, n) * np.where(np.arange(n) % 2, -1.0, 1.0)
    base = SparseBatch.from_matrix(np.vstack([np.diag(size), np.ones((1, n))]))
    shape = (BATCH, base.nnz) if batched else (base.nnz,)
    values = base.values * rng.uniform(0.8, 1.2, shape)
    return with_rows(known, SparseBatch(base.indptr, base.indices, values, base.shape))


def dependent_equalities(batched: bool) -> Known:
    """Three equalities, the last the sum of the others: the multipliers are not unique, the solution is."""
    known = shuffled(known_program([EQUAL] * 3 + [ACTIVE] * 2 + [INACTIVE] * 2, 8, BATCH, batched=batched))
    A = known.program.A
    dense = np.stack([A.matrix(k).toarray() for k in range(BATCH if batched else 1)])
    dense[:, 2] = dense[:, 0] + dense[:, 1]
    base = SparseBatch.from_matrix(np.any(dense, axis=0).astype(float))
    values = dense[:, base.indices, base.columns]
    return with_rows(known, SparseBatch(base.indptr, base.indices, values if batched else values[0], base.shape))


def faces(*blocks: tuple[str, str | None], n: int = 14, rank: int | None = None) -> Callable[[bool], Known]:
    """Blocks on given faces (None: one drawn per sample), with equalities and inequalities of all kinds."""
    return lambda batched: known_program([*blocks, EQUAL, ANY, ANY], n, BATCH, batched=batched, rank=rank)


def polyhedral(active: int, inactive: int, equal: int, n: int, rank: int | None = None) -> Callable[[bool], Known]:
    """Dense rows; which inequalities are active differs between samples."""
    blocks = [ACTIVE] * active + [EQUAL] * equal + [INACTIVE] * inactive
    return lambda batched: shuffled(known_program(blocks, n, BATCH, batched=batched, rank=rank))


#: name -> a batch of three, with shared or with batched matrices
PROGRAMS: dict[str, Callable[[bool], Known]] = {
    "qp with bounds": bounds,
    "qp with dense rows": polyhedral(4, 5, 2, n=10),
    "lp at a vertex": polyhedral(4, 5, 2, n=6, rank=0),
    "singular P": polyhedral(4, 3, 2, n=9, rank=4),
    "dependent equalities": dependent_equalities,
    "no constraints active": polyhedral(0, 4, 0, n=5),
    "soc boundary": faces(("soc3", "boundary"), ("soc7", "boundary")),
    "soc interior": faces(("soc3", "interior"), ("soc7", "interior")),
    "soc vertex": faces(("soc3", "vertex"), ("soc7", "vertex")),
    "soc faces by sample": faces(("soc3", None), ("soc2", None), ("soc3", None)),
    "soc without P": lambda b: known_program(
        [("soc3", "boundary")] * 3 + [ACTIVE, ("soc7", "interior"), EQUAL], 7, BATCH, batched=b, rank=0
    ),
    "norm balls with bounds": lambda b: ball_program("mixed", BATCH, batched=b),
    "norm balls of single entries": lambda b: ball_program("single", BATCH, batched=b),
    "psd": faces(("psd3", "rank 1"), ("psd2", "rank 1"), ("psd3", "rank 2"), n=18),
    "exponential": faces(("exp", "surface"), ("exp", "face"), ("exp", "ray"), ("exp", "interior")),
    "power": faces(("pow.2", "surface"), ("pow.7", "surface"), ("pow.5", "surface")),
    "mixed": lambda b: known_program(MIXED, 40, BATCH, batched=b, seed=1),
}
#: those with only linear constraints
QUADRATIC = ("qp with bounds", "qp with dense rows", "lp at a vertex", "singular P", "dependent equalities")
#: those whose multipliers are not unique: only x is compared
DUALS_OPEN = {"dependent equalities"}


Suits = Callable[[str], bool]


def anything(name: str) -> bool:
    return name in PROGRAMS


def linear_constraints(name: str) -> bool:
    return name in QUADRATIC


@cache
def build(name: str, batched: bool = False) -> Known:
    return PROGRAMS[name](batched)


@dataclass(frozen=True)
class Yardstick:
    """Derivatives from the optimality conditions, with projections differentiated numerically.

    In the unknowns (x, w), with s = Pi(w), y = Pi(w) - w and D = DPi(w),

        J = [P  A'(D - I)],    J d(x, w) = -[dP x + dq + dA'y],    ds = D dw,  dy = (D - I) dw.
            [A      D    ]                  [dA x - db       ]

    `inverse` holds a pseudo-inverse of J for each sample: exact where J is regular, and right in x where only
    the multipliers are open.
    """

    known: Known
    inverse: tuple[Array, ...]
    projection: tuple[Array, ...]

    def adjoint(self, loss: Loss) -> Entries:
        """The gradient of a loss in the data."""
        known, n = self.known, self.known.program.n
        u, v = np.zeros_like(known.x), np.zeros_like(known.y)
        for k, (inverse, D) in enumerate(zip(self.inverse, self.projection, strict=True)):
            c_w = (D - np.eye(len(D))).T @ loss.c_y[k] + D.T @ loss.c_s[k]
            multiplier = -inverse.T @ np.concatenate([loss.c_x[k], c_w])
            u[k], v[k] = multiplier[:n], multiplier[n:]
        return Entries.of_gradient(DataGradient(known.x, known.y, u, v, -v), known.program)

    def tangent(self, change: Entries) -> tuple[Array, Array, Array]:
        """(dx, dy, ds) along a change of the data."""
        known, n = self.known, self.known.program.n
        delta = change.program(known.program)
        right = np.concatenate([-delta.stationarity(known.x, known.y), delta.slack(known.x)], axis=1)
        dx, dy, ds = np.zeros_like(known.x), np.zeros_like(known.y), np.zeros_like(known.s)
        for k, (inverse, D) in enumerate(zip(self.inverse, self.projection, strict=True)):
            move = inverse @ right[k]
            dx[k], ds[k] = move[:n], D @ move[n:]
            dy[k] = ds[k] - move[n:]
        return dx, dy, ds


@cache
def yardstick(name: str, batched: bool = False) -> Yardstick:
    known = build(name, batched)
    program, inverses, projections = known.program, [], []
    for k in range(program.batch):
        P, A = program.P.full(k).toarray(), program.A.matrix(k).toarray()
        D = projection_jacobian(program.cones, known.s[k] - known.y[k], 1e-5 if name == "mixed" else 1e-4)
        J = np.block([[P, A.T @ (D - np.eye(len(D)))], [A, D]])
        assert name in DUALS_OPEN or np.linalg.cond(J) < 1e7, "the derivative itself is ill-defined"
        inverses.append(np.linalg.pinv(J, rcond=1e-10))
        projections.append(D)
    return Yardstick(known, tuple(inverses), tuple(projections))


def rows_of(program: ConeProgram, kind: type) -> Array:
    """Rows of one kind of scalar cone."""
    groups = program.cones.groups
    return np.concatenate([*(g.index.ravel() for g in groups if isinstance(g.cone, kind)), np.zeros(0, int)])


def dense_constraints(name: str) -> bool:
    """Whether a program is in the form of the dense path."""
    return name in QUADRATIC or name.startswith(("soc", "norm balls"))


def dense_order(program: ConeProgram) -> tuple[Array, tuple[int, ...]]:
    """The rows of a program with its equalities first and its second-order cones last, and the sizes of these."""
    groups = [g for g in program.cones.groups if isinstance(g.cone, SecondOrder)]
    cones = [rows for g in groups for rows in g.index]
    order = np.concatenate([rows_of(program, Zero), rows_of(program, Nonneg), *cones]).astype(int)
    return order, tuple(len(rows) for rows in cones)


def dense_form(program: ConeProgram, given: Solution) -> tuple[DenseProgram, DensePoint]:
    """A program and a point in the form of the dense path; slacks are not part of a point there."""
    (order, cones), equalities = dense_order(program), len(rows_of(program, Zero))
    samples = range(program.batch)
    Q = np.stack([program.P.full(k).toarray() for k in samples])
    R = np.stack([program.A.matrix(k).toarray()[order] for k in samples])
    upp = program.b[:, order]
    low = np.where(np.arange(len(order)) < equalities, upp, -np.inf)
    wide, t = np.full_like(program.q, np.inf), torch.tensor
    found = DenseProgram(t(Q), t(program.q), t(R), t(low), t(upp), t(-wide), t(wide), equalities, cones=cones)
    return found, DensePoint(t(given.x), t(given.y[:, order]), t(np.zeros_like(given.x)))
