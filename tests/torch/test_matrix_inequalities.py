"""Several matrix inequalities at once: solutions at the vertex of a cone. References are closed forms."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.torch import FFOLayer

COUNT = 20


def of_rank(rank: int, order: int, rng: np.random.Generator) -> torch.Tensor:
    factor = rng.normal(size=(COUNT, order, rank))
    return torch.tensor(factor @ factor.transpose(0, 2, 1))


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.parametrize("options", [{}, {"solver": "CLARABEL"}, {"solver": "SCS"}], ids=str)
@pytest.mark.parametrize(("order", "rank"), [(2, 1), (3, 1), (3, 2)])
def test_two_inequalities_whose_boundaries_meet_at_zero(order: int, rank: int, options: dict[str, str]) -> None:
    """P >> 0 and P + S >> 0 with a singular S: both hold P at zero, and its size says nothing about its units."""
    P, S = cp.Variable((order, order), symmetric=True), cp.Parameter((order, order), symmetric=True)
    made = cp.Problem(cp.Minimize(cp.trace(P)), [P >> 0, P + S >> 0])
    layer = FFOLayer(made, [S], [P], **options)
    (found,) = layer(of_rank(rank, order, np.random.default_rng(0)))
    assert layer.info.ok.all()
    assert layer.info.residual.max() <= 1e-10
    assert abs(found).max() <= 1e-15


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_a_lyapunov_inequality_that_zero_meets() -> None:
    """A'P + PA << vv' for a stable A: P = 0."""
    A = np.array([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0], [0.0, 0.0, -1.0]])
    P, S = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3), symmetric=True)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.trace(P)), [A.T @ P + P @ A << S, P >> 0]), [S], [P])
    (found,) = layer(of_rank(1, 3, np.random.default_rng(0)))
    assert abs(found).max() <= 1e-15


def test_a_distant_inequality_without_a_force_says_nothing_about_the_size() -> None:
    """P = -M's positive part, about 1e-6, in a ball of radius 1e9."""
    P, M = cp.Variable((2, 2), symmetric=True), cp.Parameter((2, 2), symmetric=True)
    ball = 1e9 * np.eye(2) - P >> 0
    layer = FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.sum_squares(P + M)), [P >> 0, ball]), [M], [P])
    (found,) = layer(1e-6 * torch.tensor([[-2.0, 0.0], [0.0, 1.0]]))
    assert torch.allclose(found, 1e-6 * torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=found.dtype), atol=1e-14)


def projected(C: np.ndarray) -> np.ndarray:
    """The density matrix nearest to -C."""
    value, V = np.linalg.eigh(-C)
    falling = np.sort(value)[::-1]
    shifts = (np.cumsum(falling) - 1) / np.arange(1, len(C) + 1)
    return (V * np.maximum(value - shifts[falling > shifts][-1], 0)) @ V.T


def test_an_inactive_row_raises_no_alarm_where_boundaries_touch() -> None:
    """The nuclear norm of a density matrix: the boundaries of both matrix inequalities touch at the solution."""
    C, X = cp.Parameter((4, 4)), cp.Variable((4, 4), PSD=True)
    cost = cp.trace(C @ X) + 0.5 * cp.sum_squares(X) + 0.2 * cp.normNuc(X)
    rng, step = np.random.default_rng(0), 1e-6
    M, D, W = (rng.normal(size=(COUNT, 4, 4)) for _ in range(3))
    M, D = M + M.transpose(0, 2, 1), D + D.transpose(0, 2, 1)
    layer = FFOLayer(cp.Problem(cp.Minimize(cost), [cp.trace(X) == 1, X <= 1.5]), [C], [X])
    data = torch.tensor(M / 2, requires_grad=True)
    (found,) = layer(data)
    (found * torch.tensor(W)).sum().backward()
    ahead, back = (np.array([projected(m / 2 + h * d) for m, d in zip(M, D, strict=True)]) for h in (step, -step))
    expected = ((ahead - back) * W).sum(axis=(1, 2)) / (2 * step)
    assert layer.info.certificate.good.all()
    assert np.allclose(found.detach(), [projected(m / 2) for m in M], atol=1e-13)
    assert np.allclose((data.grad.numpy() * D).sum(axis=(1, 2)), expected, atol=1e-6)


@pytest.mark.parametrize("declared", [{"PSD": True}, {"symmetric": True}], ids=str)
def test_an_implied_matrix_inequality_is_good(declared: dict[str, bool]) -> None:
    """P >> 0 follows from that of the Schur complement, whose other rows, where q enters, have no part in it."""
    q, x, P = cp.Parameter(3), cp.Variable(3), cp.Variable((3, 3), **declared)
    made = cp.Problem(cp.Minimize(cp.matrix_frac(x - q, P) + cp.trace(P) + cp.sum_squares(x)))
    rng = np.random.default_rng(0)
    values, W = (torch.tensor(rng.normal(size=(COUNT, 3))) for _ in range(2))
    layer, data, same = FFOLayer(made, [q], [x]), *(values.clone().requires_grad_() for _ in range(2))
    (found,) = layer(data)
    expected = same / same.norm(dim=1, keepdim=True).clamp(min=1)
    for out in (found, expected):
        (out * W).sum().backward()
    assert layer.info.certificate.good.all()
    assert torch.allclose(found, expected, atol=1e-13)
    assert torch.allclose(data.grad, same.grad, atol=1e-9)
