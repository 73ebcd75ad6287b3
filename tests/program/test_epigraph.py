"""Epigraph variables that only relax: found if they are hidden, and solutions and gradients do not change."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

import ffo.engine.engine as engine_module
from ffo.cones import Zero
from ffo.program.cvxpy import canonicalize
from ffo.program.epigraph import epigraphs
from ffo.torch import FFOLayer

N, BATCH = 5, 8
CONSTRAINTS = {
    "norm": lambda x, c: cp.norm(x) <= c,
    "abs": lambda x, c: cp.abs(x) <= c,
    "norm_inf": lambda x, c: cp.norm(x, "inf") <= c,
}
each = pytest.mark.parametrize("kind", CONSTRAINTS)


def problem(kind: str) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    x, q, c = cp.Variable(N), cp.Parameter(N), cp.Parameter(nonneg=True)
    return cp.Problem(cp.Minimize(cp.sum_squares(x) + q @ x), [CONSTRAINTS[kind](x, c)]), [q, c], x


@each
def test_they_are_found_only_where_nobody_sees_them(kind: str) -> None:
    given, parameters, x = problem(kind)
    canonical = canonicalize(given, parameters, [x])
    program = canonical.map.apply([np.ones(N), np.ones(1)])
    step = epigraphs(program, canonical.recovery.hidden)
    assert step is not None
    assert Zero in step.apply(program).cones.kinds
    assert epigraphs(program, np.zeros(program.n, dtype=bool)) is None
    assert epigraphs(program.with_vectors(q=np.ones_like(program.q)), canonical.recovery.hidden) is None


@each
def test_solutions_and_gradients_are_those_without_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, parameters, x = problem(kind)
    found = []
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(engine_module, "epigraphs", lambda program, hidden: None)
        generator = torch.Generator().manual_seed(0)
        q = (4 * torch.randn(BATCH, N, generator=generator, dtype=torch.float64)).requires_grad_()
        c = torch.full((BATCH,), 1.0, dtype=torch.float64, requires_grad=True)
        (z,) = FFOLayer(given, parameters, [x], solver="CLARABEL")(q, c)
        found.append([z, *torch.autograd.grad(z.square().sum(), [q, c])])
    assert found[0][2].abs().max() > 0.1  # some are active
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-8)
