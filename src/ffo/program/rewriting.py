"""Decomposing and building CVXPY expressions, for `lift`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.conv import conv, convolve
from cvxpy.atoms.affine.kron import kron
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.dotsort import dotsort
from cvxpy.atoms.elementwise.huber import huber
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from cvxpy.expressions.constants.parameter import is_param_affine

#: atoms in which parameters may be where CVXPY does not look, or where it cannot have them
HIDING = frozenset({huber, dotsort, conv, convolve, real, conj})
#: most characters of an expression that are shown
SHOWN = 120


class DefinedVariable(cp.Variable):
    """A variable whose sign follows from the constraint that defines it, and needs no separate constraint.

    Attributes:
        known: whether it is nonnegative, nonpositive.
    """

    known = (False, False)

    def is_nonneg(self) -> bool:
        return self.known[0]

    def is_nonpos(self) -> bool:
        return self.known[1]


class Unbounded:
    """Variables without the bounds that contain parameters, with the same ids; `bounds` has these as constraints.

    CVXPY counts parameters in bounds as parameters of every expression that contains the variable.
    """

    def __init__(self, variables: Sequence[cp.Variable]) -> None:
        self.bounds: list[cp.Constraint] = []
        self._free: dict[int, cp.Variable] = {}
        self._done: dict[int, tuple[Any, Any]] = {}
        for v in variables:
            if v.parameters() and v.id not in self._free:
                self._free[v.id] = self._without_bounds(v)

    def _without_bounds(self, v: cp.Variable) -> cp.Variable:
        low, high = (None if isinstance(b, cp.Expression) and b.parameters() else b for b in v.bounds)
        said = v.attributes | {"bounds": None if low is None and high is None else [low, high]}
        free = cp.Variable(v.shape, name=v.name(), var_id=v.id, **said)
        self.bounds += [free >= v.bounds[0]] if low is None else []
        self.bounds += [free <= v.bounds[1]] if high is None else []
        return free

    def part(self, e: Any) -> Any:
        """An objective, constraint or expression, with these variables in place of the user's."""
        if isinstance(e, cp.Variable):
            return self._free.get(e.id, e)
        if not self._free or not getattr(e, "args", ()):
            return e
        if id(e) not in self._done:  # which keeps e, so that nothing else gets its id
            self._done[id(e)] = e, with_arguments(e, [self.part(arg) for arg in e.args])
        return self._done[id(e)][1]


def with_arguments(e: Any, args: Sequence[Any]) -> Any:
    """An expression, objective or constraint with other arguments; itself if they are its own."""
    if all(new is old for new, old in zip(args, e.args, strict=True)):
        return e
    if isinstance(e, cp.Minimize | cp.Maximize):
        return type(e)(args[0])
    if isinstance(e, AddExpression):
        return AddExpression(list(args))
    found = e.copy(list(args))
    if isinstance(e, cp.Constraint):
        found.label = e.label
    return found


@dataclass(frozen=True)
class Multiplication:
    """How a coefficient and an expression are multiplied.

    Attributes:
        kind: elementwise (of scalars, too), or as matrices.
        right: whether the coefficient stands on the right.
    """

    kind: type[MulExpression]
    right: bool

    @classmethod
    def parts(cls, e: Any) -> tuple[Multiplication, Any, Any] | None:
        """The product, its coefficient and its other factor, which has the variables; None: it has none, or two."""
        left, right = e.args
        on_the_right = bool(left.variables())
        if on_the_right == bool(right.variables()):
            return None
        c, g = (right, left) if on_the_right else (left, right)
        kind = MulExpression
        if isinstance(e, multiply) or () in (left.shape, right.shape):
            kind, c = multiply, scalar(c)
        return cls(kind, on_the_right), c, g

    def of(self, c: Any, g: Any) -> Any:
        return self.kind(g, c) if self.right else self.kind(c, g)

    def joined(self, c: Any, g: Any) -> tuple[Multiplication, Any, Any] | None:
        """c (d h) as (c d) h, where that is a product of the same entries or of fewer than the two."""
        inner = Multiplication.parts(g) if isinstance(g, MulExpression) else None
        if inner is None:
            return None
        product, d, h = inner
        elementwise = self.kind is multiply and product.kind is multiply
        if elementwise or (c.shape == () and self.kind is multiply):
            return product, multiply(c, d), h
        if d.shape == () and product.kind is multiply:
            return self, multiply(d, c), h
        if self.kind is multiply or product.kind is multiply or self.right != product.right:
            return None
        both = MulExpression(d, c) if self.right else MulExpression(c, d)
        return (self, both, h) if both.ndim <= 2 and both.size <= c.size + d.size else None


def scalar(e: Any) -> Any:
    """The scalar that an expression repeats, or the expression."""
    return e.args[0] if isinstance(e, Promote) and e.args[0].shape == () else e


def toeplitz(e: Any) -> Any:
    """A convolution as the product of a matrix with a vector: c * x = T(c) x."""
    c, x = e.args
    n, m = c.size, x.size
    offset = np.arange(n + m - 1)[:, None] - np.arange(m)
    place = np.where((offset >= 0) & (offset < n), offset, n)
    matrix = cp.hstack([cp.reshape(c, (n,), order="F"), np.zeros(1)])[place]
    return cp.reshape(matrix @ cp.reshape(x, (m,), order="F"), e.shape, order="F")


def spread(e: Any) -> Any:
    """A Kronecker product as an elementwise one, of the factors repeated over each other."""
    a, b = e.args
    return multiply(kron(a, np.ones(b.shape)), kron(np.ones(a.shape), b))


def fraction(e: quad_over_lin) -> Any:
    """Sums of squares over a number as the product of its inverse with the sums."""
    squares = quad_over_lin(e.args[0], 1.0, e.axis, e.keepdims)
    return multiply(DivExpression(cp.Constant(1.0), scalar(e.args[1])), squares)


def plain(v: cp.Variable) -> bool:
    """Whether every entry of a variable is a separate column."""
    special = ("symmetric", "PSD", "NSD", "diag", "hermitian", "complex", "imag")
    return v.sparse_idx is None and not any(v.attributes[name] for name in special)


def nested_form(e: Any, term: bool = True) -> bool:
    """Whether a parametric quadratic form occurs otherwise than as a term of an objective."""
    if not e.parameters():
        return False
    if isinstance(e, QuadForm):
        return bool(e.args[1].parameters()) and not term
    return any(nested_form(arg, term and isinstance(e, AffAtom)) for arg in e.args)


def hidden_parameters(part: Any) -> bool:
    """Whether parameters are where CVXPY does not look: in a bound of `huber` that is not affine in them, or in both
    arguments of `dotsort`. Or where its reduction fails although they are DPP: next to a constant in a convolution, or
    inside `real` and `conj`."""
    return not HIDING.isdisjoint(part.atoms()) and any(map(_hides_parameters, subexpressions(part)))


def _hides_parameters(e: Any) -> bool:
    if isinstance(e, huber):
        return bool(e.M.parameters()) and not is_param_affine(e.M)
    if isinstance(e, conv | convolve | real | conj):
        return bool(e.args[-1].parameters())
    return isinstance(e, dotsort) and bool(e.variables()) and all(arg.parameters() for arg in e.args)


def text_of(e: Any) -> str:
    """An expression on one line, shortened."""
    text = " ".join(str(e).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def subexpressions(e: Any) -> Iterator[Any]:
    """An expression (constraint, objective) and its parts, inner ones first."""
    for arg in e.args:
        yield from subexpressions(arg)
    yield e
