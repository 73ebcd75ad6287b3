"""Gradients of FFOFunctionLayer: against differences of tight solves, FFOLayer, and closed forms."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from benchmarks.nonlinear import FunctionCase, Reference, cases, gradient_error
from function_problems import D, distance, gradients, leaves, quadratic, quadratic_layer, relative, tensor, weights_of

from ffo.torch import FFOFunctionLayer, FFOLayer

TEN = cases(condition=1e4, n=12)
ERRORS = {"difference": 1e-6, "autograd": 1e-8}
hvps = pytest.mark.parametrize("hvp", ["difference", "autograd"])


@hvps
@pytest.mark.parametrize("case", TEN, ids=lambda case: case.name)
def test_agrees_with_differences_of_tight_solves(case: FunctionCase, hvp: str) -> None:
    layer = FFOFunctionLayer(
        case.objective, case.inequality, case.equality, dims=case.dims, modules=case.modules, hvp=hvp
    )
    error, _ = gradient_error(case, layer)
    assert error <= ERRORS[hvp]
    assert layer.info.certificate.good.all(), layer.info.certificate.reasons(0)


def test_the_ten_problems_are_ill_conditioned_and_constrained() -> None:
    """Checks that the figures above are meaningful."""
    conditions, active = [], 0
    for case in TEN:
        layer = FFOFunctionLayer(
            case.objective, case.inequality, case.equality, dims=case.dims, modules=case.modules, hvp="autograd"
        )
        reference = Reference(case, layer(*leaves(*case.theta), y0=case.start))
        conditions.append(reference.condition())
        active += int(reference.active.sum()) > 0
    assert max(conditions) > 3e3
    assert active >= 7


@pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP"])
@hvps
def test_quadratic_programs_agree_with_ffolayer(solver: str, hvp: str) -> None:
    values = quadratic()
    values[1] = torch.stack([values[1], -0.5 * values[1], values[1].flip(0)])  # a batch of q
    y, shapes = cp.Variable(8), [(8, 8), 8, (6, 8), 6, (2, 8), 2]
    Q, q, G, h, A, b = (cp.Parameter(s, PSD=True) if k == 0 else cp.Parameter(s) for k, s in enumerate(shapes))
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(y, Q) + q @ y), [G @ y <= h, A @ y == b])
    expected = gradients(FFOLayer(problem, [Q, q, G, h, A, b], [y]), values)
    found = gradients(quadratic_layer(solver=solver, hvp=hvp), values)
    for f, e in zip(found, expected, strict=True):
        assert f.shape == e.shape
        assert relative(f, e) <= {"difference": 1e-7, "autograd": 1e-9}[hvp]


@hvps
def test_a_cone_with_smooth_norm_agrees_with_ffolayer(hvp: str) -> None:
    """minimize 1/2 |y - a|^2 + p'y subject to |By + d| <= r: the norm is smooth where the constraint is active."""
    source = torch.Generator().manual_seed(3)
    values = [torch.randn(*s, generator=source, dtype=D) for s in ((5,), (5,), (4, 5), (4,))] + [tensor(0.7)]
    y = cp.Variable(5)
    a, p, B, d, r = cp.Parameter(5), cp.Parameter(5), cp.Parameter((4, 5)), cp.Parameter(4), cp.Parameter()
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - a) + p @ y), [cp.norm(B @ y + d) <= r])
    expected = gradients(FFOLayer(problem, [a, p, B, d, r], [y], solver_args={"eps": 1e-11}), values)
    layer = FFOFunctionLayer(
        lambda a, p, B, d, r, y: distance(a, y) + p @ y,
        lambda a, p, B, d, r, y: (torch.linalg.vector_norm(B @ y + d) - r).reshape(1),
        shape=5,
        dims=(1, 1, 2, 1, 0),
        hvp=hvp,
    )
    for f, e in zip(gradients(layer, values), expected, strict=True):
        assert relative(f, e) <= 1e-6


@hvps
def test_entropy_agrees_with_ffolayer(hvp: str) -> None:
    source = torch.Generator().manual_seed(4)
    values = [torch.randn(6, generator=source, dtype=D), torch.full((6,), 0.3, dtype=D)]
    y, c, u = cp.Variable(6), cp.Parameter(6), cp.Parameter(6)
    problem = cp.Problem(cp.Minimize(c @ y - cp.sum(cp.entr(y))), [cp.sum(y) == 1, y <= u])
    expected = gradients(FFOLayer(problem, [c, u], [y], solver_args={"eps": 1e-11}), values)
    layer = FFOFunctionLayer(
        lambda c, u, y: c @ y + torch.special.xlogy(y, y).sum(),
        lambda c, u, y: y - u,
        lambda c, u, y: y.sum().reshape(1) - 1,
        shape=6,
        dims=(1, 1),
        hvp=hvp,
    )
    found = gradients(layer, values, y0=torch.full((6,), 1 / 6, dtype=D))
    for f, e in zip(found, expected, strict=True):
        assert relative(f, e) <= 1e-5


@pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP", "TRUST-CONSTR"])
def test_the_paper_example_of_a_quadratic_constraint(solver: str) -> None:
    """g = (y - 2)^2, h = x^2 + y^2 - 1: y = sqrt(1 - x^2), whose derivative blows up at x = 1."""
    layer = FFOFunctionLayer(
        lambda x, y: (y - 2).square().sum(), lambda x, y: x**2 + y**2 - 1, shape=1, dims=(0,), solver=solver
    )
    (x,) = leaves(tensor([-0.99, -0.5, 0.0, 0.3, 0.9, 0.999]))
    y = layer(x)
    y.sum().backward()
    exact = x.detach()
    torch.testing.assert_close(y.detach()[:, 0], (1 - exact**2).sqrt(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(x.grad, -exact / (1 - exact**2).sqrt(), rtol=1e-7, atol=1e-9)
    assert layer.info.certificate.good.all()


def test_the_lemma_for_linear_constraints() -> None:
    """dy/dx = P(-G^-1 g_yx) + (I - P) B^+ A, with P the G-orthogonal projection onto the null space of B.

    The problem is  minimize g(x, y)  subject to  A x - B y - b = 0, with a g that is not quadratic.
    """
    source = torch.Generator().manual_seed(5)
    n, m, p = 6, 4, 2
    A, B, b = (torch.randn(*s, generator=source, dtype=D) for s in ((p, m), (p, n), (p,)))
    C, x = torch.randn(n, m, generator=source, dtype=D), torch.randn(m, generator=source, dtype=D)

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(y + C @ x, 0) + 0.5 * (y - C @ x).square().sum() + 0.1 * (y * (C @ x)).sum()

    layer = FFOFunctionLayer(g, equality=lambda x, y: A @ x - B @ y - b, shape=n, dims=(1,), hvp="autograd")
    y = layer(x.requires_grad_())
    found = torch.stack([torch.autograd.grad(y[k], x, retain_graph=True)[0] for k in range(n)])
    at, y = x.detach(), y.detach()
    slope = torch.func.grad(g, argnums=1)
    G, mixed = torch.func.jacrev(slope, argnums=1)(at, y), torch.func.jacrev(slope, argnums=0)(at, y)
    inverse = torch.linalg.inv(G)
    onto_rows = inverse @ B.T @ torch.linalg.solve(B @ inverse @ B.T, B)
    projection = torch.eye(n, dtype=D) - onto_rows
    expected = projection @ (-inverse @ mixed) + onto_rows @ torch.linalg.pinv(B) @ A
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_shared_theta_collect_the_sum_over_the_batch() -> None:
    values = quadratic()
    batch = [torch.stack([v, 0.9 * v, 1.1 * v]) if k == 1 else v for k, v in enumerate(values)]
    layer = quadratic_layer()
    together = leaves(*batch)
    y = layer(*together)
    weights = weights_of(y)
    (weights * y).sum().backward()
    total = [torch.zeros_like(v) for v in values]
    for k in range(3):
        one = leaves(*(v[k] if i == 1 else v for i, v in enumerate(batch)))
        (weights[k] * layer(*one)).sum().backward()
        torch.testing.assert_close(together[1].grad[k], one[1].grad, rtol=1e-7, atol=1e-9)
        total = [t + v.grad for t, v in zip(total, one, strict=True)]
    for i in (0, 2, 3, 4, 5):
        torch.testing.assert_close(together[i].grad, total[i], rtol=1e-7, atol=1e-8)


def test_parameters_of_modules_receive_gradients_in_their_dtype() -> None:
    """A convex network in float32, and the derivative of the solution in its weights by differences."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Softplus(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        network[2].weight.abs_()
    layer = FFOFunctionLayer(
        lambda a, y: network(y).sum() + 0.5 * (y - a).square().sum(),
        lambda a, y: y - 0.4,
        shape=3,
        dims=(1,),
        modules=[network],
        hvp="autograd",
    )
    a = torch.randn(4, 3)
    y = layer(a)
    assert y.dtype == torch.float32
    y.sum().backward()
    found = network[0].weight.grad
    assert found.dtype == torch.float32
    assert {id(p) for p in layer.parameters()} == {id(p) for p in network.parameters()}
    direction = torch.randn_like(network[0].weight)
    values = []
    double = network.double()
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            double[0].weight += step * direction.double()
            values.append(float(layer(a.double()).sum()))
            double[0].weight -= step * direction.double()
    assert float((found.double() * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


def test_a_module_is_a_function_too() -> None:
    class Cost(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(tensor([1.0, 2.0, 4.0]))

        def forward(self, a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (self.weight * (y - a).square()).sum()

    cost = Cost()
    layer = FFOFunctionLayer(cost, equality=lambda a, y: y.sum().reshape(1), shape=3, dims=(1,))
    layer(torch.ones(2, 3, dtype=D))[:, 0].sum().backward()
    # y = a - s / w with s = sum(a) / sum(1 / w)
    w = cost.weight.detach().clone().requires_grad_()
    (2 * (1 - 3 / (1 / w).sum() / w[0])).backward()
    torch.testing.assert_close(cost.weight.grad, w.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_delta_is_the_step_of_the_difference(delta: float) -> None:
    """The error of the central difference falls with the square of delta: y = a^(1/3) has a third derivative."""
    layer = FFOFunctionLayer(
        lambda a, y: (0.25 * y**4 - a * y).sum() + 0.5 * (a * y).pow(2).sum(), shape=1, dims=(0,), delta=delta
    )
    exact = FFOFunctionLayer(
        lambda a, y: (0.25 * y**4 - a * y).sum() + 0.5 * (a * y).pow(2).sum(), shape=1, dims=(0,), hvp="autograd"
    )
    y0 = tensor([1.0])
    (found,), (expected,) = (gradients(k, [tensor(1.2)], y0=y0) for k in (layer, exact))
    assert float((found - expected).abs()) <= 10 * delta**2 + 1e-9


def test_matrices_as_variables() -> None:
    """The projection of a matrix onto those with unit row sums."""
    layer = FFOFunctionLayer(distance, equality=lambda a, Y: Y.sum(1) - 1, shape=(3, 2), dims=(2,))
    (a,) = leaves(torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=D))
    Y = layer(a)
    assert Y.shape == (4, 3, 2)
    torch.testing.assert_close(Y.detach(), (a - (a.sum(2, keepdim=True) - 1) / 2).detach())
    Y[..., 0].sum().backward()
    torch.testing.assert_close(a.grad, torch.tensor([0.5, -0.5], dtype=D).expand(4, 3, 2), rtol=1e-8, atol=1e-9)


def test_no_second_derivative_is_taken_by_default() -> None:
    """A function whose backward pass cannot be differentiated works as well."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return 2 * g * ctx.saved_tensors[0]

    once = FFOFunctionLayer(
        lambda a, y: Square.apply(y - a).sum(), lambda a, y: (Square.apply(y).sum() - 1).reshape(1), shape=3, dims=(1,)
    )
    plain = FFOFunctionLayer(
        lambda a, y: (y - a).square().sum(), lambda a, y: (y.square().sum() - 1).reshape(1), shape=3, dims=(1,)
    )
    values = [tensor([[1.0, 2.0, -1.0], [0.1, 0.2, 0.3]])]
    (found,), (expected,) = gradients(once, values), gradients(plain, values)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(once.info.certificate.good, True)
