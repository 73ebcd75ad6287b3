"""Every transformation of JAX, against the layer called sample by sample."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ffo.engine import Engine, records
from ffo.errors import DerivativeError, InputError
from ffo.jax import FFOLayer

Arrays = tuple[jax.Array, jax.Array]


@pytest.fixture(scope="module")
def layer() -> FFOLayer:
    """Constrained least squares with two variables as outputs: x (3,) and a multiplier (3,)."""
    x, A, b = cp.Variable(3), cp.Parameter((5, 3)), cp.Parameter(5)
    bounds = x >= 0
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b) + 0.1 * cp.sum_squares(x)), [bounds, cp.sum(x) <= 2])
    return FFOLayer(problem, [A, b], [x, bounds.dual_variables[0]])


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Batch sizes of the solves so far."""
    found: list[int] = []
    run = Engine.run

    def counted(self: Engine, program: object, *args: object, **options: object) -> object:
        outcome = run(self, program, *args, **options)
        found.append(len(outcome.x))
        return outcome

    monkeypatch.setattr(Engine, "run", counted)
    return found


def data(*batch: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(*batch, 5, 3))), jnp.asarray(rng.normal(size=(*batch, 5)))


W = np.cos(1.7 * np.arange(6.0))


def loss_with(layer: FFOLayer) -> Callable[..., jax.Array]:
    def loss(A: jax.Array, b: jax.Array) -> jax.Array:
        x, dual = layer(A, b)
        return (x * W[:3]).sum() + (dual * W[3:]).sum()

    return loss


def close(found: object, expected: object, atol: float = 1e-12) -> None:
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert f.shape == e.shape
        np.testing.assert_allclose(f, e, rtol=0, atol=atol)


def one_by_one(layer: FFOLayer, A: jax.Array, b: jax.Array) -> tuple[list[Arrays], list[Arrays]]:
    """Outputs and gradients of the samples of a batch."""
    grad = jax.grad(loss_with(layer), (0, 1))
    pairs = list(zip(A, b, strict=True))
    return [layer(*pair) for pair in pairs], [grad(*pair) for pair in pairs]


def stacked(trees: list[Arrays]) -> Arrays:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def test_compiled_and_not(layer: FFOLayer) -> None:
    for batch in ((), (1,), (4,)):  # other shapes are other traces of the same function
        close(jax.jit(layer)(*data(*batch)), layer(*data(*batch)))
    step = jax.jit(jax.value_and_grad(loss_with(layer), (0, 1)))
    for seed in range(3):
        close(step(*data(4, seed=seed)), jax.value_and_grad(loss_with(layer), (0, 1))(*data(4, seed=seed)))


def test_derivatives_against_differences(layer: FFOLayer) -> None:
    A, b = data()
    dA, db = data(seed=1)
    loss, step = loss_with(layer), 1e-6
    _, slope = jax.jvp(loss, (A, b), (dA, db))
    difference = (loss(A + step * dA, b + step * db) - loss(A - step * dA, b - step * db)) / (2 * step)
    np.testing.assert_allclose(slope, difference, atol=1e-7)
    gA, gb = jax.grad(loss, (0, 1))(A, b)
    np.testing.assert_allclose((gA * dA).sum() + (gb * db).sum(), slope, atol=1e-12)


def test_gradients_of_shared_parameters_are_sums(layer: FFOLayer) -> None:
    A, b = data(4)
    _, apart = one_by_one(layer, A, jnp.stack([b[0]] * 4))
    found = jax.jit(jax.grad(loss_with(layer), (0, 1)))(A, b[0])
    close(found, (stacked(apart)[0], stacked(apart)[1].sum(0)))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_vmap_is_one_solve(layer: FFOLayer, solves: list[int], compiled: bool) -> None:
    A, b = data(4)
    outputs, apart = one_by_one(layer, A, b)
    grad = jax.vmap(jax.value_and_grad(loss_with(layer), (0, 1)))
    mapped = jax.vmap(layer)
    if compiled:
        grad, mapped = jax.jit(grad), jax.jit(mapped)
    solves.clear()
    close(mapped(A, b), stacked(outputs))
    assert solves == [4]
    close(grad(A, b)[1], stacked(apart))
    assert solves == [4, 4]
    assert len(layer.info.status) == 4


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (2, 1), (-1, -1)], ids=str)
def test_unmapped_parameters_and_other_axes(layer: FFOLayer, solves: list[int], axes: tuple[int | None, ...]) -> None:
    A, b = data(4)
    A, b = (v[0] if d is None else v for v, d in zip((A, b), axes, strict=True))
    full = [jnp.stack([v] * 4) if d is None else v for v, d in zip((A, b), axes, strict=True)]
    outputs, apart = one_by_one(layer, *full)
    given = [v if d is None else jnp.moveaxis(v, 0, d) for v, d in zip((A, b), axes, strict=True)]
    solves.clear()
    close(jax.vmap(layer, in_axes=axes)(*given), stacked(outputs))
    close(jax.vmap(jax.grad(loss_with(layer), (0, 1)), in_axes=axes)(*given), stacked(apart))
    close(
        jax.grad(lambda A, b: jax.vmap(loss_with(layer), in_axes=axes)(A, b).sum(), (0, 1))(*given),
        [
            g.sum(0) if d is None else jnp.moveaxis(g, 0, d)
            for g, d in zip(stacked(apart), axes, strict=True)
        ],
    )  # fmt: skip
    assert solves == [4, 4, 4]


def test_a_shared_parameter_stays_shared(layer: FFOLayer) -> None:
    A, b = data(4)
    traced = jax.make_jaxpr(jax.vmap(layer, in_axes=(None, 0)))(A[0], b)
    (solve,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "ffo_solve"]
    assert [v.aval.shape for v in solve.invars] == [(5, 3), (4, 5)]


def test_nested_maps_and_a_batch_inside(layer: FFOLayer, solves: list[int]) -> None:
    A, b = data(2, 3)
    outputs, apart = one_by_one(layer, A.reshape(6, 5, 3), jnp.stack([b[0, 0]] * 6))
    want = jax.tree.map(lambda v: v.reshape(2, 3, *v.shape[1:]), (stacked(outputs), stacked(apart)))
    solves.clear()
    nested = jax.vmap(jax.vmap(layer, in_axes=(0, None)), in_axes=(0, None))
    close(nested(A, b[0, 0]), want[0])
    grad = jax.grad(loss_with(layer), (0, 1))
    close(jax.vmap(jax.vmap(grad, in_axes=(0, None)), in_axes=(0, None))(A, b[0, 0]), want[1])
    # a batch inside of a map: the gradient of what the batch shares is a sum over it, for each mapped sample
    batched = jax.jit(jax.vmap(grad, in_axes=(0, None)))(A, b[0, 0])
    close(batched, (want[1][0], want[1][1].sum(1)))
    # what is mapped and shared by the batch inside
    mapped = jax.vmap(grad)(A, jnp.stack([b[0, 0]] * 2))
    close(mapped, (want[1][0], want[1][1].sum(1)))
    assert solves == [6] * 4


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_jacobians(layer: FFOLayer, solves: list[int], compiled: bool) -> None:
    A, b = data(2)
    want = stacked([jax.jacrev(layer, (0, 1))(A[k], b[0]) for k in range(2)])
    wrap = jax.jit if compiled else lambda f: f
    solves.clear()
    for jacobian in (jax.jacrev, jax.jacfwd):
        close(wrap(jax.vmap(jacobian(layer, (0, 1)), in_axes=(0, None)))(A, b[0]), want)
        whole = wrap(jacobian(jax.vmap(layer, in_axes=(0, None)), (0, 1)))(A, b[0])
        for out, expected in zip(whole, want, strict=True):
            close(out[1], expected[1])
            close(jnp.stack([out[0][k, :, k] for k in range(2)]), expected[0])
            close(out[0][0, :, 1], jnp.zeros_like(out[0][0, :, 1]))
    assert solves == [2] * 4


def test_linear_maps_have_transposes(layer: FFOLayer) -> None:
    A, b = data(3)
    dA, db = data(3, seed=2)
    forward = lambda dA, db: jax.jvp(layer, (A, b), (dA, db))[1]  # noqa: E731
    outputs, back = jax.vjp(layer, A, b)
    weights = jax.tree.map(jnp.cos, outputs)
    close(jax.linear_transpose(forward, dA, db)(weights), back(weights))
    close(jax.linear_transpose(lambda w: back(w), outputs)((dA, db))[0], forward(dA, db))
    close(jax.jvp(back, (weights,), (outputs,))[1], back(outputs))  # its derivative is itself
    # tangents that differ where the parameter is shared, and the transpose of that
    many = lambda d: jax.vmap(lambda each: jax.jvp(layer, (A[0], b[0]), (each, db[0]))[1][0])(d).sum()  # noqa: E731
    close(jax.grad(many)(dA)[0], jax.jacrev(layer)(A[0], b[0])[0].sum(0))
    apart = jax.vmap(lambda b, d: jax.jvp(layer, (A[0], b), (d, db[0]))[1][0].sum())
    close(jax.grad(lambda d: apart(b, d).sum())(dA)[1], jax.jacrev(layer)(A[0], b[1])[0].sum(0))


def test_linearized_functions_may_be_used_again_and_stacked(layer: FFOLayer) -> None:
    A, b = data(3)
    outputs, back = jax.vjp(layer, A, b)
    first = back(outputs)
    layer(*data(2, seed=5))
    close(back(outputs), first, atol=0)
    # functions of a map are pytrees: their residuals, tokens among them, come back mapped
    outputs, backs = jax.vmap(lambda A, b: jax.vjp(layer, A, b))(A, b)
    close(jax.vmap(lambda back, out: back(out))(backs, outputs), first)
    turned = jax.tree.map(lambda v: v[::-1], (backs, outputs))
    close(jax.vmap(lambda back, out: back(out))(*turned), jax.tree.map(lambda v: v[::-1], first))


@pytest.mark.parametrize("kept", [256, 8, 1], ids=lambda k: f"{k} records")
def test_scan_and_checkpoint(layer: FFOLayer, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Where records are gone, the derivative solves again."""
    monkeypatch.setattr(records, "FEWEST", kept)
    monkeypatch.setattr(records, "MOST", kept)
    A, b = data(12)
    want = jax.grad(loss_with(layer), (0, 1))(A, b)
    loss = loss_with(layer)

    def scanned(step: Callable[..., jax.Array], A: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, each: (total + step(*each), None), 0.0, (A, b))[0]

    for step in (loss, jax.checkpoint(loss)):
        grad = jax.jit(jax.grad(lambda A, b, step=step: scanned(step, A, b), (0, 1)))
        close(grad(A, b), want)
        close(grad(A, b), want)
    close(jax.jit(jax.grad(jax.checkpoint(loss), (0, 1)))(A, b), want)
    close(jax.grad(jax.checkpoint(loss), (0, 1))(A, b), want)


def test_training_keeps_one_record(layer: FFOLayer) -> None:
    grad = jax.jit(jax.grad(loss_with(layer), (0, 1)))
    jax.block_until_ready([grad(*data(4, seed=seed)) for seed in range(5)])
    waiting = len(layer.records)
    jax.block_until_ready([jax.jit(layer)(*data(4, seed=seed)) for seed in range(5)])  # nobody differentiates
    jax.block_until_ready([grad(*data(4, seed=seed)) for seed in range(5)])
    assert len(layer.records) == waiting
    alone = FFOLayer.__new__(FFOLayer)
    alone.__dict__.update(vars(layer), records=records.Records())
    jax.block_until_ready([jax.grad(loss_with(alone))(*data(4, seed=seed)) for seed in range(5)])
    assert len(alone.records) == 1


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_second_derivatives_are_refused_in_words(layer: FFOLayer, wrap: Callable) -> None:
    A, b = data()
    loss = loss_with(layer)
    for second in (
        jax.grad(lambda b: jax.grad(loss, 1)(A, b).sum()),
        jax.hessian(lambda b: loss(A, b)),
        jax.jacfwd(jax.jacfwd(lambda b: loss(A, b))),
        jax.grad(lambda b: jax.jvp(lambda A: loss(A, b), (A,), (A,))[1]),
    ):
        with pytest.raises(DerivativeError, match="differentiable once"):
            wrap(second)(b)
    # a derivative of what the layer does not see is none of its business
    scaled = jax.grad(lambda t: t**2 * jax.grad(loss, 1)(A, b).sum())
    np.testing.assert_allclose(wrap(scaled)(1.0), 2 * jax.grad(loss, 1)(A, b).sum(), rtol=1e-12)


def test_control_flow_and_pytrees(layer: FFOLayer) -> None:
    A, b = data()
    tree = {"A": A, "more": [b]}

    def loss(tree: dict) -> jax.Array:
        return jax.lax.cond(tree["A"].sum() > 1e9, lambda t: 0.0, lambda t: loss_with(layer)(t["A"], *t["more"]), tree)

    found = jax.jit(jax.grad(loss))(tree)
    close((found["A"], found["more"][0]), jax.grad(loss_with(layer), (0, 1))(A, b))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_layers_are_freed(wrap: Callable) -> None:
    x, b = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - b))), [b], [x])
    alive = weakref.ref(layer)
    jax.block_until_ready(wrap(jax.grad(lambda b, layer=layer: layer(b)[0].sum()))(jnp.ones(2)))
    del layer
    # the runtime's thread may hold the compiled program for a moment after its results are ready
    end = time.monotonic() + 30.0
    while alive() is not None and time.monotonic() < end:
        gc.collect()
    assert alive() is None


@pytest.mark.parametrize("kept", [256, 0], ids=["records", "again"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_mapped_branches(monkeypatch: pytest.MonkeyPatch, solves: list[int], wrap: Callable, kept: int) -> None:
    """JAX fills the parameters of branches that were not taken with zeros, for which this problem is infeasible."""
    monkeypatch.setattr(records, "FEWEST", kept)
    monkeypatch.setattr(records, "MOST", kept)
    x, u, v = cp.Variable(2), cp.Parameter(2), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - v * u)), [cp.sum(x) >= 0.5, x <= u]), [u, v], [x])
    us, vs = jnp.array([[1.0, 2.0], [3.0, 1.0], [2.0, 2.5]]), jnp.array([0.5, 2.0])

    def loss(u: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.square(layer(u, v)[0]).sum()

    def either(taken: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.cond(taken, loss, lambda u, v: u.sum(), u, v)

    plain = jax.vmap(jax.vmap(jax.grad(loss), (0, None)), (None, 0))(us, vs)
    solves.clear()
    for taken in ([True, False, True], [False, True, False], [False] * 3):
        mask = jnp.array(taken)
        mapped = jax.vmap(jax.vmap(jax.grad(either, 1), (0, 0, None)), (None, None, 0))
        found = wrap(mapped)(mask, us, vs)
        np.testing.assert_allclose(found, jnp.where(mask[:, None], plain, 1.0), rtol=1e-9)
    assert solves == [6] * (3 if kept else 5)


def test_stacked_samples_may_be_reordered(layer: FFOLayer) -> None:
    A, b = data(4)
    ones = jax.tree.map(jnp.ones_like, layer(A, b))
    back = jax.vmap(lambda A, b: jax.vjp(layer, A, b)[1])(A, b)
    turned = jax.tree.map(lambda v: v[::-1], back)
    close(jax.vmap(lambda f, g: f(g))(turned, ones), jax.tree.map(lambda v: v[::-1], jax.vjp(layer, A, b)[1](ones)))


def test_a_jacobian_without_rows(layer: FFOLayer) -> None:
    A, b = data(2)
    assert jax.jacrev(lambda b: layer(A[0], b)[0][:, :0])(b).shape == (2, 0, 2, 5)
    nothing = jax.tree.map(lambda v: jnp.zeros((0, *v.shape)), layer(A[0], b))
    assert [g.shape for g in jax.vmap(jax.vjp(layer, A[0], b)[1])(nothing)] == [(0, 5, 3), (0, 2, 5)]


def test_donated_buffers(layer: FFOLayer) -> None:
    A, b = data(4)
    want = jax.vjp(layer, A, b)[1](layer(A, b))
    outputs, back = jax.vjp(layer, A, b)
    kept = jax.tree.map(jnp.array, outputs)
    jax.block_until_ready(jax.jit(lambda x: x.at[:].set(7.0), donate_argnums=0)(outputs[0]))
    close(back(kept), want, atol=0)
    step = jax.jit(lambda A, b: jax.grad(loss_with(layer), (0, 1))(A, b), donate_argnums=(0, 1))
    close(step(jnp.array(A), jnp.array(b)), jax.grad(loss_with(layer), (0, 1))(A, b), atol=0)


def test_threads_share_a_layer(layer: FFOLayer) -> None:
    grad = jax.jit(jax.grad(loss_with(layer), (0, 1)))
    batches = [data(3, seed=seed) for seed in range(12)]
    want = [grad(*batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(lambda batch: grad(*batch), batches), want, strict=True):
            close(found, expected)


def test_empty_axes_are_refused(layer: FFOLayer) -> None:
    with pytest.raises(InputError, match="empty axis"):
        jax.vmap(layer)(*data(0))
    with pytest.raises(InputError, match="empty batch dimension"):
        layer(*data(0))


DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from ffo.jax import FFOQPLayer
jax.config.update("jax_enable_x64", True)
assert jax.device_count() == 2
layer, rng, n = FFOQPLayer(), np.random.default_rng(0), 20
Q, p, G = jnp.eye(n), jnp.asarray(rng.normal(size=(64, n))), jnp.asarray(rng.normal(size=(64, n, n)))
loss = lambda Q, p, G: (layer(Q, p, G, jnp.ones(n)) ** 2).sum()
want = jax.grad(loss, (0, 1, 2))(Q, p, G)
def check(found):
    for f, w in zip(found, want):
        np.testing.assert_allclose(f, w, rtol=0, atol=1e-10)
mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
specs = (P(), P("i"), P("i"))
for checked in (True, False):
    total = lambda *v: jax.lax.psum(loss(*v), "i")
    part = jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=checked)
    check(jax.jit(jax.grad(part, (0, 1, 2)))(Q, p, G))
inside = jax.shard_map(jax.grad(loss, (0, 1, 2)), mesh=mesh, in_specs=specs, out_specs=specs)
check(jax.jit(inside)(Q, p, G))
halves = jax.pmap(jax.grad(loss, (0, 1, 2)), in_axes=(None, 0, 0))(Q, p.reshape(2, 32, n), G.reshape(2, 32, n, n))
check([halves[0].sum(0), halves[1].reshape(64, n), halves[2].reshape(64, n, n)])
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(kind,))
    laid = [jax.device_put(v, NamedSharding(mesh, s)) for v, s in zip((Q, p, G), specs)]
    with jax.set_mesh(mesh):
        check(jax.grad(loss, (0, 1, 2))(*laid))
        check(jax.jit(jax.grad(loss, (0, 1, 2)))(*laid))
second = jax.device_put(p, jax.devices()[1])
assert layer(Q, second).devices() == {jax.devices()[1]}
"""


def test_several_devices() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(DEVICES)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
