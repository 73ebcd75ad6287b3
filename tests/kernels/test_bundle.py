"""Bundles of arrays by reference, and other measures that keep compile times short."""

from __future__ import annotations

import gc
from typing import NamedTuple

import numba
import numpy as np
import pytest

from ffo.kernels.bundle import refer
from ffo.kernels.jit import inner_kernel, kernel

Array = np.ndarray


class Pair(NamedTuple):
    count: int
    v: Array


@inner_kernel
def _double(pair: Pair) -> float:
    for i in range(pair.v.size):
        pair.v[i] *= 2.0
    return pair.v.sum() + pair.count


@inner_kernel
def _referring(pair: Pair) -> float:
    pair = refer(pair)
    half = refer(Pair(pair.count, pair.v[: pair.count]))
    return _double(pair) + _double(half)


@kernel
def _made_here(n: int) -> float:
    return _referring(Pair(n // 2, np.ones(n)))


@kernel
def _given(pair: Pair) -> float:
    return _double(refer(pair))


def test_fields_are_those_of_the_bundle() -> None:
    v = np.arange(3.0)
    assert _given(Pair(5, v)) == 11.0
    assert v.tolist() == [0.0, 2.0, 4.0]


def test_arrays_of_the_caller_live_as_long_as_the_call() -> None:
    assert [_made_here(n) for n in (4, 1000, 4)] == [8 + 2 + 8 + 2, 2000 + 500 + 2000 + 500, 8 + 2 + 8 + 2]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")  # type: ignore[attr-defined]
def test_a_kernel_is_compiled_once_for_all_constants() -> None:
    @inner_kernel
    def add(x: float, k: int, wanted: bool) -> float:
        return x + k if wanted else x

    @kernel
    def total(x: float) -> float:
        return add(add(add(x, 1, True), 2, True), 3, False)

    assert total(1.0) == 4.0
    assert len(add.signatures) == 1  # type: ignore[attr-defined]
    assert gc.isenabled()
