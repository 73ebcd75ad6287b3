"""Samples that lack some rows: a right-hand side of +inf is no constraint.

Samples that have the same rows are solved together, on these rows alone; a `Joint` outcome then speaks
for the whole batch on all rows. Missing rows have no multiplier (y = 0) and no end (s = inf).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from ffo.cones import Nonneg, Product
from ffo.engine.info import Info, Times
from ffo.engine.outcome import Outcome
from ffo.ghost.certificate import Certificate
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SparseBatch, distinct

Array = np.ndarray


@dataclass(frozen=True)
class RowGroup:
    """Samples with the same rows; both are numbered as in the whole program."""

    samples: Array
    rows: Array

    def part(self, program: ConeProgram) -> ConeProgram:
        """These samples on their rows."""
        whole = program.take(self.samples)
        present = np.zeros(program.m, dtype=bool)
        present[self.rows] = True
        kept = whole.A.restrict(present[whole.A.indices])
        place = (np.cumsum(present) - 1).astype(kept.indices.dtype)
        A = SparseBatch(kept.indptr, place[kept.indices], kept.values, (len(self.rows), program.n))
        blocks, start = [], 0
        for cone, count in program.cones.blocks:
            end = start + count * cone.dim
            blocks.append((cone, int(present[start:end].sum()) if isinstance(cone, Nonneg) else count))
            start = end
        return ConeProgram(whole.P, whole.q, A, whole.b[:, self.rows], Product(blocks))

    def recalled(self, memory: tuple[Array, Array, Array, Array] | None) -> tuple[Array, Array, Array, Array] | None:
        """What is remembered of these samples, on their rows; a row that was missing then is inactive."""
        if memory is None:
            return None
        known, x, y, s = memory
        mine = np.isin(known, self.samples)
        rows = np.ix_(mine, self.rows)
        return np.searchsorted(self.samples, known[mine]), x[mine], y[rows], np.where(np.isinf(s[rows]), 1.0, s[rows])

    @cached_property
    def _place(self) -> tuple[Array, ...]:
        return np.ix_(self.samples, self.rows)

    def put(self, target: Array, value: Array) -> None:
        """Write (samples, rows) into (batch, m)."""
        target[self._place] = value

    def pick(self, source: Array) -> Array:
        """(batch, m) -> (samples, rows)."""
        return source[self._place]


def row_groups(program: ConeProgram) -> list[RowGroup] | None:
    """The samples by the rows they have; None where all of them have all."""
    if not np.isposinf(distinct(program.b)).any():
        return None
    missing = np.isposinf(program.b)
    for group in program.cones.groups:
        if not isinstance(group.cone, Nonneg):
            missing[:, group.index.ravel()] = False  # bad data, and found to be so later
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    return [RowGroup(np.flatnonzero(which.ravel() == k), np.flatnonzero(~row)) for k, row in enumerate(patterns)]


@dataclass
class Joint(Outcome):
    """The outcome of a batch whose samples were solved in groups."""

    groups: Sequence[tuple[RowGroup, Outcome]] = ()

    @classmethod
    def of(cls, program: ConeProgram, groups: Sequence[tuple[RowGroup, Outcome]]) -> Joint:
        batch, n, m = program.batch, program.n, program.m
        x, y, s = np.empty((batch, n)), np.zeros((batch, m)), np.full((batch, m), np.inf)
        joint = cls(program, x, y, s, [], _merged_info(batch, groups), groups[0][1].way, groups)
        joint._gather()
        return joint

    def _gather(self) -> None:
        for group, part in self.groups:
            self.x[group.samples] = part.x
            group.put(self.y, part.y)
            group.put(self.s, part.s)

    def _report(self) -> None:
        """Bring the report up to date with those of the groups."""
        merged = _merged_info(len(self.x), self.groups)
        merged.times = replace(merged.times, forward=self.info.times.forward)
        for each in fields(Info):
            setattr(self.info, each.name, getattr(merged, each.name))

    def prepare(self) -> None:
        if self.info.certificate is not None:
            return
        for _, part in self.groups:
            part.prepare()
        self._gather()
        self._report()

    def adjoint(self, c_x: Array, c_y: Array, constraints: bool = True) -> DataGradient:
        self.prepare()
        batch, n = self.x.shape
        m = self.y.shape[1]
        total = DataGradient(*(np.zeros((batch, k)) for k in (n, m, n, m, m)))
        for group, part in self.groups:
            found = part.adjoint(c_x[group.samples], group.pick(c_y), constraints)
            total.x[group.samples], total.u[group.samples] = found.x, found.u
            for name in ("y", "v", "db"):
                group.put(getattr(total, name), getattr(found, name))
        self._report()
        return total

    def tangent(self, change: ConeProgram) -> tuple[Array, Array]:
        self.prepare()
        dx, dy = np.zeros_like(self.x), np.zeros_like(self.y)
        for group, part in self.groups:
            dx[group.samples], along = part.tangent(group.part(change))
            group.put(dy, along)
        self._report()
        return dx, dy


def _merged_info(batch: int, groups: Sequence[tuple[RowGroup, Outcome]]) -> Info:
    order = np.argsort(np.concatenate([group.samples for group, _ in groups]))
    infos = [part.info for _, part in groups]
    certificates = [info.certificate for info in infos if info.certificate is not None]
    certificate = None
    if len(certificates) == len(infos):
        names = vars(certificates[0])
        certificate = Certificate(**{k: np.concatenate([vars(c)[k] for c in certificates])[order] for k in names})
    status, solver = [s for info in infos for s in info.status], [s for info in infos for s in info.solver]
    detail = {int(g.samples[k]): text for g, part in groups for k, text in part.info.detail.items()}
    return Info(
        status=[status[k] for k in order],
        solver=tuple(solver[k] for k in order),
        residual=np.concatenate([info.residual for info in infos])[order],
        iterations=np.concatenate([info.iterations for info in infos])[order],
        warm_hits=sum(info.warm_hits for info in infos),
        retried=np.concatenate([info.retried for info in infos])[order],
        rescued=np.concatenate([info.rescued for info in infos])[order],
        certificate=certificate,
        times=Times(*(sum(getattr(info.times, each.name) for info in infos) for each in fields(Times))),
        detail=detail,
    )
