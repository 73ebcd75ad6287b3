"""Bytes per parameter entry: while a dense parametric problem is built, in the result, and in a gradient."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cvxpy as cp
import numpy as np
import pytest

from ffo.program.affine import DataGradient
from ffo.program.canonical import CanonicalProblem
from ffo.program.cvxpy import canonicalize

N = 150
#: entries of Q, G and h
ENTRIES = N * N + (2 * N + 1) * (N + 1)


def build(n: int, norm_ball: bool, factor: bool) -> CanonicalProblem:
    """minimize 1/2 y'Qy - q'y subject to Gy <= h, |y| <= 1: the decision-focused problem of the paper."""
    y, Q = cp.Variable(n), cp.Parameter((n, n), PSD=not factor)
    G, h, q = cp.Parameter((2 * n + 1, n)), cp.Parameter(2 * n + 1), cp.Parameter(n)
    energy = cp.sum_squares(Q @ y) if factor else cp.quad_form(y, Q, assume_PSD=True)
    constraints = [G @ y <= h] + ([cp.norm(y, 2) <= 1] if norm_ball else [])
    return canonicalize(cp.Problem(cp.Minimize(0.5 * energy - q @ y), constraints), [Q, G, h, q], [y])


@contextmanager
def tracing() -> Iterator[Callable[[], tuple[float, float]]]:
    """Yields a function for the current and the peak bytes per parameter entry, relative to the start."""
    gc.collect()
    tracemalloc.start()
    try:
        yield lambda: tuple(b / ENTRIES for b in tracemalloc.get_traced_memory())  # type: ignore[return-value]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("factor", [False, True], ids=["quad_form", "sum_squares"])
@pytest.mark.parametrize("norm_ball", [False, True], ids=["qp", "socp"])
def test_build(norm_ball: bool, factor: bool) -> None:
    build(3, norm_ball, factor)  # excludes what CVXPY and SciPy cache once
    with tracing() as bytes_per_entry:
        canonical = build(N, norm_ball, factor)
        gc.collect()
        held, peak = bytes_per_entry()
    assert canonical.map.sizes[1] == (2 * N + 1) * N
    assert held < 32
    assert peak < 65


def test_gradient_of_shared_parameters() -> None:
    canonical = build(N, norm_ball=False, factor=False)
    rng = np.random.default_rng(0)
    values = [rng.normal(size=size) for size in canonical.map.sizes]
    n, m = N, 2 * N + 1
    gradient = DataGradient(*(rng.normal(size=(4, k)) for k in (n, m, n, m, m)))
    with tracing() as bytes_per_entry:
        found = canonical.map.adjoint(gradient, values, [True] * 4)
        _, peak = bytes_per_entry()
    assert [g.shape for g in found if g is not None] == [v.shape for v in values]
    assert peak < 25
