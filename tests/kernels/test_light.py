"""Kernels without the code of curved cones and singular systems, against the full kernels."""

from __future__ import annotations

import numpy as np

from ffo.kernels import kkt
from ffo.kernels.batch import KernelPlan, State, Values

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
    plan = KernelPlan(lambda factors: S)
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
