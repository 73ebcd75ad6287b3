"""Where atoms have no derivative: kinks (abs at zero, ties of a maximum), infinite derivatives (sqrt at zero), jumps.

A rule takes an atom and returns a function of the NumPy values of its arguments, or None if the atom is differentiable
on its whole domain. Of a batch, the function returns (batch, ...): true anywhere in a row means that this sample is at
such a place. Infinite arguments count too where the atom has a finite value for them: 1 / exp(800) is 0, but the chain
rule multiplies zero by infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.condition_number import condition_number
from cvxpy.atoms.cummax import cummax
from cvxpy.atoms.dist_ratio import dist_ratio
from cvxpy.atoms.dotsort import dotsort
from cvxpy.atoms.elementwise.abs import abs as abs_atom
from cvxpy.atoms.elementwise.ceil import ceil, floor
from cvxpy.atoms.elementwise.entr import entr
from cvxpy.atoms.elementwise.exp import exp
from cvxpy.atoms.elementwise.hyperbolic import tanh
from cvxpy.atoms.elementwise.kl_div import kl_div
from cvxpy.atoms.elementwise.logistic import logistic
from cvxpy.atoms.elementwise.maximum import maximum
from cvxpy.atoms.elementwise.minimum import minimum
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.elementwise.rel_entr import rel_entr
from cvxpy.atoms.gen_lambda_max import gen_lambda_max
from cvxpy.atoms.geo_mean import GeoMean, GeoMeanApprox
from cvxpy.atoms.gmatmul import gmatmul
from cvxpy.atoms.lambda_max import lambda_max
from cvxpy.atoms.lambda_sum_largest import lambda_sum_largest
from cvxpy.atoms.log_sum_exp import log_sum_exp
from cvxpy.atoms.max import max as max_atom
from cvxpy.atoms.min import min as min_atom
from cvxpy.atoms.norm1 import norm1
from cvxpy.atoms.norm_inf import norm_inf
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.sigma_max import sigma_max
from cvxpy.atoms.sign import sign
from cvxpy.atoms.sum_largest import sum_largest
from cvxpy.atoms.von_neumann_entr import von_neumann_entr

from ffo.program.expressions.elementwise import DECIMALS
from ffo.program.expressions.namespace import HostNamespace
from ffo.program.expressions.reductions import generalized, order_of, symmetric, top_weights, weights_of_mean
from ffo.program.expressions.structure import Shape, aligned, axes_of, lead, shapes_of, with_shapes

Array = np.ndarray
Axes = tuple[int, ...]
Test = Callable[..., Array]
Rule = Callable[[Any], Test | None]

#: eigenvalues and singular values this close, relative to the largest, are equal: a hundred times their rounding
EQUAL = 1e-13


def zero(x: Array) -> Array:
    return x == 0.0


def infinite(x: Array) -> Array:
    return ~np.isfinite(x)


def infinite_divisor(x: Array, y: Array, shapes: tuple[Shape, ...]) -> Array:
    x, y = np.broadcast_arrays(*aligned(np, (x, y), shapes))
    return ~np.isfinite(y)


#: tests for intermediate overflow
INFINITE = (infinite, infinite_divisor)


def zero_first(x: Array, y: Array, shapes: tuple[Shape, ...]) -> Array:
    x, y = np.broadcast_arrays(*aligned(np, (x, y), shapes))
    return x == 0.0


def power_at_zero(x: Array, exponent: Array, shapes: tuple[Shape, ...]) -> Array:
    x, exponent = aligned(np, (x, exponent), shapes)
    return (x == 0.0) | ~np.isfinite(x) | ~np.isfinite(exponent)


def _power(atom: Any) -> Test | None:
    if atom.p.parameters():
        return partial(power_at_zero, shapes=(*shapes_of(atom), tuple(atom.p.shape)))
    p = float(atom.p.value)
    return infinite if p < 0 else zero if 0 < p < 1 else None


def jump(x: Array) -> Array:
    x = np.round(x, DECIMALS)
    return x == np.floor(x)


def tie(*values: Array, shapes: tuple[Shape, ...], largest: bool) -> Array:
    """Whether two of several arrays are equal, and extreme; or one infinite."""
    own = np.broadcast_arrays(*aligned(np, values, shapes))
    extreme = np.max(own, axis=0) if largest else np.min(own, axis=0)
    return (sum((v == extreme).astype(int) for v in own) > 1) | ~np.isfinite(own).all(axis=0)


def tie_within(x: Array, axes: Axes, largest: bool, magnitude: bool = False) -> Array:
    """Whether the extreme entry along some axes occurs twice; or, of magnitudes, is zero."""
    x = np.abs(x) if magnitude else x
    extreme = x.max(axis=axes, keepdims=True) if largest else x.min(axis=axes, keepdims=True)
    found = (x == extreme).sum(axis=axes) > 1
    return found | (extreme == 0.0).all(axis=axes) if magnitude else found


def all_zero(x: Array, axes: Axes) -> Array:
    return (x == 0.0).all(axis=axes)


def zero_at(x: Array, places: Array) -> Array:
    return (x == 0.0) & places


def running_tie(x: Array, axis: int) -> Array:
    x = np.moveaxis(x, axis, -1)
    return x[..., 1:] == np.maximum.accumulate(x, axis=-1)[..., :-1]


def border(x: Array, k: float, axes: Axes) -> Array:
    """Whether equal entries along some axes have different weights in the sum of the largest."""
    ndim, inner = x.ndim, sorted(a + x.ndim for a in axes)
    outer = [a for a in range(ndim) if a not in inner]
    moved = np.sort(x.transpose(*outer, *inner).reshape(*(x.shape[a] for a in outer), -1), axis=-1)
    return _uneven(moved, top_weights(moved.shape[-1], k), 0.0)


def _uneven(ascending: Array, weights: Array, rounding: float) -> Array:
    """Whether neighbours are equal, up to rounding relative to the largest, and have different weights."""
    least = rounding * np.abs(ascending).max(axis=-1, keepdims=True, initial=0.0)
    return (np.diff(ascending, axis=-1) <= least) & (np.diff(weights, axis=-1) != 0.0)


def sorted_tie(x: Array, w: Array, shapes: tuple[Shape, ...], weighs: bool) -> Array:
    """Ties of x with different weights; if the weights have parameters (`weighs`), ties of these."""
    size = int(np.prod(shapes[0]))
    x = np.sort(x.reshape(*lead(x, shapes[0]), size), axis=-1)
    w = w.reshape(*lead(w, shapes[1]), -1)
    w = np.concatenate([w, np.zeros((*w.shape[:-1], size - w.shape[-1]))], axis=-1)
    dx, dw = np.diff(x, axis=-1), np.diff(np.sort(w, axis=-1), axis=-1)
    return ((dx == 0.0) & (dw != 0.0)) | (weighs & (dw == 0.0) & (dx != 0.0))


def spectrum(x: Array, kind: str, k: float = 1.0) -> Array:
    """Whether an atom of the eigenvalues of symmetric matrices depends on the order of equal ones."""
    w = HostNamespace().eigvalsh(symmetric(np, x))
    if kind == "largest":
        return _uneven(w, top_weights(w.shape[-1], k), EQUAL)
    if kind == "entropy":
        return w[..., :1] <= EQUAL * w[..., -1:]
    ends = np.zeros(w.shape[-1])
    ends[0], ends[-1] = -1.0, 1.0
    return _uneven(w, ends, EQUAL)  # the condition number


def generalized_tie(A: Array, B: Array) -> Array:
    return spectrum(generalized(HostNamespace(), A, B), "largest")


def singular(x: Array, all_of_them: bool) -> Array:
    s = HostNamespace().svdvals(x)  # descending
    if all_of_them:
        return s[..., -1:] <= EQUAL * s[..., :1]
    return np.concatenate([s[..., :1] == 0.0, s[..., 1:2] >= (1.0 - EQUAL) * s[..., :1]], axis=-1)


def same_point(x: Array, a: Array, b: Array, shapes: tuple[Shape, ...]) -> Array:
    x, a, b = np.broadcast_arrays(*aligned(np, (x, a, b), shapes))
    return (x == a).all(axis=tuple(range(-len(shapes[0]), 0)))


def zero_base(X: Array, A: Array, shapes: tuple[Shape, ...]) -> Array:
    found = (X == 0.0).reshape(*lead(X, shapes[0]), -1).any(axis=-1)
    return found | np.zeros(lead(A, shapes[1]), dtype=bool)


def _norm(atom: Any) -> Test:
    p, axes = order_of(atom), axes_of(atom)
    if p <= 1:
        return zero
    return partial(tie_within, axes=axes, largest=True, magnitude=True) if p == np.inf else partial(all_zero, axes=axes)


def _mean(atom: Any) -> Test:
    weights = weights_of_mean(atom)
    return partial(zero_at, places=(weights > 0.0) & (weights < 1.0))


def _within(largest: bool) -> Rule:
    return lambda atom: partial(tie_within, axes=axes_of(atom), largest=largest)


def _spectrum(kind: str) -> Rule:
    return lambda atom: partial(spectrum, kind=kind, k=float(getattr(atom, "k", 1.0)))


RULES: dict[type[Atom], Rule] = {
    **dict.fromkeys((abs_atom, sign, entr), lambda atom: zero),
    **dict.fromkeys((exp, logistic, tanh, normcdf, log_sum_exp), lambda atom: infinite),
    **dict.fromkeys((kl_div, rel_entr), with_shapes(zero_first)),
    **dict.fromkeys((ceil, floor), lambda atom: jump),
    **dict.fromkeys((Power, PowerApprox), _power),
    **dict.fromkeys((norm1, norm_inf, Pnorm, PnormApprox), _norm),
    **dict.fromkeys((GeoMean, GeoMeanApprox), _mean),
    **dict.fromkeys((lambda_max, lambda_sum_largest), _spectrum("largest")),
    DivExpression: with_shapes(infinite_divisor),
    maximum: with_shapes(partial(tie, largest=True)),
    minimum: with_shapes(partial(tie, largest=False)),
    max_atom: _within(True),
    min_atom: _within(False),
    cummax: lambda atom: partial(running_tie, axis=int(atom.axis) % atom.args[0].ndim - atom.args[0].ndim),
    sum_largest: lambda atom: partial(border, k=atom.k, axes=axes_of(atom)),
    dotsort: lambda atom: partial(sorted_tie, shapes=shapes_of(atom), weighs=bool(atom.args[1].parameters())),
    von_neumann_entr: _spectrum("entropy"),
    condition_number: _spectrum("condition"),
    gen_lambda_max: lambda atom: generalized_tie,
    normNuc: lambda atom: partial(singular, all_of_them=True),
    sigma_max: lambda atom: partial(singular, all_of_them=False),
    dist_ratio: with_shapes(same_point),
    gmatmul: lambda atom: partial(zero_base, shapes=(*shapes_of(atom), tuple(atom.A.shape))),
}
