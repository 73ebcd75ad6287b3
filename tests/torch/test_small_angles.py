"""Kinks between rows at a small angle, whose multipliers carry rounding errors that are larger by the angle squared."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from fuzz.exact import QP, Answer, slope, solve

from ffo.errors import GradientWarning
from ffo.kernels.batch import KernelPlan
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


def _pairs(exponent: int, draws: int) -> Iterator[tuple[QP, Array]]:
    """Programs with a row and its multiple, and three rows that nearly depend on each other, all of them active; and
    losses that have a kink in the right-hand side of the first row."""
    rng = np.random.default_rng(exponent)
    for _ in range(draws):
        G, z, y, c = _quarters(rng, 5, 4), _quarters(rng, 4), rng.integers(1, 9, 5) / 4, _quarters(rng, 4)
        G[1], G[4] = 1.5 * G[0], G[2] - 0.75 * G[3] + 2.0**-exponent * G[4]
        qp = QP(-G.T @ y - z, np.eye(4), G, G @ z)
        here, up = solve(qp), {"h": np.eye(5)[0]}
        right, left = slope(qp, up, c, here), slope(qp, {"h": -up["h"]}, c, here)
        if right is not None and left is not None and abs(right + left) > Fraction(1, 100) * max(abs(right), abs(left)):
            yield qp, c


@pytest.mark.parametrize("backward", ["direct", "iterative"])
@pytest.mark.parametrize("exponent", [10, 14, 17, 20, 24])
def test_a_row_and_its_multiple_beside_three_rows_that_nearly_depend_on_each_other(
    exponent: int, backward: str
) -> None:
    """What was left of one random right-hand side was a mixture, which does not vanish: no null vector was found."""
    found = 0
    for qp, c in _pairs(exponent, 20):
        layer = FFOQPLayer(backward=backward)
        Q, p, G, h, weights = map(torch.tensor, (qp.Q, qp.p, qp.G, qp.h, c))
        z = layer(Q, p, G, h.requires_grad_())
        with pytest.warns(GradientWarning):
            (weights @ z).backward()
        assert not layer.info.certificate.good[0], (qp, c)
        assert layer.info.certificate.dependent[0] or backward == "iterative", (qp, c)  # else the residual is too large
        found += 1
    assert found >= 15


def test_three_rows_of_different_scales_that_are_nearly_coplanar() -> None:
    """One-sided derivatives of z[0] along (1.5, 1.5, 1.75, -0.25): 0.0096 and -0.34."""
    G = [
        [0.0048828125, -0.0078125, -0.0068359375, 0.0068359375],
        [0.078369140625, -0.1248779296875, -0.1090087890625, 0.109130859375],
        [643.9375, -1022.0, -889.75, 891.625],
    ]
    p = torch.tensor([-2.5068359375, 5.74658203125, 3.48974609375, -4.2431640625], dtype=torch.float64)
    h = torch.tensor([-0.02685546875, -0.4290771484375, -3509.109375], dtype=torch.float64)
    layer = FFOQPLayer()
    z = layer(torch.eye(4, dtype=torch.float64), p.requires_grad_(), torch.tensor(G, dtype=torch.float64), h)
    with pytest.warns(GradientWarning):
        z[0].backward()


def test_a_multiplier_that_is_lost_in_rounding_beside_an_equality() -> None:
    """lam[0] is exactly zero; it is computed as 9e-5."""
    G = [
        [0.0, 1.25, 0.75, -0.25],
        [3.662109375e-4, 1.24993896484375, 0.749755859375, -0.24969482421875],
        [7.3528289794921875e-4, 1.2498712539672852, 0.74951267242431641, -0.24938297271728516],
        [1.25, -2.0, 1.25, -0.5],
    ]
    p = [-1.1272029876708984, -4.12462043762207, -0.9985370635986328, 2.2481555938720703]
    h, A, b = [-3.0, -2.999237060546875, -2.998467206954956, 1.8125], [[-0.75, 0.75, 2.0, -1.75]], [-5.0625]
    Q, q, G, h, A, b = (torch.tensor(v, dtype=torch.float64) for v in (np.diag([2, 1, 1.5, 1.5]), p, G, h, A, b))
    for loss in (lambda answer: answer.lam[0], lambda answer: answer.lam[1], lambda answer: answer.nu[0]):
        layer = FFOQPLayer(duals=True)
        answer = layer(Q, q.requires_grad_(), G, h, A, b)
        with pytest.warns(GradientWarning):
            loss(answer).backward()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_many_close_rows_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box of 2,000 variables with slacks of 1e-8: one solve for each took a hundred times as long."""
    c = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Q = torch.eye(2000, dtype=torch.float64).to_sparse_csr()
    layer, seconds, looked = FFOQPLayer(), {}, []
    kernel = KernelPlan.weak_rows
    monkeypatch.setattr(KernelPlan, "weak_rows", lambda *given: looked.append(given) or kernel(*given))
    for gap in (1.0, 1e-8, 1.0, 1e-8):
        z = layer(Q, c.requires_grad_(), lb=-c.detach() - gap, ub=-c.detach() + 1)
        began = time.perf_counter()
        z.sum().backward()
        seconds[gap] = min(time.perf_counter() - began, seconds.get(gap, math.inf))
    assert layer.info.certificate.all_good
    assert len(looked) == 2
    assert seconds[1e-8] < 20 * seconds[1.0] + 0.01


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
