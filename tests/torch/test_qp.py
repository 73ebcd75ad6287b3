"""FFOQPLayer: results for every shape of program and every way to pass its blocks."""

from __future__ import annotations

import gc
from unittest import mock

import numpy as np
import pytest
import qps
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from qps import KINDS, around, call, known_qp, loss_of, stacked, tensors

from ffo.torch import FFOQPLayer, QPSolution, qp

#: the layer's own choice, and the sparse core
ROUTES = {"own": {}, "core": {"solver_args": {"eps": 1e-10}}}
SPARSE = {"coo": lambda t: t.to_sparse_coo(), "csr": lambda t: t.to_sparse_csr(), "csc": lambda t: t.to_sparse_csc()}
BETA = "ignore:Sparse (CSR|CSC) tensor support is in beta:UserWarning"

route = pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
kind = pytest.mark.parametrize("known", KINDS.values(), ids=KINDS)


@route
@kind
def test_solution_and_multipliers_are_the_known_ones(known: qps.KnownQP, options: dict[str, object]) -> None:
    layer = FFOQPLayer(duals=True, **options)
    found = call(layer, tensors(known.blocks))
    assert isinstance(found, QPSolution)
    for name, value, expected in zip(QPSolution._fields, found, known.answer, strict=True):
        assert value.shape == expected.shape, name
        np.testing.assert_allclose(value.detach().numpy(), expected, atol=1e-9, err_msg=name)


@route
@kind
def test_gradients_of_all_outputs_in_all_blocks(known: qps.KnownQP, options: dict[str, object]) -> None:
    layer = FFOQPLayer(duals=True, **options)
    blocks = tensors(known.blocks)
    if "Q" in blocks and np.linalg.matrix_rank(known.blocks["Q"]) < len(known.z):
        blocks["Q"].requires_grad_(False)  # half of the nearby matrices are not convex

    def solve(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(v for v in call(layer, dict(zip(blocks, values, strict=True))) if v.numel())

    assert torch.autograd.gradcheck(solve, tuple(blocks.values()), atol=1e-6, rtol=1e-4)


@route
@kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_solutions_and_gradients_may_be_changed_in_place(
    known: qps.KnownQP, options: dict[str, object], dtype: torch.dtype
) -> None:
    """As optimizers do, and activations; saved values are not touched by it."""
    layer = FFOQPLayer(duals=True, **options)
    blocks = {name: v.detach().to(dtype).requires_grad_() for name, v in tensors(known.blocks).items()}
    outputs = [v for v in call(layer, blocks) if v.numel()]
    values = [v.detach().clone() for v in outputs]
    for v in outputs:
        v.mul_(2.0)
    loss = sum(v.sum() for v in outputs)
    first = torch.autograd.grad(loss, tuple(blocks.values()), retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        g.mul_(0.0)
    for g, expected in zip(torch.autograd.grad(loss, tuple(blocks.values())), kept, strict=True):
        torch.testing.assert_close(g, expected, rtol=0, atol=0)
    for v, expected in zip(outputs, values, strict=True):
        torch.testing.assert_close(v, 2.0 * expected, rtol=0, atol=0)


@route
@pytest.mark.parametrize("shared", [(), *[(k,) for k in qps.ORDER], qps.MATRICES, ("p", "h", "b", "lb", "ub", "lower")])
def test_blocks_are_batched_or_shared_in_any_mixture(shared: tuple[str, ...], options: dict[str, object]) -> None:
    """The gradient of a shared block is the sum over samples that are solved alone."""
    blocks = around(KINDS["everything"], 3, shared)
    layer = FFOQPLayer(duals=True, **options)
    found, batch_gradients = qps.gradients(layer, blocks)
    total = {k: np.zeros_like(v) for k, v in blocks.items()}
    for i in range(3):
        alone = {k: v if k in shared else v[i] for k, v in blocks.items()}
        expected, each = qps.gradients(layer, alone)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f[i], e, rtol=0, atol=1e-9)
        for k, g in each.items():
            total[k][...] += g if k in shared else 0.0
            if k not in shared:
                total[k][i] = g
    for k, g in batch_gradients.items():
        np.testing.assert_allclose(g, total[k], rtol=1e-7, atol=1e-8, err_msg=k)


@pytest.mark.parametrize("empty", [lambda n: None, lambda n: torch.empty(0), lambda n: torch.empty(0, n)])
def test_absent_blocks_are_none_or_empty(empty: object) -> None:
    known = KINDS["inequalities"]
    b = tensors(known.blocks)
    nothing = empty(4)
    rhs = None if nothing is None else torch.empty(0)
    z = FFOQPLayer()(b["Q"], b["p"], b["G"], b["h"], nothing, rhs, lb=rhs, ub=rhs, lower=rhs)
    np.testing.assert_allclose(z.detach().numpy(), known.z, atol=1e-9)


def test_qpths_empty_variables_and_positional_order() -> None:
    """QPFunction()(Q, p, G, h, Variable(), Variable())."""
    known = KINDS["inequalities and equalities"]
    b = tensors(known.blocks)
    z = FFOQPLayer()(b["Q"], b["p"], b["G"], b["h"], b["A"], b["b"])
    np.testing.assert_allclose(z.detach().numpy(), known.z, atol=1e-9)
    e = torch.autograd.Variable(torch.Tensor())
    z = FFOQPLayer()(b["Q"], b["p"], e, e, b["A"], b["b"])
    assert z.shape == (4,)
    batched_empty = torch.empty(3, 0, 4, dtype=torch.float64)
    z = FFOQPLayer()(b["Q"], b["p"].expand(3, 4), batched_empty, torch.empty(3, 0), b["A"], b["b"])
    assert z.shape == (3, 4)


@pytest.mark.filterwarnings(BETA)
@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
def test_sparse_matrices_have_gradients_on_their_nonzeros(layout: str, batched: bool) -> None:
    known = KINDS["everything"]
    dense = around(known, 3, () if batched else qps.MATRICES)
    mask = {}
    rng = np.random.default_rng(0)
    for k in ("G", "A"):
        keep = rng.random(known.blocks[k].shape) < 0.6
        keep[:, 0] = True
        mask[k], dense[k] = keep, dense[k] * keep
    dense["h"], dense["lower"] = dense["h"] + 3.0, dense["lower"] - 3.0  # feasible without these entries
    mask["Q"] = np.ones((6, 6), dtype=bool)
    expected, gradients = qps.gradients(FFOQPLayer(), dense)
    blocks = tensors(dense)
    for k in qps.MATRICES:
        blocks[k] = SPARSE[layout](torch.tensor(dense[k])).requires_grad_()
    found = call(FFOQPLayer(), blocks)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    # not .backward(): torch accumulates no gradients on CSC leaves
    for k, grad in zip(dense, torch.autograd.grad(loss_of(found), [blocks[k] for k in dense]), strict=True):
        if k not in qps.MATRICES:
            np.testing.assert_allclose(grad.numpy(), gradients[k], atol=1e-7, err_msg=k)
            continue
        assert grad.shape == blocks[k].shape
        np.testing.assert_allclose(grad.to_dense().numpy(), gradients[k] * mask[k], atol=1e-7, err_msg=k)


def test_samples_may_have_sparsity_patterns_of_their_own() -> None:
    known = [known_qp(s, equalities=0) for s in (20, 21)]
    blocks = stacked([k.blocks for k in known])
    blocks["G"][0, 0, :2] = 0
    blocks["G"][1, 1, 2:] = 0
    expected, gradients = qps.gradients(FFOQPLayer(), blocks)
    given = tensors(blocks)
    G = torch.tensor(blocks["G"]).to_sparse_coo().requires_grad_()
    found = call(FFOQPLayer(), given | {"G": G})
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    loss_of(found).backward()
    np.testing.assert_allclose(G.grad.to_dense().numpy(), gradients["G"] * (blocks["G"] != 0), atol=1e-7)


def test_sparse_values_computed_from_parameters() -> None:
    """The nonzeros as outputs of a network."""
    known = KINDS["inequalities"]
    index = torch.tensor(np.argwhere(np.ones_like(known.blocks["G"])).T)

    def solve(values: torch.Tensor) -> torch.Tensor:
        G = torch.sparse_coo_tensor(index, values, known.blocks["G"].shape, check_invariants=True)
        return call(FFOQPLayer(), tensors(known.blocks, requires_grad=False) | {"G": G})

    values = torch.tensor(known.blocks["G"].ravel(), requires_grad=True)
    assert torch.autograd.gradcheck(solve, (values,), atol=1e-6, rtol=1e-4)


def test_an_asymmetric_q_counts_by_its_symmetric_part() -> None:
    known = KINDS["inequalities"]
    skew = np.triu(np.ones((4, 4)), 1)
    blocks = {**known.blocks, "Q": known.blocks["Q"] + skew - skew.T}
    (z, expected), (found, wanted) = (
        [o[i] for o in (qps.gradients(FFOQPLayer(), blocks), qps.gradients(FFOQPLayer(), known.blocks))] for i in (0, 1)
    )
    torch.testing.assert_close(z, expected)
    np.testing.assert_allclose(found["Q"], wanted["Q"], atol=1e-10)
    np.testing.assert_allclose(found["Q"], found["Q"].T, atol=1e-12)


@route
@pytest.mark.filterwarnings("ignore:the gradient of .* depend on each other:ffo.errors.GradientWarning")  # in A
def test_rows_of_zeros_and_dependent_equalities(options: dict[str, object]) -> None:
    """0'z <= 1, 0'z = 0 and a multiple of a row are redundant: z and its derivative do not change."""
    blocks, zero = KINDS["inequalities and equalities"].blocks, np.zeros((1, 4))
    more = {
        **blocks,
        "G": np.concatenate([blocks["G"], zero]),
        "h": np.concatenate([blocks["h"], [1.0]]),
        "A": np.concatenate([blocks["A"], zero, 2 * blocks["A"]]),
        "b": np.concatenate([blocks["b"], [0.0], 2 * blocks["b"]]),
    }
    same_solution(blocks, more, options)


@route
@pytest.mark.filterwarnings("ignore:the gradient of .* (weakly active|depend on each other):ffo.errors.GradientWarning")
def test_a_repeated_active_inequality(options: dict[str, object]) -> None:
    """Its multiplier may be on either row, so that one may look weakly active, or on both, which then depend on each
    other; the derivative of z in the objective is unique."""
    known = KINDS["inequalities and equalities"]
    blocks, active = known.blocks, [int(np.argmax(known.lam))]
    more = {
        **blocks,
        "G": np.concatenate([blocks["G"], blocks["G"][active]]),
        "h": np.concatenate([blocks["h"], blocks["h"][active]]),
    }
    same_solution(blocks, more, options)


def same_solution(blocks: dict[str, np.ndarray], more: dict[str, np.ndarray], options: dict[str, object]) -> None:
    z, plain = qps.gradients(FFOQPLayer(**options), blocks)
    again, found = qps.gradients(FFOQPLayer(**options), more)
    torch.testing.assert_close(again, z, rtol=0, atol=1e-8)
    for k in ("Q", "p"):
        np.testing.assert_allclose(found[k], plain[k], atol=1e-6, err_msg=k)


@route
def test_sides_that_are_infinite_for_some_samples_only(options: dict[str, object]) -> None:
    known, size = KINDS["everything"], 6
    blocks = around(known, size, ("Q", "G", "A"))
    rng = np.random.default_rng(1)
    for name, infinity in (("h", np.inf), ("ub", np.inf), ("lower", -np.inf), ("lb", -np.inf)):
        blocks[name][rng.random(blocks[name].shape) < 0.3] = infinity
    blocks["ub"][:, 0] = np.inf
    layer = FFOQPLayer(duals=True, **options)
    found, joint = qps.gradients(layer, blocks)
    assert layer.info.ok.all()
    assert layer.info.certificate.good.shape == (size,)
    assert np.isfinite(layer.info.certificate.ghost_residual).all()
    total = {k: np.zeros_like(blocks[k]) for k in qps.MATRICES}
    for i in range(size):
        alone = {k: v if k in qps.MATRICES else v[i] for k, v in blocks.items()}
        expected, each = qps.gradients(FFOQPLayer(duals=True, **options), alone)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f[i], e, rtol=0, atol=1e-8)
        for k, g in each.items():
            if k in qps.MATRICES:
                total[k] += g
            else:
                np.testing.assert_allclose(joint[k][i], g, atol=1e-7, err_msg=k)
    for k, g in total.items():
        np.testing.assert_allclose(joint[k], g, atol=1e-7, err_msg=k)
    for name in ("h", "ub", "lower", "lb"):
        assert (joint[name][np.isinf(blocks[name])] == 0).all()


def test_infinite_sides_with_keys_failures_and_means() -> None:
    p = np.random.default_rng(0).normal(size=(4, 3))
    lb = np.zeros((4, 3))
    lb[1], lb[2, 0] = -np.inf, -np.inf
    layer = FFOQPLayer()
    for hits in (0, 4):
        z = layer(torch.eye(3, dtype=torch.float64), torch.tensor(p), lb=torch.tensor(lb), keys=range(4))
        np.testing.assert_allclose(z.numpy(), np.maximum(-p, lb), atol=1e-9)
        assert layer.info.warm_hits == hits
    ub = torch.full((4, 3), torch.inf, dtype=torch.float64)
    ub[3, 1] = -1.0  # infeasible with lb = 0
    failing = FFOQPLayer(on_fail="nan", reduction="mean", solver="DAQP")
    Q = torch.eye(3, dtype=torch.float64, requires_grad=True)
    z = failing(Q, torch.tensor(p), lb=torch.tensor(lb), ub=ub)
    np.testing.assert_allclose(z[:3].detach().numpy(), np.maximum(-p, lb)[:3], atol=1e-9)
    assert z[3].isnan().all()
    assert [s.name for s in failing.info.status] == ["SOLVED"] * 3 + ["INFEASIBLE"]
    z[:3].sum().backward()
    mean = Q.grad.clone()
    Q.grad = None
    FFOQPLayer()(Q, torch.tensor(p[:3]), lb=torch.tensor(lb[:3])).sum().backward()
    torch.testing.assert_close(mean, Q.grad / 4)


def test_all_sides_infinite_is_no_constraint() -> None:
    known = KINDS["no constraints"]
    b = tensors(known.blocks)
    inf = torch.full((4,), torch.inf, dtype=torch.float64)
    z, _, lam, mu = FFOQPLayer(duals=True)(
        b["Q"], b["p"], torch.ones(2, 4, dtype=torch.float64), inf[:2], lb=-inf, ub=inf
    )
    np.testing.assert_allclose(z.detach().numpy(), known.z, atol=1e-9)
    assert lam.shape == (2,)
    assert (lam == 0).all()
    assert (mu == 0).all()


def test_one_blocks_values_do_not_need_gradients() -> None:
    known = KINDS["everything"]
    _, expected = qps.gradients(FFOQPLayer(), known.blocks)
    for only in known.blocks:
        blocks = tensors(known.blocks, requires_grad=False)
        blocks[only].requires_grad_()
        loss_of(call(FFOQPLayer(), blocks)).backward()
        np.testing.assert_allclose(blocks[only].grad.numpy(), expected[only], atol=1e-8, err_msg=only)
        assert all(b.grad is None for name, b in blocks.items() if name != only)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    rows=st.integers(0, 7),
    equalities=st.integers(0, 3),
    lower=st.booleans(),
    bounds=st.booleans(),
    batch=st.integers(1, 3),
    shared=st.sets(st.sampled_from(qps.ORDER)),
    seed=st.integers(0, 10**6),
    on_device=st.booleans(),
)
@example(n=4, rows=0, equalities=0, lower=False, bounds=True, batch=2, shared=set(), seed=0, on_device=True)
@example(n=4, rows=5, equalities=1, lower=True, bounds=True, batch=3, shared={"Q"}, seed=1, on_device=False)
def test_any_shape(
    n: int,
    rows: int,
    equalities: int,
    lower: bool,
    bounds: bool,
    batch: int,
    shared: set[str],
    seed: int,
    on_device: bool,
) -> None:
    """The optimality conditions hold, and the gradient along a direction is that of both routes; also where tensors
    are treated as those of a device."""
    known = known_qp(seed, n, rows, min(equalities, n), lower=lower and rows > 0, bounds=bounds)
    blocks = stacked([known.blocks] * batch, tuple(shared))
    with mock.patch.object(qp, "worthwhile", return_value=on_device):
        found, own = qps.gradients(FFOQPLayer(duals=True), blocks)
    _, core = qps.gradients(FFOQPLayer(duals=True, **ROUTES["core"]), blocks)
    for value, expected in zip(found, known.answer, strict=True):
        rows_of = np.broadcast_to(expected, value.shape)
        np.testing.assert_allclose(value.detach().numpy(), rows_of, atol=1e-7)
    for k, g in own.items():
        scale = max(np.abs(core[k]).max(initial=0.0), 1.0)
        np.testing.assert_allclose(g / scale, core[k] / scale, atol=1e-6, err_msg=k)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_functional_transforms() -> None:
    """jacrev, jacfwd and vmap, with a bound that is infinite for one of the mapped samples."""
    p = torch.tensor([[1.0, -2.0], [0.5, -1.0], [2.0, 3.0]], dtype=torch.float64)
    lb = torch.tensor([[0.0, 0.0], [-torch.inf, 0.0], [0.0, -torch.inf]], dtype=torch.float64)
    Q, layer = 2 * torch.eye(2, dtype=torch.float64), FFOQPLayer()
    expected = torch.maximum(-p / 2, lb)
    torch.testing.assert_close(torch.func.vmap(lambda p, lb: layer(Q, p, lb=lb))(p, lb), expected)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        slope = jacobian(lambda p: layer(Q, p, lb=lb[1]))(p[1])
        torch.testing.assert_close(slope, torch.diag((-p[1] / 2 > lb[1]).double() * -0.5))


@route
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_call_leaves_nothing_behind(options: dict[str, object], dtype: torch.dtype) -> None:
    """What backward needs is freed with the outputs, whether or not backward was called."""
    layer = FFOQPLayer(**options)

    def solve(backward: bool) -> None:
        z = layer(
            torch.eye(3, dtype=dtype), torch.rand(8, 3, dtype=dtype, requires_grad=True), lb=torch.zeros(3, dtype=dtype)
        )
        if backward:
            z.sum().backward()

    def alive() -> int:
        gc.collect()
        return sum(type(o) is torch.Tensor for o in gc.get_objects())

    solve(backward=True)
    before = alive()
    for backward in (True, False, True, False):
        solve(backward)
    assert alive() <= before


@route
@pytest.mark.parametrize("n", [1, 16, 17, 40])
@pytest.mark.parametrize("off_diagonal", [0.0, 0.1])
def test_all_variables_of_all_samples_may_be_at_bounds(n: int, off_diagonal: float, options: dict[str, object]) -> None:
    """No variable is free: the gradient is on the bounds only."""
    p = torch.full((3, n), -5.0 - n, dtype=torch.float64, requires_grad=True)
    ub = torch.ones(n, dtype=torch.float64, requires_grad=True)
    z = FFOQPLayer(**options)(torch.eye(n, dtype=torch.float64) + off_diagonal, p, ub=ub)
    np.testing.assert_allclose(z.detach(), 1.0, atol=1e-12)
    z.sum().backward()
    np.testing.assert_allclose(p.grad, 0.0, atol=1e-12)
    np.testing.assert_allclose(ub.grad, 3.0, atol=1e-12)
