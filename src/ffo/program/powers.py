"""Powers and p-norms as power cones instead of the second-order cones that CVXPY takes by default.

CVXPY writes x^(3/2) <= t as x^2 <= t u, u^2 <= x: a tower of second-order cones, the higher the larger the fraction's
terms are. Where x = 0, the first of them is at its vertex with a dual on the boundary of the cone: it is weakly active
although x^(3/2) is differentiable there, Newton's method does not converge fast, and no certificate can be given. The
power cone (t, 1, x) is on a ray there, where its projection is differentiable. Powers that take a single second-order
cone (2, 1/2, -1) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cvxpy.atoms.elementwise.power import PowerApprox
from cvxpy.atoms.pnorm import PnormApprox
from cvxpy.reductions.dcp2cone.canonicalizers.pnorm_canon import pnorm_approx_canon, pnorm_exact_canon
from cvxpy.reductions.dcp2cone.canonicalizers.power_canon import power_approx_canon, power_exact_canon
from cvxpy.reductions.dcp2cone.dcp2cone import Dcp2Cone
from cvxpy.reductions.solvers.solving_chain import SolvingChain

#: exponents that take one second-order cone
_SINGLE = (2, 0.5, -1)


def with_power_cones(chain: SolvingChain) -> None:
    """Let a chain of CVXPY's reductions write powers and p-norms as power cones, with the exponents that CVXPY uses."""
    for reduction in chain.reductions:
        if isinstance(reduction, Dcp2Cone):
            reduction.cone_canon_methods = {
                **reduction.cone_canon_methods,
                PowerApprox: _one_of(lambda e: e.p_used, power_approx_canon, power_exact_canon),
                PnormApprox: _one_of(lambda e: e.p, pnorm_approx_canon, pnorm_exact_canon),
            }


def _one_of(exponent: Callable[[Any], Any], by_towers: Callable[..., Any], by_power_cones: Callable[..., Any]) -> Any:
    def canonicalizer(e: Any, args: Any, solver_context: Any = None) -> Any:
        chosen = by_towers if exponent(e) in _SINGLE else by_power_cones
        return chosen(e, args, solver_context=solver_context)

    return canonicalizer
