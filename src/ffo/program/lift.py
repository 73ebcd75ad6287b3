"""Problems that are convex for every value of their parameters, but not DPP, rewritten until they are.

Three rewritings suffice, each as rarely as possible:

1. A subexpression of parameters alone that is not affine in them becomes a fresh parameter, whose value a front end
   computes (`expressions`). CVXPY's knowledge of its sign, symmetry and definiteness goes with it.
2. A product of parameters with an expression that has parameters of its own is multiplied out, as far as that leaves
   only parameters as coefficients of the variables: c (x - b) is c x - (c b). Where it does not, what has parameters
   inside the expression becomes a fresh variable: c |Ax - b|^2 is c |r|^2 with r = Ax - b. An affine expression is set
   equal to its variable; a convex one stays below it, a concave one above, as in CVXPY's own reduction to cones.
3. A quadratic form z'Pz with a parametric P, other than as a term of the objective, becomes a variable t and the cone
   |(1 - t, 2Mz)| <= 1 + t, M'M = P (`factor` has M and the derivatives).

Bounds of variables that contain parameters become constraints. Expressions and constraints that are DPP stay the user's
own objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.conv import conv, convolve
from cvxpy.atoms.affine.kron import kron
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.wraps import nsd_wrap, psd_wrap
from cvxpy.atoms.elementwise.huber import huber
from cvxpy.atoms.gmatmul import gmatmul
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from cvxpy.constraints import SOC
from cvxpy.expressions.constants.parameter import is_param_affine
from cvxpy.utilities import scopes

from ffo.program.expressions.evaluate import Expressions, Signatures, compiled
from ffo.program.rewriting import (
    DefinedVariable,
    Multiplication,
    Unbounded,
    fraction,
    hidden_parameters,
    nested_form,
    plain,
    scalar,
    spread,
    text_of,
    toeplitz,
    with_arguments,
)


@dataclass(frozen=True)
class ConstraintForm:
    """A quadratic form z'Pz <= t in a constraint: P is a parameter, the matrix M of the cone another one."""

    P: cp.Parameter
    M: cp.Parameter
    z: cp.Variable
    cone: SOC


@dataclass(frozen=True)
class Lifted:
    """A problem that is DPP, and where its own parameters come from.

    Attributes:
        problem: its first constraints are the given problem's, with their ids.
        parameters: those it has beside the user's; `expressions` has their values.
        forms: the quadratic forms in constraints.
    """

    problem: cp.Problem
    parameters: tuple[cp.Parameter, ...]
    expressions: Expressions
    forms: tuple[ConstraintForm, ...]


def lifted(problem: cp.Problem, parameters: Sequence[cp.Parameter], gp: bool) -> Lifted:
    """The problem, rewritten; it is DCP (DGP if `gp`); the caller checks whether all of it became DPP."""
    rewriter, free = Geometric() if gp else Rewriter(), Unbounded(problem.variables())
    objective = rewriter.part(free.part(problem.objective))
    constraints = [rewriter.part(free.part(c)) for c in problem.constraints]
    bounds = [with_arguments(c, [rewriter.of(arg) for arg in c.args]) for c in free.bounds]
    phi = rewriter.lifted
    expressions = compiled([e for e, _ in phi], parameters, [text_of(e) for e, _ in phi])
    whole = cp.Problem(objective, [*constraints, *bounds, *rewriter.definitions])
    return Lifted(whole, tuple(p for _, p in phi), expressions, tuple(rewriter.forms))


class Rewriter:
    """Rewrites expressions of one problem; equal subexpressions share parameters and variables."""

    #: whether fresh parameters are declared with their sign
    signs = False

    def __init__(self) -> None:
        self.lifted: list[tuple[cp.Expression, cp.Parameter]] = []
        self.definitions: list[cp.Constraint] = []
        self.forms: list[ConstraintForm] = []
        self._signatures = Signatures()
        self._parameters: dict[tuple[int, tuple[str, ...]], cp.Parameter] = {}
        self._variables: dict[tuple[int, str], cp.Variable] = {}

    def disciplined(self, part: Any) -> bool:
        """Whether a constraint, objective or expression is DPP; quadratic forms may be terms of the objective."""
        if hidden_parameters(part):
            return False
        if not isinstance(part, cp.Minimize | cp.Maximize):
            return bool(part.is_dcp(dpp=True))
        with scopes.quad_form_dpp_scope():
            return bool(part.is_dcp(dpp=True)) and not nested_form(part.args[0])

    def part(self, part: Any) -> Any:
        """The objective or a constraint, rewritten; as it is, if it is DPP.

        Signs of fresh parameters are used only where nothing else helps: they are checked at each call, since
        CVXPY infers them as if parameters were in the domains of its atoms (the cube of a negative number).
        """
        if self.disciplined(part):
            return part
        before = self._state()
        for self.signs in (False, True):
            self._parameters, self._variables, *lists = (copy(one) for one in before)
            self.lifted, self.definitions, self.forms = lists
            inside = isinstance(part, cp.Minimize | cp.Maximize)
            found = with_arguments(part, [self.of(arg, inside) for arg in part.args])
            if all(self.disciplined(one) for one in (found, *self.definitions[len(before[3]) :])):
                break
        return found

    def _state(self) -> tuple[Any, ...]:
        return self._parameters, self._variables, self.lifted, self.definitions, self.forms

    def affine(self, e: cp.Expression) -> bool:
        return bool(e.is_affine())

    def convex(self, e: cp.Expression) -> bool:
        return bool(e.is_convex())

    def disciplined_parameters(self, e: cp.Expression) -> bool:
        """Whether an expression of parameters alone may stay."""
        with scopes.dpp_scope():
            return self.affine(e) and not hidden_parameters(e)

    def of(self, e: Any, term: bool = False) -> Any:
        """The expression, rewritten; `term`: of the objective, in which quadratic forms may stay."""
        if not isinstance(e, cp.Expression) or not e.parameters():
            return e
        if not e.variables():
            return e if self.disciplined_parameters(e) else self.parameter(e)
        if isinstance(e, QuadForm):
            return self.quadratic_form(e, term)
        if isinstance(e, quad_over_lin) and e.args[1].parameters() and not e.args[1].variables():
            return self.squares(e, term)
        if isinstance(e, DivExpression) and e.args[1].parameters():
            return self.of(multiply(e.args[0], DivExpression(cp.Constant(1.0), scalar(e.args[1]))), term)
        if isinstance(e, conv | convolve):
            return self.of(toeplitz(e), term)
        if isinstance(e, real | conj):
            return self.of(e.args[0], term)
        if isinstance(e, kron) and any(arg.parameters() and not arg.variables() for arg in e.args):
            return self.of(spread(e), term)
        if isinstance(e, MulExpression):
            return self.product(e, term)
        inside = term and isinstance(e, AffAtom)
        return self.repaired(self.rebuilt(e, [self.of(arg, inside) for arg in e.args]), inside)

    def rebuilt(self, e: Any, args: Sequence[Any]) -> Any:
        """An atom with other arguments; what is kept beside them is rewritten, too."""
        if isinstance(e, huber) and e.M.parameters() and not self.disciplined_parameters(e.M):
            return huber(args[0], self.parameter(e.M, {"nonneg": True}))
        if isinstance(e, gmatmul) and e.A.parameters() and not is_param_affine(e.A):
            return gmatmul(self.parameter(e.A, {}), args[0])
        return with_arguments(e, args)

    def repaired(self, e: Any, term: bool = False) -> Any:
        """An atom whose arguments are DPP, made so itself: by variables for those that have parameters."""
        with scopes.quad_form_dpp_scope() if term else nullcontext():
            if self.disciplined(e):
                return e
        return self.rebuilt(e, [self.purified(arg) if arg.variables() else arg for arg in e.args])

    def parameter(self, e: cp.Expression, attributes: dict[str, bool] | None = None) -> cp.Parameter:
        """The fresh parameter that stands for an expression of parameters alone."""
        attributes = self.attributes(e) if attributes is None else attributes
        key = self._signatures.of(e), tuple(attributes)
        if key not in self._parameters:
            phi = cp.Parameter(e.shape, name=text_of(e), **attributes)
            self._parameters[key] = phi
            self.lifted.append((e, phi))
        return self._parameters[key]

    def attributes(self, e: cp.Expression) -> dict[str, bool]:
        """What CVXPY knows about an expression, as attributes of a parameter."""
        found = {"nonneg": self.signs and e.is_nonneg(), "nonpos": self.signs and not e.is_nonneg() and e.is_nonpos()}
        if e.ndim == 2 and e.shape[0] == e.shape[1] > 1:
            definite = {"PSD": e.is_psd(), "NSD": e.is_nsd() and not e.is_psd()}
            found |= definite if any(definite.values()) else {"symmetric": e.is_symmetric()}
        return {name: True for name, true in found.items() if true}

    def product(self, e: Any, term: bool) -> Any:
        """A product, in which at most one factor has variables."""
        parts = Multiplication.parts(e)
        if parts is None or not parts[1].parameters():
            return self.repaired(self.rebuilt(e, [self.of(arg, term) for arg in e.args]), term)
        return self.multiplied(*parts, term)

    def multiplied(self, product: Multiplication, c: Any, g: Any, term: bool) -> Any:
        """c g, multiplied out as far as that leaves parameters alone."""
        if not g.variables():
            return self.of(product.of(c, g))
        if not g.parameters():
            return product.of(self.of(c), g)
        if isinstance(g, AddExpression):
            return AddExpression([self.multiplied(product, c, part, term) for part in g.args])
        if isinstance(g, NegExpression):
            return -self.multiplied(product, c, g.args[0], term)
        if isinstance(g, QuadForm) and g.args[1].parameters() and c.shape == () and (c.is_nonneg() or c.is_nonpos()):
            wrap = psd_wrap if c.is_nonneg() == g.args[1].is_psd() else nsd_wrap
            return self.of(QuadForm(g.args[0], wrap(multiply(c, g.args[1]))), term)
        if isinstance(g, quad_over_lin) and g.args[1].parameters() and g.args[1].is_nonneg():
            g = fraction(g) if not g.args[1].variables() else g
        joined = product.joined(c, g)
        if joined is not None:
            return self.multiplied(*joined, term)
        if isinstance(g, Promote | broadcast_to):
            g = self.rebuilt(g, [self.purified(self.of(g.args[0]))])
        return product.of(self.of(c), self.purified(self.of(g)))

    def purified(self, g: Any) -> Any:
        """An expression without parameters, with fresh variables for the parts that had some."""
        if not g.parameters():
            return g
        if self.affine(g):
            return self.variable(g, "==")
        if isinstance(g, QuadForm) and g.args[1].parameters():
            return self.quadratic_form(g, False)
        if not isinstance(g, MulExpression):
            pure = self.rebuilt(g, [self.purified(arg) for arg in g.args])
            if not pure.parameters():
                return pure
        return self.variable(g, ">=" if self.convex(g) else "<=")

    def variable(self, g: Any, relation: str) -> cp.Variable:
        """The fresh variable that equals an expression, or bounds it."""
        key = self._signatures.of(g), relation
        if key not in self._variables:
            v = self.fresh(g, relation)
            self._variables[key] = v
            self.definitions.append({"==": v == g, ">=": v >= g, "<=": v <= g}[relation])
        return self._variables[key]

    def fresh(self, g: Any, relation: str) -> cp.Variable:
        v = DefinedVariable(g.shape)
        # An upper bound on a nonnegative expression is nonnegative itself, without a further constraint.
        v.known = (g.is_nonneg() and relation != "<=", g.is_nonpos() and relation != ">=")
        return v

    def quadratic_form(self, e: QuadForm, term: bool) -> Any:
        x, P = e.args
        if not P.parameters():
            return self.repaired(self.rebuilt(e, [self.of(x), P]))
        if term:
            return QuadForm(self.purified(self.of(x)), self.of(P))
        if not P.is_psd():
            return -self.quadratic_form(QuadForm(x, -P), False)
        return self.cone(self.of(x), P)

    def squares(self, e: quad_over_lin, term: bool) -> Any:
        """Sums of squares over parameters, as a product."""
        if e.args[1].is_nonneg():
            return self.of(fraction(e), term)
        # Of a divisor whose sign CVXPY does not know, it assumes that it is positive.
        weight = self.parameter(scalar(fraction(e).args[0]), {"nonneg": True})
        return multiply(weight, quad_over_lin(self.purified(self.of(e.args[0])), 1.0, e.axis, e.keepdims))

    def cone(self, x: Any, P: Any) -> cp.Variable:
        """t of the cone |(1 - t, 2Mz)| <= 1 + t with M'M = P, z = x."""
        n = P.shape[0]
        key = self._signatures.of(QuadForm(x, P)), "cone"
        if key not in self._variables:
            t, M = DefinedVariable(()), cp.Parameter((n, n), name=f"a factor of {text_of(P)}")
            t.known = (True, False)
            z = x if isinstance(x, cp.Variable) and x.ndim == 1 and plain(x) else cp.Variable(n)
            if z is not x:
                self.definitions.append(z == cp.reshape(x, (n,), order="F"))
            cone = SOC(1 + t, cp.hstack([1 - t, 2 * (M @ z)]))
            self.definitions.append(cone)
            own = P if isinstance(P, cp.Parameter) else self.parameter(P)
            self.forms.append(ConstraintForm(own, M, z, cone))
            self._variables[key] = t
        return self._variables[key]


class Geometric(Rewriter):
    """The same for geometric programs, whose products need no rewriting: parameters enter by their logarithms."""

    def disciplined(self, part: Any) -> bool:
        return bool(part.is_dgp(dpp=True))

    def affine(self, e: cp.Expression) -> bool:
        return bool(e.is_log_log_affine())

    def convex(self, e: cp.Expression) -> bool:
        return bool(e.is_log_log_convex())

    def of(self, e: Any, term: bool = False) -> Any:
        if not isinstance(e, cp.Expression) or isinstance(e, cp.Parameter) or not e.parameters():
            return e  # a parameter that was not declared positive is not DGP
        if not e.variables():
            return e if self.disciplined_parameters(e) else self.parameter(e)
        return self.repaired(self.rebuilt(e, [self.of(arg) for arg in e.args]))

    def attributes(self, e: cp.Expression) -> dict[str, bool]:
        return {"pos": True}

    def fresh(self, g: Any, relation: str) -> cp.Variable:
        return cp.Variable(g.shape, pos=True)
