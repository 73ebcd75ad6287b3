"""FFOQPLayer compared with FFOLayer on the same program, qpth, every solver, and `solve_qp_batch`."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import qps
import torch
from qps import KINDS, around, call, known_qp, loss_of, tensors

from ffo import solve_qp_batch
from ffo.torch import FFOLayer, FFOQPLayer

Array = np.ndarray


def as_cvxpy(known: qps.KnownQP) -> FFOLayer:
    """The same program written in CVXPY, with all blocks as parameters."""
    b = known.blocks
    n = len(known.z)
    P = {k: cp.Parameter(v.shape, PSD=True) if k == "Q" else cp.Parameter(v.shape) for k, v in b.items()}
    z = cp.Variable(n)
    objective = P["p"] @ z + (0.5 * cp.quad_form(z, P["Q"]) if "Q" in P else 0)
    constraints = []
    if "A" in P:
        constraints.append(P["A"] @ z == P["b"])
    if "G" in P:
        constraints.append(P["G"] @ z <= P["h"])
    if "lower" in P:
        constraints.append(P["G"] @ z >= P["lower"])
    if "ub" in P:
        constraints += [z <= P["ub"], z >= P["lb"]]
    return FFOLayer(cp.Problem(cp.Minimize(objective), constraints), list(P.values()), [z])


@pytest.mark.parametrize(
    "route", [{}, {"backward": "iterative"}, {"solver": "CLARABEL"}], ids=["own", "iterative", "core"]
)
@pytest.mark.parametrize("name", ["inequalities and equalities", "everything", "bounds", "linear", "no constraints"])
def test_agrees_with_ffo_layer_to_nine_digits(name: str, route: dict[str, object]) -> None:
    known = KINDS[name]
    blocks = around(known, 3, ("G", "A"))
    params = tensors(blocks)
    (expected,) = as_cvxpy(known)(*params.values())
    loss_of(expected).backward()
    found, gradients = qps.gradients(FFOQPLayer(**route), blocks)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    for k, g in gradients.items():
        wanted = params[k].grad.numpy()
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(g / scale, wanted / scale, rtol=0, atol=1e-9, err_msg=k)


def test_means_are_qpths() -> None:
    """qpth divides gradients of shared blocks by the batch size; reduction="mean" does, the default sums."""
    if importlib.util.find_spec("qpth") is None:
        pytest.skip("qpth is not installed (make bench-peers)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from qpth.qp import QPFunction

        known, size = known_qp(30, n=5, rows=6, equalities=2), 4
        blocks = around(known, size, ("Q", "G", "h", "A", "b"))
        params = tensors(blocks)
        peer = QPFunction(verbose=-1, eps=1e-14, maxIter=50)(*(params[k] for k in ("Q", "p", "G", "h", "A", "b")))
        loss_of(peer).backward()
    mean, by_mean = qps.gradients(FFOQPLayer(reduction="mean"), blocks)
    torch.testing.assert_close(mean, peer.detach(), rtol=0, atol=1e-6)
    _, by_core = qps.gradients(FFOQPLayer(reduction="mean", solver="DAQP"), blocks)
    _, by_sum = qps.gradients(FFOQPLayer(), blocks)
    for k, p in params.items():
        np.testing.assert_allclose(by_mean[k], p.grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=k)
        np.testing.assert_allclose(by_core[k], by_mean[k], atol=1e-8, err_msg=k)
        np.testing.assert_allclose(by_sum[k], by_mean[k] * (1 if k == "p" else size), atol=1e-8, err_msg=k)


@dataclass(frozen=True)
class Entry:
    """A solver, and whether it takes singular Q and linear programs."""

    name: str
    singular: bool = True


SOLVERS = [
    *map(Entry, ("CLARABEL", "PIQP", "SCS", "OSQP", "QOCO", "PROXQP", "DAQP", "MOREAU", "GUROBI")),
    Entry("HIGHS", singular=False),  # some QPs it answers with NaN
    *map(Entry, ("qpsolvers:clarabel", "qpsolvers:piqp", "qpsolvers:osqp", "qpsolvers:daqp", "qpsolvers:scs")),
    *map(Entry, ("qpsolvers:gurobi", "qpsolvers:highs")),
    Entry("qpsolvers:ecos", singular=False),
    Entry("qpsolvers:proxqp", singular=False),
    Entry("qpsolvers:quadprog", singular=False),
]
PROBLEMS = ["inequalities and equalities", "everything", "bounds", "singular Q", "linear"]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("entry", SOLVERS, ids=lambda e: e.name)
def test_gradients_do_not_depend_on_the_solver(entry: Entry, name: str) -> None:
    if name in ("singular Q", "linear") and not entry.singular:
        pytest.skip(f"{entry.name} needs a positive definite Q")
    blocks = around(KINDS[name], 2, ("G",))
    layer = FFOQPLayer(duals=True, solver=entry.name)
    found, gradients = qps.gradients(layer, blocks)
    assert set(layer.info.solver) <= {entry.name, ""}
    expected, wanted = qps.gradients(FFOQPLayer(duals=True, solver_args={"eps": 1e-10}), blocks)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=0, atol=1e-6)
    for k, g in gradients.items():
        scale = max(1.0, np.abs(wanted[k]).max())
        np.testing.assert_allclose(g / scale, wanted[k] / scale, atol=1e-5, err_msg=k)


@pytest.mark.parametrize("backward", ["iterative", "resolve"])
def test_other_ways_to_solve_the_ghost(backward: str) -> None:
    blocks = around(KINDS["everything"], 2, ("G",))
    _, expected = qps.gradients(FFOQPLayer(), blocks)
    _, found = qps.gradients(FFOQPLayer(backward=backward), blocks)
    for k, g in found.items():
        np.testing.assert_allclose(
            g, expected[k], rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected[k]).max()), err_msg=k
        )


@pytest.mark.parametrize("name", KINDS)
def test_numpy_gives_the_same_answers(name: str) -> None:
    blocks = around(KINDS[name], 3, ("G",))
    expected = call(FFOQPLayer(duals=True), tensors(blocks))
    found = solve_qp_batch(
        *(blocks.get(k) for k in qps.ORDER[:6]), **{k: blocks[k] for k in qps.ORDER[6:] if k in blocks}, polish=True
    )
    for f, e in zip((found.z, found.nu, found.lam, found.mu), expected, strict=True):
        np.testing.assert_allclose(f, e.detach().numpy(), atol=1e-8)
