"""Problems that are not DPP through JAX: the same as through torch, which is compared with twins and differences."""

from __future__ import annotations

import warnings

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from lift_catalogue import PAIRS
from program.test_expressions import ALL, EXPRESSIONS, values_of

from ffo.errors import GradientWarning
from ffo.jax import FFOLayer
from ffo.jax.expressions import JAX
from ffo.program.expressions.evaluate import compiled
from ffo.torch import FFOLayer as TorchLayer
from ffo.torch.expressions import TorchNamespace


@pytest.mark.parametrize("name", PAIRS)
def test_solutions_and_gradients_are_those_of_torch(name: str) -> None:
    """A batch of two, whose last parameter is shared if there are several."""
    pair = PAIRS[name]()
    rng = np.random.default_rng(3)
    samples = [pair.draw(rng) for _ in range(2)]
    values = [np.stack(column) for column in zip(*samples, strict=True)]
    if len(values) > 1:
        values[-1] = samples[0][-1]
    own = pair.own
    layer = FFOLayer(own.problem, own.parameters, own.outputs, gp=pair.gp)
    other = TorchLayer(own.problem, own.parameters, own.outputs, gp=pair.gp)
    outputs, back = jax.vjp(lambda *v: layer(*v), *map(jnp.asarray, values))
    gradients = back(tuple(jnp.cos(v + 1.0) for v in outputs))
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    expected = other(*tensors)
    torch.autograd.backward(expected, [torch.cos(v.detach() + 1.0) for v in expected])
    for found, known in zip([*outputs, *gradients], [*expected, *(t.grad for t in tensors)], strict=True):
        reference = known.detach().numpy()
        assert np.allclose(found, reference, rtol=1e-8, atol=1e-8 * (1 + np.abs(reference).max()))


def test_transforms() -> None:
    x, a, b = cp.Variable(2), cp.Parameter(nonneg=True), cp.Parameter(2)
    P = cp.Parameter((2, 2), PSD=True)
    problem = cp.Problem(
        cp.Minimize(a * cp.sum_squares(x - b) + cp.exp(a) * cp.sum(x)), [cp.quad_form(x, P) <= cp.norm(b)]
    )
    layer = FFOLayer(problem, [a, b, P], [x])
    values = jnp.asarray(0.7), jnp.asarray([0.5, -1.3]), jnp.asarray([[2.0, 0.3], [0.3, 0.0]]).at[1, 1].set(0.045)

    def solve(*v: jax.Array) -> jax.Array:
        return layer(*v)[0]

    for k in range(3):
        forward, reverse = jax.jacfwd(solve, k)(*values), jax.jit(jax.jacrev(solve, k))(*values)
        if k == 2:  # a direction that is not symmetric stands for its symmetric part
            forward, reverse = (0.5 * (J + jnp.swapaxes(J, -1, -2)) for J in (forward, reverse))
        assert np.allclose(forward, reverse, atol=1e-9)
    several = jnp.stack([values[1], 2 * values[1]])
    mapped = jax.vmap(jax.grad(lambda b: solve(values[0], b, values[2]).sum()))(several)
    for row, b in zip(mapped, several, strict=True):
        alone = jax.grad(lambda b: solve(values[0], b, values[2]).sum())(b)
        assert np.allclose(row, alone, atol=1e-9)


def test_single_precision() -> None:
    x, a = cp.Variable(2), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x) + cp.exp(a) * cp.sum(x))), [a], [x])
    found, back = jax.vjp(lambda a: layer(a)[0], jnp.asarray(0.3, dtype=jnp.float32))
    assert found.dtype == jnp.float32
    assert np.allclose(found, -0.5 * np.exp(0.3), atol=1e-5)
    assert np.allclose(back(jnp.ones_like(found))[0], -np.exp(0.3), atol=1e-5)


def test_the_table_has_the_same_values_and_gradients() -> None:
    """Atoms that use a library in different ways, weighed and added up."""
    names = [
        "bmat", "diag off", "convolve", "cummax", "dotsort", "entropy", "normcdf", "log det", "generalized eigenvalue",
        "spectral radius", "matrix fraction", "weighted geometric mean", "logistic", "norm 3", "sum of axes",
    ]  # fmt: skip
    function = compiled([EXPRESSIONS[n] for n in names], ALL, names)
    values = list(values_of().values())

    def total(xp: object, arrays: list) -> object:
        return sum((v * (k % 7 + 1)).sum() for k, v in enumerate(function(xp, arrays)))

    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    expected = total(TorchNamespace(torch.device("cpu")), tensors)
    expected.backward()
    found, gradients = jax.value_and_grad(lambda v: total(JAX, v))([jnp.asarray(v) for v in values])
    assert np.allclose(found, expected.item(), rtol=1e-10)
    for g, t in zip(gradients, tensors, strict=True):
        expected = 0.0 if t.grad is None else t.grad.numpy()
        assert np.allclose(g, expected, rtol=1e-8, atol=1e-8)


# Samples outside of the domain of an expression, and without a derivative


def bounded(bound: cp.Expression, parameters: list[cp.Parameter]) -> FFOLayer:
    """Minimize |x - 1|^2 so that the sum of x is equal to an expression."""
    x = cp.Variable(3)
    return FFOLayer(
        cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), [cp.sum(x) == bound]), parameters, [x], on_fail="nan"
    )


def shared_and_own() -> tuple[FFOLayer, jax.Array, jax.Array]:
    """The sum of x is sqrt(own) times shared; the second of three samples is outside of the domain."""
    shared, own = cp.Parameter(name="shared"), cp.Parameter(name="own")
    return bounded(cp.sqrt(own) * shared, [shared, own]), jnp.asarray(2.0), jnp.asarray([4.0, -1.0, 9.0])


def test_a_failed_sample_adds_nothing_to_any_gradient() -> None:
    layer, s, t = shared_and_own()

    def total(s: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.nansum(layer(s, t)[0])

    def mapped(s: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.nansum(jax.vmap(lambda one: layer(s, one)[0])(t))

    for function in (total, mapped, jax.jit(total), jax.jit(mapped), jax.checkpoint(total)):
        by_s, by_t = jax.grad(function, (0, 1))(s, t)
        assert by_s == pytest.approx(5.0)
        assert by_t.tolist() == pytest.approx([0.5, 0.0, 1 / 3])
    each, _ = jax.vmap(jax.grad(total, (0, 1)), (None, 0))(s, t)
    assert each.tolist() == pytest.approx([2.0, 0.0, 3.0])
    for jacobian in (jax.jacrev, jax.jacfwd):
        rows = jax.jit(jacobian(lambda s: layer(s, t)[0].sum(axis=1)))(s)
        assert rows.tolist() == pytest.approx([2.0, 0.0, 3.0])


def test_an_expression_outside_of_its_domain_for_all_samples() -> None:
    shared, own = cp.Parameter(name="shared"), cp.Parameter(name="own")
    layer = bounded(cp.sqrt(shared) * own, [shared, own])
    found = jax.grad(lambda s, t: jnp.nansum(layer(s, t)[0]), (0, 1))(jnp.asarray(-1.0), jnp.asarray([4.0, 1.0]))
    assert found[0] == 0.0
    assert (found[1] == 0.0).all()


def test_expressions_of_shared_parameters_are_not_mapped() -> None:
    """Inside of `jax.vmap`, an expression that depends on unmapped parameters alone stays shared."""
    shared, own = cp.Parameter(3, name="shared"), cp.Parameter(name="own")
    x = cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + cp.exp(shared) @ x), [cp.sum(x) == cp.exp(own) * own])
    layer = FFOLayer(problem, [shared, own], [x])

    def gradient(s: jax.Array, t: jax.Array) -> jax.Array:
        return jax.grad(lambda s: jax.vmap(lambda one: layer(s, one)[0])(t).sum())(s)

    program = str(jax.make_jaxpr(gradient)(jnp.zeros(3), jnp.arange(5.0)))
    assert "exp" in program
    assert not [line for line in program.splitlines() if "f64[5,3] = exp" in line]


@pytest.mark.parametrize("atom", [cp.lambda_max, cp.normNuc, cp.sigma_max, cp.norm])
def test_matrices_with_nan_fail_alone(atom) -> None:
    S = cp.Parameter((2, 2), symmetric=True)
    given = jnp.stack([jnp.diag(jnp.asarray([1.0, 2.0])), jnp.diag(jnp.asarray([jnp.nan, 1.0]))])
    (found,) = bounded(atom(S) * atom(S), [S])(given)
    assert jnp.isnan(found).all(axis=1).tolist() == [False, True]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_samples_without_a_derivative_are_flagged(transform) -> None:
    v, w = cp.Parameter(name="v"), cp.Parameter(name="w")
    layer = bounded(cp.sqrt(v) * w, [v, w])
    given = jnp.asarray([4.0, 0.0, -1.0]), jnp.asarray(2.0)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", GradientWarning)
        found = transform(jax.grad(lambda v, w: jnp.nansum(layer(v, w)[0]), (0, 1)))(*given)
        jax.block_until_ready(found)
    assert any("sqrt" in str(one.message) or "PowerApprox" in str(one.message) for one in heard)
    assert found[0].tolist() == pytest.approx([0.5, 0.0, 0.0])
    assert found[1] == pytest.approx(2.0)
    assert layer.info.certificate.good.tolist() == [True, False, False]
    _, report = transform(layer.call)(*given)
    assert report.good.tolist() == [True, False, False]


def test_expressions_are_tested_in_the_precision_they_are_computed_in() -> None:
    """exp(100) overflows in single precision only."""
    v = cp.Parameter(name="v")
    layer = bounded(1 / (1 + cp.exp(v)), [v])
    for wide in (True, False):
        with jax.enable_x64(wide), warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientWarning)
            found = jax.grad(lambda v: layer(v)[0].sum())(jnp.asarray(100.0))
        assert bool(jnp.isnan(found)) != wide
        assert layer.info.certificate.good.tolist() == [wide]


def test_outputs_have_the_dtype_of_the_parameters() -> None:
    """Constants of the problem are double precision, parameters need not be."""
    a = cp.Parameter(name="a")
    x = cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x) + (cp.exp(a) * np.array([1.0, 2.0])) @ x)), [a], [x])
    for dtype in (jnp.float32, jnp.float16, jnp.float64):
        found, back = jax.vjp(lambda a: layer(a)[0], jnp.asarray(0.3, dtype=dtype))
        assert found.dtype == dtype
        assert back(jnp.ones_like(found))[0].dtype == dtype
