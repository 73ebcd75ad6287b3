"""Quadratic forms with parametric matrices in constraints: derivatives at every rank, in both modes."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch.func import jacfwd, jacrev, jvp, vmap

from ffo.errors import SolverError
from ffo.torch import FFOLayer

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
Array = np.ndarray
N = 3


def ellipsoid() -> tuple[FFOLayer, Array]:
    """A strongly convex objective over x'Px <= r, x <= 1, and a cost that makes the form active at any rank."""
    x, c, P, r = cp.Variable(N), cp.Parameter(N), cp.Parameter((N, N), PSD=True), cp.Parameter(nonneg=True)
    row = cp.quad_form(x, P) <= r
    problem = cp.Problem(cp.Minimize(c @ x + cp.sum_squares(x)), [row])
    return FFOLayer(problem, [c, P, r], [x, row.dual_variables[0]]), np.array([2.0, -3.0, 1.5])


def matrix(rank: int) -> tuple[Array, Array]:
    """A matrix of this rank, and vectors that span its null space."""
    rng = np.random.default_rng(rank)
    Q, _ = np.linalg.qr(rng.normal(size=(N, N)))
    w = np.array([1.0, 0.6, 1.7])
    w[rank:] = 0.0
    P = (Q * w) @ Q.T
    return 0.5 * (P + P.T), Q[:, rank:]


def loss(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    x, dual = outputs
    return (x * torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)).sum() + 0.7 * dual.sum()


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_gradients_hold_along_every_direction_into_the_cone(rank: int) -> None:
    """Directions within the range of P, across it, and out of its null space: one-sided differences."""
    layer, c = ellipsoid()
    P, null = matrix(rank)
    r = 0.4 if rank else 0.0
    # At P = 0 the form is inactive: give it something to bind.
    values = [torch.tensor(v, requires_grad=True) for v in (c, P, np.array(r))]
    if rank == 0:
        values[2] = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    at = loss(layer(*values))
    at.backward()
    gradient = values[1].grad.numpy()
    assert np.allclose(gradient, gradient.T, atol=1e-12)
    rng = np.random.default_rng(10 + rank)
    directions = [v @ v.T for v in (rng.normal(size=(N, 1)), rng.normal(size=(N, 2)))]
    if null.size:
        directions.append(null @ null.T)
    for D in directions:
        step = 1e-4  # second order, from one side: P - step D is not semidefinite
        ends = [
            loss(layer(values[0].detach(), torch.tensor(P + k * step * D), values[2].detach())).item()
            for k in (0, 1, 2, 3)
        ]
        difference = np.dot(ends, [-11, 18, -9, 2]) / (6 * step)
        assert (gradient * D).sum() == pytest.approx(difference, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_forward_mode_agrees_with_reverse_mode(rank: int) -> None:
    layer, c = ellipsoid()
    P, _ = matrix(rank)
    values = [torch.tensor(v) for v in (c, P, np.array(0.4))]

    def outputs(P: torch.Tensor) -> torch.Tensor:
        x, dual = layer(values[0], P, values[2])
        return torch.cat([x, dual.reshape(1)])

    forward, reverse = jacfwd(outputs)(values[1]), jacrev(outputs)(values[1])
    symmetric = [0.5 * (J + J.transpose(1, 2)) for J in (forward, reverse)]
    assert torch.allclose(*symmetric, atol=1e-9)
    direction = torch.tensor(np.ones((N, N)))
    _, along = jvp(outputs, (values[1],), (direction,))
    assert torch.allclose(along, (reverse * direction).sum((1, 2)), atol=1e-9)


def test_vmap_and_batches_of_several_ranks() -> None:
    layer, c = ellipsoid()
    stack = torch.tensor(np.stack([matrix(k)[0] for k in (1, 2, 3)]), requires_grad=True)
    c_t, r = torch.tensor(c), torch.tensor(0.4, dtype=torch.float64)
    x, dual = layer(c_t, stack, r)
    mapped, other = vmap(lambda P: layer(c_t, P, r))(stack)
    assert torch.allclose(x, mapped, atol=1e-10)
    assert torch.allclose(dual, other, atol=1e-10)
    (batch,) = torch.autograd.grad(loss((x, dual.sum(0))), stack)
    for k in range(3):
        P = stack[k].detach().requires_grad_()
        (alone,) = torch.autograd.grad(loss(layer(c_t, P, r)), P)
        assert torch.allclose(batch[k], alone, atol=1e-9)


def test_shared_matrices_get_the_sum_of_gradients() -> None:
    layer, c = ellipsoid()
    P = torch.tensor(matrix(2)[0], requires_grad=True)
    several = torch.tensor(np.stack([c, c[::-1].copy()]))
    r = torch.tensor(0.4, dtype=torch.float64)
    loss(layer(several, P, r)).backward()
    alone = [torch.autograd.grad(loss(layer(row, P, r)), P)[0] for row in several]
    assert torch.allclose(P.grad, alone[0] + alone[1], atol=1e-9)


def test_a_matrix_that_is_not_semidefinite_is_refused_by_its_sample() -> None:
    layer, c = ellipsoid()
    stack = np.stack([matrix(3)[0], -matrix(3)[0]])
    with pytest.raises(SolverError, match=r"(?s)sample 1.*declared PSD but has the eigenvalue"):
        layer(torch.tensor(c), torch.tensor(stack), torch.tensor(0.4, dtype=torch.float64))


def test_an_expression_that_was_said_to_be_semidefinite_is_checked() -> None:
    x, F, G, c = cp.Variable(2), cp.Parameter((2, 2), name="F"), cp.Parameter((2, 2), name="G"), cp.Parameter(2)
    for rows in ([cp.quad_form(x, F @ G, assume_PSD=True) <= 1], []):
        term = 0 if rows else cp.quad_form(x, F @ G, assume_PSD=True)
        layer = FFOLayer(cp.Problem(cp.Minimize(c @ x + term), rows), [F, G, c], [x])
        good, bad = torch.eye(2, dtype=torch.float64), -torch.eye(2, dtype=torch.float64)
        layer(good, good, torch.ones(2, dtype=torch.float64))
        text = r"sample 1.*F @ G.* must be PSD" if rows else r"sample 1.*not positive semidefinite"
        with pytest.raises(SolverError, match=f"(?s){text}"):
            layer(torch.stack([good, bad]), good, torch.ones(2, dtype=torch.float64))


def test_warm_starts_and_iterative_ghosts() -> None:
    x, c, P = cp.Variable(N), cp.Parameter(N), cp.Parameter((N, N), PSD=True)
    problem = cp.Problem(cp.Minimize(c @ x + cp.sum_squares(x)), [cp.quad_form(x, P) <= 0.4])
    values = [torch.tensor(ellipsoid()[1]), torch.tensor(matrix(2)[0])]
    expected = None
    for options in ({}, {"warm_start": True}, {"backward": "iterative"}, {"solver": "CLARABEL"}, {"solver": "SCS"}):
        layer = FFOLayer(problem, [c, P], [x], **options)
        for _ in range(2):
            params = [v.clone().requires_grad_() for v in values]
            (found,) = layer(*params)
            found.sum().backward()
        result = [found.detach(), *(p.grad for p in params)]
        expected = expected or result
        for one, other in zip(result, expected, strict=True):
            assert torch.allclose(one, other, atol=1e-7)
