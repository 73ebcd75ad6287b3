"""Coefficients of expressions, against CVXPY's evaluation of the expressions and its own matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from cvxpy.lin_ops.lin_op import CONSTANT_ID
from program.problems_cvxpy import CASES

from ffo.program import extraction
from ffo.program.cvxpy import canonicalize
from ffo.program.extraction import Extractor, Tensor

Array = np.ndarray


class Leaves:
    """Variables and parameters with values, and an extractor over them."""

    def __init__(self, backend: str = "COO") -> None:
        rng = np.random.default_rng(5)
        self.y, self.z, self.X = cp.Variable(4), cp.Variable(3), cp.Variable((4, 2))
        self.G, self.C, self.h = cp.Parameter((3, 4)), cp.Parameter((2, 5)), cp.Parameter(3)
        self.T = cp.Parameter((4, 3))
        self.variables, self.parameters = [self.y, self.z, self.X], [self.G, self.C, self.h, self.T]
        for leaf in [*self.variables, *self.parameters]:
            leaf.value = rng.normal(size=leaf.shape)
        columns = np.cumsum([0, *(p.size for p in self.parameters)]).tolist()
        ids = [*(p.id for p in self.parameters), CONSTANT_ID]
        self.extractor = Extractor(
            offsets={self.y.id: 0, self.z.id: 4, self.X.id: 7},
            length=15,
            columns=dict(zip(ids, columns, strict=True)),
            sizes={CONSTANT_ID: 1, **{p.id: p.size for p in self.parameters}},
            backend=backend,
        )

    def evaluate(self, tensors: list[Tensor], rows: int) -> Array:
        """The value of a stack of expressions that its tensors give."""
        x, theta = (
            np.concatenate([*(v.value.ravel(order="F") for v in leaves), [1.0]])
            for leaves in (self.variables, self.parameters)
        )
        matrix = np.zeros(rows * len(x))
        for t in tensors:
            np.add.at(matrix, t.position, t.weight * theta[t.column])
        return matrix.reshape(len(x), rows).T @ x


#: products of a matrix parameter, which are extracted without CVXPY's backend
DIRECT: dict[str, Callable[[Leaves], cp.Expression]] = {
    "product": lambda v: v.G @ v.y,
    "negative": lambda v: -v.G @ v.y,
    "negated product": lambda v: -(v.G @ v.y),
    "transposed": lambda v: v.T.T @ v.y,
    "negative of transposed": lambda v: (-v.T).T @ v.y,
    "matrix variable": lambda v: v.G @ v.X,
    "from the right": lambda v: v.z @ v.G,
    "matrix from the right": lambda v: v.X @ v.C,
    "transposed from the right": lambda v: v.z @ v.T.T,
    "difference": lambda v: v.G @ v.y - v.h,
    "of an affine expression": lambda v: v.G @ (2 * v.y - v.X[:, 1] + 3),
    "of a part": lambda v: v.T @ v.y[1:],
    "reshaped": lambda v: cp.vec(v.G @ v.X, order="F") + 1,
    "parameter": lambda v: v.G - 1.0,
    "constant times vector": lambda v: np.arange(6.0).reshape(2, 3) @ v.h + v.y[:2],
    "sparse constant times vector": lambda v: sp.csc_array([[0, 2.0, 0], [1, 0, 0]]) @ v.h,
}
#: expressions left to the backend
OTHER: dict[str, Callable[[Leaves], cp.Expression]] = {
    "scaled parameter": lambda v: (2 * v.G) @ v.y,
    "scaled product": lambda v: 3 * (v.G @ v.y) + v.z,
    "sum of parameters": lambda v: (v.G + v.T.T) @ v.y,
    "by entry": lambda v: cp.multiply(v.h, v.z),
    "inner product": lambda v: v.h @ v.z,
    "no parameters": lambda v: v.y[::-1] - 1,
    "stacked": lambda v: cp.hstack([v.G @ v.y, v.z]),
    "C order": lambda v: cp.vec(v.G @ v.X, order="C"),
}


@pytest.mark.parametrize("large", [0, 10**9], ids=["direct", "backend"])
@pytest.mark.parametrize("name", [*DIRECT, *OTHER])
def test_affine(name: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "LARGE", large)
    v = Leaves()
    expression = {**DIRECT, **OTHER}[name](v)
    found = v.evaluate(v.extractor.affine([expression]), expression.size)
    np.testing.assert_allclose(found, np.ravel(expression.value, order="F"), atol=1e-13)


@pytest.mark.parametrize("name", DIRECT)
def test_products_need_no_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "LARGE", 0)
    seen: list[int] = []
    backend = extraction.get_problem_matrix
    monkeypatch.setattr(
        extraction, "get_problem_matrix", lambda *a: (seen.extend(k for k in a[3] if k != CONSTANT_ID), backend(*a))[1]
    )
    v = Leaves()
    v.extractor.affine([DIRECT[name](v)])
    assert not seen


def test_expressions_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "LARGE", 0)
    v = Leaves()
    expressions = [f(v) for f in {**DIRECT, **OTHER}.values()]
    rows = sum(e.size for e in expressions)
    expected = np.concatenate([np.ravel(e.value, order="F") for e in expressions])
    np.testing.assert_allclose(v.evaluate(v.extractor.affine(expressions), rows), expected, atol=1e-13)


def test_small_parameters_share_one_tensor() -> None:
    v = Leaves()
    assert len(v.extractor.affine([f(v) for f in DIRECT.values()])) == 1


def test_indices_take_four_bytes_while_they_can() -> None:
    v = Leaves()
    (t,) = v.extractor.affine([v.G @ v.y])
    assert (t.position.dtype, t.column.dtype) == (np.int32, np.int32)
    assert extraction.index_type(2**31 - 1) is np.int32
    assert extraction.index_type(2**31) is np.int64


#: quadratic objectives whose forms are in variables themselves, so that no others are introduced
QUADRATIC: dict[str, Callable[[Any, Any, Any, Any], cp.Expression]] = {
    "parametric": lambda w, Q, x, X: 0.5 * cp.quad_form(x, Q) + w @ x,
    "sum of forms": lambda w, Q, x, X: cp.quad_form(x, Q + np.eye(4)) + 3 * cp.quad_form(x, Q) + cp.sum(X),
    "weighted squares": lambda w, Q, x, X: w @ cp.square(x) + cp.sum(cp.square(X)),
    "weighted columns": lambda w, Q, x, X: w[:2] @ cp.sum_squares(X, axis=0) + w @ x,
    "weighted form": lambda w, Q, x, X: w[0] * cp.quad_form(x, np.diag([1.0, 2, 0, 1]) + 0.1) - 4,
    "twice": lambda w, Q, x, X: (1 + w[1]) * cp.sum_squares(x) + cp.sum_squares(X) + w @ X @ np.ones(2),
}


@pytest.mark.parametrize("large", [0, 10**9], ids=["direct", "backend"])
@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic(name: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "LARGE", large)
    rng = np.random.default_rng(2)
    w, Q, x, X = cp.Parameter(4, nonneg=True), cp.Parameter((4, 4), PSD=True), cp.Variable(4), cp.Variable((4, 2))
    problem = cp.Problem(cp.Minimize(QUADRATIC[name](w, Q, x, X)), [cp.sum(x) == 1, X >= -1])
    root = rng.normal(size=(4, 4))
    w.value, Q.value = rng.uniform(1, 2, 4), root @ root.T
    parameters = problem.parameters()
    canonical = canonicalize(problem, parameters, [x, X])
    program = canonical.map.apply([np.ravel(p.value) for p in parameters])
    assert program.n == x.size + X.size
    x.value, X.value = np.zeros(4), np.zeros((4, 2))
    at_zero = problem.objective.value
    point = rng.normal(size=(1, program.n))
    (x.value,), (X.value,) = canonical.recovery.apply(point, np.zeros((1, program.m)))
    found = 0.5 * point[0] @ program.P.dot(point)[0] + program.q[0] @ point[0]
    assert found == pytest.approx(problem.objective.value - at_zero, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_both_ways_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name](np.random.default_rng(4))
    programs = []
    for large in (0, 10**9):
        monkeypatch.setattr(extraction, "LARGE", large)
        canonical = canonicalize(case.problem, case.parameters, case.outputs, gp=case.gp)
        programs.append(canonical.map.apply(case.values))
    direct, backend = programs
    for a, b in ((direct.P, backend.P), (direct.A, backend.A)):
        np.testing.assert_allclose(a.matrix().toarray(), b.matrix().toarray(), atol=1e-14)
    np.testing.assert_allclose(direct.q, backend.q, atol=1e-14)
    np.testing.assert_allclose(direct.b, backend.b, atol=1e-14)
