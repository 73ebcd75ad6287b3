"""First way: Newton's method and both derivatives by compiled kernels, one sample at a time.

The ghost system of a sample is factorized as a sparse LDL' on a pattern shared by all active sets (`ffo.kernels`). The
backward pass reuses the factors of the last Newton step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ffo.cones import Exponential, Product
from ffo.ghost.certificate import RESIDUAL, Certificate
from ffo.ghost.division import change_of_system, divided_otherwise, errors, with_forces
from ffo.ghost.oracle import (
    BENDS,
    LARGE_U,
    LARGE_W,
    MEETS_U,
    MEETS_W,
    SEES,
    Linearization,
    NullVectors,
    Sensitivity,
    Way,
)
from ffo.kernels import evidence as columns
from ffo.kernels.batch import FACTORS, KernelPlan, State, state_bytes
from ffo.kernels.doubt import SPECTRAL, closeness, none_close
from ffo.kernels.kkt import BOUND, KIND, NONNEG, OWNER, Full, part
from ffo.program.components import Components
from ffo.program.cone import ConeProgram, Solution
from ffo.program.fill import check_batch
from ffo.program.magnitudes import largest
from ffo.program.plan import plan_of, values_of

Array = np.ndarray

#: most Newton steps from a solver's answer, and from zero
POLISHING, FROM_NOTHING = 10, 25
#: relative difference below which two solutions are the same, or that of their variables relative to multipliers too;
#: relative size below which a curved block has no effect
SAME, UNSEEN, UNMOVED = 1e-6, 1e-9, 1e-12
#: change of a solution that is not rounding, relative to its size; relative residual of the change from which on it
#: tells nothing
ANY, UNTOLD = 1e-12, 1e-9
#: relative force below which a curved block is given some of the others' forces, and how much in turn, relative to the
#: largest: Newton's method takes it from others, which may lose all they have; residual of points where it has settled
SLIGHT, SHARES, SETTLED = 1e-6, (1e-2, 1e-4), 1e-13
#: entries of a null vector, relative to its largest, that are rounding errors, and relative size of A'w that vanishes;
#: if ten times smaller, errors of eigenvectors count
DUST, VANISHED = 1e-13, 1e-12
#: slack of an exponential cone, relative to the others, that is zero
NO_SLACK = 1e-13
#: relative multiplier below which a row carries no force
FORCELESS = 1e-9
#: total entries of the samples' patterns above which the memory for their factors is checked first
LARGE = 10_000_000
#: entries of an equilibrated solution, relative to the largest, below which they are rounding
SEEN = 1e-10


@dataclass(frozen=True)
class Direct(Way):
    """Factorize the ghost system."""

    @property
    def factorizes(self) -> bool:
        return True

    def linearize(self, program: ConeProgram, solution: Solution) -> Compiled:
        return newton(program, solution.x, solution.y, solution.s)


@dataclass(frozen=True)
class Compiled(Linearization):
    """Solutions with the faces and factors of the last Newton step."""

    plan: KernelPlan
    state: State

    @cached_property
    def certificate(self) -> Certificate:
        return certificate_of(self.state.evidence, self.state.flags)

    @property
    def steps(self) -> Array:
        """(batch,) Newton steps taken."""
        return self.state.evidence[:, columns.STEPS].astype(int)

    @property
    def start_residual(self) -> Array:
        return self.state.evidence[:, columns.START_RESIDUAL]

    @property
    def margin(self) -> Array:
        """(batch,) smallest relative distance of a block to a change of structure."""
        return self.state.face[5].min(axis=1, initial=np.inf)

    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        mine = self.state.samples if samples is None else samples
        u, w, residual = self.plan.sensitivity(self.state, mine, r_x, r_s)
        if np.count_nonzero(r_s):
            self._follow_bounds(mine, r_s, u)
        if self._plain:
            return Sensitivity(u, w, residual, *_nothing(len(mine)))
        return self.with_evidence(mine, r_x, r_s, u, w, residual)

    def _follow_bounds(self, samples: Array, r_s: Array, u: Array) -> None:
        """Variables at their bounds move exactly as these do, in place. Beside others that move by 1e6 of their size,
        rounding errors of that size would be left."""
        entry = part(self.state.structure.wide, BOUND)
        rows = np.flatnonzero(entry >= 0)
        k, i = (self.state.face[0][samples][:, rows] > 0).nonzero()
        row, at = rows[i], entry[rows[i]]
        A = self.program.A
        size = A.values[at] if A.shared else A.values[samples[k], at]
        held = size != 0.0
        u[k[held], A.columns[at[held]]] = r_s[k[held], row[held]] / size[held]

    def with_evidence(self, samples: Array, r_x: Array, r_s: Array, u: Array, w: Array, residual: Array) -> Sensitivity:
        """Solutions of some samples' ghost systems, with the evidence about them."""
        return Sensitivity(
            u, w, residual, self._kinked(samples, r_x, r_s, u, w), self._sees(samples, r_s, u, w, residual)
        )

    @property
    def _plain(self) -> bool:
        """Whether no sample is weakly active, and all ghost systems are known to be regular, which then does not
        change."""
        state = self.state
        if not state.plain:
            regular = none_close(state.evidence, state.flags, self._spectral) or not (
                np.count_nonzero(self._weak) or np.count_nonzero(state.evidence[:, columns.SINGULAR])
            )
            state.plain = regular and self._pinned is None
        return state.plain

    @property
    def _spectral(self) -> bool:
        """Whether systems that look regular to MINRES are small enough for eigenvalues."""
        return bool(self.state.full.iterations) and len(self.state.structure.sign) <= SPECTRAL

    @property
    def _weak(self) -> Array:
        """(batch,) whether a sample is weakly active."""
        _ = self.weak_rows  # which rows are is found out when the first derivative is taken
        return self.state.flags[:, columns.WEAKLY_ACTIVE]

    @property
    def regular(self) -> bool:
        return self._plain or not len(self.null.samples)

    @cached_property
    def null(self) -> NullVectors:
        near, weak = self._weak.nonzero()[0], self.y[:0]
        if self._pinned is None and not len(near) and not np.count_nonzero(self.state.evidence[:, columns.SINGULAR]):
            return NullVectors(near, self.x[:0], weak)
        if len(near):  # with all weak rows held, rows may be dependent; with none, the solution may not be unique
            rows = self.weak_rows[near]
            held = (rows & (self.state.face[0][near, : self.program.m] > 0)).any(axis=1)
            near, weak = np.concatenate([near, near[held]]), np.concatenate([1.0 * rows, -1.0 * rows[held]])
        samples, u, w = self.plan.null(values_of(self.program), self.state, near, weak)
        w = self._without_dust(samples, w)
        if self._pinned is not None:
            k, row = self._pinned.nonzero()
            samples, u = np.concatenate([samples, k]), np.concatenate([u, np.zeros((len(k), u.shape[1]))])
            w = np.concatenate([w, 1.0 * (row[:, None] == np.arange(w.shape[1]))])
        return NullVectors(samples, u, w)

    @cached_property
    def _pinned(self) -> Array | None:
        """(batch, m) rows of exponential cones without a variable, whose slack s2 is zero: kl_div(p, x) with p = 0. The
        multiplier of such a row has no bound, and may be any number; None if there are none."""
        rows = second_rows(self.program.cones)
        empty = self.program.A.empty_rows if len(rows) else None
        if empty is None:
            return None
        size = np.abs(self.s[:, rows - 1]) + np.abs(self.s[:, rows + 1])
        given = np.where(empty[:, rows], np.abs(self.program.b[:, rows]), 0.0)  # log(x) has a slack of 1, whatever x is
        zero = empty[:, rows] & (self.s[:, rows] <= NO_SLACK * size) & (given <= NO_SLACK * largest(given))
        if not np.count_nonzero(zero):
            return None
        found = np.zeros(self.y.shape, dtype=bool)
        found[:, rows] = zero
        return found

    def _without_dust(self, samples: Array, w: Array) -> Array:
        """Null vectors of multipliers without the rounding errors of turning them into the rows of curved blocks, if
        they remain null vectors: others feel these, however small, in rows that are not among those that depend on each
        other."""
        if self.program.cones.scalar_rows.all() or not len(samples):
            return w
        A = self.program.A if self.program.A.shared else self.program.A.take(samples)
        size = A.row_sizes * np.abs(w)
        clean = np.where((size > DUST * largest(size)) | self.program.cones.scalar_rows, w, 0.0)
        vanishes = np.abs(A.tdot(clean)) <= VANISHED * A.magnitudes.tdot(np.abs(clean))
        return np.where(vanishes.all(axis=1)[:, None], clean, w)

    @cached_property
    def weak_rows(self) -> Array:
        """(batch, m) weakly active rows: they could as well belong to another face."""
        state, evidence, weak = self.state, self.state.evidence, np.zeros(self.y.shape, dtype=bool)
        flags, distance = state.flags[:, columns.WEAKLY_ACTIVE], closeness(evidence, self._spectral)
        some = (flags | (evidence[:, columns.NEAREST] <= distance)).nonzero()[0]
        if len(some):
            point = self.x, self.y, self.s
            weak[some] = self.plan.weak_rows(values_of(self.program), *point, state, some, distance[some])
            flags |= weak.any(axis=1)
        return weak

    def _kinked(self, samples: Array, r_x: Array, r_s: Array, u: Array, w: Array) -> Array:
        """(samples,) whether u depends on which weakly active rows count as active.

        If u is the same with none and with all of them, it is the same with any subset: Au = r_s holds on these rows
        without a force. With none of them, u is unchanged if w = 0 on them. Otherwise it is solved for again, since
        other rows on which they depend may take over their force. A curved block has many faces, so both conditions
        are required of it separately.
        """
        found = self._weak[samples]
        if not np.count_nonzero(found):
            return found
        near, k = np.flatnonzero(found), samples[found]
        kinked = np.zeros(len(k), dtype=bool)
        r_x, r_s, u, w = (v[near] for v in (r_x, r_s, u, w))
        weak, values = self.weak_rows[k], values_of(self.program)
        scale_u, scale_w = self.plan.scales(self.state, k)
        size = np.maximum(largest(u / scale_u), largest(w / scale_w))
        held = (weak & (np.abs(w) / scale_w > FORCELESS * size)).any(axis=1)
        for some, sign in ((np.arange(len(k)), 1.0), (np.flatnonzero(held), -1.0)):
            if len(some):
                rows = sign * weak[some]
                other, _, residual = self.plan.on_other_face(values, self.state, k[some], rows, r_x[some], r_s[some])
                old, new = u[some] / scale_u[some], other / scale_u[some]
                least = np.maximum(SAME * np.maximum(largest(old), largest(new)), UNSEEN * size[some])
                moved = (np.abs(new - old) > least).any(axis=1)
                kinked[some] |= (residual > RESIDUAL) | moved
        curved = weak & ~self.program.cones.scalar_rows
        if curved.any():
            A = self.program.A if self.program.A.shared else self.program.A.take(k)
            along, force = A.row_sizes * largest(u) + np.abs(r_s), A.row_sizes * np.abs(w)
            moved = (np.abs(A.dot(u) - r_s) > UNMOVED * along) | (force > UNMOVED * largest(force))
            kinked |= (moved & curved).any(axis=1)
        found[near] = kinked
        return found

    def _sees(self, samples: Array, r_s: Array, u: Array, w: Array, residual: Array) -> Array:
        """`Sensitivity.sees` of some samples' solutions."""
        flags, null = np.zeros((len(samples), SEES), dtype=bool), self.null
        if len(null.samples) and samples is not self.state.samples:
            null = null.take(samples)
        if len(null.samples):
            k, at = samples[null.samples], null.samples
            flags[at[self._bends(null, k, r_s[at], u[at], w[at], residual[at])], BENDS] = True
            if self._pinned is not None:  # seen if the loss moves another row of the block
                A = self.program.A if self.program.A.shared else self.program.A.take(k)
                moved = np.abs(A.dot(u[at]) - r_s[at]) > SEEN * A.row_sizes * largest(u[at])
                pinned = self.program.cones.block_means(1.0 * (self._pinned[k] & (null.w != 0))) > 0
                flags[at, MEETS_W] |= (moved & pinned).any(axis=1)
            scale_u, scale_w = self.plan.scales(self.state, k)
            u, w = np.abs(u[at] / scale_u), np.abs(w[at] / scale_w)
            least = SEEN * np.maximum(largest(u), largest(w))
            # where a row cannot stay on the face, all rows of its curved block go to another one
            blocks = self.program.cones.block_means(1.0 * (null.w != 0))
            for v, open_along, large, meets in ((u, null.u, LARGE_U, MEETS_U), (w, blocks, LARGE_W, MEETS_W)):
                there = v > least
                flags[at, large] |= there.any(axis=1)
                flags[at, meets] |= (there & (open_along != 0)).any(axis=1)
        return flags

    def _bends(self, null: NullVectors, samples: Array, r_s: Array, u: Array, w: Array, residual: Array) -> Array:
        """(count,) whether the solution u at a null vector, (count, n), depends on the curvature of blocks whose
        multipliers change along it, and so on how forces are divided: a ball in a half-space whose boundary it touches.

        Any change beyond the error of its own solution counts: a null vector at random may move those that matter by a
        small fraction of what it moves others.
        """
        program, found = self.program, np.zeros(len(samples), dtype=bool)
        curved = program.cones.block_means(1.0 * (self.state.face[1][samples] > 0)) * ~program.cones.scalar_rows > 0
        some = (curved & (null.w != 0)).any(axis=1).nonzero()[0]
        if not len(some):
            return found
        k, along = samples[some], null.w[some]
        size = program.cones.block_means(program.A.row_sizes)
        y = divided_otherwise(program.cones, size if len(size) == 1 else size[k], self.y[k], along)
        program = program.take(k)
        there = newton(program, self.x[k], y, self.s[k], 0, self.state.full).state
        solution, parts = (r_s[some], u[some], w[some], residual[some]), Components(program)
        change = change_of_system(program, self.plan, self.state, k, there, along, *solution, parts)
        d, e, _ = self.plan.on_other_face(values_of(program), there, np.arange(len(k)), np.zeros(y.shape), *change)
        scales = self.plan.scales(self.state, k)
        unsolved, error = errors(program, self.plan, there, scales, *change, d, e, parts)
        moved = np.abs(d) > ANY * np.abs(u[some]) + error[:, parts.variables] * scales[0]
        found[some] = moved.any(axis=1) | ~(unsolved <= UNTOLD).all(axis=1)
        return found


def newton(
    program: ConeProgram, x: Array, y: Array, s: Array, steps: int = POLISHING, full: Full = FACTORS
) -> Compiled:
    """Take Newton steps from a point of every sample; `s` is the solver's slack, `full` how to solve ghost systems."""
    plan = plan_of(program)
    structure = plan.pattern if full.iterations else plan.structure
    if program.batch * len(structure.slim) > LARGE:
        check_batch(program.batch, state_bytes(structure, full))
    state = State(structure, program.batch, full)
    x, y, s = plan.newton(values_of(program), (x, y, s), state, steps)
    found = Compiled(program, x, y, s, plan, state)
    if steps and plan.curved and state.face[5].min() <= SLIGHT:
        for share in SHARES:
            _give_forces(found, steps, share)
    return found


def _give_forces(found: Compiled, steps: int, share: float) -> None:
    """Where curved blocks on their boundary have hardly any force, but could have a share of the forces of others whose
    boundaries touch theirs, give it to them, in place: then it is clear on which face they are."""
    program, state, wide = found.program, found.state, found.state.structure.wide
    curved = part(wide, KIND) > NONNEG
    slight = (state.face[5] <= SLIGHT) & curved
    k = np.flatnonzero(slight.any(axis=1))
    if not len(k):
        return
    program, slight, point = program.take(k), slight[k], tuple(v[k] for v in (found.x, found.y, found.s))
    y = with_forces(program, point[1], point[2], slight[:, part(wide, OWNER)], share)
    other = State(state.structure, len(k), state.full)
    point = found.plan.newton(values_of(program), (point[0], y, point[2]), other, steps)
    settled = other.evidence[:, columns.RESIDUAL] <= np.maximum(state.evidence[k, columns.RESIDUAL], SETTLED)
    better = settled & (((other.face[5] <= SLIGHT) & curved).sum(axis=1) < slight.sum(axis=1))
    old = found.x, found.y, found.s, *state.face, *state.factors, state.evidence, state.flags
    new = *point, *other.face, *other.factors, other.evidence, other.flags
    for mine, others in zip(old, new, strict=True):
        mine[k[better]] = others[better]


def from_nothing(program: ConeProgram) -> Compiled:
    """Newton steps from x = 0, y = 0: a primal-dual active-set method."""
    s = program.cones.project(np.ascontiguousarray(program.b))
    return newton(program, np.zeros(program.q.shape), np.zeros(s.shape), s, FROM_NOTHING)


@lru_cache(maxsize=64)
def second_rows(cones: Product) -> Array:
    """The second rows of all exponential cones."""
    found = [g.index[:, 1] for g in cones.groups if isinstance(g.cone, Exponential)]
    return np.concatenate(found) if found else np.zeros(0, dtype=int)


@lru_cache(maxsize=8)
def _nothing(batch: int) -> tuple[Array, Array]:
    """`kinked` and `sees` of samples without weakly active rows and null vectors."""
    kinked, sees = np.zeros(batch, dtype=bool), np.zeros((batch, SEES), dtype=bool)
    kinked.flags.writeable = sees.flags.writeable = False
    return kinked, sees


def certificate_of(evidence: Array, flags: Array) -> Certificate:
    """The certificate of samples with this evidence, before any derivative; it refers to these arrays."""
    unsettled, weakly_active, ambiguous, dependent, indefinite, relaxed, irregular = flags.T
    return Certificate(
        unsettled,
        evidence[:, columns.RATIO],
        weakly_active,
        evidence[:, columns.ERROR],
        evidence[:, columns.RESIDUAL],
        evidence[:, columns.GHOST],
        ambiguous,
        dependent,
        indefinite,
        relaxed,
        irregular,
    )
