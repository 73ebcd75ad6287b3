"""Kernels without the code of curved cones and singular systems, against the full kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ffo.kernels import batch, kkt, pool
from ffo.kernels.batch import KernelPlan, State, Values
from ffo.kernels.pool import one_blas_thread

N, BATCH = 6, 4


def box_and_copies(copies: int) -> tuple[kkt.Structure, Values]:
    """minimize |x|^2 / 2 + q'x subject to x <= 1, and `copies` times sum(x) = 1."""
    rows = np.concatenate([np.repeat(np.arange(copies), N), copies + np.arange(N)])
    columns = np.concatenate([np.tile(np.arange(N), copies), np.arange(N)])
    order = np.lexsort((rows, columns))
    blocks = kkt.ConeBlocks(np.array([kkt.ZERO, kkt.NONNEG]), np.array([copies, N]), np.zeros(2))
    diagonal = np.arange(N)
    S = kkt.build((diagonal, diagonal), (rows[order], columns[order]), N, copies + N, blocks)
    q, b = np.random.default_rng(0).normal(size=(BATCH, N)), np.ones((1, copies + N))
    return S, Values(np.ones(N), q, np.ones(len(rows)), b)


def everything(S: kkt.Structure, values: Values, full: bool) -> tuple[KernelPlan, list[np.ndarray]]:
    """Solution, derivative, and null vectors."""
    plan = KernelPlan(lambda factors: S, curved=False)
    plan.full = full
    state = State(S, BATCH)
    x, y, s = np.zeros((BATCH, N)), np.zeros((BATCH, S.m)), np.zeros((BATCH, S.m))
    plan.interior(values, x, y, s, 1e-8, 50)
    x, y, s = plan.newton(values, (x, y, s), state, 10)
    r_x = np.random.default_rng(1).normal(size=(BATCH, N))
    derivative = plan.sensitivity(state, np.arange(BATCH), r_x, np.zeros((BATCH, S.m)))
    return plan, [x, y, s, state.evidence, *derivative, *plan.null(values, state, np.zeros(0, int), np.zeros((0, S.m)))]


def test_light_kernels_do_ordinary_samples_the_same() -> None:
    S, values = box_and_copies(1)
    light, found = everything(S, values, full=False)
    assert not light.full
    for one, other in zip(found, everything(S, values, full=True)[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_samples_that_need_the_full_kernels_get_them() -> None:
    """A right-hand side outside the range of a singular K: the answer is a least-squares one, and doubtful."""
    S, values = box_and_copies(2)
    plan, found = everything(S, values, full=False)
    for one, other in zip(found, everything(S, values, full=True)[1], strict=True):
        np.testing.assert_array_equal(one, other)
    state = State(S, BATCH)
    plan.full = False
    plan.newton(values, (found[0], found[1], found[2]), state, 10)
    r_s = np.zeros((BATCH, S.m))
    r_s[2, 0], r_s[2, 1] = 1.0, -1.0
    plan.full = False
    doubt = plan.sensitivity(state, np.arange(BATCH), np.zeros((BATCH, N)), r_s)[2]
    assert plan.full
    assert doubt[2] == 1.0
    assert (np.delete(doubt, 2) == 0.0).all()


def test_full_kernels_run_with_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of BLAS wait for each other by spinning. With busy cores, the eigenvalues of a singular system of one
    sample took a second instead of four milliseconds."""
    seen = []

    @contextmanager
    def noted() -> Iterator[None]:
        with one_blas_thread():
            seen.append({get() for get, _ in pool._blas()})
            yield

    monkeypatch.setattr(batch, "one_blas_thread", noted)
    S, values = box_and_copies(2)
    Pv, q, Av, b = values.arrays
    one = Values(Pv, q[:1], Av, b)
    plan, state = KernelPlan(lambda factors: S, curved=False), State(S, 1)
    plan.full = True
    plan.newton(one, (np.zeros((1, N)), np.zeros((1, S.m)), np.zeros((1, S.m))), state, 10)
    assert seen == [{1}]
