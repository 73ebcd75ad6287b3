"""Third way: Algorithm 1 of the paper taken literally, with nothing but a black-box solver.

`target="ghost"` passes the perturbed ghost problem (P3), an equality-constrained quadratic program, to
the solver: rows with curvature become a slack e with cost e^2/2,

    minimize  1/2 u'Pu - r_x'u + 1/2 e'e   subject to  TA u - C k - sqrt(delta) e = T r_s,

whose multipliers are t. The ghost is linear in the perturbation, so there is no truncation error and
the step `delta` only has to be well above the solver's tolerance. The problems of a batch are solved together. Without
`eps`, solutions are polished first, and ghosts are solved again for what is left, down to rounding. With `eps`, nothing
is done but Algorithm 1: the ghost at the solver's own answer is solved once, to this accuracy.

`target="original"` perturbs the problem itself, q - delta r_x and b + delta r_s, and takes central
differences of its solutions: for solvers that return nothing but a solution. Its step balances truncation
delta^2 against the error e of a solution divided by delta.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from ffo.cones.product import Product
from ffo.cones.zero import Zero
from ffo.errors import Status
from ffo.ghost.direct import POLISHING, Compiled, newton
from ffo.ghost.iterative import Iterative
from ffo.ghost.oracle import SEES, NullVectors, Sensitivity, Way
from ffo.kernels.batch import State
from ffo.kernels.kkt import KI, KP, part
from ffo.kernels.point import WEAK
from ffo.kernels.system import PART
from ffo.program.cone import ConeProgram, Solution
from ffo.program.pattern import Pattern
from ffo.program.sparse import SparseBatch, SymmetricBatch

Array = np.ndarray
BlackBox = Callable[[ConeProgram], Solution]
Matrices = TypeVar("Matrices", bound=SparseBatch)
Shape = tuple[int, int]

#: most solves of a ghost problem, each for the residual of the previous ones, and the relative residual that ends them.
#: A single solve has the solver's tolerance as its error, which would show in derivatives that are zero.
RESOLVES, EXACT = 3, 1e-12
#: relative residual above which MINRES has failed
UNSOLVED = 0.5


@dataclass(frozen=True)
class Resolve(Way):
    """Re-solve with a black box. Nothing is factorized: points are polished with MINRES, if at all.

    Attributes:
        solve: any function from a cone program to its solution.
        target: perturb the "ghost" problem or the "original" one.
        delta: size of the perturbation, as in the paper; None chooses it: for the ghost the
            perturbation is scaled to unit size, for the original problem to `accuracy` ** (1/3).
        accuracy: relative error to expect of a solution x of the black box.
        eps: accuracy of a single re-solve of the ghost; None: as accurate as possible, by further re-solves.
    """

    solve: BlackBox
    target: Literal["ghost", "original"] = "ghost"
    delta: float | None = None
    accuracy: float = 1e-8
    eps: float | None = None

    @property
    def polishes(self) -> bool:
        """No for the original problem, and for a single re-solve: they use the solver's answers as they are."""
        return self.target == "ghost" and self.eps is None

    def linearize(self, program: ConeProgram, solution: Solution) -> Resolving:
        full = Iterative().full(program)
        steps = POLISHING if self.polishes else 0
        found = newton(program, solution.x, solution.y, solution.s, steps, full)
        point = found.program, found.x, found.y, found.s, found.plan, found.state
        if self.polishes:
            return GhostResolved(*point, way=self)
        # The error of an interior-point answer is about the square root of its residual, and that of a difference
        # of such answers is this error to the power 2/3.
        residual, margin = found.certificate.natural_residual, found.margin
        certificate = replace(
            found.certificate,
            unsettled=np.zeros(program.batch, dtype=bool),
            margin_ratio=np.sqrt(residual) / np.maximum(margin, 1e-300),
            weakly_active=margin <= WEAK,
            error=np.sqrt(residual) if self.target == "ghost" else np.cbrt(residual),
        )
        kind = GhostResolvedOnce if self.target == "ghost" else OriginalResolved
        resolving = kind(*point, way=self)
        vars(resolving)["certificate"] = certificate
        return resolving


@dataclass(frozen=True)
class Resolving(Compiled):
    """Solutions whose derivatives are computed by re-solving."""

    way: Resolve

    @property
    def regular(self) -> bool:
        return not len(self.null.samples)

    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        return self._resolve(np.arange(len(self.x)) if samples is None else samples, r_x, r_s)

    @abstractmethod
    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        """The sensitivity of some samples."""


class GhostResolved(Resolving):
    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        u, w, left_x, left_s, residual = self._solved(samples, r_x, r_s)
        error = self._error(samples, u, w, left_x, left_s, residual)
        return self.with_evidence(samples, r_x, r_s, u, w, np.fmax(residual, error))

    def _solved(self, samples: Array, r_x: Array, r_s: Array) -> tuple[Array, Array, Array, Array, Array]:
        """u and w of some samples, what is left of both right-hand sides, and their relative residuals."""
        n, m, aux = self.program.n, self.program.m, self.state.structure.aux
        r_t = self.plan.onto_face(self.state, samples, r_s)
        rhs = np.concatenate([r_x, r_t, np.zeros((len(samples), aux))], axis=1)
        z, left, residual = self._problems.solve(self.way, samples, rhs)
        (u, w), (left_x, left_s) = (
            (v[:, :n], self.plan.from_face(self.state, samples, v[:, n : n + m])) for v in (z, left)
        )
        return u, w, left_x, left_s, residual

    def _error(self, samples: Array, u: Array, w: Array, left_x: Array, left_s: Array, residual: Array) -> Array:
        """(samples,) relative errors, estimated by solving for the remaining residual with MINRES.

        Infinite if MINRES fails on a residual above rounding. If rows are nearly parallel, the error can be as large
        as the solution although the residual is 1e-8.
        """
        step_u, step_w, unsolved = self.plan.sensitivity(self.state, samples, left_x, left_s)
        scale = np.concatenate(self.plan.scales(self.state, samples), axis=1)
        step, size = (
            np.linalg.norm(np.concatenate(pair, axis=1) / scale, axis=1) for pair in ((step_u, step_w), (u, w))
        )
        return np.where((unsolved > UNSOLVED) & (residual > EXACT), np.inf, step / np.where(size > 0, size, 1.0))

    @cached_property
    def _problems(self) -> GhostProblems:
        return GhostProblems(self.state)


class GhostResolvedOnce(GhostResolved):
    """One re-solve at the solver's own answer. Evidence that takes further solves (by MINRES) is looked for only where
    the gradient could be called good."""

    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        if self.certificate.good[samples].any():
            return super()._resolve(samples, r_x, r_s)
        u, w, _, _, residual = self._solved(samples, r_x, r_s)
        nothing = np.zeros((len(samples), SEES), dtype=bool)
        return Sensitivity(u, w, residual, self.certificate.weakly_active[samples], nothing)

    @cached_property
    def null(self) -> NullVectors:
        if self.certificate.good.any():
            return super().null
        return NullVectors(np.zeros(0, dtype=int), self.x[:0], self.y[:0])


class GhostProblems:
    """The ghost problems of all samples as one batch, built from the K of the last Newton step.

    Unknowns are numbered as in K: variables, rows, auxiliary variables. The problems have every row that is on some
    sample's face. If a sample's face lacks a row, its K has -1 on the diagonal and zeros elsewhere: a row with only
    a slack.
    """

    def __init__(self, state: State) -> None:
        S, Kx = state.structure, state.factors[0]
        n, m, size, batch = S.n, S.m, len(S.sign), len(Kx)
        pattern = Pattern.of(part(S.wide, KP), part(S.slim, KI), (size, size))
        self.n, self.K, self.scale, self.unit = n, SymmetricBatch.on(pattern, Kx), state.factors[1], state.factors[4]
        every, on = np.arange(size), state.face[0].any(axis=0)
        is_row = (every >= n) & (every < n + m)
        held = np.concatenate([np.ones(n, dtype=bool), on])
        self.rows, self.variables = np.flatnonzero(is_row & held), np.flatnonzero(~is_row & held)
        delta = -self.K.diagonal[:, self.rows]
        soft = np.flatnonzero((delta > 0).any(axis=0))
        shape = len(self.rows), len(self.variables) + len(soft)
        place, slack = np.empty(size, dtype=int), len(self.variables) + np.arange(len(soft))
        place[self.rows], place[self.variables] = np.arange(shape[0]), np.arange(len(self.variables))
        i, j = pattern.rows, pattern.columns
        in_P = np.flatnonzero(held[i] & held[j] & ~is_row[i] & ~is_row[j])
        in_A = np.flatnonzero(held[i] & held[j] & (is_row[i] != is_row[j]))
        row, column = np.where(is_row[i], i, j)[in_A], np.where(is_row[i], j, i)[in_A]
        costs = np.concatenate([Kx[:, in_P], np.ones((batch, len(soft)))], axis=1)
        terms = np.concatenate([Kx[:, in_A], -np.sqrt(delta[:, soft])], axis=1)
        P = _on(SymmetricBatch, (*place[[i[in_P], j[in_P]]], slack, slack), costs, shape[1:] * 2)
        A = _on(SparseBatch, (place[row], place[column], soft, slack), terms, shape)
        q, b = np.zeros((batch, shape[1])), np.zeros((batch, shape[0]))
        self.program = ConeProgram(P, q, A, b, Product([(Zero(), shape[0])])).pruned()

    def solve(self, way: Resolve, samples: Array, rhs: Array) -> tuple[Array, Array, Array]:
        """Solutions of K z = rhs (samples, size), their residual vectors, and their relative residuals.

        Zeros if the solver gives no answer: like a failed sample, it has no gradient, and the certificate says so.
        """
        z, left, unit = np.zeros_like(rhs), rhs.copy(), self.unit[samples]
        todo, size = np.flatnonzero(rhs.any(axis=1)), np.linalg.norm(rhs * unit, axis=1)
        residual = np.where(rhs.any(axis=1), np.inf, 0.0)
        for turn in range(RESOLVES if way.eps is None else 1):
            if not len(todo):
                break
            largest = np.maximum(np.abs(left[todo]).max(axis=1, keepdims=True), 1e-300)
            step = np.full_like(largest, way.delta) if way.delta else 1.0 / largest
            x, y = self._solved(way, samples[todo], step * left[todo], turn == 0)
            new = z[todo]
            new[:, self.variables] += x[:, : len(self.variables)] / step
            new[:, self.rows] += y / step
            rest = rhs[todo] - self.K.take(samples[todo]).dot(new)
            relative = np.linalg.norm(rest * unit[todo], axis=1) / size[todo]
            # twice: small entries may still gain digits while the residual is rounding in large ones
            better = relative < 2.0 * residual[todo]
            todo, relative = todo[better], relative[better]
            z[todo], left[todo], residual[todo] = new[better], rest[better], relative
            todo = todo[(relative > EXACT) | ~self._small_in_parts(samples[todo], z[todo], left[todo])]
        return z, left, residual

    def _small_in_parts(self, samples: Array, z: Array, left: Array) -> Array:
        """(samples,) whether residuals are small beside both variables and multipliers (see `ffo.kernels.system`)."""
        scale = self.scale[samples]
        sizes = [np.abs(v).max(axis=1, initial=0.0) for v in np.split(z / scale, [self.n], axis=1)]
        least = np.min([np.where(size > 0, size, np.inf) for size in sizes], axis=0)
        return np.abs(left * scale).max(axis=1) <= PART * least

    def _solved(self, way: Resolve, samples: Array, right: Array, whole: bool) -> tuple[Array, Array]:
        """x and y of the problems of some samples with these right-hand sides of K.

        `whole` solves all samples along with them: a solver that starts each sample from the one before chooses other
        multipliers of dependent rows if some samples are left out.
        """
        program = self.program if whole else self.program.take(samples)
        mine = samples if whole else np.arange(len(samples))
        q, b = np.zeros(program.q.shape), np.zeros(program.b.shape)
        q[mine, : len(self.variables)], b[mine] = -right[:, self.variables], right[:, self.rows]
        answer = way.solve(program.with_vectors(q, b))
        return answer.x[mine], answer.y[mine]


def _on(kind: type[Matrices], places: tuple[Array, Array, Array, Array], values: Array, shape: Shape) -> Matrices:
    """Matrices with values (samples, entries) at two sets of places (rows, columns, rows, columns), concatenated."""
    rows, columns = np.concatenate(places[::2]), np.concatenate(places[1::2])
    pattern, at = Pattern.of_positions(rows + shape[0] * columns, shape)
    found = np.empty_like(values)
    found[:, at] = values
    return kind.on(pattern, found)


class OriginalResolved(Resolving):
    def _resolve(self, samples: Array, r_x: Array, r_s: Array) -> Sensitivity:
        # The whole batch: a solver that starts each sample from the one before gives other noise if some are left out.
        full_x, full_s = np.zeros_like(self.x), np.zeros_like(self.y)
        full_x[samples], full_s[samples] = r_x, r_s
        return self._differences(full_x, full_s).take(samples)

    def _differences(self, r_x: Array, r_s: Array) -> Sensitivity:
        program = self.program
        step = self._step(program, r_x, r_s)
        u, w, failed = self._difference(program, r_x, r_s, step)
        # There is no system whose residual could be measured. Comparing with a step of twice the size shows
        # truncation, the solver's noise and kinks.
        other, _, failed_too = self._difference(program, r_x, r_s, 2 * step)
        size = np.linalg.norm(u, axis=1)
        doubt = np.linalg.norm(u - other, axis=1) / np.where(size > 0, size, 1.0)
        everyone = np.arange(len(self.x))
        found = self.with_evidence(everyone, r_x, r_s, u, w, np.where(failed | failed_too, np.inf, doubt))
        return found._replace(kinked=self.certificate.weakly_active)

    def _difference(self, program: ConeProgram, r_x: Array, r_s: Array, step: Array) -> tuple[Array, Array, Array]:
        """Central differences (u, w), and where a solve failed."""
        plus = self.way.solve(program.with_vectors(program.q - step * r_x, program.b + step * r_s))
        minus = self.way.solve(program.with_vectors(program.q + step * r_x, program.b - step * r_s))
        failed = (plus.status != Status.SOLVED) | (minus.status != Status.SOLVED)
        u, w = (plus.x - minus.x) / (2 * step), (plus.y - minus.y) / (2 * step)
        lost = ~np.isfinite(np.concatenate([u, w], axis=1)).all(axis=1)
        u[lost], w[lost] = 0.0, 0.0
        return u, w, failed | lost

    def _step(self, program: ConeProgram, r_x: Array, r_s: Array) -> Array:
        if self.way.delta is not None:
            return np.full((program.batch, 1), self.way.delta)
        size = np.maximum(np.abs(r_x).max(axis=1, initial=0.0), np.abs(r_s).max(axis=1, initial=0.0))
        data = np.maximum(np.abs(program.q).max(axis=1, initial=0.0), 1e-3)
        step = self.way.accuracy ** (1 / 3) * data / np.where(size > 0, size, 1.0)
        return step[:, None]
