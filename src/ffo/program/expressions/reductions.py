"""Norms, extremes, products and spectra: rows of the table of translations (see `structure`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.condition_number import condition_number
from cvxpy.atoms.cummax import cummax
from cvxpy.atoms.cumprod import cumprod
from cvxpy.atoms.dist_ratio import dist_ratio
from cvxpy.atoms.dotsort import dotsort
from cvxpy.atoms.eye_minus_inv import eye_minus_inv
from cvxpy.atoms.gen_lambda_max import gen_lambda_max
from cvxpy.atoms.geo_mean import GeoMean, GeoMeanApprox
from cvxpy.atoms.gmatmul import gmatmul
from cvxpy.atoms.lambda_max import lambda_max
from cvxpy.atoms.lambda_sum_largest import lambda_sum_largest
from cvxpy.atoms.log_det import log_det
from cvxpy.atoms.log_sum_exp import log_sum_exp
from cvxpy.atoms.matrix_frac import MatrixFrac
from cvxpy.atoms.max import max as max_atom
from cvxpy.atoms.min import min as min_atom
from cvxpy.atoms.norm1 import norm1
from cvxpy.atoms.norm_inf import norm_inf
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.pf_eigenvalue import pf_eigenvalue
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.prod import Prod
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from cvxpy.atoms.sigma_max import sigma_max
from cvxpy.atoms.sum_largest import sum_largest
from cvxpy.atoms.tr_inv import tr_inv
from cvxpy.atoms.von_neumann_entr import von_neumann_entr

from ffo.program.expressions.elementwise import entropy, power
from ffo.program.expressions.structure import (
    Function,
    Rule,
    Shape,
    aligned,
    axes_of,
    lead,
    matrix_product,
    shapes_of,
    with_shapes,
)  # fmt: skip

Array = np.ndarray
Axes = tuple[int, ...]

#: eigenvalues of this size, relative to the largest, may be zero
ROUNDING = 1e-14


def positive_root(xp: Any, square: Any) -> Any:
    """The root of sums of squares, whose derivative at zero is taken for zero: a subgradient of the norm."""
    return power(xp, square, 0.5)


def norm(xp: Any, x: Any, p: float, axes: Axes, keepdims: bool) -> Any:
    if p == 2:
        return positive_root(xp, xp.sum(x * x, axis=axes, keepdims=keepdims))
    if p == 1:
        return xp.sum(xp.abs(x), axis=axes, keepdims=keepdims)
    if p == np.inf:
        return xp.max(xp.abs(x), axis=axes, keepdims=keepdims)
    if p < 1:
        x = xp.where(x < 0.0, np.nan, x)  # outside of the domain
        return xp.sum(power(xp, x, p), axis=axes, keepdims=keepdims) ** (1.0 / p)
    return power(xp, xp.sum(xp.abs(x) ** p, axis=axes, keepdims=keepdims), 1.0 / p)


def reduced(xp: Any, x: Any, name: str, axes: Axes, keepdims: bool) -> Any:
    """max, min or prod; one axis after the other, since not all libraries take several at once."""
    if not axes:
        return x
    for axis in axes:
        x = getattr(xp, name)(x, axis=axis, keepdims=True)
    return x if keepdims else xp.reshape(x, tuple(n for k, n in enumerate(x.shape) if k - len(x.shape) not in axes))


def logarithm_of_sum(xp: Any, x: Any, axes: Axes, keepdims: bool) -> Any:
    largest = reduced(xp, x, "max", axes, True)
    value = largest + xp.log(xp.sum(xp.exp(x - largest), axis=axes, keepdims=True))
    return value if keepdims else xp.sum(value, axis=axes)


def sum_of_squares(xp: Any, x: Any, y: Any, axes: Axes, keepdims: bool, shapes: tuple[Shape, ...]) -> Any:
    total = xp.sum(x * x, axis=axes, keepdims=keepdims) if axes else x * x
    kept = len(total.shape) - len(lead(x, shapes[0]))
    y = xp.reshape(y, (*lead(y, shapes[1]), *(1,) * kept))
    return total / y


def largest_entries(xp: Any, x: Any, k: float, axes: Axes, keepdims: bool) -> Any:
    """Sum of the k largest entries over some axes; the fraction of a k counts in part."""
    ndim = len(x.shape)
    inner = sorted(a + ndim for a in axes)
    outer = [a for a in range(ndim) if a not in inner]
    moved = xp.transpose(x, (*outer, *inner))
    rest = tuple(x.shape[a] for a in outer)
    size = prod(x.shape[a] for a in inner)
    value = top(xp, xp.sort(xp.reshape(moved, (*rest, size)), axis=-1), k)
    return xp.reshape(value, tuple(1 if a in inner else x.shape[a] for a in range(ndim))) if keepdims else value


def top(xp: Any, ascending: Any, k: float) -> Any:
    if k == 1:
        return ascending[..., -1]
    return xp.sum(ascending * xp.asarray(top_weights(ascending.shape[-1], k)), axis=-1)


def top_weights(size: int, k: float) -> Array:
    """Of entries in ascending order: how much each counts."""
    weight, whole = np.zeros(size), int(k)
    if whole:
        weight[-whole:] = 1.0
    if whole < size:
        weight[size - whole - 1] = k - whole
    return weight


def geometric_mean(xp: Any, x: Any, weight: Array, axes: Axes, keepdims: bool) -> Any:
    """The product of powers of entries; those of weight zero are left out, whatever their value. Where the derivative
    of a power is infinite, it is taken for zero."""
    at_zero = (x == 0.0) & xp.asarray(weight < 1.0)
    counted = xp.where(xp.asarray(weight == 0.0) | at_zero, 1.0, x)
    powers = xp.where(at_zero & xp.asarray(weight > 0.0), 0.0, counted ** xp.asarray(weight))
    return reduced(xp, powers, "prod", axes, keepdims)


def weights_of_mean(atom: Any) -> Array:
    """The weight of each entry, in a shape that broadcasts against the argument's."""
    shape, axes = atom.args[0].shape, axes_of(atom)
    weight = np.zeros(prod(shape[a] for a in axes))
    weight[atom._keep] = [float(w) for w in atom.w]
    weight = weight.reshape([shape[a] for a in axes], order="F").transpose(np.argsort(axes))
    full = [n if k - len(shape) in axes else 1 for k, n in enumerate(shape)]
    return weight.reshape(full)


def cumulative(xp: Any, x: Any, axis: int, name: str) -> Any:
    """Running products or maxima along an axis, counted from the end."""
    step = xp.maximum if name == "max" else (lambda a, b: a * b)
    slices = [xp.take(x, np.array([k]), axis=axis) for k in range(x.shape[axis])]
    for k in range(1, len(slices)):
        slices[k] = step(slices[k - 1], slices[k])
    return xp.concatenate(slices, axis=axis)


def _cumulative(name: str) -> Rule:
    def rule(atom: Any) -> Function:
        ndim = len(atom.args[0].shape)
        return partial(cumulative, axis=int(atom.axis) % ndim - ndim, name=name)

    return rule


def symmetric(xp: Any, x: Any) -> Any:
    ndim = len(x.shape)
    return 0.5 * (x + xp.transpose(x, (*range(ndim - 2), ndim - 1, ndim - 2)))


def quadratic_form(xp: Any, x: Any, P: Any, shapes: tuple[Shape, ...]) -> Any:
    n = shapes[1][0]
    x = xp.reshape(x, (*lead(x, shapes[0]), n))
    return xp.sum(x * matrix_product(xp, P, x, ((n, n), (n,)), (n,)), axis=-1)


def matrix_fraction(xp: Any, X: Any, P: Any, shapes: tuple[Shape, ...]) -> Any:
    n = shapes[1][0]
    X = xp.reshape(X, (*lead(X, shapes[0]), n, prod(shapes[0]) // n))
    return xp.sum(X * xp.matmul(xp.inv(P), X), axis=(-2, -1))


def log_determinant(xp: Any, x: Any) -> Any:
    sign, value = xp.slogdet(symmetric(xp, x))
    return xp.where(sign > 0.0, value, -np.inf)


def eigenvalues(xp: Any, x: Any, kind: str, k: float = 1.0) -> Any:
    """Of symmetric matrices: a number made of their spectrum."""
    w = xp.eigvalsh(symmetric(xp, x))
    if kind == "largest":
        return top(xp, w, k)
    if kind == "inverses":
        return xp.where(w[..., 0] > 0.0, xp.sum(1.0 / w, axis=-1), np.inf)
    if kind == "entropy":
        rounded = (w < 0.0) & (w > -ROUNDING * w[..., -1:])
        return xp.sum(entropy(xp, xp.where(rounded, 0.0, w)), axis=-1)
    return w[..., -1] / w[..., 0]  # the condition number


def generalized(xp: Any, A: Any, B: Any) -> Any:
    """The symmetric matrix whose eigenvalues are the generalized ones of A and B."""
    L = xp.inv(xp.cholesky(symmetric(xp, B)))
    ndim = len(L.shape)
    return L @ symmetric(xp, A) @ xp.transpose(L, (*range(ndim - 2), ndim - 1, ndim - 2))


def generalized_eigenvalue(xp: Any, A: Any, B: Any) -> Any:
    return eigenvalues(xp, generalized(xp, A, B), "largest")


def singular_values(xp: Any, x: Any, all_of_them: bool) -> Any:
    s = xp.svdvals(x)
    return xp.sum(s, axis=-1) if all_of_them else xp.max(s, axis=-1)


def sorted_product(xp: Any, x: Any, w: Any, shapes: tuple[Shape, ...]) -> Any:
    size, count = prod(shapes[0]), prod(shapes[1])
    x = xp.sort(xp.reshape(x, (*lead(x, shapes[0]), size)), axis=-1)
    w = xp.reshape(w, (*lead(w, shapes[1]), count))
    if count < size:
        zeros = xp.broadcast_to(xp.asarray(np.zeros(size - count)), (*lead(w, (count,)), size - count))
        w = xp.concatenate([w, zeros], axis=-1)
    return xp.sum(x * xp.sort(w, axis=-1), axis=-1)


def resolvent(xp: Any, x: Any) -> Any:
    return xp.inv(xp.asarray(np.eye(x.shape[-1])) - x)


def spectral_radius(xp: Any, x: Any) -> Any:
    return xp.max(xp.abs(xp.eigvals(x)), axis=-1)


def monomials(xp: Any, X: Any, A: Any, shapes: tuple[Shape, ...], shape: Shape) -> Any:
    return xp.exp(matrix_product(xp, A, xp.log(X), (shapes[1], shapes[0]), shape))


def distance_ratio(xp: Any, x: Any, a: Any, b: Any, shapes: tuple[Shape, ...]) -> Any:
    x, a, b = aligned(xp, (x, a, b), shapes)
    axes = tuple(range(-len(shapes[0]), 0))
    return positive_root(xp, xp.sum((x - a) ** 2, axis=axes)) / positive_root(xp, xp.sum((x - b) ** 2, axis=axes))


def order_of(atom: Any) -> float:
    """p of a norm."""
    return float(getattr(atom, "original_p", 1 if isinstance(atom, norm1) else np.inf))


def _eigenvalues(kind: str) -> Rule:
    return lambda atom: partial(eigenvalues, kind=kind, k=float(getattr(atom, "k", 1.0)))


def _axes(function: Function, **more: Callable[[Any], Any]) -> Rule:
    def rule(atom: Any) -> Function:
        data = {name: of(atom) for name, of in more.items()}
        return partial(function, axes=axes_of(atom), keepdims=bool(atom.keepdims), **data)

    return rule


RULES: dict[type[Atom], Rule] = {
    **dict.fromkeys((norm1, norm_inf, Pnorm, PnormApprox), _axes(norm, p=order_of)),
    max_atom: _axes(partial(reduced, name="max")),
    min_atom: _axes(partial(reduced, name="min")),
    Prod: _axes(partial(reduced, name="prod")),
    cumprod: _cumulative("prod"),
    cummax: _cumulative("max"),
    log_sum_exp: _axes(logarithm_of_sum),
    sum_largest: _axes(largest_entries, k=attrgetter("k")),
    quad_over_lin: _axes(sum_of_squares, shapes=shapes_of),
    **dict.fromkeys((GeoMean, GeoMeanApprox), _axes(geometric_mean, weight=weights_of_mean)),
    QuadForm: with_shapes(quadratic_form),
    MatrixFrac: with_shapes(matrix_fraction),
    log_det: lambda atom: log_determinant,
    **dict.fromkeys((lambda_max, lambda_sum_largest), _eigenvalues("largest")),
    tr_inv: _eigenvalues("inverses"),
    von_neumann_entr: _eigenvalues("entropy"),
    condition_number: _eigenvalues("condition"),
    gen_lambda_max: lambda atom: generalized_eigenvalue,
    normNuc: lambda atom: partial(singular_values, all_of_them=True),
    sigma_max: lambda atom: partial(singular_values, all_of_them=False),
    dotsort: with_shapes(sorted_product),
    eye_minus_inv: lambda atom: resolvent,
    pf_eigenvalue: lambda atom: spectral_radius,
    gmatmul: lambda atom: partial(
        monomials, shapes=(*shapes_of(atom), tuple(atom.A.shape)), shape=tuple(atom.shape)
    ),
    dist_ratio: with_shapes(distance_ratio),
}  # fmt: skip
