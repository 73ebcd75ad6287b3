"""FFOQPLayer and solve_qp: torch's numbers, blocks that are absent or infinite, multipliers."""

from __future__ import annotations

from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ffo.errors import InputError, UnboundedError
from ffo.jax import FFOQPLayer, QPSolution, solve_qp
from ffo.torch import FFOQPLayer as TorchLayer

NAMES = ("Q", "p", "G", "h", "A", "b", "lb", "ub", "lower")


def blocks(batch: int = 3, n: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch with all blocks; some sides are infinite for all samples, some for one."""
    rng = np.random.default_rng(seed)
    L, G = rng.normal(size=(n, n)), rng.normal(size=(batch, 4, n))
    z = rng.uniform(-0.3, 0.3, (batch, n))
    A = rng.normal(size=(2, n))
    Gz = np.einsum("bij,bj->bi", G, z)
    h = Gz + rng.uniform(0.0, 0.4, (batch, 4))
    h[0, 1] = np.inf
    ub = np.full(n, np.inf)
    ub[:3] = 0.5
    return {
        "Q": L @ L.T + np.eye(n), "p": rng.normal(size=(batch, n)), "G": G, "h": h, "A": A, "b": z @ A.T,
        "lb": np.full((batch, n), -0.5), "ub": ub, "lower": Gz - 0.5,
    }  # fmt: skip


def call(layer: object, given: dict) -> object:
    rest = {k: v for k, v in given.items() if k in ("lb", "ub", "lower")}
    return layer(*(given.get(k) for k in NAMES[:6]), **rest)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_numbers_are_those_of_torch(compiled: bool) -> None:
    data, layer = blocks(), FFOQPLayer(duals=True)

    def loss(given: dict) -> tuple[jax.Array, QPSolution]:
        found = call(layer, given)
        return sum(jnp.cos(v).sum() for v in found), found

    step = jax.value_and_grad(loss, has_aux=True)
    (_, outputs), found = (jax.jit(step) if compiled else step)({k: jnp.asarray(v) for k, v in data.items()})
    assert isinstance(outputs, QPSolution)
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in data.items()}
    expected = call(TorchLayer(duals=True), tensors)
    sum(torch.cos(v).sum() for v in expected).backward()
    for f, e in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(f, e.detach(), rtol=0, atol=1e-12)
    for name, gradient in found.items():
        assert gradient.shape == data[name].shape
        np.testing.assert_allclose(gradient, tensors[name].grad, rtol=0, atol=1e-11 * np.abs(gradient).max())


def test_a_map_is_a_batch_with_shared_blocks() -> None:
    data, layer = {k: jnp.asarray(v) for k, v in blocks().items()}, FFOQPLayer()
    axes = {k: 0 if v.ndim > (2 if k in "QGA" else 1) else None for k, v in data.items()}
    loss = lambda given: (call(layer, given) ** 2).sum()  # noqa: E731
    batched = jax.grad(loss)(data)
    mapped = jax.jit(jax.vmap(jax.grad(loss), in_axes=(axes,)))(data)
    assert len(layer.info.status) == 3
    for name, g in mapped.items():
        total = g if axes[name] == 0 else g.sum(0)
        np.testing.assert_allclose(total, batched[name], rtol=0, atol=1e-12 * np.abs(total).max())


def test_the_functional_form() -> None:
    data = {k: jnp.asarray(v) for k, v in blocks().items()}
    found = call(solve_qp, data)
    np.testing.assert_array_equal(found, call(FFOQPLayer(), data))
    sides = {k: data[k] for k in ("lb", "ub", "lower")}
    solution = solve_qp(*(data[k] for k in NAMES[:6]), **sides, duals=True, solver="CLARABEL")
    np.testing.assert_allclose(solution.z, found, atol=1e-7)
    gradient = jax.jit(jax.grad(lambda p: solve_qp(jnp.eye(2), p, lb=jnp.zeros(2)).sum()))(jnp.array([-1.0, 1.0]))
    np.testing.assert_allclose(gradient, [-1.0, 0.0], atol=1e-10)


def test_absent_blocks() -> None:
    none, p = jnp.zeros((0,)), jnp.array([1.0, -1.0])
    lp = FFOQPLayer()(None, p, lb=-jnp.ones(2), ub=jnp.ones(2))
    np.testing.assert_allclose(lp, [-1.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(FFOQPLayer()(jnp.eye(2), p, none, none, jnp.zeros((0, 2)), none), -p, atol=1e-12)
    found, report = jax.jit(FFOQPLayer().call)(jnp.eye(2), p)
    np.testing.assert_allclose(found, -p, atol=1e-12)
    assert report.ok
    found, report = FFOQPLayer().call(jnp.eye(2), p, G=jnp.ones((1, 2)), h=jnp.ones(1), lb=jnp.zeros(2))
    np.testing.assert_allclose(found, [0.0, 1.0], atol=1e-12)
    for wrong in (lambda: FFOQPLayer().call(jnp.eye(2), p, lower_bound=p), lambda: FFOQPLayer().call(*[p] * 7)):
        with pytest.raises(TypeError, match=r"lower_bound|positional"):
            wrong()
    with pytest.raises(UnboundedError):
        FFOQPLayer()(None, p)


def test_wrong_blocks_are_named() -> None:
    Q, p = jnp.eye(2), jnp.zeros(2)
    layer = FFOQPLayer()
    for wrong, text in (
        (lambda: layer(Q, p, jnp.ones((1, 3)), jnp.ones(1)), r"G must be \(rows, 2\)"),
        (lambda: layer(Q, p, jnp.ones((1, 2))), "G needs a right-hand side"),
        (lambda: layer(Q, None), "p, the linear term, is required"),
        (lambda: layer(jnp.eye(2)[None].repeat(3, 0), jnp.zeros((2, 2))), "Inconsistent batch sizes"),
        (lambda: layer(Q, jnp.zeros((0, 2))), "The batch is empty"),
        (lambda: layer(Q * 1j, p), "Q must be an array of real numbers"),
    ):
        with pytest.raises(InputError, match=text):
            wrong()
        with pytest.raises(InputError, match=text):
            jax.jit(wrong)()


class QPSolvers(Enum):
    """As in qpth."""

    PDIPM_BATCHED = 1
    CVXPY = 2


@pytest.mark.parametrize("solver", QPSolvers)
def test_arguments_of_qpth(solver: QPSolvers, capfd: pytest.CaptureFixture) -> None:
    Q, p, G, h = jnp.eye(3), jnp.arange(15.0).reshape(5, 3), jnp.ones((1, 3)), jnp.ones(1)
    function = FFOQPLayer(eps=1e-12, verbose=-1, notImprovedLim=3, maxIter=20, solver=solver, check_Q_spd=False)
    z = function(Q, p, G, h, jnp.empty(0), jnp.empty(0))
    np.testing.assert_allclose(z, FFOQPLayer()(Q, p, G, h), rtol=0, atol=1e-12)
    assert function.engine.options.solver_args == {"eps": 1e-12}
    assert capfd.readouterr() == ("", "")


def test_settings_take_precedence_over_qpths_eps() -> None:
    layer = FFOQPLayer(eps=1e-3, solver="CLARABEL", solver_args={"eps": 1e-9})
    assert layer.engine.options.solver_args == {"eps": 1e-9}
    with pytest.raises(InputError, match="solver must be a name or an ffo Solver, not Colour"):
        FFOQPLayer(solver=Enum("Colour", "RED").RED)
