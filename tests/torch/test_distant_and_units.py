"""Distant rows change nothing, and neither do the units of variables: on every layer, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from fuzz.exact import QP
from fuzz.judge import Outcome
from fuzz.routes import Route, cvxpy_layer
from fuzz.run import Case

from ffo import solve_qp_batch
from ffo.errors import ZeroGradientWarning
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer

Array = np.ndarray
Blocks = tuple[Array, Array, Array, Array]
N, ROWS = 5, 4


def program(far: tuple[float, float]) -> Blocks:
    """Q, p, G, h of a program with active rows; and two more with distant bounds."""
    rng = np.random.default_rng(0)
    R, G = rng.normal(size=(N, N)), rng.normal(size=(ROWS + 2, N))
    return R @ R.T + np.eye(N), 3 * rng.normal(size=N), G, np.r_[rng.uniform(-1, 0.5, ROWS), far]


def by_layer(Q: Array, p: Array, G: Array, h: Array, gradients: bool, sparse: bool = False) -> tuple[Array, Array]:
    tensors = [torch.tensor(v) for v in (Q, p, G, h)]
    tensors[1].requires_grad_(gradients)
    if sparse:
        tensors[0], tensors[2] = tensors[0].to_sparse(), tensors[2].to_sparse()
    layer = FFOQPLayer()
    z = layer(*tensors)
    return _finished(layer, z, tensors[1], gradients)


def by_cvxpy(Q: Array, p: Array, G: Array, h: Array, gradients: bool) -> tuple[Array, Array]:
    tensors = [torch.tensor(v) for v in (Q, p, G, h)]
    tensors[1].requires_grad_(gradients)
    layer = cvxpy_layer(tuple((n, t.shape) for n, t in zip("QpGh", tensors, strict=True)), None, "auto")
    return _finished(layer, layer(*tensors)[0], tensors[1], gradients)


def by_constants(Q: Array, p: Array, G: Array, h: Array, gradients: bool) -> tuple[Array, Array]:
    """The same with the bounds in the problem, as CVXPY users write them."""
    z, q = cp.Variable(N), cp.Parameter(N)
    layer = FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.quad_form(z, cp.psd_wrap(Q)) + q @ z), [G @ z <= h]), [q], [z])
    at = torch.tensor(p).requires_grad_(gradients)
    return _finished(layer, layer(at)[0], at, gradients)


def by_functions(Q: Array, p: Array, G: Array, h: Array, gradients: bool) -> tuple[Array, Array]:
    Qt, Gt, ht = torch.tensor(Q), torch.tensor(G), torch.tensor(h)
    layer = FFOFunctionLayer(lambda q, z: 0.5 * z @ Qt @ z + q @ z, lambda q, z: Gt @ z - ht, shape=N, dims=(1,))
    at = torch.tensor(p).requires_grad_(gradients)
    return _finished(layer, layer(at), at, gradients)


def by_arrays(Q: Array, p: Array, G: Array, h: Array, gradients: bool) -> tuple[Array, Array]:
    return solve_qp_batch(Q, p, G, h).z, np.zeros(N)


def _finished(layer: torch.nn.Module, z: torch.Tensor, p: torch.Tensor, gradients: bool) -> tuple[Array, Array]:
    if not gradients:
        return z.numpy(), np.zeros(N)
    (gradient,) = torch.autograd.grad(z.sum(), [p])
    assert layer.info.certificate.good.all()
    return z.detach().numpy(), gradient.numpy()


LAYERS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "dense": by_layer,
    "sparse": lambda *blocks: by_layer(*blocks, sparse=True),
    "parameters of CVXPY": by_cvxpy,
    "constants of CVXPY": by_constants,
    "functions": by_functions,
    "arrays": by_arrays,
}


@pytest.mark.parametrize("far", [(1e4, 1e6), (1e8, 1e5), (1e10, 1e12), (1e14, 1e4), (1e14, 1e14)])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_distant_rows_change_nothing(layer: str, gradients: bool, far: tuple[float, float]) -> None:
    Q, p, G, h = program(far)
    near, slopes = LAYERS[layer](Q, p, G[:ROWS], h[:ROWS], gradients)
    z, gradient = LAYERS[layer](Q, p, G, h, gradients)
    np.testing.assert_allclose(z, near, rtol=0, atol=1e-8)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "route", [Route(), Route(derivative="none"), Route("sparse"), Route("array", derivative="none")]
)
def test_units_of_variables(route: Route) -> None:
    """Columns scaled by 10^-6 to 10^6: nothing is wrong, and flags only with a reason."""
    rng, alarms = np.random.default_rng(3), 0
    for index in range(60):
        n, m = int(rng.integers(2, 5)), 3
        d = 10.0 ** (rng.choice([-1, 1], n) * rng.uniform(4, 6, n))
        R, G, z = rng.normal(size=(n, n)), rng.normal(size=(m, n)), rng.normal(size=n)
        slack, force = np.where(rng.random((2, m)) < 0.5, 0.0, rng.uniform(0.3, 2, (2, m)))
        force[slack > 0] = 0.0
        Q = R @ R.T + 0.1 * np.eye(n)
        qp = QP(p=d * -(Q @ z + G.T @ force), Q=d[:, None] * Q * d, G=G * d, h=G @ z + slack)
        verdicts = Case([qp], [rng.normal(size=n) / d], index).verdicts(route)
        assert not [v for v in verdicts if v.outcome.wrong or v.outcome is Outcome.FALSE_REFUSAL], index
        alarms += sum(v.outcome is Outcome.FALSE_ALARM for v in verdicts)
    assert alarms <= 1


def bounded(seed: int) -> tuple[Array, Array, Array, Array]:
    """Q, p and lb of a program whose first variables are held at bounds of zero, beside others of 1e5; and which."""
    rng = np.random.default_rng(seed)
    R, held = rng.normal(size=(N, N)), np.arange(N) < N // 2
    Q, z = R @ R.T + np.eye(N), np.where(held, 0.0, 1e5 * rng.normal(size=N))
    return Q, np.where(held, 1e5 * rng.uniform(1, 2, N), 0.0) - Q @ z, np.where(held, 0.0, -np.inf), held


@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "DAQP", "OSQP"])
@pytest.mark.parametrize("backward", ["direct", "iterative"])
def test_a_variable_held_at_zero_is_zero(solver: str | None, backward: str) -> None:
    """Rounding errors of large variables, 1e-12, are no error of theirs, but one of a bound of zero."""
    for seed in range(5):
        Q, p, lb, held = (torch.tensor(v) for v in bounded(seed))
        layer = FFOQPLayer(solver=solver, backward=backward)
        z = layer(Q, p, None, None, None, None, lb=lb)
        assert (z[held] == 0.0).all()
        assert layer.info.residual.max() <= 1e-13


def test_a_variable_held_at_zero_by_a_row_is_zero() -> None:
    z, p = cp.Variable(N), cp.Parameter(N)
    for seed in range(5):
        Q, q, _, held = bounded(seed)
        cost = 0.5 * cp.quad_form(z, cp.psd_wrap(Q)) + p @ z
        layer = FFOLayer(cp.Problem(cp.Minimize(cost), [3.0 * z[: N // 2] >= 0.0]), [p], [z])
        (found,) = layer(torch.tensor(q))
        assert (found[torch.tensor(held)] == 0.0).all()


@pytest.mark.parametrize("side", [1e4, 1e6, 3.7e8, 1e10, 1e14])
@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP", "DENSE"])
def test_distant_rows_beside_opposite_ones_change_nothing(solver: str | None, side: float) -> None:
    """Multipliers of opposite rows are not bounded. They grew with the side, and the costs were lost in their rounding
    errors: the solution, zero, was off by 2e-16 of the side."""
    Q = np.array([[2.5, 1.2, -0.6, -0.9], [1.2, 2.7, -1.3, 1.7], [-0.6, -1.3, 4.0, 0.5], [-0.9, 1.7, 0.5, 3.1]])
    G = np.array(
        [[2, 2, 0, 0], [-2, -2, 0, 0], [1, 1, 2, 1], [2, 2, -2, -1], [-419, -419, 0, 0], [-1.3, -0.6, -1.6, 0.1]]
    )
    p, h = -G.T @ [0.0, 0.52, 0.0, 0.52, 0.0025, 0.0], np.append(np.zeros(5), side)
    found = solve_qp_batch(Q + 0.2 * np.eye(4), p, G, h, solver=solver)
    assert np.abs(found.z).max() < 1e-9
    assert np.abs(found.lam).max() < 1e6


@pytest.mark.parametrize("side", [1e9, 1e12, 8927646004037.0, 1e13, 1e14])
@pytest.mark.parametrize("solver", [None, "CLARABEL", "PIQP"])
def test_smaller_multipliers_do_not_move_the_solution(solver: str | None, side: float) -> None:
    """It is zero. Newton's method from smaller multipliers moved it by rounding errors of the distant side: by 2e-7."""
    Q = np.array([[5.3125, -2.875, -2.1875], [-2.875, 2.75, 0.25], [-2.1875, 0.25, 3.9375]])
    rows = [[-0.5, 1, -1.25], [-1, -0.25, 2], [-1.5, -1, -1.5], [6, 4, 6], [-0.5, -1.5, 1.25], [0.5, 1.5, -1.25]]
    G = np.array([*rows, [1.5, 4.5, -3.75], [1.75, -1.75, 0]])
    found = solve_qp_batch(Q, np.array([1, -6.0625, 3.5]), G, np.append(np.zeros(7), side), solver=solver)
    assert np.abs(found.z).max() < 1e-9


def beside_opposite_rows(seed: int, costly: bool = True) -> Blocks:
    """Q, p, G, h of a program whose solution is zero, with opposite rows and a distant one; `costly`: whether p is not
    zero. Entries are multiples of a quarter."""
    rng = np.random.default_rng(seed)
    n, side = int(rng.integers(2, 5)), np.round(10 ** rng.uniform(12, 14))
    row, other, far = rng.integers(-8, 9, size=(3, n)) / 4.0
    G = np.array([row, -row * 2.0 ** int(rng.integers(-4, 5)), other])
    G, B = G[np.abs(G).sum(axis=1) > 0], rng.integers(-8, 9, size=(n, n)) / 4.0
    force = rng.integers(0, 5, size=len(G)) / 4.0
    return B @ B.T + 0.25 * np.eye(n), -G.T @ force * costly, np.vstack([G, far]), np.append(np.zeros(len(G)), side)


@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP"])
def test_zero_solutions_beside_distant_rows(solver: str | None) -> None:
    """A side of 1e13 that z = 0 satisfies says nothing about the size of z, if the costs do: 3e-6 counted as zero."""
    for seed in range(150):
        Q, p, G, h = beside_opposite_rows(seed)
        found = solve_qp_batch(Q, p, G, h, solver=solver)
        assert np.abs(found.z).max() < 1e-9, seed
        assert np.abs(found.lam).max() < 1e7, seed
        assert np.abs(Q @ found.z + p + G.T @ found.lam).max() < 1e-9, seed


@pytest.mark.parametrize("solver", [None, "CLARABEL", "PIQP"])
def test_no_costs_no_multipliers(solver: str | None) -> None:
    """Where all costs are zero, multipliers of opposite rows were as large as the distant side."""
    for seed in range(40):
        found = solve_qp_batch(*beside_opposite_rows(seed, costly=False), solver=solver)
        assert np.abs(found.z).max() < 1e-9, seed
        assert np.abs(found.lam).max() < 1e3, seed


ALONG_A_LINE = {  # Q, p, G, h, and the smallest objective
    "origin": ([[1600, -1280], [-1280, 1024]], [0, -1], [[0, 0.5], [1.5, 1], [-0.5, 1.25], [-1.75, 1]],
               [0, 128, 1024, 2**45], 0.0),
    "one row": ([[1638400, -983040], [-983040, 589824]], [491520, -294914.5], [[0, 2], [-1.5, 0.75]], [3.5, 2**46],
                -73732.375),
    "two rows": ([[3136, -1792], [-1792, 1024]], [-447.1875, 255.3125], [[0.75, -0.25], [-2, 1.5], [1, 0.5]],
                 [0.0625, -0.375, 2**46], -31.828125),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONG_A_LINE)
def test_costs_beside_a_large_point_without_curvature(case: str) -> None:
    """Along a line Q does not curve. At 1e13 the costs were lost in the terms of Qz, and any point there would do."""
    Q, p, G, h, least = (np.array(v, dtype=float) for v in ALONG_A_LINE[case])
    for solver in (None, "DENSE"):
        z = solve_qp_batch(Q, p, G, h, solver=solver).z
        np.testing.assert_allclose(z @ Q @ z / 2 + p @ z, least, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("side", [1e4, 1e8, 1e12])
@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP"])
def test_opposite_rows_hold_without_costs(solver: str | None, side: float) -> None:
    """Multipliers of zero would make the rows weakly active, and the derivative that of a program without them."""
    Q, G = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double(), torch.tensor([[1.0, -0.5], [-2, 1], [0.75, 0.25]]).double()
    p, layer = torch.zeros(2).double().requires_grad_(), FFOQPLayer(solver=solver)
    layer(Q, p, G, torch.tensor([0.0, 0.0, side]).double()).sum().backward()
    np.testing.assert_allclose(p.grad.numpy(), [-0.375, -0.75], rtol=1e-9)
    assert layer.info.certificate.good.all()


@pytest.mark.parametrize("side", [1e4, 1e6, 1e7, 1e8, 1e9, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("solver", [None, "CLARABEL"])
def test_distant_rows_beside_norms(solver: str | None, side: float) -> None:
    """A norm among the costs, and a ball as a constraint: the distant rows decided the units, and the solution was off
    by one, or refused."""
    z, p = cp.Variable(2), cp.Parameter(2)
    far = [np.array([[-1, 0.5], [0.25, 1]]) @ z <= [side, 2**15 * side]]
    costs = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(z) + cp.norm(z) - p @ z), far)
    ball = cp.Problem(cp.Maximize(p @ z), [cp.norm(z) <= 2, *far])
    at = torch.tensor([0.0, 3.0]).double()
    for problem in (costs, ball):
        layer = FFOLayer(problem, [p], [z], solver=solver)
        np.testing.assert_allclose(layer(at)[0].numpy(), [0, 2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", [2048.125, 1e6, 1e9, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP"])
def test_not_unbounded_beside_a_distant_row(solver: str | None, side: float) -> None:
    Q, z = np.diag([0, 0, 512.0]), np.array([-1, 1.75, -0.75])
    G = np.array([[1.75, 0.75, -1.5], [-1, 1.25, -1.5], [-1, 0, -1.75], [1.5, 1.25, 0.75], [0, 0.75, -1.25]])
    p, h = -Q @ z - G.T @ [0.0625, 2.0**-9, 0, 0, 0], np.array([0.6875, 4.3125, 4.3125, 2048.125, side])
    found = solve_qp_batch(Q, p, G, h, solver=solver)
    np.testing.assert_allclose(found.z[2], z[2], rtol=1e-9)  # the others are not unique
    np.testing.assert_allclose(found.z @ Q @ found.z / 2 + p @ found.z, z @ Q @ z / 2 + p @ z, rtol=1e-9)


@pytest.mark.parametrize("side", [1.0, 1e6, 2.0**39, 1e14])
@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP"])
def test_a_vertex_at_zero_does_not_move(solver: str | None, side: float) -> None:
    """Derivatives had the units of the distant row: 0.4 instead of zero beside 5e11."""
    G = np.array(
        [[-2, 0.5, 1.5, 1, 0.25], [7.998779296875, -2.00146484375, -6.001220703125, -4.001953125, -1.000732421875],
         [2, 0.5, 1.5, 0.25, 0.5], [-1.5, -0.25, 0.75, -0.5, 1.5], [1, -0.25, -0.5, -1.25, 1.75]]
    )  # fmt: skip
    A, h = np.array([[0, 0.5, 1.75, 1, 2]]), np.array([0, 0, 0, 0, side])
    p = torch.tensor(-(G.T @ [0.75, 0.1875, 1.75, 1.75, 0] + A.T @ [0.75])).requires_grad_()
    layer = FFOQPLayer(solver=solver)
    z = layer(None, p, *(torch.tensor(v) for v in (G, h, A, np.zeros(1))))
    with pytest.warns(ZeroGradientWarning):
        (z @ torch.arange(1.0, 6.0, dtype=torch.double)).backward()
    assert z.abs().max() < 1e-12
    assert p.grad.abs().max() < 1e-9
    assert layer.info.certificate.good.all()


@pytest.mark.parametrize("side", [1e2, 1e6, 1e9, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("bound", [1.0, 1e-2, 1e-5])
@pytest.mark.parametrize("curvature", [0.0, 1e-8, 1e-12])
def test_a_vertex_beside_a_distant_row_is_good(curvature: float, bound: float, side: float) -> None:
    """Regularisation leaves a large residual in the first step of a ghost solve; that was no reason to stop."""
    p, h = (torch.tensor(v, dtype=torch.double, requires_grad=True) for v in ([1.0], [-bound, side]))
    layer = FFOQPLayer()
    z = layer(torch.tensor([[curvature]]).double(), p, torch.tensor([[-1.0], [1.0]]).double(), h)
    z.sum().backward()
    assert layer.info.certificate.good.all()
    np.testing.assert_allclose(h.grad, [-1, 0], rtol=0, atol=1e-9)
    assert abs(float(p.grad)) < 1e-9


#: Q, p, G, h, solution: costs of 1e-9 to 1e-8 of the others along the null vector of Q
NULL_COSTS = [
    ([[2.25, 0], [0, 0]], [-1207959554.25, 3.75], [[-0.5, -1.5], [2, -1], [-1, 2]],
     [-268460032, 1073725440, 536903680], [536870912, 16384]),
    ([[3.0625, 0], [0, 0]], [3288334335.75, 1], [[0.25, -1], [-0.5, 1.25], [-0.25, -2]],
     [-268435456, 1073741824, 4563402752], [-1073741824, 0]),
    ([[0.0625, 0.4375], [0.4375, 3.0625]], [3669759.9375, 25688320.25], [[0.25, -1], [-1.5, 2], [1.75, 0]],
     [8389632, 50325504, 4201472], [4096, -8388608]),
]  # fmt: skip


@pytest.mark.parametrize("solver", [None, "CLARABEL", "PIQP", "DENSE"])
@pytest.mark.parametrize("blocks", NULL_COSTS, ids=["two rows", "one row", "dense"])
def test_costs_along_a_direction_without_curvature(blocks: tuple[list, ...], solver: str | None) -> None:
    """Off by half the size of the solution: rows far from active, but with the largest multipliers, were held."""
    *program, expected = (np.array(v, dtype=float) for v in blocks)
    found = solve_qp_batch(*program, solver=solver)
    np.testing.assert_allclose(found.z, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP", "DENSE"])
def test_sides_of_all_sizes(solver: str | None) -> None:
    """Inactive rows with sides from 1e3 to 1e12, without a gap that tells which are distant."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(1, 6)), int(rng.integers(1, 8))
        R, p, G, h = rng.normal(size=(n, n)), rng.normal(size=n), rng.normal(size=(m, n)), 10 ** rng.uniform(3, 12, m)
        Q = R @ R.T + np.eye(n)
        np.testing.assert_allclose(solve_qp_batch(Q, p, G, h, solver=solver).z, np.linalg.solve(Q, -p), atol=1e-9)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("block", ["p", "h"])
def test_units_are_not_those_of_a_refused_sample(block: str, bad: float) -> None:
    """Costs and bounds that need scaling, a shared matrix: a sample that is not finite does not change the others."""
    p, h = torch.tensor([[-0.3], [-2.0], [1.0]]), torch.tensor([[8e8, 0.1], [5e8, 0.2], [6e8, 0.3]])
    G, layer = torch.tensor([[1e-3], [-6e-3]]), FFOQPLayer(on_fail="nan")
    alone = layer(None, p[:2].double(), G.double(), h[:2].double())
    data = {"p": p.double(), "h": h.double()}
    data[block][2, 0] = bad if block == "p" else -abs(bad)
    together = layer(None, data["p"], G.double(), data["h"])
    assert layer.info.ok.tolist() == [True, True, False]
    torch.testing.assert_close(together[:2], alone, rtol=1e-9, atol=0.0)
