"""The layer in torch: shapes, batches, dtypes, repeated and second backward, copies, smoothing."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from function_problems import D, distance, gradients, leaves, quadratic, quadratic_layer, tensor

from ffo.errors import DerivativeError, InfeasibleError, InputError
from ffo.torch import FFOFunctionLayer, Smoothing


def simplex(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y.sum().reshape(1) - 1, -y])


def projection(**options: object) -> FFOFunctionLayer:
    return FFOFunctionLayer(distance, simplex, **{"shape": 3, "dims": (1,), **options})


A = torch.tensor([[0.9, 0.8, 0.1], [-0.2, 0.1, 0.3], [2.0, 0.0, 0.0]], dtype=D)


# Shapes and batches


def test_batched_and_unbatched() -> None:
    layer = projection()
    assert layer(A).shape == (3, 3)
    assert layer(A[0]).shape == (3,)
    torch.testing.assert_close(layer(A)[0], layer(A[0]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(layer(A, y0=torch.rand(3, 3, dtype=D)), layer(A), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(layer(A, y0=torch.rand(3, dtype=D)), layer(A), rtol=1e-8, atol=1e-8)
    assert layer(A[0], y0=torch.zeros(5, 3, dtype=D)).shape == (5, 3)


def test_without_dims_y0_tells_what_is_a_batch() -> None:
    layer = projection(dims=None)
    torch.testing.assert_close(layer(A, y0=torch.zeros(3, 3)), projection()(A))
    torch.testing.assert_close(layer(A[1], y0=torch.zeros(3)), projection()(A[1]))
    unshaped = FFOFunctionLayer(distance, simplex)
    assert unshaped(A, y0=torch.zeros(3, 3)).shape == (3, 3)


def test_functions_that_look_at_values_go_one_by_one() -> None:
    def branching(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return distance(a, y) if bool(a.sum() > 1) else 2 * distance(a, y)

    layer = FFOFunctionLayer(branching, simplex, shape=3, dims=(1,))
    (found,), (expected,) = gradients(layer, [A]), gradients(projection(), [A])
    assert not layer.functions.mapped
    assert projection().functions.mapped
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


CALLS = {
    "no shape": (lambda: FFOFunctionLayer(distance)(A), "does not know the shape of y"),
    "no dims": (lambda: projection(dims=None)(A), "Pass dims= to the constructor"),
    "shared without dims": (
        lambda: projection(dims=None)(A[:2], y0=torch.zeros(3, 3)),
        "which of them are shared by the batch",
    ),
    "wrong count": (lambda: projection()(A, A), "dims= has 1 entries, but 2 theta were passed"),
    "wrong dims": (lambda: projection()(A[0, 0]), "theta 0 must have 1 dimensions, or 2 with a batch"),
    "batch sizes": (
        lambda: quadratic_layer()(*(v.expand(2 + k, *v.shape) for k, v in enumerate(quadratic()))),
        "batch sizes differ: theta 0 has 2, theta 1 has 3",
    ),
    "y0 of another batch": (lambda: projection()(A, y0=torch.zeros(2, 3)), "theta 0 has 3, y0 has 2"),
    "y0 shape": (lambda: projection()(A, y0=torch.zeros(4)), r"y0 must be \(3,\)"),
    "y0 type": (lambda: projection()(A, y0=np.zeros(3)), "y0 must be a torch tensor"),
    "integers": (lambda: projection()(A.long()), "theta 0 must have a floating-point dtype"),
    "array": (lambda: projection()(A.numpy()), "theta 0 must be a torch tensor"),
    "mixed dtypes": (
        lambda: quadratic_layer()(*(v.float() if k else v for k, v in enumerate(quadratic()))),
        "same dtype",
    ),
    "empty": (lambda: projection()(A[:0]), "the batch is empty"),
    "vector objective": (lambda: FFOFunctionLayer(lambda a, y: y, shape=3, dims=(1,))(A), "sum over its entries"),
    "no tensor": (lambda: FFOFunctionLayer(lambda a, y: 1.0, shape=3, dims=(1,))(A), "must return a tensor, not float"),
    "complex": (lambda: FFOFunctionLayer(lambda a, y: y.sum() + 0j, shape=3, dims=(1,))(A), "must return real numbers"),
    "arguments": (lambda: FFOFunctionLayer(lambda y: y.sum(), shape=3, dims=(1,))(A), r"objective\(\*theta, y\)"),
    "broken": (lambda: FFOFunctionLayer(lambda a, y: (a @ y[:2]).sum(), shape=3, dims=(1,))(A), "objective failed"),
    "constants in single precision": (
        lambda: FFOFunctionLayer(lambda a, y: (torch.eye(3) @ y).sum(), shape=3, dims=(1,))(A),
        r"convert constants with constant.to\(y\)",
    ),
    "no function": (lambda: FFOFunctionLayer(None), "objective must be a function"),
    "hvp": (lambda: projection(hvp="exact"), "hvp must be one of difference, autograd"),
    "costs": (lambda: projection(smoothing=Smoothing(costs=1.0)), "use a radius"),
    "nothing": (lambda: FFOFunctionLayer(lambda y: y.square().sum(), shape=3)(), "nothing to solve for"),
    "keys": (lambda: projection()(A, keys=[1, 2]), "keys must name every sample"),
}


@pytest.mark.parametrize(("call", "words"), CALLS.values(), ids=CALLS.keys())
def test_wrong_input(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_functions_may_be_constant() -> None:
    layer = FFOFunctionLayer(lambda a, y: a.sum() * 0.0, lambda a, y: a - y, shape=3, dims=(1,))
    assert (layer(A) >= A - 1e-6).all()


def test_tensors_that_functions_close_over_are_refused() -> None:
    weight = torch.ones(3, dtype=D, requires_grad=True)
    derived = weight * 2
    for hidden in (weight, derived):
        layer = FFOFunctionLayer(lambda a, y, w=hidden: (w * (y - a).square()).sum(), shape=3, dims=(1,))
        with pytest.raises(InputError, match=r"not known to the layer \(shape \(3,\)\): pass it as theta"):
            layer(A.clone().requires_grad_())
        with torch.no_grad():
            torch.testing.assert_close(layer(A), A, rtol=1e-7, atol=1e-7)


# Autograd


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_numbers_are_solved_in_double(dtype: torch.dtype) -> None:
    a = A.to(dtype).requires_grad_()
    y = projection()(a)
    assert y.dtype == dtype
    y[:, 0].sum().backward()
    assert a.grad.dtype == dtype
    (wide,) = leaves(A.to(dtype).double())
    exact = projection()(wide)
    exact[:, 0].sum().backward()
    torch.testing.assert_close(y.double(), exact.to(dtype).double(), rtol=0, atol=0)
    torch.testing.assert_close(a.grad, wide.grad.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_prepared(mode: type) -> None:
    layer = projection()
    with mode():
        y = layer(A.clone().requires_grad_())
    assert not y.requires_grad
    with pytest.raises(DerivativeError, match="there is no certificate: the layer was called without gradients"):
        layer.info.certificate  # noqa: B018
    assert layer.info.times.backward == 0.0


def test_repeated_backward_gives_the_same_gradient() -> None:
    (a,) = leaves(A)
    y = projection()(a).square().sum()
    (first,) = torch.autograd.grad(y, a, retain_graph=True)
    (second,) = torch.autograd.grad(y, a)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("hvp", ["difference", "autograd"])
def test_a_second_derivative_is_refused(hvp: str) -> None:
    (a,) = leaves(A)
    (g,) = torch.autograd.grad(projection(hvp=hvp)(a).square().sum(), a, create_graph=True)
    with pytest.raises(DerivativeError, match="differentiable once"):
        torch.autograd.grad(g.sum(), a)


@pytest.mark.parametrize("part", ["objective", "inequality"])
def test_tensors_in_closures_are_refused_where_no_theta_needs_a_gradient(part: str) -> None:
    hidden = torch.ones(3, dtype=D, requires_grad=True)
    if part == "objective":
        layer = FFOFunctionLayer(lambda a, y: (hidden * (y - a).square()).sum(), shape=3, dims=(1,))
    else:
        layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum(), lambda a, y: y - hidden, shape=3, dims=(1,))
    for _ in range(2):
        with pytest.raises(InputError, match="not known to the layer"):
            layer(A)
    with torch.no_grad():
        assert layer(A).isfinite().all()


@pytest.mark.parametrize("needs", [False, True])
def test_tensors_on_branches_not_taken_at_the_start_are_refused(needs: bool) -> None:
    hidden = torch.tensor(1.0, dtype=D, requires_grad=True)

    def objective(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        near = (y - a).square().sum()
        return near + hidden * y.sum() if float(y.detach().sum()) > 0.5 else near

    layer = FFOFunctionLayer(objective, shape=2, dims=(1,))
    with pytest.raises(InputError, match="not known to the layer"):
        layer(torch.full((2,), 5.0, dtype=D, requires_grad=needs))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_forward_mode_is_refused_in_words() -> None:
    with forward_ad.dual_level(), pytest.raises(DerivativeError, match="no forward mode: take gradients by backward"):
        projection()(forward_ad.make_dual(A, torch.ones_like(A)))


def test_torch_func_is_refused_in_words() -> None:
    with pytest.raises(DerivativeError, match=r"does not run inside torch.func"):
        torch.func.jacrev(projection())(A)


def test_a_function_that_forbids_second_derivatives_is_refused_by_autograd_products() -> None:
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g

    layer = FFOFunctionLayer(lambda a, y: distance(a, Identity.apply(y)), shape=3, dims=(1,), hvp="autograd")
    with pytest.raises(DerivativeError, match="use hvp='difference'"):
        layer(A[0].clone().requires_grad_())


def test_wholly_jacobian_row_by_row() -> None:
    found = torch.autograd.functional.jacobian(projection(), A[0])
    # The face of (0.9, 0.8, 0.1) has the third entry at zero.
    expected = torch.tensor([[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=D)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_only_what_is_asked_for_is_computed() -> None:
    values = quadratic()
    expected = gradients(quadratic_layer(), values)
    some = [v.clone().requires_grad_(k == 3) for k, v in enumerate(values)]
    y = quadratic_layer()(*some)
    (torch.cos(1.7 * torch.arange(8, dtype=D)) * y).sum().backward()
    torch.testing.assert_close(some[3].grad, expected[3])
    assert all(v.grad is None for k, v in enumerate(some) if k != 3)


def test_copies_and_pickles() -> None:
    layer = projection(smoothing=Smoothing(0.01, draws=2))
    expected = copy.deepcopy(layer)(A)
    torch.testing.assert_close(pickle.loads(pickle.dumps(layer))(A), expected)
    torch.testing.assert_close(layer(A), expected)


def test_training_recovers_the_parameters_of_a_cost() -> None:
    """A smooth cost whose weights are learned from its solutions."""
    torch.manual_seed(0)
    truth = torch.tensor([1.0, 3.0, 0.5], dtype=D)

    def cost(w: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (w * (y - a).square()).sum() + torch.logsumexp(y, 0)

    layer = FFOFunctionLayer(cost, lambda w, a, y: y.sum().reshape(1) - 1, shape=3, dims=(1, 1))
    a = torch.randn(16, 3, dtype=D)
    target = layer(truth, a).detach()
    logarithms = torch.zeros(3, dtype=D, requires_grad=True)
    optimizer = torch.optim.Adam([logarithms], lr=0.2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = (layer(logarithms.exp(), a) - target).square().mean()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(logarithms.detach().exp(), truth, rtol=0.05, atol=0.02)


# Warm starts and smoothing


def test_warm_starts_by_key() -> None:
    layer = projection()
    first = layer(A, keys=["a", "b", "c"])
    again = layer(A.flip(0), keys=["c", "b", "a"])
    assert layer.info.warm_hits == 3
    torch.testing.assert_close(again.flip(0), first, rtol=1e-8, atol=1e-9)
    layer(100 * A, keys=["a", "b", "c"])
    torch.testing.assert_close(layer(A, warm_start=True), first, rtol=1e-8, atol=1e-9)


def kink(radius: float, draws: int, **options: object) -> FFOFunctionLayer:
    return FFOFunctionLayer(
        lambda x, y: 0.5 * (y - 1).square().sum(),
        lambda x, y: y - x,
        shape=1,
        dims=(0,),
        smoothing=Smoothing(radius, draws=draws, **options),
    )


@pytest.mark.parametrize("at", [0.9, 1.0, 1.05])
def test_smoothing_converges_to_the_derivative_of_the_mean(at: float) -> None:
    """y = E min(1, x + xi), xi ~ U(-r, r): dy/dx = P(x + xi < 1)."""
    radius, draws = 0.2, 1000
    (x,) = leaves(tensor(at))
    layer = kink(radius, draws)
    layer(x).sum().backward()
    probability = (np.clip((1 - at) / radius, -1, 1) + 1) / 2
    assert float(x.grad) == pytest.approx(probability, abs=4 * 0.5 / draws**0.5)
    assert len(layer.info.status) == draws
    assert layer.info.certificate.good.all()


def test_the_smoothed_gradient_is_that_of_its_own_draws() -> None:
    step = 1e-6
    values = [float(kink(0.2, 8, seed=3)(tensor(0.95 + d))) for d in (step, -step)]
    (x,) = leaves(tensor(0.95))
    kink(0.2, 8, seed=3)(x).sum().backward()
    assert float(x.grad) == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-6)


def test_draws_go_on_from_call_to_call_and_batches_are_perturbed_apart() -> None:
    layer, x = kink(0.2, 4), tensor([1.0, 1.0])
    first, second = layer(x), layer(x)
    assert len({float(v) for v in (*first, *second)}) == 4
    (x,) = leaves(x)
    layer(x).sum().backward()
    assert x.grad.shape == (2,)


def test_a_draw_that_fails_takes_its_sample_only() -> None:
    layer = FFOFunctionLayer(
        lambda u, y: y.square().sum(),
        lambda u, y: torch.cat([y - u, -y]),
        shape=1,
        dims=(0,),
        smoothing=Smoothing(0.5, draws=8),
        on_fail="nan",
    )
    (u,) = leaves(tensor([5.0, -0.4]))
    y = layer(u)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()
    y.nansum().backward()
    assert u.grad.isfinite().all()
    layer.runner.options.__dict__["on_fail"] = "raise"
    with pytest.raises(InfeasibleError) as caught:
        layer(u)
    assert caught.value.samples == (1,)
