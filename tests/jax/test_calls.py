"""What a call takes and returns: torch's numbers, cvxpylayers' words, dtypes, reports, failures."""

from __future__ import annotations

import copy
import importlib.util
import pickle

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from front_ends import jax_loss, make_jax_layer, with_jax, with_torch
from layers import loss_of, make_layer, relative_error, tensors

from ffo.errors import DerivativeError, InfeasibleError, InputError, InvalidDataError, Status
from ffo.jax import FFOLayer, Relax, Smoothing

peer = pytest.mark.skipif(importlib.util.find_spec("cvxpylayers") is None, reason="cvxpylayers is not installed")
SMALL = "constrained_least_squares"  # A (6, 4), b (6,)


@pytest.fixture(scope="module")
def case() -> zoo.Case:
    return zoo.build(SMALL)


@pytest.fixture(scope="module")
def bounded() -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
    """A projection onto 0 <= x <= u: infeasible where u is negative."""
    x, a, u = cp.Variable(2, name="x"), cp.Parameter(2, name="a"), cp.Parameter(2, name="u")
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [x >= 0, x <= u]), [a, u], [x]


A, U = jnp.array([[0.5, 2.0]] * 3), jnp.array([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize("name", zoo.CASES)
def test_numbers_are_those_of_torch(name: str) -> None:
    case = zoo.build(name)
    values = case.batch(2, np.random.default_rng(1))
    for f, e in zip(with_jax(case, values, compiled=False)[:2], with_torch(case, values)[:2], strict=True):
        for found, expected in zip(f, e, strict=True):
            assert found.dtype == expected.dtype
            assert relative_error(found, expected) < 1e-12


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of torch's forward mode
def test_forward_mode_is_that_of_torch(case: zoo.Case) -> None:
    import torch

    rng = np.random.default_rng(0)
    values, directions = case.batch(3, rng), [rng.normal(size=v.shape) for v in case.batch(3, rng)]
    found = jax.jit(lambda v, d: jax.jvp(make_jax_layer(case), v, d))(tuple(values), tuple(directions))
    expected = torch.func.jvp(make_layer(case), tuple(tensors(values)), tuple(tensors(directions)))
    for f, e in zip(jax.tree.leaves(found), [*expected[0], *expected[1]], strict=True):
        assert relative_error(np.asarray(f), e.detach().numpy()) < 1e-12


WRONG_CALLS: dict[str, list[tuple[int, ...]]] = {
    "too few": [(6, 4)],
    "too many": [(6, 4), (6,), (6,)],
    "wrong shape": [(6, 4), (7,)],
    "wrong batched shape": [(6, 4), (3, 7)],
    "too many dimensions": [(6, 4), (2, 3, 6)],
    "too few dimensions": [(6,), (6,)],
    "batch sizes differ": [(3, 6, 4), (2, 6)],
}


@peer
@pytest.mark.parametrize("shapes", WRONG_CALLS.values(), ids=WRONG_CALLS.keys())
def test_wrong_calls_fail_in_the_words_of_cvxpylayers(case: zoo.Case, shapes: list[tuple[int, ...]]) -> None:
    from cvxpylayers.jax import CvxpyLayer

    params = [jnp.ones(s) for s in shapes]
    with pytest.raises(ValueError, match=r".") as theirs:
        CvxpyLayer(case.problem, case.parameters, case.variables)(*params)
    with pytest.raises(InputError) as ours:
        make_jax_layer(case)(*params)
    with pytest.raises(InputError) as traced:
        jax.jit(make_jax_layer(case))(*params)
    assert str(ours.value) == str(traced.value)
    assert str(ours.value).startswith(str(theirs.value))


@peer
@pytest.mark.parametrize("name", [SMALL, "geometric_program"])
def test_one_import_moves_code_over(name: str) -> None:
    from cvxpylayers.jax import CvxpyLayer

    case = zoo.build(name) if name in zoo.CASES else next(c for c in map(zoo.build, zoo.CASES) if c.gp)
    values = [jnp.asarray(v) for v in case.batch(2, np.random.default_rng(0))]
    theirs = CvxpyLayer(problem=case.problem, parameters=case.parameters, variables=case.variables, gp=case.gp)
    ours = FFOLayer(problem=case.problem, parameters=case.parameters, variables=case.variables, gp=case.gp)
    losses = [lambda *v, layer=each: jax_loss(layer(*v), batched=True) for each in (theirs, ours)]
    expected, found = (jax.value_and_grad(loss, argnums=(0, 1))(*values) for loss in losses)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-3)
    for f, e in zip(found[1], expected[1], strict=True):
        assert relative_error(f, e) < 1e-2  # theirs is solved to 1e-4 or so


def test_what_is_accepted_as_an_array(case: zoo.Case) -> None:
    layer = make_jax_layer(case)
    whole = [np.round(3 * v) for v in case.values]
    expected = layer(*whole)
    for given in ([v.astype(int) for v in whole], [v.tolist() for v in whole], [jnp.asarray(v, int) for v in whole]):
        np.testing.assert_allclose(layer(*given)[0], expected[0], rtol=0, atol=1e-12)
    x, t = cp.Variable(), cp.Parameter()
    scalar = FFOLayer(cp.Problem(cp.Minimize((x - t) ** 2)), [t], [x])
    assert float(scalar(2.0)[0]) == pytest.approx(2.0)
    assert float(jax.grad(lambda t: scalar(t)[0])(2.0)) == pytest.approx(1.0)
    with pytest.raises(InputError, match=r"Parameter 0 \(.*\) must be an array of real numbers, got complex"):
        layer(case.values[0] * 1j, case.values[1])
    with pytest.raises(InputError, match=r"Parameter 0 \(.*\) must be an array, got NoneType"):
        layer(None, case.values[1])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_low_precision_is_solved_in_double(case: zoo.Case, dtype: str, compiled: bool) -> None:
    layer = make_jax_layer(case)
    low = [jnp.asarray(v, dtype) for v in case.values]
    step = jax.value_and_grad(lambda *v: jax_loss(layer(*v)), (0, 1))
    expected = step(*(v.astype(jnp.float64) for v in low))
    jax.config.update("jax_enable_x64", False)
    outputs = (jax.jit(layer) if compiled else layer)(*low)
    assert {v.dtype for v in outputs} == {np.dtype(dtype)}
    found = (jax.jit(step) if compiled else step)(*low)
    assert not jax.config.jax_enable_x64
    for f, e in zip(found[1], expected[1], strict=True):
        assert f.dtype == np.dtype(dtype)
        assert relative_error(np.asarray(f, float), np.asarray(e)) < 4 * float(jnp.finfo(dtype).eps)
    assert layer.info.residual.max() < 1e-10


def test_mixed_dtypes_promote_as_jax_does(case: zoo.Case) -> None:
    A, b = case.values
    layer = make_jax_layer(case)
    mixed = jnp.asarray(A, jnp.float32), jnp.asarray(b)
    assert layer(*mixed)[0].dtype == jnp.float64
    assert [g.dtype for g in jax.grad(lambda *v: jax_loss(layer(*v)), (0, 1))(*mixed)] == [jnp.float32, jnp.float64]
    for whole in (np.round(b).astype(int), np.ones(b.shape, dtype=bool)):
        assert layer(mixed[0], whole)[0].dtype == jnp.result_type(mixed[0], whole) == jnp.float32


def test_failures_raise_in_words(bounded: tuple) -> None:
    layer = FFOLayer(*bounded)
    with pytest.raises(InfeasibleError, match="infeasible for sample 1 of the batch"):
        layer(A, U)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"InfeasibleError: .*infeasible for sample 1 of the batch"):
        jax.block_until_ready(jax.jit(layer)(A, U))
    np.testing.assert_allclose(jax.jit(layer)(A[:1], U[:1])[0], [[0.5, 1.0]], atol=1e-9)  # and goes on


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_failed_samples_are_nan_and_have_no_gradient(bounded: tuple, wrap) -> None:
    layer = FFOLayer(*bounded, on_fail="nan")
    (x,), report = wrap(layer.call)(A, U)
    assert [Status(int(s)) for s in report.status] == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert report.ok.tolist() == report.good.tolist() == [True, False, True]
    assert report.residual[0] < 1e-10
    assert np.isnan(report.residual[1])
    np.testing.assert_allclose(x, [[0.5, 1.0], [np.nan] * 2, [0.5, 1.0]], atol=1e-9)
    ga, gu = wrap(jax.grad(lambda a, u: layer(a, u)[0].sum(), (0, 1)))(A, U)
    np.testing.assert_allclose(ga, [[1, 0], [0, 0], [1, 0]], atol=1e-9)
    np.testing.assert_allclose(gu, [[0, 1], [0, 0], [0, 1]], atol=1e-9)


def test_relaxed_samples(bounded: tuple) -> None:
    layer = FFOLayer(*bounded, on_fail=Relax(constraints=[bounded[0].constraints[1]]))
    (x,), report = jax.jit(layer.call)(A, U)
    assert Status(int(report.status[1])) is Status.RELAXED
    assert x[1, 0] == pytest.approx(0.0, abs=1e-6)
    assert layer.info.violations[1].size == pytest.approx(1.0, abs=1e-3)


def test_reports_of_a_call(case: zoo.Case) -> None:
    layer = make_jax_layer(case)
    values = [jnp.asarray(v) for v in case.batch(2, np.random.default_rng(0))]
    alone = layer.call(*(v[0] for v in values))[1]
    assert alone.status.shape == alone.good.shape == ()
    step = jax.jit(jax.value_and_grad(lambda *v: (lambda x, r: (jax_loss(x, True), r))(*layer.call(*v)), has_aux=True))
    (_, report), _ = step(*values)
    assert report.error.shape == (2,)
    assert report.error.dtype == jnp.float64
    assert report.good.all()
    certificate = layer.info.certificate  # the derivative has been added
    assert not np.isnan(certificate.ghost_residual).any()
    assert jax.vmap(layer.call)(*values)[1].status.tolist() == [0, 0]


def test_settings_of_a_call(case: zoo.Case) -> None:
    layer = make_jax_layer(case, solver="SCS", solver_args={"eps": 1e-3})
    iterations = []
    for settings in (None, {"eps": 1e-10}):
        jax.block_until_ready(jax.jit(lambda *v, s=settings: layer(*v, solver_args=s))(*case.values))
        iterations.append(int(layer.info.iterations[0]))
        assert layer.info.solver == ("SCS",)
    assert iterations[1] > iterations[0]


def test_warm_starts_by_key_and_by_position(case: zoo.Case) -> None:
    values = [jnp.asarray(v) for v in case.batch(4, np.random.default_rng(0))]
    layer = make_jax_layer(case)
    keyed = jax.jit(lambda keys, *v: layer(*v, keys=keys))
    order = jnp.array([2, 0, 3, 1])
    first = keyed(jnp.arange(4), *values)
    assert jax.block_until_ready(first) is not None
    assert layer.info.warm_hits == 0
    second = keyed(order, *(v[order] for v in values))  # the keys of this call, not those of its trace
    np.testing.assert_allclose(second[0], first[0][order], atol=1e-10)
    assert layer.info.warm_hits == 4
    jax.vmap(lambda k, *v: layer(*v, keys=k[None]))(order, *(v[order] for v in values))
    assert layer.info.warm_hits == 4
    remembering = make_jax_layer(case, warm_start=True)
    for hits in (0, 4):
        jax.block_until_ready(jax.vmap(remembering)(*values))
        assert remembering.info.warm_hits == hits
    with pytest.raises(InputError, match="keys must be integers"):
        layer(*values, keys=["a", "b", "c", "d"])
    with pytest.raises(InputError, match="got 2 keys for a batch of 4"):
        layer(*values, keys=[1, 2])
    with pytest.raises(InputError, match="keys must be mapped"):
        jax.vmap(lambda *v: layer(*v, keys=jnp.array([1])))(*values)


def test_smoothing(case: zoo.Case) -> None:
    values = case.batch(2, np.random.default_rng(0))
    smoothing = Smoothing(0.1, draws=4, seed=3)
    layer = make_jax_layer(case, smoothing=smoothing)
    found = jax.jit(jax.grad(lambda *v: jax_loss(layer(*v), True), (0, 1)))(*values)
    params = tensors(values)
    loss_of(make_layer(case, smoothing=smoothing)(*params), batched=True).sum().backward()
    for f, p in zip(found, params, strict=True):
        assert relative_error(f, p.grad.numpy()) < 1e-12
    assert layer.call(*values)[1].status.shape == (2, 4)
    apart = layer.smoothed(Smoothing(0.1, draws=4, average=False))
    assert jax.jit(apart)(*values)[0].shape == (4, 2, 4)
    with pytest.raises(InputError, match=r"average=False cannot be used under jax\.vmap"):
        jax.vmap(apart)(*values)
    _, back = jax.vjp(layer, *values)
    back((jnp.ones((2, 4)),))
    _, back = jax.vjp(layer, *values)
    layer.records._open.clear()
    with pytest.raises(DerivativeError, match="draws of this smoothed call are gone"):
        back((jnp.ones((2, 4)),))


def test_copies_and_pickles(case: zoo.Case) -> None:
    layer = make_jax_layer(case)
    grad = lambda layer: jax.grad(lambda *v: jax_loss(layer(*v)), (0, 1))(*case.values)  # noqa: E731
    expected = grad(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        for f, e in zip(grad(other), expected, strict=True):
            np.testing.assert_array_equal(f, e)
        assert other.records is not layer.records
    assert jax.tree.leaves(layer) == []  # so that it may be passed, and be a part of a model
    np.testing.assert_array_equal(jax.jit(lambda layer, *v: layer(*v)[0])(layer, *case.values), layer(*case.values)[0])
    assert "n=" in repr(layer)


def test_problems_without_parameters() -> None:
    x = cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - 1.0))), [], [x])
    np.testing.assert_allclose(layer()[0], [1.0, 1.0])
    (found,), report = jax.jit(layer.call)()
    np.testing.assert_allclose(found, [1.0, 1.0])
    assert report.ok.all()


def test_values_that_break_a_declaration_are_refused() -> None:
    x, p = cp.Variable(), cp.Parameter(boolean=True, name="slope")
    layer = FFOLayer(cp.Problem(cp.Maximize(x), [x + p * cp.abs(x) <= 1, x <= 9]), [p], [x])
    with pytest.raises((InvalidDataError, jax.errors.JaxRuntimeError), match="was declared boolean but has the entry"):
        jax.block_until_ready(layer(jnp.array(-0.5)))
