"""cvxpylayers: with its own solver and derivative, with LPGD, and with Moreau."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ffo.lab.baselines.base import Baseline, Layer, Settings, only_given
from ffo.lab.tasks.inner import Inner

#: tolerance that the authors of LPGD report, and the one at which the paper finds it to converge
LPGD_DEFAULT, LPGD_TIGHT = 1e-4, 1e-12
#: perturbation of LPGD at each: the noise is tolerance / perturbation, and the perturbation must not reach a kink
LPGD_TAU = {LPGD_DEFAULT: 1e-1, LPGD_TIGHT: 1e-5}
#: where one of the two is swept, the other stays here
FIXED_TAU, FIXED_TOLERANCE = 1e-3, 1e-8


def _layer(
    inner: Inner,
    solver_args: Mapping[str, Any],
    derivative_args: Mapping[str, Any] | None = None,
    *,
    solver: str | None = None,
    constant: bool = False,
) -> Layer:
    """`derivative_args` are passed only in calls that will be differentiated: other calls refuse them."""
    from cvxpylayers.torch import CvxpyLayer

    problem, parameters, y = inner.cvxpy("factor", constant=constant)
    layer = CvxpyLayer(problem, parameters, [y], solver=solver, solver_args=dict(solver_args))

    def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        learning = torch.is_grad_enabled() and any(v.requires_grad for v in values.values())
        extra = dict(derivative_args or {}) if learning else {}
        return layer(*inner.arguments(values, "factor", constant=constant), solver_args=extra)[0]

    return solve


def _cvxpylayer(constant: bool) -> Baseline:
    def make(inner: Inner, settings: Settings) -> Layer:
        return _layer(inner, _diffcp(settings), constant=constant)

    def refuses(inner: Inner) -> str:
        same = constant and not inner.matrices_as_parameters
        return "the matrices are constants of this problem anyway: see CvxpyLayer" if same else ""

    name = "CvxpyLayer (constants)" if constant else "CvxpyLayer"
    settings = frozenset({"tolerance", "solver"})
    return Baseline(name, "conic", make, packages=("cvxpylayers",), settings=settings, refuses=refuses)


#: names of the tolerances of diffcp's solvers; ECOS is its default
TOLERANCES = {
    "ECOS": ("abstol", "reltol", "feastol"),
    "SCS": ("eps_abs", "eps_rel"),
    "CLARABEL": ("tol_gap_abs", "tol_gap_rel", "tol_feas"),
}


def _diffcp(settings: Settings) -> dict[str, Any]:
    """Settings in the names of diffcp and its solvers."""
    chosen = only_given(solve_method=settings.solver)
    if settings.tolerance is not None:
        chosen |= dict.fromkeys(TOLERANCES[settings.solver or "ECOS"], settings.tolerance)
    return chosen


def _lpgd(name: str, tolerance: float) -> Baseline:
    def make(inner: Inner, settings: Settings) -> Layer:
        eps = settings.tolerance or tolerance
        tau = settings.delta or LPGD_TAU.get(eps, 1e-2)
        derivative = {"mode": "lpgd", "derivative_kwargs": {"tau": tau, "rho": 0.0}}
        solver = settings.solver or "SCS"
        limits = {"max_iters": 100_000} if solver == "SCS" else {}
        arguments = {"solve_method": solver, **limits, **dict.fromkeys(TOLERANCES[solver], eps)}
        return _layer(inner, arguments, derivative)

    return Baseline(
        name,
        "conic",
        make,
        packages=("cvxpylayers",),
        settings=frozenset({"tolerance", "delta", "solver"}),
        same_build="CvxpyLayer",
        exact=False,
        first_order=True,
        any_solver=True,
    )


def _moreau(inner: Inner, settings: Settings) -> Layer:
    return _layer(inner, {}, solver="MOREAU")


CVXPYLAYERS = [
    _cvxpylayer(constant=False),
    _cvxpylayer(constant=True),
    _lpgd("LPGD", LPGD_DEFAULT),
    _lpgd("LPGD (tight)", LPGD_TIGHT),
    Baseline("Moreau (cvxpylayers)", "conic", _moreau, packages=("cvxpylayers", "moreau")),
]
