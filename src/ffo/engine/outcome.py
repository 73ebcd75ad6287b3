"""A solved batch, and its derivative in both directions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffo.engine.info import Info
from ffo.ghost.certificate import Certificate
from ffo.ghost.oracle import Linearization
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram
from ffo.program.presolve import Presolve, Triple

Array = np.ndarray


@dataclass(frozen=True)
class SolvedPart:
    """Samples that were linearized together, in the program that a presolve made of theirs."""

    samples: Array
    presolve: Presolve
    found: Linearization

    def sensitivity(self, r_x: Array, r_s: Array) -> Triple:
        """u, w of these samples' ghost systems, and the residual."""
        return self.presolve.solve(self.found.sensitivity, r_x, r_s)


@dataclass
class Outcome:
    """A solved batch: x (batch, n), y and s (batch, m), NaN where a sample failed.

    `pieces` hold the linearizations; samples in none of them failed. `info` is the report on this call:
    derivatives add to it whenever they are taken. `solved`: (batch,) true where a sample was solved; None: everywhere.
    """

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    pieces: list[SolvedPart]
    info: Info
    solved: Array | None

    def adjoint(self, c_x: Array, c_y: Array, constraints: bool = True) -> DataGradient:
        """Loss gradients in x and y -> gradient in the data; failed samples contribute zero.

        Args:
            constraints: whether the gradient in A or b will be used, so that the certificate speaks of it.
        """
        start = time.perf_counter()
        u, w, residual = self._sensitivity(-c_x, -c_y)
        self._report(residual, constraints, start)
        return DataGradient(only(self.solved, self.x), only(self.solved, self.y), u, w, -w)

    def tangent(self, change: ConeProgram) -> tuple[Array, Array]:
        """Derivative (dx, dy) along a change of the data; zero for failed samples."""
        start = time.perf_counter()
        x, y = only(self.solved, self.x), only(self.solved, self.y)
        dx, dy, residual = self._sensitivity(-change.stationarity(x, y), change.slack(x))
        self._report(residual, bool(np.any(change.A.values) or np.any(change.b)), start)
        return dx, dy

    def _sensitivity(self, r_x: Array, r_s: Array) -> Triple:
        """u, w of all samples' ghost systems, and the residual; zero and NaN for failed samples."""
        if is_whole(self.pieces, len(self.x)):
            return self.pieces[0].sensitivity(r_x, r_s)
        u, w, residual = np.zeros_like(self.x), np.zeros_like(self.y), np.full(len(self.x), np.nan)
        for piece in self.pieces:
            k = piece.samples
            u[k], w[k], residual[k] = piece.sensitivity(r_x[k], r_s[k])
        return u, w, residual

    def _report(self, residual: Array, constraints: bool, start: float) -> None:
        dependent = None
        if constraints:
            dependent = np.zeros(len(self.x), dtype=bool)
            for piece in self.pieces:
                dependent[piece.samples] = piece.found.dependent
        self.info.add_pass(residual, dependent, time.perf_counter() - start)


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
