"""Kinks between rows at a small angle, whose multipliers carry rounding errors that are larger by the angle squared."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from fuzz.exact import QP, Answer, solve

from ffo.errors import GradientWarning
from ffo.torch import FFOFunctionLayer, FFOQPLayer

Array = np.ndarray
STEP = Fraction(1, 2**100)
ANGLE = 1e-6


def _quarters(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-8, 9, shape) / 4


def _draw(rng: np.random.Generator, apart: float) -> QP | None:
    """Two active rows that differ by little, one of them without a force; None if they are parallel."""
    G = _quarters(rng, 3, 2)
    G[1] = G[0] + apart * _quarters(rng, 2)
    z, y, Q = _quarters(rng, 2), np.array([rng.integers(1, 9) / 4, 0, 0]), np.diag([0.0, 1.0])
    angle = abs(np.linalg.det(G[:2])) / np.prod(np.maximum(np.linalg.norm(G[:2], axis=1), 1e-300))
    return None if angle < ANGLE or G[0, 0] == 0 else QP(-G.T @ y - Q @ z, Q, G, G @ z + np.array([0, 0, 1.0]))


def _sides(qp: QP, direction: Array) -> tuple[Array, Array] | None:
    """The derivatives of z and of the first two multipliers along a change of p, from both sides."""
    here = solve(qp)
    right, left = (solve(qp.moved({"p": sign * direction}, STEP)) for sign in (1, -1))
    if {here.status, right.status, left.status} != {"solved"}:
        return None

    def difference(a: Answer, b: Answer) -> Array:
        change = np.concatenate([a.z - b.z, (a.y - b.y)[:2]]) / STEP
        return np.asarray(change.astype(float))

    return difference(right, here), difference(here, left)


def _kinks(exponent: int, draws: int) -> Iterator[tuple[QP, int]]:
    """Programs, and which of z and the first two multipliers has a kink in p."""
    rng = np.random.default_rng(exponent)
    for _ in range(draws):
        qp, direction = _draw(rng, 2.0**-exponent), _quarters(rng, 2)
        sides = None if qp is None else _sides(qp, direction)
        if qp is not None and sides is not None:
            right, left = sides
            for seen in np.flatnonzero(abs(right - left) > 1e-2 * (abs(right) + abs(left) + 1e-9)):
                yield qp, int(seen)


@pytest.mark.parametrize("backward", ["direct", "iterative"])
@pytest.mark.parametrize("exponent", [6, 10, 12, 14, 16, 18])
def test_kinks_are_flagged(exponent: int, backward: str) -> None:
    found = 0
    for qp, seen in _kinks(exponent, 30):
        layer = FFOQPLayer(duals=seen >= 2, backward=backward)
        p = torch.tensor(qp.p, requires_grad=True)
        answer = layer(torch.tensor(qp.Q), p, torch.tensor(qp.G), torch.tensor(qp.h))
        with pytest.warns(GradientWarning):
            (answer.lam[seen - 2] if seen >= 2 else answer[seen]).backward()
        assert not layer.info.certificate.good[0], (qp, seen)
        found += 1
    assert found >= 40


@pytest.mark.parametrize("exponent", [8, 12, 16])
def test_kinks_of_functions_are_flagged(exponent: int) -> None:
    found = 0
    for qp, seen in _kinks(exponent, 10):
        if seen < 2:
            Q, G, h = map(torch.tensor, (qp.Q, qp.G, qp.h))
            layer = FFOFunctionLayer(
                lambda p, y, Q=Q: 0.5 * y @ Q @ y + p @ y, lambda p, y, G=G, h=h: G @ y - h, shape=2, dims=(1,)
            )
            p = torch.tensor(qp.p, requires_grad=True)
            y = layer(p)
            with pytest.warns(GradientWarning):
                y[..., seen].sum().backward()
            assert not layer.info.certificate.good[0], (qp, seen)
            found += 1
    assert found >= 10


def test_no_alarm_without_a_kink() -> None:
    """A force on both rows, well above its error: the derivative is right, and called good."""
    G = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2**-8]], dtype=torch.float64)
    z, y = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    p = (-G.T @ y - z).requires_grad_()
    layer = FFOQPLayer(duals=True)
    answer = layer(torch.eye(2, dtype=torch.float64), p, G, G @ z)
    answer.lam[1].backward()
    assert layer.info.certificate.good[0]
    inverse = torch.linalg.inv(G.T)
    torch.testing.assert_close(p.grad, -inverse[1])
