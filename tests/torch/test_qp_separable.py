"""FFOQPLayer on programs with diagonal Q, dense equalities and bounds, however these are written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffo.errors import InfeasibleError
from ffo.torch import FFOQPLayer

Array = np.ndarray
BATCH, N, ROWS = 4, 170, 40


def known(
    seed: int, shared: tuple[str, ...] = (), held: float = 0.3
) -> tuple[dict[str, Array], tuple[Array, Array, Array]]:
    """Blocks of a batch whose solutions are chosen first, and these: z, nu, mu; some variables
    are at bounds, with multipliers away from zero. Blocks in `shared` have no batch dimension."""
    rng = np.random.default_rng(seed)
    size = lambda name, *shape: shape if name in shared else (BATCH, *shape)  # noqa: E731
    diagonal, A = rng.uniform(0.1, 2.0, size("Q", N)), rng.uniform(size=size("A", ROWS, N))
    z, nu = rng.normal(size=(BATCH, N)), rng.normal(size=(BATCH, ROWS))
    side = np.where(rng.uniform(size=z.shape) < held, rng.choice([-1, 1], size=z.shape), 0)
    mu = side * rng.uniform(0.5, 1.5, size=z.shape)
    gap = rng.uniform(0.5, 1.5, size=z.shape)
    blocks = {
        "Q": np.apply_along_axis(np.diag, -1, diagonal),
        "p": -(diagonal * z + np.einsum("...ij,...i->...j", A, nu) + mu),
        "A": A,
        "b": np.einsum("...ij,...j->...i", A, z),
        "lb": z - np.where(side < 0, 0.0, gap),
        "ub": z + np.where(side > 0, 0.0, gap),
    }
    return blocks, (z, nu, mu)


def tensors(blocks: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, requires_grad=True) for k, v in blocks.items()}


@pytest.mark.parametrize("form", ["bounds", "rows"])
@pytest.mark.parametrize("shared", [(), ("Q",), ("A",), ("Q", "A")], ids=lambda s: "+".join(s) or "batched")
def test_known_solutions_are_found_in_a_few_steps(shared: tuple[str, ...], form: str) -> None:
    blocks, (z, nu, mu) = known(0, shared)
    if form == "rows":  # bounds as rows of G, the way qpth's users write them
        blocks["h"] = np.concatenate([blocks.pop("ub"), -blocks.pop("lb")], axis=1)
        blocks["G"] = np.vstack([np.eye(N), -np.eye(N)])
    layer = FFOQPLayer(duals=True)
    found = layer(**tensors(blocks))
    assert set(layer.info.solver) == {"SEPARABLE"}
    assert layer.info.iterations.max() <= 15
    np.testing.assert_allclose(found.z.detach().numpy(), z, atol=1e-10)
    np.testing.assert_allclose(found.nu.detach().numpy(), nu, atol=1e-9)
    lam = found.lam.detach().numpy()
    on_bounds = lam[:, :N] - lam[:, N:] if form == "rows" else found.mu.detach().numpy()
    np.testing.assert_allclose(on_bounds, mu, atol=1e-9)


@pytest.mark.parametrize("shared", [(), ("Q", "A")], ids=["batched", "shared"])
def test_gradients_agree_with_those_of_an_interior_point(shared: tuple[str, ...]) -> None:
    blocks, _ = known(1, shared)
    weights = torch.tensor(np.random.default_rng(7).normal(size=(BATCH, 2 * N + ROWS)))
    found = {}
    for solver in (None, "CLARABEL"):
        layer, t = FFOQPLayer(duals=True, solver=solver), tensors(blocks)
        solution = layer(**t)
        loss = (torch.cat([solution.z, solution.nu, solution.mu], dim=1) * weights).sum()
        found[solver] = (solution.z, torch.autograd.grad(loss, list(t.values())))
        assert layer.info.certificate.good.all()
        assert set(layer.info.solver) == {solver or "SEPARABLE"}
    torch.testing.assert_close(found[None][0], found["CLARABEL"][0], rtol=0, atol=1e-9)
    for name, mine, other in zip(blocks, found[None][1], found["CLARABEL"][1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-8, msg=name)


@pytest.mark.parametrize("block", ["p", "A", "b", "lb", "ub"])
def test_gradients_agree_with_differences(block: str) -> None:
    blocks, _ = known(2, ("Q", "A"))
    rng = np.random.default_rng(3)
    weights, direction = rng.normal(size=(BATCH, N)), rng.normal(size=blocks[block].shape)
    t = tensors(blocks)
    z = FFOQPLayer()(**t)
    (gradient,) = torch.autograd.grad((z * torch.tensor(weights)).sum(), t[block])

    def loss(step: float) -> float:
        moved = {**blocks, block: blocks[block] + step * direction}
        return float(np.sum(weights * FFOQPLayer()(**{k: torch.tensor(v) for k, v in moved.items()}).numpy()))

    h = 1e-6
    expected = (loss(h) - loss(-h)) / (2 * h)
    assert float(np.vdot(gradient.numpy(), direction)) == pytest.approx(expected, rel=1e-5)


def test_samples_that_do_not_arrive_are_left_to_another_solver() -> None:
    easy, hard = known(4, ("Q", "A"), held=0.02), known(4, ("Q", "A"), held=0.5)
    blocks = {k: v if v.shape[0] != BATCH else np.concatenate([v[:2], hard[0][k][2:]]) for k, v in easy[0].items()}
    z = np.concatenate([easy[1][0][:2], hard[1][0][2:]])
    layer = FFOQPLayer(solver="SEPARABLE", solver_args={"max_iters": 4}, retry=["DENSE"])
    found = layer(**tensors(blocks))
    assert set(layer.info.solver) == {"SEPARABLE", "DENSE"}
    assert (layer.info.iterations > 0).all()
    np.testing.assert_allclose(found.detach().numpy(), z, atol=1e-9)


def test_infeasible_samples_are_named() -> None:
    blocks, _ = known(5, ("Q", "A"))
    blocks["lb"], blocks["ub"] = np.zeros((BATCH, N)), np.ones((BATCH, N))
    blocks["b"] = blocks["A"] @ np.full(N, 0.5) + np.zeros((BATCH, 1))
    blocks["b"][2] = -1.0  # A > 0, z >= 0
    with pytest.raises(InfeasibleError, match="2"):
        FFOQPLayer()(**tensors(blocks))


def test_few_nonzeros_are_left_to_a_sparse_solver() -> None:
    n = 300
    A = torch.zeros(60, n, dtype=torch.float64)
    A[torch.arange(60), torch.arange(60)] = 1.0
    layer = FFOQPLayer()
    Q = torch.eye(n, dtype=torch.float64)
    layer(Q, torch.zeros(2, n, dtype=torch.float64), A=A, b=torch.ones(60, dtype=torch.float64))
    assert set(layer.info.solver) == {"INTERIOR"}
