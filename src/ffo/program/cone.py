"""Cone programs and their solutions.

    minimize  1/2 x'Px + q'x   subject to  Ax + s = b,  s in K;      dual variable y in K*

A `ConeProgram` is a batch of these over one sparsity pattern and one cone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import scipy.sparse as sp

from ffo.cones.product import Product
from ffo.errors import SOLVED
from ffo.program.sparse import SparseBatch, SymmetricBatch, all_finite, distinct, take_rows

Array = np.ndarray


@dataclass(frozen=True)
class ConeProgram:
    """A batch of cone programs.

    Attributes:
        P: (n, n) symmetric positive semidefinite, upper triangle stored.
        q: (batch, n).
        A: (m, n).
        b: (batch, m).
        cones: the product cone K, of dimension m.
    """

    P: SymmetricBatch
    q: Array
    A: SparseBatch
    b: Array
    cones: Product

    @classmethod
    def from_matrices(cls, P: Array, q: Array, A: Array, b: Array, cones: Product) -> ConeProgram:
        """From dense or SciPy matrices (shared by the batch) and vectors with or without batch axis."""
        upper = SparseBatch.from_matrix(sp.triu(sp.csc_array(P), format="csc"))
        q, b = np.atleast_2d(np.asarray(q, float)), np.atleast_2d(np.asarray(b, float))
        batch = max(len(q), len(b))
        return cls(
            SymmetricBatch.on(upper.pattern, upper.values),
            np.broadcast_to(q, (batch, q.shape[1])),
            SparseBatch.from_matrix(A),
            np.broadcast_to(b, (batch, b.shape[1])),
            cones,
        )

    @property
    def batch(self) -> int:
        return len(self.q)

    @property
    def n(self) -> int:
        return self.A.shape[1]

    @property
    def m(self) -> int:
        return self.A.shape[0]

    @property
    def shared_matrices(self) -> bool:
        """True when P and A are the same for every sample (only q and b vary)."""
        return self.P.shared and self.A.shared

    def take(self, samples: Array) -> ConeProgram:
        """The sub-batch of the given samples."""
        q, b = (take_rows(v, samples) for v in (self.q, self.b))
        return ConeProgram(self.P.take(samples), q, self.A.take(samples), b, self.cones)

    def repeat(self, times: int) -> ConeProgram:
        """Every sample `times` times, copies of a sample next to each other."""
        return self.take(np.repeat(np.arange(self.batch), times))

    def with_vectors(self, q: Array | None = None, b: Array | None = None) -> ConeProgram:
        """The same matrices with other vectors."""
        return replace(self, q=self.q if q is None else q, b=self.b if b is None else b)

    def pruned(self) -> ConeProgram:
        """Without matrix entries that are zero in every sample.

        A dense parameter is often filled with sparse values; solving on their pattern instead of the declared
        one makes everything that follows much faster.
        """
        return self.with_matrices(self.P.pruned(), self.A.pruned())

    def with_matrices(self, P: SymmetricBatch, A: SparseBatch) -> ConeProgram:
        """The same vectors with other matrices."""
        return self if P is self.P and A is self.A else replace(self, P=P, A=A)

    def with_cones(self, cones: Product) -> ConeProgram:
        """The same data with other cones."""
        other = ConeProgram(self.P, self.q, self.A, self.b, cones)
        other.__dict__.update({name: v for name, v in self.__dict__.items() if name in ("_values", "_all_finite")})
        return other

    @cached_property
    def finite(self) -> Array:
        """(batch,) true where all data of the sample is finite."""
        vectors = np.isfinite(self.q).all(axis=1) & np.isfinite(distinct(self.b)).all(axis=1)
        return vectors & self.P.finite & self.A.finite

    def note_finite(self, found: bool) -> None:
        """Record what a caller has found out about `all_finite`, so that the entries are not read again."""
        self.__dict__["_all_finite"] = found

    @property
    def all_finite(self) -> bool:
        found: bool | None = self.__dict__.get("_all_finite")
        if found is None:
            found = all_finite(self.q) and all_finite(distinct(self.b)) and self.P.all_finite and self.A.all_finite
            self.note_finite(found)
        return found

    def slack(self, x: Array) -> Array:
        """(batch, m) b - Ax."""
        return self.b - self.A.dot(x)

    def stationarity(self, x: Array, y: Array) -> Array:
        """(batch, n) Px + q + A'y."""
        return self.P.dot(x) + self.q + self.A.tdot(y)


@dataclass(frozen=True)
class Solution:
    """Solutions of a batch of cone programs, with the solver's report.

    Attributes:
        x: (batch, n); y, s: (batch, m).
        status: (batch,) integers of `Status`.
        iterations: (batch,) iterations of the solver, -1 where unknown.
        setup_time, solve_time: seconds for the whole batch.
        detail: one short text per failed sample, by sample index (the solver's own message).
    """

    x: Array
    y: Array
    s: Array
    status: Array
    iterations: Array
    setup_time: float = 0.0
    solve_time: float = 0.0
    detail: dict[int, str] | None = None

    @classmethod
    def joined(cls, parts: Sequence[Solution]) -> Solution:
        """Concatenate some batches."""
        arrays = zip(*((p.x, p.y, p.s, p.status, p.iterations) for p in parts), strict=True)
        x, y, s, status, iterations = map(np.concatenate, arrays)
        starts = accumulate((len(p.x) for p in parts), initial=0)
        return cls(
            *(x, y, s, status, iterations),
            sum(p.setup_time for p in parts),
            sum(p.solve_time for p in parts),
            {first + k: v for first, p in zip(starts, parts, strict=False) for k, v in (p.detail or {}).items()},
        )

    @property
    def solved(self) -> Array:
        return self.status == SOLVED

    def take(self, samples: Array) -> Solution:
        return replace(
            self,
            x=self.x[samples],
            y=self.y[samples],
            s=self.s[samples],
            status=self.status[samples],
            iterations=self.iterations[samples],
            detail=None,
        )
