"""Parameter expressions at kinks, infinite slopes, jumps and NaN: places without a derivative are reported."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from program.test_expressions import ALL, EXPRESSIONS, XP, M, N, S, T, a, b, p, s, symmetric_directions, t, translated

from ffo.program.expressions.evaluate import compiled
from ffo.program.expressions.namespace import HostNamespace

Array = np.ndarray
HOST = HostNamespace()
#: at singular matrices, rounding decides on their value
ROUNDED = {
    "matrix fraction", "matrix fraction of a matrix", "generalized eigenvalue", "condition number", "log det",
    "trace of the inverse",
}  # fmt: skip


def special_value(q: cp.Parameter, rng: np.random.Generator) -> Array:
    """Few different numbers, zero among them, so that entries and eigenvalues are often equal."""
    positive = q.attributes["pos"]
    v = rng.choice([0.0, 0.5, 1.0, 2.0] if positive else [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], size=q.shape)
    if q.attributes["PSD"]:
        w = rng.choice([[1.0, 1.0, 1.0], [1.0, 2.0, 2.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
        Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        return 0.5 * ((Q * w) @ Q.T + ((Q * w) @ Q.T).T)
    if q.attributes["symmetric"]:
        return np.diag(rng.choice([1.0, 2.0, 3.0], size=len(v))) if rng.random() < 0.5 else v + v.T
    return np.outer(v[:, 0], v[0]) if v.ndim == 2 and not positive and rng.random() < 0.3 else np.asarray(v)


def one_sided(e: cp.Expression, values: dict, weights: Array, direction: dict, step: float = 1e-6) -> list[float]:
    """Differences to both sides; NaN at the end of the domain."""
    function = translated(e)
    ends = []
    with np.errstate(all="ignore"):
        for k in (-2, -1, 0, 1, 2):
            (found,) = function(HOST, [v + k * step * direction[q] for q, v in values.items()])
            ends.append(float(np.sum(weights * found)) if np.isfinite(found).all() else np.nan)
    before, last, here, first, after = ends
    return [(before - 4 * last + 3 * here) / (2 * step), (4 * first - after - 3 * here) / (2 * step)]


@pytest.mark.parametrize("name", [name for name in EXPRESSIONS if name not in ROUNDED])
def test_gradients_are_those_of_both_sides_unless_reported(name: str) -> None:
    e, rng = EXPRESSIONS[name], np.random.default_rng(0)
    function = translated(e)
    for _ in range(12):
        values = {q: special_value(q, rng) for q in ALL}
        with np.errstate(all="ignore"):
            (found,) = function(HOST, [*values.values()])
        if not np.isfinite(found).all() or function.irregular([*values.values()], np.float64):
            continue
        tensors = [torch.tensor(v, requires_grad=True) for v in values.values()]
        weights = rng.normal(size=e.shape)
        (function(XP, tensors)[0] * torch.tensor(weights)).sum().backward()
        direction = symmetric_directions(rng)
        slope = sum(float((x.grad * torch.tensor(direction[q])).sum()) for q, x in zip(ALL, tensors, strict=True)
                    if x.grad is not None)  # fmt: skip
        for side in one_sided(e, values, weights, direction):
            assert np.isnan(side) or side == pytest.approx(slope, rel=1e-3, abs=1e-3)


EDGES = {
    "abs": (cp.abs(a), {a: [1.0, 0.0, 2.0]}),
    "sqrt": (cp.sqrt(p), {p: [1.0, 0.0, 2.0]}),
    "parametric power": (cp.power(p, s), {p: [1.0, 0.0, 2.0]}),
    "maximum": (cp.maximum(a, b), {a: [1.0, 5.0, 2.0], b: [0.0, 5.0, 7.0]}),
    "minimum": (cp.minimum(s, t), {s: 2.0, t: 2.0}),
    "sign": (cp.sign(a), {a: [1.0, 0.0, 2.0]}),
    "floor": (cp.floor(a), {a: [0.5, 3.0, 0.2]}),
    "entropy": (cp.entr(p), {p: [1.0, 0.0, 2.0]}),
    "divergence": (cp.kl_div(p, 1 + p), {p: [1.0, 0.0, 2.0]}),
    "norm 1": (cp.norm1(a), {a: [1.0, 0.0, 2.0]}),
    "norm 2": (cp.norm(a), {a: np.zeros(3)}),
    "norm 2 of an axis": (cp.norm(N, 2, axis=0), {N: [[1.0, 0.0, 2.0], [1.0, 0.0, 3.0]]}),
    "norm 3": (cp.pnorm(a, 3), {a: np.zeros(3)}),
    "norm 0.5": (cp.pnorm(p, 0.5), {p: [1.0, 0.0, 2.0]}),
    "norm inf": (cp.norm_inf(a), {a: [1.0, -3.0, 3.0]}),
    "max": (cp.max(M, axis=0), {M: [[1.0, 2.0, 3.0], [0.0, 2.0, 4.0], [0.0, 0.0, 0.0]]}),
    "min": (cp.min(a), {a: [1.0, 1.0, 3.0]}),
    "cummax": (cp.cummax(N, axis=1), {N: [[1.0, 2.0, 2.0], [1.0, 2.0, 3.0]]}),
    "sum largest": (cp.sum_largest(a, 2), {a: [1.0, 1.0, 3.0]}),
    "dotsort": (cp.dotsort(a, np.array([1.0, 2.0, 3.0])), {a: [1.0, 1.0, 3.0]}),
    "dotsort of parameters": (cp.dotsort(a, b), {a: [1.0, 2.0, 3.0], b: [1.0, 1.0, 2.0]}),
    "geometric mean": (cp.geo_mean(p), {p: [1.0, 0.0, 2.0]}),
    "lambda max": (cp.lambda_max(T), {T: np.diag([1.0, 3.0, 3.0, 2.0])}),
    "lambda sum largest": (cp.lambda_sum_largest(T, 2), {T: np.diag([1.0, 2.0, 3.0, 2.0])}),
    "von Neumann entropy": (cp.von_neumann_entr(S), {S: np.diag([0.0, 1.0, 2.0])}),
    "condition number": (cp.condition_number(S), {S: np.diag([1.0, 1.0, 2.0])}),
    "generalized eigenvalue": (cp.gen_lambda_max(T, np.eye(4)), {T: np.diag([1.0, 3.0, 3.0, 2.0])}),
    "nuclear": (cp.normNuc(N), {N: [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]}),
    "spectral": (cp.sigma_max(N), {N: np.eye(2, 3)}),
    "spectral of zero": (cp.sigma_max(cp.reshape(a, (1, 3), order="F")), {a: np.zeros(3)}),
    "distance ratio": (cp.dist_ratio(a, np.ones(3), np.zeros(3)), {a: np.ones(3)}),
    "monomials": (cp.gmatmul(np.ones((1, 3)), p), {p: [1.0, 0.0, 2.0]}),
    "overflow below a fraction": (1 / (1 + cp.exp(s)), {s: 800.0}),
    "overflow in an exponent": (cp.exp(-cp.exp(s)), {s: 800.0}),
    "overflow of a minimum": (cp.minimum(cp.exp(s), 1), {s: 800.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_edges_are_reported_by_their_sample(name: str) -> None:
    """In a batch whose other sample is regular, and alone."""
    e, at = EDGES[name]
    regular = {q: np.asarray(v) for q, v in zip(ALL, regular_values(), strict=True)}
    values = [np.stack([regular[q], np.asarray(at.get(q, regular[q]), dtype=float)]) for q in ALL]
    function = compiled([cp.sum(a), e], ALL, ["sum", "e"])
    found = function.irregular(values, np.float64)
    assert {k: v.tolist() for k, v in found.items()} == {1: [False, True]}
    alone = function.irregular([v[1] for v in values], np.float64)
    assert {k: v.shape for k, v in alone.items()} == {1: ()}
    assert not function.irregular([v[0] for v in values], np.float64)


def regular_values() -> list[Array]:
    rng = np.random.default_rng(8)
    found = []
    for q in ALL:
        v = np.asarray(rng.uniform(0.1, 0.9, size=q.shape))
        if q.attributes["PSD"]:
            v = v @ v.T + np.diag(np.arange(len(v)))
        found.append(v + v.T if q.attributes["symmetric"] else v)
    return found


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_nan_is_not_lost(name: str) -> None:
    """An entry that the value depends on makes it NaN, or infinite."""
    e = EXPRESSIONS[name]
    function = translated(e)
    plain = regular_values()
    (value,) = function(HOST, plain)
    for k, q in enumerate(ALL):
        place = (0,) * q.ndim
        moved, spoilt = ([v.copy() for v in plain] for _ in range(2))
        moved[k][place] *= 1.001
        spoilt[k][place] = np.nan
        if np.allclose(function(HOST, moved)[0], value, rtol=1e-9, atol=0):
            continue
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            assert not np.isfinite(function(HOST, spoilt)[0]).all()
        assert not torch.isfinite(function(XP, [torch.tensor(v) for v in spoilt])[0]).all()


@pytest.mark.parametrize(
    ("e", "at"),
    [
        (cp.pnorm(p, -1), {p: [1.0, -1.0, 2.0]}),
        (cp.huber(a, cp.power(s, 3)), {s: -1.0}),
        (cp.tr_inv(S), {S: -np.eye(3)}),
        (cp.gen_lambda_max(M + M.T, S), {S: -np.eye(3)}),
    ],
    ids=str,
)
def test_values_outside_of_the_domain_are_not_finite(e: cp.Expression, at: dict) -> None:
    values = [np.asarray(at.get(q, v), dtype=float) for q, v in zip(ALL, regular_values(), strict=True)]
    function = translated(e)
    with np.errstate(all="ignore"):
        assert not np.isfinite(function(HOST, values)[0]).all()
    assert not torch.isfinite(function(XP, [torch.tensor(v) for v in values])[0]).all()


def test_entropies_of_zero_and_of_singular_matrices() -> None:
    at = {p: np.array([0.0, 0.5, 1.0]), S: np.ones((3, 3))}
    tensors = [torch.tensor(at.get(q, v)) for q, v in zip(ALL, regular_values(), strict=True)]
    (found,) = translated(cp.sum(cp.rel_entr(p, p)))(XP, tensors)
    assert found.item() == 0.0
    (found,) = translated(cp.von_neumann_entr(S))(XP, tensors)
    assert found.item() == pytest.approx(-3 * np.log(3))
