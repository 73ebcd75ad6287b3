"""Kernels over the samples of a batch: the interface to the rest of the package."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from ffo.kernels import evidence as columns
from ffo.kernels import newton as loop
from ffo.kernels import system
from ffo.kernels.ahead import helper
from ffo.kernels.blas import SMALL
from ffo.kernels.bundle import refer
from ffo.kernels.deadline import allowed_steps, current
from ffo.kernels.doubt import weak_rows
from ffo.kernels.group import Samples, empty_group, put_sample, take_sample
from ffo.kernels.interior import interior
from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.kkt import INV, KI, LP, Face, Full, Structure, from_face, onto_face, part
from ffo.kernels.lanes import LANES
from ffo.kernels.ldl import room
from ffo.kernels.null import amplification, null, on_other_face
from ffo.kernels.pool import one_blas_thread, run_samples
from ffo.kernels.residuals import Data
from ffo.kernels.system import UNKNOWN, Factors
from ffo.kernels.values import Values, ready
from ffo.kernels.vectors import copy, fill

Array = np.ndarray
#: x (batch, n), y and s (batch, m)
Triple = tuple[Array, Array, Array]

#: tasks of `_ghost_chunk`, and arrays that a task does not need
_NEWTON, _SENSITIVITY, _NULL, _OTHER, _WEAK = range(5)
_NOTHING, _NONE = np.empty((0, 0)), np.zeros(1, int)
#: approximate seconds for one multiplication in a sparse factorization
FLOP = 3e-9
#: iterations of samples that the interior point left out
LEFT_OUT = -(2**62)


#: ghost systems are solved by their factors
FACTORS = Full(0, 0.0, 0)
#: faces and factors of freed batches, kept for reuse up to SPARE bytes: returning the memory to the system and getting
#: it back costs a batch of 512 QPs with 200 variables several milliseconds, whatever the number of cores
_spare: deque[tuple[Structure, bool, tuple[Array, ...], tuple[Array, ...]]] = deque(maxlen=2)
SPARE = 2**26


class State:
    """Faces, factors and evidence that Newton's method leaves for the derivatives of a batch; and how ghost systems are
    solved. `plain`: see `ghost.direct`; `pending`: whether the first derivative may have to make factors, for which
    there is a lock."""

    factors: tuple[Array, ...] = ()
    plain: bool = False
    pending: bool = False

    def __init__(self, S: Structure, batch: int, full: Full = FACTORS) -> None:
        self.structure, self.full, self.samples, self.lock = S, full, np.arange(batch), Lock()
        self.evidence, self.flags = np.empty((batch, columns.EVIDENCE)), np.empty((batch, columns.FLAGS), bool)
        self.face, self.factors = _room(S, batch, full.iterations == 0)

    def __del__(self, most: int = SPARE, spare: deque[Any] = _spare) -> None:  # globals may be gone at shutdown
        if 0 < sum([v.nbytes for v in self.factors]) <= most:
            spare.append((self.structure, self.full.iterations == 0, self.face, self.factors))


def state_bytes(S: Structure, full: Full = FACTORS) -> float:
    """Bytes of faces and factors of one sample."""
    size = len(S.sign)
    below = room(S.head, size, part(S.wide, LP)) if full.iterations == 0 else 0
    return 8.0 * (S.rotation + 2 * S.m + len(part(S.slim, KI)) + below + 3 * size)


def _room(S: Structure, batch: int, factorized: bool) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Arrays for faces and factors: those of a freed batch if they fit."""
    try:
        last, before, face, factors = _spare.pop()
    except IndexError:
        last = None
    if last is S and before == factorized and len(factors[0]) == batch:
        return face, factors
    size = len(S.sign)
    entries, below = len(part(S.slim, KI)), room(S.head, size, part(S.wide, LP))
    face = (
        np.empty((batch, S.m + S.aux), np.uint8), np.empty((batch, S.m)), np.empty((batch, S.m)),
        np.empty((batch, S.rotation)), np.empty((batch, S.blocks), np.int64), np.empty((batch, S.blocks)),
    )  # fmt: skip
    widths = (entries, size, below, size if factorized else 0, size)
    return face, tuple([np.empty((batch, width)) for width in widths])


class KernelPlan:
    """The structures of a program, and whether it needs the full kernels.

    Kernels exist twice: with everything, and without the code of curved cones and singular systems, which most
    programs never need, and which takes as long to compile as all the rest. If a sample turns out to need it, it is
    repeated with the full kernels, which later calls then use at once.
    """

    def __init__(self, build: Callable[[bool], Structure], curved: bool) -> None:
        """`build` makes the structure, with or without factors; `curved`: whether there are curved cones."""
        self._build, self.curved, self.full = build, curved, curved
        helper.expect(full=curved)

    @cached_property
    def structure(self) -> Structure:
        """With factors."""
        return self._build(True)

    @cached_property
    def pattern(self) -> Structure:
        """Without factors, and without their symbolic analysis."""
        return self._build(False)

    @cached_property
    def seconds(self) -> float:
        """Approximate seconds of one fully sparse factorization."""
        S = self.structure
        columns = np.diff(part(S.wide, LP)).astype(float)
        return FLOP * float((columns * columns).sum() + 10 * len(part(S.slim, KI)) + 100)

    @property
    def _any(self) -> Structure:
        """One of the structures, for what needs no factors."""
        return self.__dict__.get("structure") or self.pattern

    def interior(self, values: Values, x: Array, y: Array, s: Array, eps: float, limit: int) -> Array:
        """Solve all samples by the interior-point method, in place; (batch,) iterations, negative where it failed,
        `LEFT_OUT` where memory or time ran out."""
        iterations = np.empty(len(x), np.int64)
        curved, seconds = self.curved or None, 20.0 * self.seconds  # None: as `full` elsewhere
        arguments = (self.structure, *values.arrays, x, y, s, iterations, eps, limit, allowed_steps(limit, seconds))
        for group in _run(_interior_chunk, -(-len(x) // LANES), seconds, *arguments, curved):
            iterations[group * LANES : (group + 1) * LANES] = LEFT_OUT
        return iterations

    def newton(self, values: Values, start: Triple, state: State, steps: int) -> Triple:
        """Polish all samples: x, y, s from starting points; the evidence is NaN for samples on which memory or time ran
        out."""
        # kernels copy the points, so that all threads, not just one, touch the memory of the new arrays first
        moved = np.empty(start[0].shape), np.empty(start[1].shape), np.empty(start[2].shape)
        taken, seconds = np.empty(len(state.samples)), 3.0 * self._seconds(state) if steps else 0.0
        state.pending = steps > 0
        arrays, allowed = (*values.arrays, *moved, *map(ready, start)), allowed_steps(steps, seconds)
        left = self._ghost(_NEWTON, state, state.samples, state.samples, arrays, taken, allowed, seconds)
        if left:
            state.evidence[left], state.flags[left] = np.nan, False
            for new, old in zip(moved, start, strict=True):
                new[left] = old[left]
        return moved

    def judge(self, values: Values, x: Array, y: Array, s: Array) -> Array:
        """(batch,) natural residuals: each of the point as it is, or of its cleaned pair if that is better."""
        state = State(self._any, len(x))
        self.newton(values, (x, y, s), state, 0)
        return state.evidence[:, columns.RESIDUAL].copy()

    def skewed(self, y: Array, s: Array, share: float = 1.0) -> Array:
        """(batch, m) the rows of blocks with a force whose coordinates differ by orders of magnitude; `share`: of the
        ratios from which on they do."""
        found = np.zeros(s.shape, dtype=bool)
        if self.curved:
            columns.skewed_rows(self._any, ready(y), ready(s), share, found)
        return found

    def sensitivity(self, state: State, samples: Array, r_x: Array, r_s: Array) -> tuple[Array, Array, Array]:
        """(u, w, doubt) of the ghost systems of some samples; right-hand sides (samples, n), (samples, m)."""
        u, w, doubt = np.empty(r_x.shape), np.empty(r_s.shape), np.empty(len(r_x))
        arrays = (*(_NOTHING,) * 4, u, w, _NOTHING, ready(r_x), ready(r_s), _NOTHING)
        rows = state.samples if len(r_x) == len(state.samples) else np.arange(len(r_x))
        seconds = self._seconds(state) * (1.0 if state.pending else 0.5)
        self._ghost(_SENSITIVITY, state, rows, samples, arrays, doubt, _NONE, seconds)
        state.pending &= rows is not state.samples
        return u, w, doubt

    def onto_face(self, state: State, samples: Array, v: Array) -> Array:
        """T v of some samples, zero in rows that the face lacks; v (samples, m)."""
        return self._turned(state, samples, v, True)

    def from_face(self, state: State, samples: Array, t: Array) -> Array:
        """T't of some samples; t (samples, m)."""
        return self._turned(state, samples, t, False)

    def _turned(self, state: State, samples: Array, v: Array, onto: bool) -> Array:
        out = np.empty(v.shape)
        _run(_face_chunk, len(v), 0.0, state.structure, *state.face, samples, ready(v), out, onto)
        return out

    def null(self, values: Values, state: State, near: Array, weak: Array) -> tuple[Array, Array, Array]:
        """Null vectors, drawn at random, of singular ghost systems: samples, u and w of these.

        All samples that `sensitivity` has not found to be regular are examined: a null vector with a small component in
        the row that is eliminated last leaves no small pivot. Samples `near` are also examined on the face with or
        without the rows that `weak` (near, m) names, as in `on_other_face`: a sample may occur more than once.
        """
        S, samples = state.structure, state.evidence[:, columns.SINGULAR].nonzero()[0]
        u, w = np.empty((len(samples), S.n)), np.empty((len(samples), S.m))
        if len(samples):
            arrays, found = (*(_NOTHING,) * 4, u, w, *(_NOTHING,) * 4), np.empty(len(samples))
            self._ghost(_NULL, state, np.arange(len(samples)), samples, arrays, found, _NONE, self._seconds(state))
            there = found > 0.0
            samples, u, w = samples[there], u[there], w[there]
        if not len(near):
            return samples, u, w
        none = np.empty((len(near), 0))
        more_u, more_w, also = self.on_other_face(values, state, near, weak, none, none)
        there = also > 0.0
        samples = np.concatenate([samples, near[there]])
        return samples, np.concatenate([u, more_u[there]]), np.concatenate([w, more_w[there]])

    def on_other_face(
        self, values: Values, state: State, samples: Array, more: Array, r_x: Array, r_s: Array
    ) -> tuple[Array, Array, Array]:
        """`sensitivity` of some samples on the face with all rows where `more` (samples, m) is positive, without those
        where it is negative; without right-hand sides (samples, 0) null vectors there, and whether there are any."""
        S = state.structure
        u, w, answer = np.empty((len(samples), S.n)), np.empty((len(samples), S.m)), np.empty(len(samples))
        arrays = (*values.arrays, u, w, ready(more), ready(r_x), ready(r_s), _NOTHING)
        seconds = 4.0 * self._seconds(state)
        self._ghost(_OTHER, state, np.arange(len(samples)), samples, arrays, answer, _NONE, seconds)
        return u, w, answer

    def scales(self, state: State, samples: Array) -> tuple[Array, Array]:
        """(samples, n), (samples, m): factors of the unknowns of equilibrated ghost systems."""
        S = state.structure
        scale = state.factors[1][samples][:, part(S.wide, INV)[: S.n + S.m]]
        return scale[:, : S.n], scale[:, S.n :]

    def weak_rows(
        self, values: Values, x: Array, y: Array, s: Array, state: State, samples: Array, near: Array
    ) -> Array:
        """(samples, m) whether errors could move a row to another face; for curved cones, a block. `near`: (samples,)
        distance up to which rows are looked at."""
        out, done = np.empty((len(samples), state.structure.m)), np.empty(len(samples))
        arrays = (*values.arrays, x, y, s, near[:, None], out, _NOTHING)
        self._ghost(_WEAK, state, np.arange(len(samples)), samples, arrays, done, _NONE, self._seconds(state))
        return out > 0.0

    def _seconds(self, state: State) -> float:
        """Approximate seconds of one solve of a ghost system."""
        if state.full.iterations:
            return FLOP * len(part(state.structure.slim, KI)) * len(state.structure.sign)
        return self.seconds

    def _ghost(
        self, task: int, state: State, rows: Array, samples: Array, arrays: tuple[Array, ...], answer: Array,
        allowed: Array, seconds: float,
    ) -> list[int]:  # fmt: skip
        """Run a task on some rows of its answer, row i for the sample samples[i], each of about so many seconds: first
        with the light kernels, then, where these do not suffice, with the full ones. Returns rows that Newton's method
        left out (see `run_samples`); no other task leaves any out."""
        batch = (*arrays, *state.face, *state.factors, state.evidence, state.flags, samples, answer, allowed)
        left: list[int] = []
        with state.lock:
            if len(rows) and not self.full and not state.full.iterations:
                left = _run(_ghost_chunk, len(rows), seconds, state.structure, task, *batch, rows, None)
                if left:
                    answer[left] = 0.0
                rows = (answer == UNKNOWN).nonzero()[0]
                self.full = len(rows) > 0
            if len(rows):
                with one_blas_thread():  # eigenvalues of blocks, or of singular systems
                    more = _run(_ghost_chunk, len(rows), seconds, state.structure, task, *batch, rows, state.full)
                left += rows[more].tolist()
        if left and task != _NEWTON:
            raise MemoryError("not enough memory for a derivative")
        return left


def _run(function: Any, count: int, seconds: float, *arguments: Any) -> list[int]:
    """Run a kernel on `count` samples of about so many seconds each; its first argument is the structure. Returns the
    samples that were left out (see `run_samples`)."""
    S: Structure = arguments[0]
    if len(S.sign) - S.head < SMALL:
        return run_samples(function, count, count * seconds, *arguments, deadline=current())
    with one_blas_thread():
        return run_samples(function, count, count * seconds, *arguments, deadline=current())


@inner_kernel
def _row(v: Array, k: int) -> Array:
    return v[k if v.shape[0] > 1 else 0]


@inner_kernel
def _start(given_x: Array, given_y: Array, given_s: Array, x: Array, y: Array, s: Array, face: Face) -> None:
    """The given point, and no face. By loops: Numba compiles assignments to slices for two seconds."""
    copy(x, given_x)
    copy(y, given_y)
    copy(s, given_s)
    fill(face.on, 0)
    fill(face.case, 0)
    for v in (face.delta, face.u, face.R, face.margin):
        fill(v, 0.0)


@kernel
def _interior_chunk(
    start: int, stop: int, S: Structure, Pv: Array, q: Array, Av: Array, b: Array, x: Array, y: Array, s: Array,
    iterations: Array, eps: float, limit: int, allowed: Array, curved: bool | None,
) -> None:  # fmt: skip
    """Groups of LANES samples; the last group is padded with copies of the last sample."""
    S = refer(S)
    G = empty_group(S, Pv.shape[1], Av.shape[1])
    _interior_groups(start, stop, S, G, refer(Data(Pv, q, Av, b)), x, y, s, iterations, eps, limit, allowed, curved)


@inner_kernel
def _interior_groups(
    start: int, stop: int, S: Structure, G: Samples, batch: Data, x: Array, y: Array, s: Array, iterations: Array,
    eps: float, limit: int, allowed: Array, curved: bool | None,
) -> None:  # fmt: skip
    G, done = refer(G), np.empty(LANES, np.int64)
    Pv, q, Av, b = batch.Pv, batch.q, batch.Av, batch.b
    for group in range(start, stop):
        for lane in range(LANES):
            k = min(group * LANES + lane, x.shape[0] - 1)
            put_sample(S, G, lane, refer(Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k))))
        interior(S, G, eps, limit, allowed, done, curved)
        for lane in range(min(LANES, x.shape[0] - group * LANES)):
            k = group * LANES + lane
            take_sample(G, lane, _row(b, k), x[k], y[k], s[k])
            iterations[k] = done[lane]


@inner_kernel
def _with_factors(S: Structure, F: Factors, evidence: Array) -> None:
    """Make the factors if no derivative has needed them before (128 dense programs with 30 variables, without a
    derivative: 5.7 ms instead of 9.2)."""
    if evidence[columns.PIVOT] == columns.PENDING:
        evidence[columns.PIVOT] = system.factorize(S, F)


@kernel
def _ghost_chunk(
    start: int, stop: int, S: Structure, task: int, Pv: Array, q: Array, Av: Array, b: Array,
    x: Array, y: Array, s: Array, r_x: Array, r_s: Array, r_t: Array,
    on: Array, delta: Array, u: Array, R: Array, case: Array, margin: Array,
    Kx: Array, scale: Array, Lx: Array, Dinv: Array, unit: Array,
    evidence: Array, flags: Array, samples: Array, answer: Array, allowed: Array, rows: Array, full: Full | None,
) -> None:  # fmt: skip
    """All tasks on ghost systems in one kernel: they share most of their code, which is then compiled once.

    Newton's method goes from r_x, r_s, r_t to x, y, s. Sensitivities with the right-hand sides r_x, r_s are written to
    x and y, and so are null vectors, also on other faces, with the rows that s names; weak rows at x, y, s to r_s.
    """
    S = refer(S)
    for j in range(start, stop):
        i = rows[j]
        k = samples[i]
        face = refer(Face(on[k], delta[k], u[k], R[k], case[k], margin[k]))
        F = refer(Factors(Kx[k], scale[k], Lx[k], Dinv[k], unit[k]))
        if task == _NEWTON:
            D = refer(Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k)))
            _start(_row(r_x, k), _row(r_s, k), _row(r_t, k), x[k], y[k], s[k], face)
            loop.newton(S, D, x[k], y[k], s[k], face, F, evidence[k], allowed, full)
            columns.conclude(evidence[k], flags[k])
            evidence[k, columns.REACH] = columns.reach(D, x[k], y[k])
            if full is not None and columns.any_skewed(S, y[k], s[k]):
                evidence[k, columns.REACH] = np.inf
            answer[i] = evidence[k, columns.STEPS]
        elif task == _SENSITIVITY:
            _with_factors(S, F, evidence[k])
            answer[i] = loop.sensitivity(S, F, face, _row(r_x, i), _row(r_s, i), x[i], y[i], full)
            if np.isnan(evidence[k, columns.SINGULAR]):
                evidence[k, columns.AMPLIFIED], evidence[k, columns.SINGULAR] = amplification(S, F, face, full)
        elif task == _NULL:
            _with_factors(S, F, evidence[k])
            answer[i] = null(S, F, face, x[i], y[i], full)
        elif task == _OTHER:
            D = refer(Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k)))
            answer[i] = on_other_face(S, D, F, face, s[i], _row(r_x, i), _row(r_s, i), x[i], y[i], full)
        else:
            D = refer(Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k)))
            residual = evidence[k, columns.RESIDUAL]
            _with_factors(S, F, evidence[k])
            weak_rows(S, D, x[k], y[k], s[k], face, F, residual, _row(r_x, i)[0], r_s[i], full)
            answer[i] = 0.0


@kernel
def _face_chunk(
    start: int, stop: int, S: Structure, on: Array, delta: Array, u: Array, R: Array, case: Array, margin: Array,
    samples: Array, v: Array, out: Array, onto: bool,
) -> None:  # fmt: skip
    S = refer(S)
    for i in range(start, stop):
        k = samples[i]
        face = refer(Face(on[k], delta[k], u[k], R[k], case[k], margin[k]))
        if onto:
            onto_face(S, face, _row(v, i), out[i])
        else:
            from_face(S, face, _row(v, i), out[i])
