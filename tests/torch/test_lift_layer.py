"""Lifted problems keep everything a layer has: transforms, devices, names, failures, pickles."""

from __future__ import annotations

import copy
import pickle

import cvxpy as cp
import numpy as np
import pytest
import torch
from cvxpy.atoms.elementwise.trig import sin
from torch.func import jacfwd, jacrev, vmap

from ffo.errors import DerivativeError, InputError, SolverError
from ffo.program.cvxpy import canonicalize
from ffo.torch import FFOLayer, Relax

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def problem() -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    x, a, b = cp.Variable(3, name="x"), cp.Parameter(nonneg=True, name="a"), cp.Parameter(3, name="b")
    rows = [cp.sum(x) <= a * cp.norm(b), x >= -1]
    return cp.Problem(cp.Minimize(a * cp.sum_squares(x - b) + cp.exp(a) * cp.sum(x)), rows), [a, b], x


def values(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.tensor(0.7, dtype=dtype), torch.tensor([0.5, -0.3, 1.2], dtype=dtype)]


def make(**options: object) -> FFOLayer:
    p, parameters, x = problem()
    return FFOLayer(p, parameters, [x], **options)


def test_forward_mode_reverse_mode_and_vmap_agree() -> None:
    layer, (a, b) = make(), values()

    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return layer(a, b)[0]

    for k in (0, 1):
        assert torch.allclose(jacfwd(solve, k)(a, b), jacrev(solve, k)(a, b), atol=1e-9)
    stack = torch.stack([b, 2 * b, -b])
    per_sample = vmap(torch.func.grad(lambda a, b: solve(a, b).sum(), (0, 1)), (None, 0))(a, stack)
    for k in range(3):
        single = torch.func.grad(lambda a, b: solve(a, b).sum(), (0, 1))(a, stack[k])
        assert all(torch.allclose(g[k], s, atol=1e-9) for g, s in zip(per_sample, single, strict=True))


def test_gradcheck() -> None:
    layer = make(solver_args={"eps": 1e-12})
    inputs = [v.requires_grad_() for v in values()]
    assert torch.autograd.gradcheck(lambda a, b: layer(a, b)[0], inputs, eps=1e-5, atol=1e-6, check_forward_ad=True)


def test_single_precision_stays_single_precision() -> None:
    params = [v.requires_grad_() for v in values(torch.float32)]
    (x,) = make()(*params)
    x.sum().backward()
    assert x.dtype is torch.float32
    assert all(p.grad.dtype is torch.float32 for p in params)
    (double,) = make()(*values())
    assert torch.allclose(x.detach().double(), double, atol=1e-5)


def test_second_derivatives_are_refused() -> None:
    a, b = (v.requires_grad_() for v in values())
    (x,) = make()(a, b)
    (first,) = torch.autograd.grad(x.sum(), b, create_graph=True)
    with pytest.raises(DerivativeError):
        torch.autograd.grad(first.sum(), b)


def test_copies_and_pickles_solve_the_same() -> None:
    layer = make()
    (expected,) = layer(*values())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        (found,) = other(*values())
        assert torch.equal(found, expected)


def test_remembered_solutions() -> None:
    layer = make(warm_start=True)
    (first,) = layer(*values())
    (second,) = layer(*values())
    assert torch.allclose(first, second, atol=1e-10)
    a, b = values()
    (keyed,) = layer(a, torch.stack([b, b]), keys=["p", "q"])
    assert torch.allclose(keyed[0], first, atol=1e-10)


@pytest.mark.parametrize("solver", ["CLARABEL", "PIQP", "OSQP"])
def test_every_solver(solver: str) -> None:
    (expected,) = make()(*values())
    (found,) = make(solver=solver)(*values())
    assert torch.allclose(found, expected, atol=1e-7)


def test_expressions_of_shared_parameters_are_not_repeated() -> None:
    layer = make()
    a, b = values()
    parts, _ = layer.canonical.lifted, layer.canonical.given
    assert parts.batched((True, False)) == tuple(0 in own for own in parts.depends)
    (x,) = layer(a, torch.stack([b, b]))
    assert x.shape == (2, 3)


def test_little_is_lifted_and_equal_things_once() -> None:
    """Affine coefficients stay; a*b twice is one parameter; constraints that are DPP are the user's own."""
    x, a, b = cp.Variable(2), cp.Parameter(), cp.Parameter()
    rows = [(a + 2 * b) * x[0] <= 1, a * b * x[1] <= 1]
    p = cp.Problem(cp.Minimize(cp.sum_squares(x) + a * b * cp.sum(x)), rows)
    canonical = canonicalize(p, [a, b], [x])
    assert canonical.given == 2
    assert len(canonical.shapes) == 3
    assert canonical.map.P.shape == (2, 2)


def test_problems_that_are_dpp_are_not_touched() -> None:
    x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
    canonical = canonicalize(cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b))), [A, b], [x])
    assert canonical.lifted is None
    assert canonical.given == 2


@pytest.mark.parametrize("gp", [False, True])
def test_bounds_of_variables_are_those_of_constraints(gp: bool) -> None:
    """CVXPY itself cannot solve problems with such bounds."""
    a, b = cp.Parameter(name="a"), cp.Parameter(2, pos=True, name="b")
    lower, upper = cp.exp(a) / 10, cp.multiply(b, b)
    x, y = cp.Variable(2, pos=gp, bounds=[lower, upper]), cp.Variable(2, pos=gp)
    found = []
    for v, rows in ((x, []), (y, [y >= lower, y <= upper])):
        cost = v[0] + 1 / v[1] if gp else cp.sum_squares(v - np.array([-5, 5])) + b[0] * cp.norm1(v - a)
        sum_of_two = cp.sum(v) <= 20
        layer = FFOLayer(cp.Problem(cp.Minimize(cost), [sum_of_two, *rows]), [a, b], [v], gp=gp)
        params = [torch.tensor(0.3).double().requires_grad_(), torch.tensor([0.9, 0.4]).double().requires_grad_()]
        (solution,) = layer(*params)
        (solution * torch.tensor([1.0, 3.0])).sum().backward()
        found.append([solution, *(v.grad for v in params)])
    expected = torch.tensor([np.exp(0.3) / 10, 0.16], dtype=torch.float64)
    assert torch.allclose(found[0][0], expected)
    assert all(torch.allclose(one, other, atol=1e-8) for one, other in zip(*found, strict=True))
    assert all(g.abs().max() > 0.1 for g in found[0])


def test_bounds_of_variables_are_lifted_and_named() -> None:
    """Without a cone for the exponential; other declarations of the variable stay."""
    a = cp.Parameter(name="a")
    x = cp.Variable((2, 2), symmetric=True, bounds=[cp.exp(a), np.full((2, 2), 2.0)], name="x")
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x))), [a], [x])
    assert all(cone.scalar for cone, _ in layer.canonical.map.cones.blocks)
    (found,) = layer(torch.tensor(0.1, dtype=torch.float64))
    assert torch.allclose(found, torch.full((2, 2), np.exp(0.1), dtype=torch.float64))
    with pytest.raises(SolverError, match="what x was declared to be"):
        layer(torch.tensor(1.0, dtype=torch.float64))


# Signs, failures and names


def test_signs_that_convexity_rests_on_are_checked_per_sample() -> None:
    """CVXPY takes a cube for nonnegative, as it is where a cube may be a variable's."""
    x, a = cp.Variable(2), cp.Parameter(name="a")
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - 1) + a**3 * cp.norm1(x))), [a], [x])
    layer(torch.tensor([0.1, 0.2], dtype=torch.float64))
    with pytest.raises(SolverError, match=r"(?s)sample 1.*parameter expression .*a.* must be nonneg .*entry -8"):
        layer(torch.tensor([0.1, -2.0], dtype=torch.float64))


def test_divisors_of_unknown_sign_are_checked_per_sample() -> None:
    x, a = cp.Variable(2), cp.Parameter(name="a")
    p = cp.Problem(cp.Minimize(cp.quad_over_lin(x, a) - cp.sum(x)))
    layer = FFOLayer(p, [a], [x])
    a_t = torch.tensor([0.5, 3.0], dtype=torch.float64, requires_grad=True)
    (found,) = layer(a_t)
    found.sum().backward()
    assert torch.allclose(found, a_t[:, None] / 2)
    assert a_t.grad.tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(SolverError, match=r"(?s)sample 1.*expression 1.0 / a must be nonneg"):
        layer(torch.tensor([0.5, -2.0], dtype=torch.float64))


def test_declared_signs_of_lifted_parameters_are_checked() -> None:
    with pytest.raises(SolverError, match=r"(?s)sample 0.*parameter 0 \(a\) was declared nonneg"):
        make()(torch.tensor(-0.5, dtype=torch.float64), values()[1])


def test_values_outside_of_a_domain_fail_alone() -> None:
    x, a = cp.Variable(2), cp.Parameter(name="a")
    p = cp.Problem(cp.Minimize(cp.sum_squares(x - 1) + cp.log(a) * cp.sum(x)))
    layer = FFOLayer(p, [a], [x], on_fail="nan")
    a_t = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    (found,) = layer(a_t)
    assert torch.isfinite(found[0]).all()
    assert torch.isnan(found[1]).all()
    found[0].sum().backward()
    assert a_t.grad[0] == pytest.approx(-0.5)


def test_positive_parameters_of_geometric_programs() -> None:
    x, a, b = cp.Variable(pos=True), cp.Parameter(name="a"), cp.Parameter(pos=True, name="b")
    p = cp.Problem(cp.Minimize(x), [x >= cp.exp(a) / (b + 1)])
    layer = FFOLayer(p, [a, b], [x], gp=True)
    (found,) = layer(torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    assert found.item() == pytest.approx(np.exp(0.3) / 1.5, rel=1e-8)
    q = cp.Problem(cp.Minimize(x), [x * cp.power(b - 1, 1) >= 1 / (b + 1)])
    other = FFOLayer(q, [b], [x], gp=True)
    with pytest.raises(SolverError, match=r"expression .*b .*1.* of a geometric program must be positive, .* -0.5"):
        other(torch.tensor(0.5, dtype=torch.float64))


def test_samples_of_geometric_programs_fail_alone() -> None:
    """Outside of the domain of an expression, and where a parameter is not positive."""
    x, y, a, b = cp.Variable(pos=True), cp.Variable(pos=True), cp.Parameter(name="a"), cp.Parameter(pos=True, name="b")
    p = cp.Problem(cp.Minimize(x), [x >= y * b, y >= cp.exp(cp.sqrt(a))])
    layer = FFOLayer(p, [a, b], [x], gp=True, on_fail="nan")
    a_t = torch.tensor([4.0, -1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    b_t = torch.tensor([1.0, 1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    (found,) = layer(a_t, b_t)
    assert torch.isnan(found).tolist() == [False, True, True, False]
    assert found[0].item() == pytest.approx(np.exp(2))
    found.nansum().backward()
    assert a_t.grad.tolist() == pytest.approx([np.exp(2) / 4, 0.0, 0.0, np.exp(1)])
    assert b_t.grad.tolist() == pytest.approx([np.exp(2), 0.0, 0.0, np.exp(1)])
    _, along = torch.func.jvp(lambda b: layer(a_t.detach(), b)[0], (b_t.detach(),), (torch.ones_like(b_t),))
    assert along.tolist() == pytest.approx([np.exp(2), 0.0, 0.0, np.exp(1)])


def test_infeasible_constraints_keep_their_names_and_may_be_relaxed() -> None:
    x, a, b = cp.Variable(2, name="x"), cp.Parameter(name="a"), cp.Parameter(name="b")
    rows = [a * b * cp.sum(x) >= 1, x <= -1]
    p = cp.Problem(cp.Minimize(cp.sum_squares(x - a)), rows)
    layer = FFOLayer(p, [a, b], [x])
    one = torch.tensor(1.0, dtype=torch.float64)
    with pytest.raises(SolverError, match=r"constraint 0 .*a"):
        layer(one, one)
    for chosen in (rows[0], 0):
        relaxed = FFOLayer(p, [a, b], [x], on_fail=Relax(constraints=[chosen]))
        (found,) = relaxed(one, one)
        assert (found <= -1 + 1e-6).all()


OUTSIDE = {
    "sign decides": (lambda x, p: p * cp.square(x), "the sign of p decides"),
    "a product of variables": (lambda x, p: p * x * x, "both factors have variables"),
    "concave": (lambda x, p: cp.exp(p) * cp.sqrt(x), "wrong curvature"),
    "no curvature": (lambda x, p: sin(p) * sin(x), "is not DCP"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_remains_outside_is_shown_with_a_reason(name: str) -> None:
    build, text = OUTSIDE[name]
    x, p = cp.Variable(name="x"), cp.Parameter(name="p")
    with pytest.raises(InputError, match=text) as error:
        FFOLayer(cp.Problem(cp.Minimize(build(x, p))), [p], [x])
    assert "FFOFunctionLayer" in str(error.value)
    assert "x" in str(error.value)
