"""The quick check for data of moderate size agrees with the full one."""

from __future__ import annotations

import numpy as np
import pytest

from ffo.cones import Nonneg, Product
from ffo.program.cone import ConeProgram
from ffo.program.scaling import is_moderate, scaling

N, M, BATCH = 4, 6, 3


def program(seed: int, sizes: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)) -> ConeProgram:
    """Random data, (P, q, A, b) of these sizes; one variable has no quadratic term, one hardly any rows."""
    rng = np.random.default_rng(seed)
    P, q, A, b = (size * v for size, v in zip(sizes, (np.eye(N), *_vectors(rng)), strict=True))
    P[1, 1] = 0.0
    A[:, 2] *= 1e-4
    made = ConeProgram.from_matrices(P, q, A, b, Product([(Nonneg(), M)]))
    return made.with_matrices(made.P.owned(), made.A.owned())


def _vectors(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rng.uniform(0.5, 1.5, (BATCH, N)), rng.uniform(0.5, 1.5, (M, N)), rng.uniform(0.5, 1.5, M)


@pytest.mark.parametrize("which", range(4), ids=["P", "q", "A", "b"])
def test_agrees_with_a_look_at_all_of_the_data(which: int) -> None:
    verdicts = set()
    for exponent in np.linspace(-6, 6, 49):
        sizes = tuple(10.0**exponent if k == which else 1.0 for k in range(4))
        one = program(0, sizes)  # type: ignore[arg-type]
        known = is_moderate(one)
        assert known == (scaling(one) is None)
        verdicts.add(known)
    assert verdicts == {True, False}


def test_data_that_changed_is_looked_at_again() -> None:
    one = program(0)
    assert is_moderate(one)
    assert is_moderate(one.with_vectors(q=2 * one.q))
    assert not is_moderate(one.with_vectors(q=np.full_like(one.q, 1e5)))
    assert not is_moderate(one.with_vectors(q=np.full_like(one.q, np.nan)))
    assert not is_moderate(one.with_vectors(b=np.broadcast_to(1e6 * one.b[:1], one.b.shape)))
    assert not is_moderate(program(0, (1.0, 1.0, 1e6, 1.0)))
    assert is_moderate(one)


@pytest.mark.parametrize("zero", [False, True], ids=["costs", "no costs"])
def test_agrees_for_right_hand_sides_of_each_sample(zero: bool) -> None:
    verdicts = set()
    for exponent in np.linspace(-6, 6, 50):  # not 3: with one middle side on either side of a limit, it is cautious
        one = program(0)
        b = np.array(one.b)
        b[1] *= 10.0**exponent
        one = one.with_vectors(q=0.0 * one.q if zero else one.q, b=b)
        known = is_moderate(one)
        assert known == (scaling(one) is None)
        verdicts.add(known)
    assert verdicts == {True, False}


def test_agrees_without_right_hand_sides() -> None:
    verdicts = set()
    for exponent in np.linspace(-6, 6, 49):
        one = program(0, (1.0, 10.0**exponent, 1.0, 0.0))
        known = is_moderate(one)
        assert known == (scaling(one) is None)
        verdicts.add(known)
    assert verdicts == {True, False}


def of_each_sample(one: ConeProgram, seed: int) -> ConeProgram:
    """The program with matrices that differ between samples."""
    rng = np.random.default_rng(seed)
    P, A = (M.with_values(M.values * rng.uniform(0.9, 1.1, (BATCH, 1))) for M in (one.P, one.A))
    return one.with_matrices(P, A)


@pytest.mark.parametrize("which", range(4), ids=["P", "q", "A", "b"])
@pytest.mark.parametrize("entry", [None, 0, -1], ids=["all", "first", "last"])
def test_agrees_for_matrices_of_each_sample(which: int, entry: int | None) -> None:
    """One sample's data, or one entry of it, is of another size."""
    verdicts = set()
    for exponent in np.linspace(-9, 9, 73):
        one = of_each_sample(program(0), 1)
        P, q, A, b = (np.array(v) for v in (one.P.values, one.q, one.A.values, one.b))
        changed = (P, q, A, b)[which][1]
        changed[slice(None) if entry is None else entry] *= 10.0**exponent
        one = one.with_matrices(one.P.with_values(P), one.A.with_values(A)).with_vectors(q=q, b=b)
        known = is_moderate(one)
        verdicts.add(known)
        if known:
            assert scaling(one) is None
            assert one.all_finite
        elif which < 3 or entry is None:  # single sides may mean infinity, which needs a closer look
            assert scaling(one) is not None
    assert True in verdicts


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", range(4), ids=["P", "q", "A", "b"])
def test_matrices_of_each_sample_must_be_finite(which: int, value: float) -> None:
    one = of_each_sample(program(0), 1)
    assert is_moderate(one)
    P, q, A, b = (np.array(v) for v in (one.P.values, one.q, one.A.values, one.b))
    (P, q, A, b)[which][2, -1] = value
    assert not is_moderate(one.with_matrices(one.P.with_values(P), one.A.with_values(A)).with_vectors(q=q, b=b))
