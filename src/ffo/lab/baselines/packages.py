"""Packages called on the matrices directly: qpth, QPLayer, Moreau, and the paper's published package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from ffo.lab.baselines.base import CUDA, Baseline, Layer, Settings, expanded, moved, only_given
from ffo.lab.tasks.inner import Inner

PUBLISHED_TOLERANCE = 1e-12
Values = Mapping[str, torch.Tensor]


def _equalities(values: Values, inner: Inner) -> tuple[torch.Tensor, torch.Tensor]:
    none = values["q"].new_zeros(0)
    return (values["A"], values["b"]) if inner.equalities else (none, none)


def _qpth(inner: Inner, settings: Settings, device: str = "cpu") -> Layer:
    from qpth.qp import QPFunction

    solve_qp = QPFunction(verbose=-1, **only_given(eps=settings.tolerance))
    Q, G, h = moved(inner.fixed, device).values()

    def solve(values: Values) -> torch.Tensor:
        values = moved(values, device)
        # for a block without a batch dimension qpth returns the mean of the gradients, not the sum
        A, b = _equalities(expanded(values), inner)
        return solve_qp(Q, -values["q"], G, h, A, b).cpu()

    return solve


def _qpth_on_device(inner: Inner, settings: Settings) -> Layer:
    return _qpth(inner, settings, settings.device or CUDA)


def _qplayer(inner: Inner, settings: Settings) -> Layer:
    from proxsuite.torch.qplayer import QPFunction

    Q, G, h = inner.fixed.values()
    lower = torch.full_like(h, -1e20)

    def solve(values: Values) -> torch.Tensor:
        A, b = _equalities(values, inner)
        return QPFunction(structural_feasibility=True)(Q, -values["q"], A, b, G, lower, h)[0]

    return solve


def _moreau(inner: Inner, settings: Settings) -> Layer:
    """On the nonzeros of the problem's values, interior point: rows Ay = b, Gy <= h, (radius, y) in the cone."""
    import moreau
    from moreau.torch import Solver

    n, p, G = inner.n, inner.equalities, sp.csr_array(inner.G)
    ball = (
        sp.csr_array(sp.vstack([sp.csr_array((1, n)), -sp.eye_array(n)])) if not inner.is_qp else sp.csr_array((0, n))
    )
    fixed_rows = sp.csr_array(sp.vstack([G, ball]))
    rows = sp.csr_array(sp.vstack([sp.csr_array(np.ones((p, n))), fixed_rows]))
    Q = sp.csr_array(inner.Q)
    cones = moreau.Cones(num_zero_cones=p, num_nonneg_cones=len(inner.h), so_cone_dims=[] if inner.is_qp else [n + 1])
    pattern = [torch.as_tensor(a, dtype=torch.int64) for a in (Q.indptr, Q.indices, rows.indptr, rows.indices)]
    values_P, values_fixed = torch.tensor(Q.data), torch.tensor(fixed_rows.data)
    sides = torch.cat([inner.fixed["h"], torch.zeros(ball.shape[0], dtype=torch.float64)])
    if not inner.is_qp:
        sides[len(inner.h)] = inner.radius
    solvers: dict[int, Any] = {}

    def solve(values: Values) -> torch.Tensor:
        batch = len(values["q"])
        if batch not in solvers:
            options = moreau.Settings(solver="ipm", device="cpu", batch_size=batch, enable_grad=True)
            solvers[batch] = Solver(n, rows.shape[0], *pattern, cones=cones, settings=options)
        entries, b = values_fixed, sides
        if p:
            entries, b = torch.cat([values["A"].reshape(-1), entries]), torch.cat([values["b"], b])
        return solvers[batch].solve(values_P, entries, -values["q"], b.expand(batch, -1).contiguous()).x

    return solve


def _published_qp(inner: Inner, settings: Settings) -> Layer:
    """ffolayer's QP layer with CVXPY's Clarabel as its forward solver.

    Its default forward solver is the research code of dQP with Gurobi, which is on no package index (the "dqp" there is
    another project). Of its other solvers, only CVXPY's Clarabel is accurate enough for the way it finds active
    constraints. It makes dense blocks of a chunk's samples, so chunks are small.
    """
    from ffolayer import FFOQPLayer

    tolerance = settings.tolerance or PUBLISHED_TOLERANCE
    options = {"verbose": False, **dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)}
    layer = FFOQPLayer(solver="CLARABEL", solver_opts=options, chunk_size=2)
    Q, G, h = inner.fixed.values()

    def solve(values: Values) -> torch.Tensor:
        A, b = _equalities(expanded(values), inner)
        return layer(Q, -values["q"], G, h, A, b)

    return solve


def _published_conic(inner: Inner, settings: Settings) -> Layer:
    from ffolayer import FFOLayer

    problem, parameters, y = inner.cvxpy("factor")
    layer = FFOLayer(problem, parameters, [y], **only_given(eps=settings.tolerance))

    def solve(values: Values) -> torch.Tensor:
        return layer(*inner.arguments(values, "factor"))[0]

    return solve


TOLERANCE = frozenset({"tolerance"})
PACKAGES = [
    Baseline("QPTH", "qp", _qpth, packages=("qpth",), settings=TOLERANCE),
    Baseline("QPTH (GPU)", "qp", _qpth_on_device, packages=("qpth",), settings=TOLERANCE | {"device"}, on_device=True),
    Baseline("QPLayer", "qp", _qplayer, packages=("proxsuite",)),
    Baseline("Moreau (direct)", "conic", _moreau, packages=("moreau",)),
    Baseline(
        "ffolayer FFOQP",
        "qp",
        _published_qp,
        packages=("ffolayer",),
        settings=TOLERANCE,
        exact=False,
        any_solver=True,
    ),
    Baseline(
        "ffolayer FFOCP",
        "conic",
        _published_conic,
        packages=("ffolayer", "cvxtorch"),
        settings=TOLERANCE,
        exact=False,
        first_order=True,
        any_solver=True,
    ),
]
