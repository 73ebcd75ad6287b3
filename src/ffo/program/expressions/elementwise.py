"""Elementwise atoms: rows of the table of translations (see `structure`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy.settings as s
import numpy as np
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.abs import abs as abs_atom
from cvxpy.atoms.elementwise.ceil import ceil, floor
from cvxpy.atoms.elementwise.entr import entr
from cvxpy.atoms.elementwise.exp import exp
from cvxpy.atoms.elementwise.huber import huber
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.kl_div import kl_div
from cvxpy.atoms.elementwise.log import log
from cvxpy.atoms.elementwise.log1p import log1p
from cvxpy.atoms.elementwise.logistic import logistic
from cvxpy.atoms.elementwise.maximum import maximum
from cvxpy.atoms.elementwise.minimum import minimum
from cvxpy.atoms.elementwise.normcdf import normcdf
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.elementwise.rel_entr import rel_entr
from cvxpy.atoms.elementwise.trig import cos, sin, tan
from cvxpy.atoms.elementwise.xexp import xexp
from cvxpy.atoms.sign import sign

from ffo.program.expressions.structure import Function, Rule, Shape, aligned, shapes_of, with_shapes

#: stands for zero inside logarithms, so that 0 log 0 is 0; its derivative there, which is infinite, is some hundreds
TINY = np.finfo(float).tiny
#: CVXPY rounds to so many decimals before it rounds up or down
DECIMALS = int(np.abs(np.log10(s.ATOM_EVAL_TOL)))


def named(xp: Any, x: Any, name: str) -> Any:
    """A function that the library has itself."""
    return getattr(xp, name)(x)


def power(xp: Any, x: Any, exponent: float) -> Any:
    """Powers; the infinite derivative of a root at zero is taken for zero (`edges` reports it)."""
    if exponent == 0:
        return x * 0.0 + 1.0
    if 0 < exponent < 1:
        at_zero = x == 0.0
        x = xp.where(at_zero, 1.0, x)
        return xp.where(at_zero, 0.0, xp.sqrt(x) if exponent == 0.5 else x**exponent)
    return x ** (int(exponent) if exponent == int(exponent) else exponent)


def parametric_power(xp: Any, x: Any, exponent: Any, shapes: tuple[Shape, ...]) -> Any:
    """The same with any exponent; there is no derivative at zero, neither in the base nor in the exponent."""
    x, exponent = aligned(xp, (x, exponent), shapes)
    at_zero = x == 0.0
    limit = xp.where(exponent > 0.0, 0.0, xp.where(exponent == 0.0, 1.0, np.inf))
    return xp.where(at_zero, limit, xp.where(at_zero, 1.0, x) ** exponent)


def _power(atom: Any) -> Function:
    if atom.p.parameters():
        return partial(parametric_power, shapes=(*shapes_of(atom), tuple(atom.p.shape)))
    return partial(power, exponent=float(atom.p.value))


def extreme(xp: Any, *values: Any, shapes: tuple[Shape, ...], largest: bool) -> Any:
    first, *others = aligned(xp, values, shapes)
    for other in others:
        first = xp.maximum(first, other) if largest else xp.minimum(first, other)
    return first


def huber_loss(xp: Any, x: Any, bound: Any, shapes: tuple[Shape, ...]) -> Any:
    x, bound = aligned(xp, (x, bound), shapes)
    size = xp.abs(x)
    value = xp.where(size <= bound, x * x, 2.0 * bound * size - bound * bound)
    return xp.where(bound < 0.0, np.inf, value)


def x_log_x(xp: Any, x: Any) -> Any:
    return x * xp.log(xp.where(x == 0.0, TINY, x))


def entropy(xp: Any, x: Any) -> Any:
    value = -x_log_x(xp, xp.where(x < 0.0, 1.0, x))
    return xp.where(x < 0.0, -np.inf, value)


def relative_entropy(xp: Any, x: Any, y: Any, shapes: tuple[Shape, ...], proper: bool) -> Any:
    """x log(x / y), and y - x beside it if the divergence is to be proper."""
    x, y = aligned(xp, (x, y), shapes)
    value = x_log_x(xp, x) - x * xp.log(xp.where((x == 0.0) & (y == 0.0), 1.0, y))
    return value - x + y if proper else value


def softplus(xp: Any, x: Any) -> Any:
    return xp.logaddexp(x, x * 0.0)


def normal(xp: Any, x: Any) -> Any:
    return 0.5 * (1.0 + xp.erf(x / np.sqrt(2.0)))


def x_exp(xp: Any, x: Any) -> Any:
    return x * xp.exp(x)


def rounded(xp: Any, x: Any, up: bool) -> Any:
    x = xp.round(x * 10.0**DECIMALS) / 10.0**DECIMALS
    return xp.ceil(x) if up else xp.floor(x)


def side(xp: Any, x: Any) -> Any:
    """CVXPY's sign: -1 at zero, too. Not all libraries have NaN as the sign of NaN."""
    return xp.where(x == x, xp.sign(xp.sign(x) - 0.5), x)


def _named(name: str) -> Rule:
    return lambda atom: partial(named, name=name)


RULES: dict[type[Atom], Rule] = {
    abs_atom: _named("abs"),
    exp: _named("exp"),
    log: _named("log"),
    log1p: _named("log1p"),
    sin: _named("sin"),
    cos: _named("cos"),
    tan: _named("tan"),
    sinh: _named("sinh"),
    tanh: _named("tanh"),
    asinh: _named("arcsinh"),
    atanh: _named("arctanh"),
    Power: _power,
    PowerApprox: _power,
    maximum: with_shapes(partial(extreme, largest=True)),
    minimum: with_shapes(partial(extreme, largest=False)),
    huber: lambda atom: partial(huber_loss, shapes=(*shapes_of(atom), tuple(atom.M.shape))),
    entr: lambda atom: entropy,
    kl_div: with_shapes(partial(relative_entropy, proper=True)),
    rel_entr: with_shapes(partial(relative_entropy, proper=False)),
    logistic: lambda atom: softplus,
    normcdf: lambda atom: normal,
    xexp: lambda atom: x_exp,
    ceil: lambda atom: partial(rounded, up=True),
    floor: lambda atom: partial(rounded, up=False),
    sign: lambda atom: side,
}
