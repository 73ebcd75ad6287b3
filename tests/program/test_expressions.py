"""Every atom's translation against CVXPY's own value, and its gradient against differences; random expressions, too."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable

import cvxpy as cp
import cvxpy.atoms
import numpy as np
import pytest
import torch
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.trig import cos, sin, tan
from cvxpy.atoms.quad_form import QuadForm
from hypothesis import given, settings
from hypothesis import strategies as st

from ffo.errors import UnsupportedProblemError
from ffo.program.expressions.evaluate import TABLE, Expressions, compiled
from ffo.program.expressions.namespace import HostNamespace
from ffo.torch.expressions import TorchNamespace

Array = np.ndarray
XP = TorchNamespace(torch.device("cpu"))

a, b = cp.Parameter(3, name="a"), cp.Parameter(3, name="b")
s, t = cp.Parameter(name="s"), cp.Parameter(name="t")
M, N = cp.Parameter((3, 3), name="M"), cp.Parameter((2, 3), name="N")
p, u = cp.Parameter(3, name="p", pos=True), cp.Parameter((2, 3), name="u", pos=True)
S, T = cp.Parameter((3, 3), name="S", PSD=True), cp.Parameter((4, 4), name="T", symmetric=True)
D = cp.Parameter((2, 2, 3), name="D")
ALL = [a, b, s, t, M, N, p, u, S, T, D]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    OLD_CONVOLUTION = cp.conv(np.array([1.0, 2.0]), a)

EXPRESSIONS: dict[str, cp.Expression] = {
    "sums": a + 2 * b - s + np.arange(3.0),
    "products": s * M @ a,
    "elementwise products": cp.multiply(M, N[[0, 1, 0]]) / (1 + cp.square(s)),
    "row times matrix": a @ M,
    "inner product": a @ b,
    "outer product": cp.outer(a, b),
    "batched matrix product": D @ M,
    "stack times matrix": D @ N.T,
    "stack times vector": D @ a,
    "scalar times stack": s * D,
    "quotient": M / (2 + cp.square(t)),
    "vector quotient": N / u,
    "index": M[1:, ::-1][:, 0] + M[0, :2],
    "negative index": a[-1] * b[1],
    "list index": M[[2, 0]],
    "boolean index": M[np.eye(3, dtype=bool)],
    "index of a stack": D[1, :, 0],
    "reshape F": cp.reshape(N, (3, 2), order="F"),
    "reshape C": cp.reshape(N, (3, 2), order="C"),
    "reshape stack": cp.reshape(D, (4, 3), order="F"),
    "vec": cp.vec(N, order="F"),
    "flatten C": N.flatten(order="C"),
    "transpose": N.T @ N,
    "transpose axes": cp.transpose(D, (2, 0, 1)),
    "vstack": cp.vstack([a, b, M]),
    "hstack": cp.hstack([N, N @ M]),
    "hstack scalars": cp.hstack([s, t, a]),
    "bmat": cp.bmat([[M, N.T], [N, np.ones((2, 2))]]),
    "concatenate": cp.concatenate([M, N], axis=0),
    "stack": cp.stack([a, b], axis=1),
    "diag of a vector": cp.diag(a) @ M,
    "diag of a matrix": cp.diag(M),
    "diag off": cp.diag(a, k=1),
    "trace": cp.trace(M @ S),
    "upper triangle": cp.upper_tri(T),
    "vector to upper triangle": cp.vec_to_upper_tri(a),
    "kron": cp.kron(N, M),
    "convolve": cp.convolve(a, b),
    "conv": OLD_CONVOLUTION,
    "cumsum": cp.cumsum(N, axis=1),
    "cumsum of all": cp.cumsum(M, axis=None),
    "diff": cp.diff(a),
    "promote": s + np.zeros((2, 2)) * t,
    "broadcast": cp.broadcast_to(a, (2, 3)),
    "squeeze": cp.squeeze(cp.reshape(a, (1, 3), order="F")),
    "sum of axes": cp.sum(D, axis=(0, 2)),
    "sum kept": cp.sum(M, axis=1, keepdims=True),
    "mean": cp.mean(N, axis=0),
    "partial trace": cp.partial_trace(T, (2, 2), axis=0),
    "partial transpose": cp.partial_transpose(T, (2, 2), axis=1),
    "einsum": cp.einsum("ij,jk->ik", N, M),
    "wraps": cp.symmetric_wrap(M + M.T) + cp.psd_wrap(M @ M.T),
    "real": cp.real(a) + cp.conj(a),
    "abs": cp.abs(a),
    "exp": cp.exp(N),
    "log": cp.log(u),
    "log1p": cp.log1p(p),
    "square": cp.square(a),
    "cube": cp.power(a, 3),
    "sqrt": cp.sqrt(p),
    "power": cp.power(p, 1.7),
    "inverse": cp.inv_pos(p),
    "power of one": cp.power(a, 1),
    "power of zero": cp.power(a, 0),
    "parametric power": cp.power(p, s),
    "maximum": cp.maximum(a, b, 0.1),
    "maximum of scalars and matrices": cp.maximum(M, s),
    "minimum": cp.minimum(s, N),
    "pos and neg": cp.pos(a) + cp.neg(b),
    "huber": cp.huber(a, 0.5),
    "parametric huber": cp.huber(a, p[0]),
    "entropy": cp.entr(p),
    "divergence": cp.kl_div(p, p + 1),
    "relative entropy": cp.rel_entr(p, p[::-1]),
    "logistic": cp.logistic(a),
    "xexp": cp.xexp(p),
    "loggamma": cp.loggamma(p),
    "log_normcdf": cp.log_normcdf(s),
    "ceil": cp.ceil(a),
    "floor": cp.floor(a),
    "sign": cp.sign(a),
    "scalene": cp.scalene(a, 2, 3),
    "normcdf": normcdf(a),
    "sin": sin(a) + cos(a) + tan(0.3 * a),
    "hyperbolic": sinh(a) + tanh(b) + asinh(a) + atanh(0.1 * b),
    "norm 1": cp.norm1(N),
    "norm 1 of an axis": cp.norm(N, 1, axis=1),
    "norm 2": cp.norm(a),
    "norm 2 of an axis": cp.norm(N, 2, axis=0),
    "norm inf": cp.norm(a, "inf"),
    "norm inf of an axis": cp.norm(N, "inf", axis=1),
    "norm 3": cp.pnorm(a, 3),
    "norm 1.5": cp.pnorm(a, 1.5),
    "norm 0.5": cp.pnorm(p, 0.5),
    "norm -1": cp.pnorm(p, -1),
    "frobenius": cp.norm(M, "fro"),
    "spectral": cp.sigma_max(N),
    "nuclear": cp.norm(N, "nuc"),
    "mixed": cp.mixed_norm(N, 2, 1),
    "max": cp.max(M),
    "max of an axis": cp.max(M, axis=0),
    "max kept": cp.max(N, axis=1, keepdims=True),
    "min": cp.min(N, axis=1),
    "ptp": cp.ptp(a),
    "prod": cp.prod(a),
    "prod of an axis": cp.prod(N, axis=0),
    "cumprod": cp.cumprod(N, axis=1),
    "cummax": cp.cummax(N, axis=1),
    "sum largest": cp.sum_largest(M, 4),
    "sum largest, fractional": cp.sum_largest(a, 1.5),
    "sum smallest": cp.sum_smallest(a, 2),
    "cvar": cp.cvar(a, 0.4),
    "dotsort": cp.dotsort(M, np.array([1.0, 2.0])),
    "dotsort of parameters": cp.dotsort(a, b[:2]),
    "log sum exp": cp.log_sum_exp(M),
    "log sum exp of an axis": cp.log_sum_exp(N, axis=0),
    "geometric mean": cp.geo_mean(p),
    "weighted geometric mean": cp.geo_mean(p, [1, 0, 2]),
    "geometric mean of an axis": cp.geo_mean(u, axis=1),
    "harmonic mean": cp.harmonic_mean(p),
    "sum of squares": cp.sum_squares(M),
    "quad over lin": cp.quad_over_lin(N, p[0]),
    "quad over lin of an axis": cp.quad_over_lin(N, p[0], axis=0),
    "quad form": cp.quad_form(a, S),
    "quad form atom": QuadForm(a, S),
    "matrix fraction": cp.matrix_frac(a, S),
    "matrix fraction of a matrix": cp.matrix_frac(N.T, S),
    "log det": cp.log_det(S),
    "lambda max": cp.lambda_max(T),
    "lambda min": cp.lambda_min(T),
    "lambda sum largest": cp.lambda_sum_largest(T, 2),
    "lambda sum smallest": cp.lambda_sum_smallest(T, 1.5),
    "generalized eigenvalue": cp.gen_lambda_max(cp.symmetric_wrap(M + M.T), S),
    "condition number": cp.condition_number(S),
    "trace of the inverse": cp.tr_inv(S),
    "von Neumann entropy": cp.von_neumann_entr(S),
    "total variation": cp.tv(a) + cp.tv(N),
    "standard deviation": cp.std(a) + cp.var(b),
    "spectral radius": cp.pf_eigenvalue(cp.exp(M)),
    "resolvent": cp.eye_minus_inv(0.1 * S),
    "monomials": cp.gmatmul(N, p),
    "difference of positives": cp.diff_pos(p + 1, p),
    "distance ratio": cp.dist_ratio(a, np.zeros(3), np.ones(3)),
    "inverse product": cp.inv_prod(p),
}  # fmt: skip
#: constant almost everywhere
FLAT = {"ceil", "floor", "sign", "power of zero"}


def values_of(seed: int = 0) -> dict[cp.Parameter, Array]:
    rng = np.random.default_rng(seed)
    found = {}
    for q in ALL:
        v = rng.normal(size=q.shape)
        if q.attributes["PSD"]:
            v = v @ v.T + 0.5 * np.eye(3)
        elif q.attributes["symmetric"]:
            v = v + v.T
        elif q.attributes["pos"]:
            v = np.exp(0.5 * v)
        found[q] = np.asarray(v)
    return found


def cvxpy_value(e: cp.Expression, values: dict[cp.Parameter, Array]) -> Array:
    for q, v in values.items():
        q.value = v
    found = e.value
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found).reshape(e.shape)


def translated(e: cp.Expression) -> Expressions:
    return compiled([e], ALL, ["e"])


def symmetric_directions(rng: np.random.Generator) -> dict[cp.Parameter, Array]:
    directions = {q: rng.normal(size=q.shape) for q in ALL}
    return {q: d + d.T if q.is_symmetric() and q.ndim == 2 else d for q, d in directions.items()}


def check(e: cp.Expression, seed: int, flat: bool = False) -> None:
    values = values_of(seed)
    function, expected = translated(e), cvxpy_value(e, values)
    tensors = [torch.tensor(v, requires_grad=True) for v in values.values()]
    (found,) = function(XP, tensors)
    assert tuple(found.shape) == e.shape
    scale = 1 + np.abs(expected).max(initial=0.0)
    assert np.abs(found.detach().numpy() - expected).max(initial=0.0) <= 1e-10 * scale
    (plain,) = function(HostNamespace(), list(values.values()))
    assert np.abs(plain - expected).max(initial=0.0) <= 1e-10 * scale
    rng = np.random.default_rng(seed + 1)
    directions = symmetric_directions(rng)
    weights = rng.normal(size=e.shape)
    slope = 0.0
    if found.requires_grad:
        grads = torch.autograd.grad((found * torch.tensor(weights)).sum(), tensors, allow_unused=True)
        slope = sum(float((g * torch.tensor(d)).sum()) for g, d in zip(grads, directions.values(), strict=True)
                    if g is not None)  # fmt: skip
    step = 1e-4
    ends = [
        (weights * cvxpy_value(e, {q: v + k * step * directions[q] for q, v in values.items()})).sum()
        for k in (-2, -1, 1, 2)
    ]
    difference = np.dot(ends, [1, -8, 8, -1]) / (12 * step)
    if flat:
        assert slope == 0
    else:
        assert abs(slope - difference) <= 1e-6 * (scale + abs(difference))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_and_gradients_are_those_of_cvxpy(name: str) -> None:
    check(EXPRESSIONS[name], seed=0, flat=name in FLAT)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_batches_are_single_values_side_by_side(name: str) -> None:
    e, several = EXPRESSIONS[name], [values_of(seed) for seed in range(3)]
    function = translated(e)
    for names in ("", "aMpS", "bNsTu"):  # parameters without a batch dimension
        shared = {q.id for q in ALL if q.name() in names}
        batched = [q.id not in shared for q in ALL]
        stacked = [np.stack([v[q] for v in several]) if q.id not in shared else several[0][q] for q in ALL]
        (found,) = function(XP, [torch.tensor(v) for v in stacked])
        singles = [
            function(HostNamespace(), [v[q] if q.id not in shared else several[0][q] for q in ALL])[0] for v in several
        ]
        (has_batch,) = function.batched(batched)
        assert (len(found.shape) > len(e.shape)) == has_batch
        assert np.allclose(found.numpy(), np.stack(singles) if has_batch else singles[0], rtol=1e-10, atol=1e-12)


def test_every_atom_of_cvxpy_is_translated_or_known_not_to_be() -> None:
    kinds = set()
    for module in pkgutil.walk_packages(cvxpy.atoms.__path__, "cvxpy.atoms."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(kind, Atom) and not issubclass(kind, Wrap):
                kinds.add(kind)
    bases = {"Atom", "AffAtom", "AxisAtom", "BinaryOperator", "Elementwise", "UnaryOperator", "SymbolicQuadForm"}
    logic = {"And", "Not", "Or", "Xor", "LogicExpression", "_NaryLogicExpression"}
    none = {"SuppFuncAtom", "imag", "length", "perspective", "quantum_rel_entr"}
    assert {k.__name__ for k in kinds if k not in TABLE} == bases | logic | none


def test_an_atom_without_a_translation_is_named() -> None:
    with pytest.raises(UnsupportedProblemError, match=r"length\(a\) contains length, which has no translation"):
        translated(cp.length(a) * s)


def test_equal_subexpressions_are_computed_once() -> None:
    function = compiled([cp.exp(a) @ b, cp.sum(cp.exp(a))], ALL, ["", ""])
    assert sum(getattr(step.function, "keywords", {}).get("name") == "exp" for step in function.steps) == 1


@pytest.mark.parametrize("e", [cp.norm(a), cp.norm(N, "fro"), cp.norm(N, 2, axis=0), cp.pnorm(a, 3)], ids=str)
def test_the_gradient_of_a_norm_at_zero_is_zero(e: cp.Expression) -> None:
    tensors = [torch.zeros(q.shape, dtype=torch.float64, requires_grad=True) for q in ALL]
    (found,) = translated(e)(XP, tensors)
    found.sum().backward()
    assert all((q.grad == 0).all() for q in tensors if q.grad is not None)


# Random expressions


def _steps() -> list[Callable[[cp.Expression, cp.Expression], cp.Expression]]:
    """Functions of two 3-vectors that are smooth, and stay of moderate size."""
    return [
        lambda x, y: x + y,
        lambda x, y: x - 0.5 * y,
        lambda x, y: cp.multiply(tanh(x), tanh(y)),
        lambda x, y: tanh(M @ x) + y[::-1],
        lambda x, y: cp.exp(tanh(x)) - cp.logistic(y),
        lambda x, y: cp.norm(x) * tanh(y),
        lambda x, y: cp.sqrt(1 + cp.square(x)) / (1 + cp.square(y)),
        lambda x, y: cp.cumsum(tanh(x)) + cp.hstack([y[1:], s]),
        lambda x, y: cp.diag(cp.outer(tanh(x), y)),
        lambda x, y: cp.reshape(cp.hstack([x, y]), (3, 2), order="F") @ cp.hstack([0.5, tanh(s)]),
        lambda x, y: cp.reshape(cp.hstack([x, y]), (3, 2), order="C")[:, 1] + cp.log_sum_exp(x),
        lambda x, y: (
            cp.quad_over_lin(x, 2) * np.ones(3)
            + cp.reshape(cp.kron(np.ones((1, 1)), cp.reshape(y, (3, 1), order="F")), (3,), order="F")
        ),
        lambda x, y: cp.convolve(np.array([0.5, -0.2]), x)[:3] - cp.log(1 + cp.exp(y)),
    ]


@st.composite
def random_expressions(draw: st.DrawFn) -> cp.Expression:
    leaves = [a, b, p, N[0], cp.diag(S), s * np.ones(3)]
    pool = [draw(st.sampled_from(leaves)) for _ in range(3)]
    for _ in range(draw(st.integers(1, 6))):
        step = draw(st.sampled_from(_steps()))
        pool.append(step(draw(st.sampled_from(pool)), draw(st.sampled_from(pool))))
    return pool[-1]


@settings(max_examples=40, deadline=None)
@given(e=random_expressions(), seed=st.integers(0, 1000))
def test_random_expressions(e: cp.Expression, seed: int) -> None:
    values = values_of(seed)
    if not np.abs(cvxpy_value(e, values)).max() < 1e4:  # differences would be noise
        return
    check(e, seed)
