"""Which problems a layer accepts: DPP ones unchanged, DCP ones rewritten; and why others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.utilities import scopes

from ffo.errors import InputError, UnsupportedProblemError
from ffo.program.lift import Lifted, lifted
from ffo.program.rewriting import HIDING, hidden_parameters, nested_form, subexpressions, text_of

OTHERWISE = "For problems outside these rules, use ffo.torch.FFOFunctionLayer, which takes functions of tensors."


def check_arguments(problem: cp.Problem, parameters: Sequence[cp.Parameter], variables: Sequence[cp.Variable]) -> None:
    """Checks with the wording of CvxpyLayer, followed by names."""
    if problem.is_mixed_integer():
        raise UnsupportedProblemError(
            "Problem must be convex: integer and boolean variables have no gradient. Relax them to bounded continuous "
            "variables, or, if only the costs of a linear objective are predicted, use ffo.torch.decision."
        )
    if not isinstance(parameters, (list, tuple)):
        raise InputError("The layer's parameters must be provided as a list or tuple")
    if not isinstance(variables, (list, tuple)):
        raise InputError("The layer's variables must be provided as a list or tuple")
    if set(problem.parameters()) != set(parameters) or len(set(parameters)) != len(parameters):
        raise InputError(
            f"The layer's parameters must exactly match problem.parameters{_mismatch(problem, parameters)}"
        )
    known = {v.id for v in problem.variables()}
    known |= {d.id for c in problem.constraints for d in c.dual_variables}
    for v in variables:
        if v.id not in known:
            raise InputError(f"Variable {v} must be a subset of problem.variables or a constraint dual variable")
    if any(leaf.is_complex() for leaf in [*problem.variables(), *parameters]):
        raise UnsupportedProblemError(
            "Complex variables and parameters are not supported: write the problem in real and imaginary parts."
        )


_BACKENDS = (cp.COO_CANON_BACKEND, cp.CPP_CANON_BACKEND, cp.SCIPY_CANON_BACKEND)
#: what cvxpylayers documents instead; it has no effect there
_CVXPYLAYERS_BACKENDS = ("diffcp", "cuclarabel")


def known_backend(name: str | None) -> str:
    """CVXPY's canonicalization backend of this name, its COO backend by default."""
    if name is None or name in _CVXPYLAYERS_BACKENDS:
        return _BACKENDS[0]
    if name not in _BACKENDS:
        raise InputError(f"canon_backend must be one of {', '.join(_BACKENDS)}, not {name!r}")
    return name


def _mismatch(problem: cp.Problem, parameters: Sequence[cp.Parameter]) -> str:
    """Which parameters are missing, foreign or given twice."""
    own = problem.parameters()
    found = {
        "missing": [p.name() for p in own if all(p is not q for q in parameters)],
        "not in the problem": [p.name() for p in parameters if all(p is not q for q in own)],
        "given twice": [p.name() for i, p in enumerate(parameters) if any(p is q for q in parameters[:i])],
    }
    return "".join(f"; {what}: {', '.join(names)}" for what, names in found.items() if names)


def lifted_if_needed(problem: cp.Problem, parameters: Sequence[cp.Parameter], gp: bool) -> Lifted | None:
    """What a problem that is not DPP is rewritten to; None: it is DPP."""
    if _disciplined(problem, gp):
        return None
    if not gp and not problem.is_dcp():
        if problem.is_dgp():
            raise InputError("Problem must be DPP, or at least DCP. It is a geometric program (DGP): pass gp=True.")
        raise InputError(_undisciplined(problem, gp))
    found = lifted(problem, parameters, gp)
    if not _disciplined(found.problem, gp):
        # Of an expression of parameters, CVXPY says whether it may occur in a geometric program only if it has a value.
        whole = found.problem.is_dgp() if gp else True
        raise InputError(_not_rewritten(found.problem, gp) if whole else _undisciplined(found.problem, gp))
    return found


def _disciplined(problem: cp.Problem, gp: bool) -> bool:
    if gp:
        return bool(problem.is_dpp("dgp"))
    if not problem.is_dpp(quad_form_dpp="qp"):
        return False
    atoms = {*problem.atoms()}
    if QuadForm in atoms and nested_form(problem.objective.args[0]):
        return False
    return not HIDING & atoms or not any(map(hidden_parameters, (problem.objective, *problem.constraints)))


def _undisciplined(problem: cp.Problem, gp: bool) -> str:
    if gp and problem.is_dcp():
        return "Problem must be DPP for geometric programming. It is not DGP, but it is DCP: omit gp=True."
    head = "Problem must be DPP for geometric programming." if gp else "Problem must be DPP, or at least DCP."
    rules = "DGP" if gp else "DCP"
    for part in (problem.objective, *problem.constraints):
        if part.is_dgp() if gp else part.is_dcp():
            continue
        for e in (e for arg in part.args for e in subexpressions(arg)):
            if not (e.is_dgp() if gp else e.is_dcp()):
                return f"{head} The expression {text_of(e)} is not {rules}: {_reason(e, gp)}. {OTHERWISE}"
        kind = "objective" if part is problem.objective else "constraint"
        return f"{head} The {kind} {text_of(part)} is not {rules}: it has the wrong curvature. {OTHERWISE}"
    return f"{head} It is not {rules}. {OTHERWISE}"


def _reason(e: Any, gp: bool) -> str:
    if not gp and isinstance(e, MulExpression | DivExpression):
        a, b = e.args
        if a.variables() and b.variables():
            return "both factors have variables"
        c, g = (b, a) if a.variables() else (a, b)
        if c.parameters() and not (c.is_nonneg() or c.is_nonpos()):
            return (
                f"{text_of(g)} is not affine, and so the sign of {text_of(c)} decides whether the product is convex; "
                "declare it (nonneg=True or nonpos=True)"
            )
    if not gp and not e.variables():
        return "CVXPY cannot determine its curvature"
    return "CVXPY cannot tell that it is convex or concave for every value of the parameters"


def _not_rewritten(found: cp.Problem, gp: bool) -> str:
    head = "Problem must be DPP for geometric programming." if gp else "Problem must be DPP."
    with scopes.quad_form_dpp_scope():
        for part in (found.objective, *found.constraints):
            for e in (e for arg in part.args for e in subexpressions(arg)):
                if not e.is_dpp("dgp" if gp else "dcp"):
                    return (
                        f"{head} It is convex, but parameters and variables meet in {text_of(e)} in a way that cannot "
                        f"be rewritten. {OTHERWISE}"
                    )
    return f"{head} It is convex, but cannot be rewritten. {OTHERWISE}"
