"""Errors about samples without a solution name the contradicting constraints by the user's names."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo import solve_qp_batch
from ffo.engine.proof import recedes, refutes
from ffo.errors import InfeasibleError, SolverError, Status, UnboundedError
from ffo.torch import FFOLayer, FFOQPLayer


def wide(*values: object) -> list[torch.Tensor]:
    return [torch.tensor(v, dtype=torch.float64) for v in values]


def bounded() -> FFOLayer:
    """|x - 1|^2 over 0 <= x <= b, 1'x >= c, |x| <= 5."""
    x, b, c = cp.Variable(3, name="x", nonneg=True), cp.Parameter(3, name="b"), cp.Parameter(name="c")
    constraints = [x <= b, cp.sum(x) >= c, cp.norm(x) <= 5]
    constraints[2].set_label("not too long")
    return FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), constraints), [b, c], [x])


@pytest.mark.parametrize(
    ("b", "c", "expected"),
    [
        ([1.0, -2.0, 1.0], 1.0, {"constraint 0 (x <= b), entry [1]", "what x was declared to be, entry [1]"}),
        (
            [1.0, 1.0, 1.0],
            4.0,
            {f"constraint 0 (x <= b), entry [{k}]" for k in range(3)} | {"constraint 1 (c <= Sum(x, None, False))"},
        ),
        ([9.0, 9.0, 9.0], 10.0, {"constraint 1 (c <= Sum(x, None, False))", "constraint 2 (not too long)"}),
    ],
)
def test_cvxpy_constraints_are_named(b: list[float], c: float, expected: set[str]) -> None:
    with pytest.raises(InfeasibleError, match="contradict each other") as caught:
        bounded()(*wide([[2.0, 2.0, 2.0], b], c)) if c < 6 else bounded()(*wide(b, c))
    assert {name for name, _ in caught.value.proof.parts} == expected
    assert all(name in str(caught.value) for name in expected)


def test_the_report_names_them_too() -> None:
    layer = bounded()
    layer.engine.options = type(layer.engine.options)(on_fail="nan")
    layer(*wide([[2.0, 2.0, 2.0], [1.0, 1.0, -1.0]], 1.0))
    assert layer.info is not None
    assert set(layer.info.proofs) == {1}
    assert ("constraint 0 (x <= b), entry [2]") in dict(layer.info.proofs[1].parts)


@pytest.mark.parametrize("solver", [None, "CLARABEL", "HIGHS", "PIQP"])
def test_rows_and_bounds_are_named(solver: str | None) -> None:
    Q, p = wide(np.eye(3), np.zeros(3))
    G, h = wide([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]], [[1.0, 5.0, 9.0], [3.0, 5.0, 9.0]])
    with pytest.raises(InfeasibleError) as caught:
        FFOQPLayer(solver=solver)(Q, p, G, h, lb=torch.ones(3).double(), ub=torch.full((3,), 4.0).double())
    assert caught.value.samples == (0,)
    assert {name for name, _ in caught.value.proof.parts} == {"row 0 of G", "lb[0]", "lb[1]"}


def test_other_sides_are_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        solve_qp_batch(
            np.eye(2), np.zeros(2), [[1.0, 1.0]], [np.inf], [[1.0, 0.0]], [3.0], lower=[4.0], ub=np.array([9.0, 0.0])
        )
    assert {name for name, _ in caught.value.proof.parts} == {"row 0 of A", "row 0 of G (lower)", "ub[1]"}


def test_variables_of_a_ray_are_named() -> None:
    Y, c = cp.Variable((2, 2), name="Y", symmetric=True), cp.Parameter(name="c")
    layer = FFOLayer(cp.Problem(cp.Minimize(c * Y[1, 1] + cp.square(Y[0, 0])), [Y[0, 1] == 1]), [c], [Y])
    with pytest.raises(UnboundedError, match=r"along the ray Y\[1, 1\] = -1") as caught:
        layer(*wide(1.0))
    assert caught.value.proof.parts == [("Y[1, 1]", -1.0)]


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("rows", [1.0, 1e5])
def test_proofs_hold_in_the_units_of_the_user(scale: float, rows: float) -> None:
    """Through every step of the presolve: substitutions, scaling, epigraphs."""
    x, b, F = cp.Variable(4), cp.Parameter(2), cp.Parameter((6, 4))
    cost = cp.sum_squares(F @ x - 1) + cp.norm1(x[:1])
    layer = FFOLayer(
        cp.Problem(cp.Minimize(cost), [cp.norm1(x) <= b[0], rows * cp.sum(x[:2]) >= rows * b[1]]), [b, F], [x],
        on_fail="nan",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    layer(torch.tensor([[1.0, 2.0], [2.0, 1.0], [0.5, 1.0]]).double() * scale, torch.tensor(rng.normal(size=(6, 4))))
    assert layer.info is not None
    assert layer.info.status == [Status.INFEASIBLE, Status.SOLVED, Status.INFEASIBLE]
    for k in (0, 2):
        proof = layer.info.proofs[k]
        assert proof.program is not None
        assert refutes(proof.vector[None], proof.program).all()
        assert len(proof.parts) == 2
    cost = cp.sum_squares(F @ x) + b @ x[2:]
    free = FFOLayer(cp.Problem(cp.Minimize(cost), [x[0] >= b[0]]), [b, F], [x], on_fail="nan")
    singular = rng.integers(-2, 3, size=(6, 4)).astype(float)
    singular[:, 3] = -singular[:, 2]
    free(torch.tensor([[1.0, 2.0]]).double() * scale, torch.tensor(singular))
    assert free.info is not None
    assert free.info.status == [Status.UNBOUNDED]
    assert recedes(free.info.proofs[0].vector[None], free.info.proofs[0].program).all()


def test_errors_without_a_proof_have_none() -> None:
    with pytest.raises(SolverError) as caught:
        FFOQPLayer()(*wide(np.eye(2), [np.nan, 1.0]))
    assert caught.value.proof is None


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e9])
@pytest.mark.parametrize("other", [1e-6, 1e9])
def test_rows_in_other_units_are_named_too(scale: float, other: float) -> None:
    G = np.array([[3.0, 7.0], [-3.0, -7.0], [1.0, 0.0]]) * np.array([[scale], [other], [1.0]])
    with pytest.raises(InfeasibleError) as caught:
        solve_qp_batch(None, np.zeros(2), G, np.array([-8.0, 2.0, 5.0]) * [scale, other, 1.0])
    assert {name for name, _ in caught.value.proof.parts} == {"row 0 of G", "row 1 of G"}
    assert refutes(caught.value.proof.vector[None], caught.value.proof.program).all()


@pytest.mark.parametrize("d", [1e-2, 1e-4, 1e-5])
@pytest.mark.parametrize("side", [0.0, 1.0])
@pytest.mark.parametrize("solver", [None, "CLARABEL", "INTERIOR"])
def test_rows_that_cancel_each_other_prove_nothing(solver: str | None, side: float, d: float) -> None:
    """z0 - z1 = side twice, and z0 - (1 - d) z1 <= -1: all feasible points are at 1 / d. Opposite multipliers of the
    equal rows hid that those of 1e-20 of the last one do not cancel, and the program was proven to be infeasible."""
    rows = torch.tensor([[1.0, -1.0], [1.0, -1.0 + d]], dtype=torch.float64)
    sides = torch.tensor([side, -1.0], dtype=torch.float64)
    layer = FFOQPLayer(solver=solver)
    z = layer(torch.eye(2).double(), torch.ones(2).double(), rows, sides, rows[:1], sides[:1])
    torch.testing.assert_close(rows[0] @ z, sides[0], rtol=0.0, atol=1e-9 / d)
    torch.testing.assert_close(rows[1] @ z, sides[1], rtol=0.0, atol=1e-9 / d)
    unbounded = FFOQPLayer(solver=solver, on_fail="nan")
    unbounded(None, torch.ones(2).double(), rows, sides, rows[:1], sides[:1])
    assert unbounded.info.status[0] is Status.UNBOUNDED
