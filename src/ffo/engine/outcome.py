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
from ffo.program.presolve import Presolve

Array = np.ndarray


@dataclass(frozen=True)
class Piece:
    """Samples that were linearized together, in the program that a presolve made of theirs."""

    samples: Array
    presolve: Presolve
    found: Linearization

    def adjoint(self, c_x: Array, c_y: Array) -> tuple[DataGradient, Array]:
        """Loss gradients in these samples' x and y -> gradient in their data, and the ghost residual."""
        gradient, residual = self.found.adjoint(*self.presolve.adjoint(c_x, c_y))
        return self.presolve.gradient(gradient), residual

    def tangent(self, change: ConeProgram) -> tuple[Array, Array, Array]:
        """dx, dy along a change of these samples' data, and the ghost residual."""
        moved = self.found.tangent(self.presolve.change(change))
        return *self.presolve.tangent(moved.u, moved.w), moved.residual


@dataclass
class Outcome:
    """A solved batch: x (batch, n), y and s (batch, m), NaN where a sample failed.

    `pieces` hold the linearizations; samples in none of them failed. `info` is the report on this call:
    derivatives add to it whenever they are taken.
    """

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    pieces: list[Piece]
    info: Info

    def adjoint(self, c_x: Array, c_y: Array, constraints: bool = True) -> DataGradient:
        """Loss gradients in x and y -> gradient in the data; failed samples contribute zero.

        Args:
            constraints: whether the gradient in A or b will be used, so that the certificate speaks of it.
        """
        start = time.perf_counter()
        if self._in_one_piece:
            total, residual = self.pieces[0].adjoint(c_x, c_y)
        else:
            batch, n, m = len(self.x), self.x.shape[1], self.y.shape[1]
            total = DataGradient(*(np.zeros((batch, k)) for k in (n, m, n, m, m)))
            residual = np.full(batch, np.nan)
            for piece in self.pieces:
                part, residual[piece.samples] = piece.adjoint(c_x[piece.samples], c_y[piece.samples])
                for name in ("x", "y", "u", "v", "db"):
                    getattr(total, name)[piece.samples] = getattr(part, name)
        self.info.add_pass(residual, constraints, time.perf_counter() - start)
        return total

    def tangent(self, change: ConeProgram) -> tuple[Array, Array]:
        """Derivative (dx, dy) along a change of the data; zero for failed samples."""
        start = time.perf_counter()
        dx, dy = np.zeros_like(self.x), np.zeros_like(self.y)
        residual = np.full(len(dx), np.nan)
        for piece in self.pieces:
            part = change if self._in_one_piece else change.take(piece.samples)
            dx[piece.samples], dy[piece.samples], residual[piece.samples] = piece.tangent(part)
        constraints = bool(np.any(change.A.values) or np.any(change.b))
        self.info.add_pass(residual, constraints, time.perf_counter() - start)
        return dx, dy

    @property
    def _in_one_piece(self) -> bool:
        return len(self.pieces) == 1 and len(self.pieces[0].samples) == len(self.x)


def merged_certificate(pieces: Sequence[Piece], batch: int) -> Certificate:
    """One certificate for the batch; samples in no piece were not solved."""
    if len(pieces) == 1 and len(pieces[0].samples) == batch:
        return pieces[0].found.certificate
    merged = Certificate.unsolved(batch)
    for piece in pieces:
        for name, values in vars(piece.found.certificate).items():
            getattr(merged, name)[piece.samples] = values
    return merged
