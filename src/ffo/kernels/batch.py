"""Kernels over the samples of a batch: what the rest of the package calls."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffo.kernels import newton as loop
from ffo.kernels import system
from ffo.kernels.interior import interior
from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.kkt import KI, KIND, LI, LP, NONNEG, Face, Structure, part
from ffo.kernels.newton import EVIDENCE
from ffo.kernels.point import Data
from ffo.kernels.pool import run_chunks
from ffo.kernels.system import Factors

Array = np.ndarray
logger = logging.getLogger("ffo")

#: seconds for one multiplication in a sparse factorization, about
FLOP = 1e-9
_announced = False


class Values:
    """The data of a batch as kernels take it: Pv, q, Av, b (batch or 1, ·), C-contiguous and writable."""

    def __init__(self, Pv: Array, q: Array, Av: Array, b: Array) -> None:
        self.arrays = tuple(map(_ready, (np.atleast_2d(Pv), q, np.atleast_2d(Av), b)))


def _ready(v: Array) -> Array:
    if len(v) and v.strides[0] == 0:
        v = v[:1]  # one row for all samples
    fit = v.dtype == np.float64 and v.flags.c_contiguous and v.flags.writeable
    return v if fit else np.array(v, dtype=np.float64, order="C")


class State:
    """Faces, factors and evidence of a batch: what Newton's method leaves for the derivatives."""

    def __init__(self, S: Structure, batch: int) -> None:
        size = len(S.sign)
        entries, below = len(part(S.slim, KI)), len(part(S.slim, LI))
        self.face = (
            np.zeros((batch, S.m + S.aux), np.uint8), np.zeros((batch, S.m)), np.zeros((batch, S.m)),
            np.zeros((batch, S.rotation)), np.zeros((batch, S.blocks), np.int64), np.zeros((batch, S.blocks)),
        )  # fmt: skip
        self.factors = (
            np.empty((batch, entries)), np.empty((batch, size)), np.empty((batch, below)),
            np.empty((batch, size)), np.empty((batch, size)),
        )  # fmt: skip
        self.evidence = np.empty((batch, EVIDENCE))


@dataclass(frozen=True)
class Plan:
    """A structure, about how long one factorization on it takes, and whether some cone is not scalar."""

    structure: Structure
    seconds: float
    curved: bool

    @classmethod
    def of(cls, S: Structure) -> Plan:
        columns = np.diff(part(S.wide, LP)).astype(float)
        seconds = FLOP * float((columns * columns).sum() + 10 * len(part(S.slim, KI)) + 100)
        return cls(S, seconds, bool((part(S.wide, KIND) > NONNEG).any()))

    def interior(self, values: Values, x: Array, y: Array, s: Array, eps: float, limit: int) -> Array:
        """Solve all samples from nothing, in place; (batch,) iterations, negative where it failed."""
        iterations = np.empty(len(x), np.int64)
        arguments = (self.structure, *values.arrays, x, y, s, iterations, eps, limit)
        self._run(_interior_chunk, len(x), 20.0, *arguments)
        return iterations

    def newton(self, values: Values, x: Array, y: Array, s: Array, state: State, steps: int) -> None:
        """Polish all samples in place."""
        S, curved = self.structure, True if self.curved else None
        arguments = (S, *values.arrays, x, y, s, *state.face, *state.factors, state.evidence, steps, curved)
        self._run(_newton_chunk, len(x), 3.0, *arguments)

    def sensitivity(self, state: State, samples: Array, r_x: Array, r_s: Array) -> tuple[Array, Array, Array]:
        """(u, w, doubt) of the ghost systems of some samples; right-hand sides (samples, n), (samples, m)."""
        u, w, doubt = np.empty(r_x.shape), np.empty(r_s.shape), np.empty(len(r_x))
        arguments = (self.structure, *state.face, *state.factors, samples, _ready(r_x), _ready(r_s), u, w, doubt)
        self._run(_sensitivity_chunk, len(r_x), 0.5, *arguments)
        return u, w, doubt

    def dependent(self, state: State) -> Array:
        """(batch,) whether active rows, not all of them equalities, depend on each other."""
        found = np.zeros(len(state.evidence), np.uint8)
        suspect = np.flatnonzero(state.evidence[:, loop.PIVOT] <= system.SMALL_PIVOT)
        if len(suspect):
            arguments = (self.structure, *state.face, *state.factors, suspect, found)
            self._run(_dependent_chunk, len(suspect), 4.0, *arguments)
        return found.astype(bool)

    def _run(self, function: Any, count: int, factorizations: float, *arguments: Any) -> None:
        _announce(function)
        run_chunks(function, count, count * factorizations * self.seconds, *arguments)


def _announce(function: Any) -> None:
    """Say once that compiling takes a while, where nothing is cached yet."""
    global _announced
    if _announced:
        return
    _announced = True
    stats = getattr(function, "stats", None)
    path = Path(stats.cache_path) if stats is not None and stats.cache_path else None
    if path is not None and not any(path.glob(f"*{function.__name__}*.nbi")):
        logger.warning("ffo compiles its kernels, once for this environment: this takes up to a minute")


@inner_kernel
def _row(v: Array, k: int) -> Array:
    return v[k if v.shape[0] > 1 else 0]


@kernel
def _interior_chunk(
    start: int, stop: int, S: Structure, Pv: Array, q: Array, Av: Array, b: Array, x: Array, y: Array, s: Array,
    iterations: Array, eps: float, limit: int,
) -> None:  # fmt: skip
    size, entries, below = S.sign.size, part(S.slim, KI).size, part(S.slim, LI).size
    weights = Face(
        np.zeros(S.m + S.aux, np.uint8), np.zeros(S.m), np.zeros(S.m), np.zeros(S.rotation),
        np.zeros(S.blocks, np.int64), np.zeros(S.blocks),
    )  # fmt: skip
    F = Factors(np.empty(entries), np.empty(size), np.empty(below), np.empty(size), np.empty(size))
    for k in range(start, stop):
        D = Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k))
        iterations[k] = interior(S, D, x[k], y[k], s[k], weights, F, eps, limit)


@kernel
def _newton_chunk(
    start: int, stop: int, S: Structure, Pv: Array, q: Array, Av: Array, b: Array, x: Array, y: Array, s: Array,
    on: Array, delta: Array, u: Array, R: Array, case: Array, margin: Array,
    Kx: Array, scale: Array, Lx: Array, Dinv: Array, unit: Array, evidence: Array, steps: int, curved: bool | None,
) -> None:  # fmt: skip
    for k in range(start, stop):
        D = Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k))
        face = Face(on[k], delta[k], u[k], R[k], case[k], margin[k])
        F = Factors(Kx[k], scale[k], Lx[k], Dinv[k], unit[k])
        loop.newton(S, D, x[k], y[k], s[k], face, F, evidence[k], steps, curved)


@kernel
def _sensitivity_chunk(
    start: int, stop: int, S: Structure, on: Array, delta: Array, u: Array, R: Array, case: Array, margin: Array,
    Kx: Array, scale: Array, Lx: Array, Dinv: Array, unit: Array, samples: Array, r_x: Array, r_s: Array,
    du: Array, dw: Array, doubt: Array,
) -> None:  # fmt: skip
    for i in range(start, stop):
        k = samples[i]
        face = Face(on[k], delta[k], u[k], R[k], case[k], margin[k])
        F = Factors(Kx[k], scale[k], Lx[k], Dinv[k], unit[k])
        doubt[i] = loop.sensitivity(S, F, face, r_x[i], r_s[i], du[i], dw[i])


@kernel
def _dependent_chunk(
    start: int, stop: int, S: Structure, on: Array, delta: Array, u: Array, R: Array, case: Array, margin: Array,
    Kx: Array, scale: Array, Lx: Array, Dinv: Array, unit: Array, samples: Array, found: Array,
) -> None:  # fmt: skip
    for i in range(start, stop):
        k = samples[i]
        face = Face(on[k], delta[k], u[k], R[k], case[k], margin[k])
        F = Factors(Kx[k], scale[k], Lx[k], Dinv[k], unit[k])
        found[k] = system.dependent(S, F, face)
