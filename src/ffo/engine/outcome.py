"""A solved batch, and its derivative in both directions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ffo.engine.ambiguity import Felt, Seen, all_data, all_outputs, clashing, open_gradients, open_tangents
from ffo.engine.info import Info
from ffo.engine.report import EngineReport, Pass
from ffo.ghost.certificate import RESIDUAL, Certificate
from ffo.ghost.oracle import BENDS, MEETS_U, MEETS_W, SEES, Linearization, NullVectors, Sensitivity
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram
from ffo.program.presolve import Presolve
from ffo.program.sparse import negated

Array = np.ndarray


class SolvedPart(NamedTuple):
    """Samples that were linearized together, in their presolved program."""

    samples: Array
    presolve: Presolve
    found: Linearization

    def sensitivity(self, r_x: Array, r_s: Array) -> Sensitivity:
        """Solutions of these samples' ghost systems."""
        return Sensitivity(*self.presolve.solve(self.found.sensitivity, r_x, r_s))

    def null(self, n: int, m: int) -> NullVectors:
        """Null vectors of these samples' ghost systems, of n variables and m rows, numbered as in the batch."""
        null = self.found.null
        k = null.samples
        if not self.presolve.steps:
            return NullVectors(self.samples[k], null.u, null.w)
        right = np.zeros((len(k), n)), np.zeros((len(k), m))
        u, w = self.presolve.take(k).solve(lambda *_: (null.u, null.w), *right) if len(k) else right
        return NullVectors(self.samples[k], u, w)


@dataclass
class Outcome:
    """A solved batch: x (batch, n), y and s (batch, m), NaN where a sample failed.

    `pieces` hold the linearizations; samples in none of them failed. `report`: on this call; every derivative adds to
    it. `solved`: (batch,) true where a sample was solved; None: everywhere.
    """

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    pieces: list[SolvedPart]
    report: EngineReport
    solved: Array | None
    _searched: tuple[NullVectors | None] | None = None

    @property
    def info(self) -> Info:
        """The report on this call, made when it is first read."""
        return self.report.info()

    def adjoint(self, c_x: Array, c_y: Array, felt: Felt = all_data) -> DataGradient:
        """Loss gradients in x and y -> gradient in the data; failed samples contribute zero.

        Args:
            felt: whether a gradient in the data affects what the caller asked for; only that counts in the
                certificate.
        """
        start = time.perf_counter()
        found = self._sensitivity(negated(c_x), negated(c_y))
        gradient, null = DataGradient(*self._solved_point, found.u, found.w), self._null
        if null is not None:
            sees = found.sees.copy()
            # Costs that change along a null vector of variables choose among solutions: inactive rows get a force,
            # which a loss of multipliers always sees.
            sees[:, MEETS_U] |= c_y.any(axis=1)
            ambiguous, dependent = open_gradients(null, self.program, gradient, sees, felt)
            self._report(found, start, ambiguous, dependent | self._undetermined(null, sees))
        else:
            self._report(found, start)
        return gradient

    def tangent(self, change: ConeProgram, seen: Seen = all_outputs) -> tuple[Array, Array]:
        """Derivative (dx, dy) along a change of the data; zero for failed samples.

        Args:
            seen: whether the caller's outputs depend on a change (u, w) of (x, y).
        """
        start = time.perf_counter()
        x, y = self._solved_point
        found = self._sensitivity(-change.stationarity(x, y), change.slack(x))
        null = self._null
        if null is not None:
            ambiguous, dependent = open_tangents(null, change, found.residual > RESIDUAL, seen)
            self._report(found, start, ambiguous, dependent | self._undetermined(null, found.sees))
        else:
            self._report(found, start)
        return found.u, found.w

    def _undetermined(self, null: NullVectors, sees: Array) -> Array:
        """(count,) for each null vector: whether a derivative depends on which of its rows are active, if they are
        inconsistent, or on how forces are divided among them, if that changes the curvature."""
        return np.asarray((self._clashing & sees[null.samples, MEETS_W]) | sees[null.samples, BENDS])

    @property
    def _solved_point(self) -> tuple[Array, Array]:
        return (self.x, self.y) if self.solved is None else (only(self.solved, self.x), only(self.solved, self.y))

    def _sensitivity(self, r_x: Array, r_s: Array) -> Sensitivity:
        """Solutions of all samples' ghost systems; zero and NaN for failed samples."""
        if is_whole(self.pieces, len(self.x)):
            return self.pieces[0].sensitivity(r_x, r_s)
        residual, kinked = np.full(len(self.x), np.nan), np.zeros(len(self.x), dtype=bool)
        sees = np.zeros((len(self.x), SEES), dtype=bool)
        whole = Sensitivity(np.zeros_like(self.x), np.zeros_like(self.y), residual, kinked, sees)
        for piece in self.pieces:
            k = piece.samples
            for mine, found in zip(whole, piece.sensitivity(r_x[k], r_s[k]), strict=True):
                mine[k] = found
        return whole

    @property
    def _null(self) -> NullVectors | None:
        """Null vectors of ghost systems, or None; searched once."""
        if self._searched is None:
            self._searched = (self._search(),)
        return self._searched[0]

    def _search(self) -> NullVectors | None:
        if all(piece.found.regular for piece in self.pieces):
            return None
        parts = [piece.null(self.x.shape[1], self.y.shape[1]) for piece in self.pieces]
        if len(parts) == 1:
            return parts[0]
        nothing = np.zeros(0, dtype=int), np.zeros((0, self.x.shape[1])), np.zeros((0, self.y.shape[1]))
        return NullVectors(*(np.concatenate(v) for v in zip(nothing, *parts, strict=True)))

    @cached_property
    def _clashing(self) -> Array:
        """(null vectors,) whether their rows are inconsistent; weakly active ones are covered by `kinked`."""
        assert self._null is not None
        found = clashing(self._null, self.program, self.x, self.s)
        if not np.count_nonzero(found):
            return found
        return found & ~merged_certificate(self.pieces, len(self.x)).weakly_active[self._null.samples]

    def _report(
        self, found: Sensitivity, start: float, ambiguous: Array | None = None, dependent: Array | None = None
    ) -> None:
        """Report a pass; verdicts on samples with null vectors are expanded to the batch."""
        if dependent is not None and ambiguous is not None:
            dependent, ambiguous = self._spread(dependent), self._spread(ambiguous)
        self.report.add_pass(Pass(time.perf_counter() - start, found.residual, dependent, ambiguous, found.kinked))

    def _spread(self, verdict: Array) -> Array:
        assert self._null is not None
        whole = np.zeros(len(self.x), dtype=bool)
        whole[self._null.samples[verdict]] = True
        return whole


def only(solved: Array | None, v: Array) -> Array:
    """(batch, ·) with zeros where a sample was not solved; None: all were."""
    return v if solved is None else np.where(solved[:, None], v, 0.0)


def is_whole(pieces: Sequence[SolvedPart], batch: int) -> bool:
    """Whether all samples were linearized together."""
    return len(pieces) == 1 and len(pieces[0].samples) == batch


def merged_certificate(pieces: Sequence[SolvedPart], batch: int) -> Certificate:
    """One certificate for the batch; samples in no piece were not solved."""
    if is_whole(pieces, batch):
        return pieces[0].found.certificate
    merged = Certificate.unsolved(batch)
    for piece in pieces:
        for name, values in vars(piece.found.certificate).items():
            getattr(merged, name)[piece.samples] = values
    return merged
