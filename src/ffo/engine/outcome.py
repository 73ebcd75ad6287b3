"""A solved batch, and its derivative in both directions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from ffo.engine.info import Info
from ffo.ghost.certificate import Certificate
from ffo.ghost.oracle import Linearization, linearize
from ffo.ghost.problem import Way
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray


@dataclass
class Outcome:
    """A solved batch: x (batch, n), y and s (batch, m), NaN where a sample failed.

    `pieces` are the linearizations of groups of samples; samples in none of them failed, or no
    derivative has been prepared yet.
    """

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    pieces: list[tuple[Array, Linearization]]
    info: Info
    way: Way

    def prepare(self) -> None:
        """Polish, and make the derivative ready (done ahead when a gradient is expected)."""
        if self.info.certificate is not None:
            return
        start = time.perf_counter()
        left = self.info.ok
        for who, _ in self.pieces:
            left[who] = False
        todo = np.flatnonzero(left)
        if len(todo):
            piece = linearize_some(self.program, todo, self.x, self.y, self.s, self.way)
            self.pieces.append((todo, piece))
        for who, piece in self.pieces:
            if self.x is not piece.x:
                self.x[who], self.y[who], self.s[who] = piece.x, piece.y, piece.s
            self.info.residual[who] = piece.certificate.natural_residual
        self.info.certificate = merge_certificates(self.pieces, len(self.x))
        self.info.times = replace(self.info.times, polish=self.info.times.polish + time.perf_counter() - start)

    def adjoint(self, c_x: Array, c_y: Array, constraints: bool = True) -> DataGradient:
        """Loss gradients in x and y -> gradient in the data; failed samples contribute zero.

        Args:
            constraints: whether the gradient in A or b will be used, so that the certificate speaks of it.
        """
        self.prepare()
        start = time.perf_counter()
        if len(self.pieces) == 1 and len(self.pieces[0][0]) == len(self.x):
            total, residual = self.pieces[0][1].adjoint(c_x, c_y)
        else:
            total, residual = self._gathered(c_x, c_y)
        assert self.info.certificate is not None
        self.info.certificate = self.info.certificate.with_ghost_residual(residual).asked(constraints)
        self.info.times = replace(self.info.times, backward=time.perf_counter() - start)
        return total

    def _gathered(self, c_x: Array, c_y: Array) -> tuple[DataGradient, Array]:
        """What the pieces say: the gradient in the data, and the residual (batch,) of their solves."""
        batch, n = self.x.shape
        m = self.y.shape[1]
        total = DataGradient(*(np.zeros((batch, k)) for k in (n, m, n, m, m)))
        residual = np.full(batch, np.nan)
        for who, piece in self.pieces:
            part, residual[who] = piece.adjoint(c_x[who], c_y[who])
            for name in ("x", "y", "u", "v", "db"):
                getattr(total, name)[who] = getattr(part, name)
        return total, residual

    def tangent(self, change: ConeProgram) -> tuple[Array, Array]:
        """Derivative (dx, dy) along a change of the data; zero for failed samples."""
        self.prepare()
        dx, dy = np.zeros_like(self.x), np.zeros_like(self.y)
        residual = np.full(len(dx), np.nan)
        for who, piece in self.pieces:
            found = piece.tangent(change.take(who))
            dx[who], dy[who], residual[who] = found.u, found.w, found.residual
        assert self.info.certificate is not None
        constraints = bool(np.any(change.A.values) or np.any(change.b))
        self.info.certificate = self.info.certificate.with_ghost_residual(residual).asked(constraints)
        return dx, dy


def as_solution(x: Array, y: Array, s: Array) -> Solution:
    return Solution(x, y, s, np.zeros(len(x), dtype=int), np.full(len(x), -1))


def linearize_at(program: ConeProgram, x: Array, y: Array, s: Array, way: Way) -> Linearization:
    """The linearization of a program at a point."""
    return linearize(program, as_solution(x, y, s), way)


def linearize_some(program: ConeProgram, who: Array, x: Array, y: Array, s: Array, way: Way) -> Linearization:
    """The linearization of some samples of a program."""
    if len(who) == program.batch:
        return linearize_at(program, x, y, s, way)
    return linearize_at(program.take(who), x[who], y[who], s[who], way)


def merge_certificates(pieces: list[tuple[Array, Linearization]], batch: int) -> Certificate:
    """One certificate for the batch; samples in no piece were not solved."""
    if len(pieces) == 1 and len(pieces[0][0]) == batch:
        return pieces[0][1].certificate
    merged = Certificate.unsolved(batch)
    for who, piece in pieces:
        for name, values in vars(piece.certificate).items():
            getattr(merged, name)[who] = values
    return merged
