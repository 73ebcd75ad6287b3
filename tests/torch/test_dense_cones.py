"""Second-order cones in batches: algebra, scaling, projection, and the linear systems they enter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contracts.programs import PROGRAMS, build, dense_constraints, dense_form, dense_order
from dense_interior import interior_point
from overwriting import Overwriting

from ffo import cones
from ffo.ghost.direct import Direct
from ffo.ghost.oracle import linearize
from ffo.torch.dense import interior
from ffo.torch.dense.ghost import Faces, factorize
from ffo.torch.dense.graphs import Eager, flatten
from ffo.torch.dense.second_order import ConeScaling, cone_layout, determinant, divided, jordan, longest, split
from ffo.torch.dense.solve import begin, finish
from ffo.torch.dense.system import factor
from ffo.torch.dense.verify import judge

D = torch.float64
SIZES = (3, 1, 2, 6)
LAYOUT = cone_layout(SIZES, torch.device("cpu"))
BLOCKS = [slice(a, a + d) for a, d in zip(np.cumsum((0, *SIZES[:-1])), SIZES, strict=True)]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def inside(batch: int = 4, seed: int = 0) -> torch.Tensor:
    v = normal(batch, sum(SIZES), seed=seed)
    return LAYOUT.joined(LAYOUT.norm(v) + LAYOUT.heads(v).abs() + 0.01, v)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_projections_are_those_of_the_cones(scale: float) -> None:
    w = scale * normal(50, sum(SIZES))
    w[0] = 0.0
    found = split(LAYOUT, w)
    torch.testing.assert_close(found.s - found.v, w, rtol=1e-14, atol=1e-14 * scale)
    for k, (block, d) in enumerate(zip(BLOCKS, SIZES, strict=True)):
        expected = cones.SecondOrder(d).project(w[:, block].numpy())
        torch.testing.assert_close(found.s[:, block], torch.tensor(expected), rtol=1e-13, atol=1e-14 * scale)
        boundary = (found.s[:, block].abs().amax(dim=1) > 0) & (found.v[:, block].abs().amax(dim=1) > 0)
        assert torch.equal(found.case[:, k] == 2, boundary)


def test_the_scaling_takes_one_point_to_the_other() -> None:
    s, y = inside(seed=1), inside(seed=2)
    scaling = ConeScaling.of(LAYOUT, s, y)
    torch.testing.assert_close(scaling.forth(y), scaling.back(s), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scaling.forth(scaling.back(s)), s, rtol=1e-10, atol=1e-10)
    R = normal(1, sum(SIZES), 5)
    rows = scaling.back_rows(R)
    for j in range(5):
        torch.testing.assert_close(rows[:, :, j], scaling.back(R[:, :, j].expand_as(s)), rtol=1e-12, atol=1e-12)


def test_the_sparse_form_of_the_scaling() -> None:
    scaling = ConeScaling.of(LAYOUT, inside(seed=1), inside(seed=2))
    v = normal(4, sum(SIZES), seed=3)
    d, a, b = scaling.sparse()
    found = d * v + a * LAYOUT.spread(LAYOUT.total(a * v)) - b * LAYOUT.spread(LAYOUT.total(b * v))
    torch.testing.assert_close(found, scaling.back(scaling.back(v)), rtol=1e-9, atol=1e-9)
    assert (d > 0).all()
    assert (LAYOUT.total(b.square() / d) < 1).all()


def test_division_undoes_the_product() -> None:
    x, y = inside(seed=1), normal(4, sum(SIZES), seed=2)
    torch.testing.assert_close(divided(LAYOUT, x, jordan(LAYOUT, x, y)), y, rtol=1e-9, atol=1e-9)


def test_the_longest_step_ends_on_the_boundary() -> None:
    x, d = inside(seed=1), 3 * normal(4, sum(SIZES), seed=2)
    length = longest(LAYOUT, x, d).unsqueeze(1)
    assert (length < 1e3).all()
    at = determinant(LAYOUT, x + length * d)
    assert at.amin(dim=1).abs().max() < 1e-9
    assert (determinant(LAYOUT, x + 0.9 * length * d) > 0).all()
    away = longest(LAYOUT, x, x)
    assert (away > 1e6).all()


@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "full"])
@pytest.mark.parametrize("less", [True, False], ids=["rows subtracted", "rows"])
def test_systems(diagonal: bool, less: bool) -> None:
    batch, n, k = 3, 7, 4
    M = normal(batch, n, n, seed=1)
    H = normal(batch, n, seed=1).abs() + 0.5 if diagonal else M @ M.mT + torch.eye(n, dtype=D)
    B, N = normal(batch, k, n, seed=2), 0.1 * normal(batch, 2, n, seed=3) if less else None
    e = torch.tensor([[0.0, 0.0, 1.0, 0.3]], dtype=D)
    full = torch.diag_embed(H) if diagonal else H
    if N is not None:
        full = full - N.mT @ N
    r_x, r_b = normal(batch, n, seed=4), normal(batch, k, seed=5)
    system = factor(H, B, e, N)
    assert system.good.all()
    u, t = system.solve(r_x, r_b)
    left_x = (full @ u.unsqueeze(2) + B.mT @ t.unsqueeze(2)).squeeze(2) - r_x
    left_b = (B @ u.unsqueeze(2)).squeeze(2) - e * t - r_b
    assert max(left_x.abs().max(), left_b.abs().max()) < 1e-11


#: those whose active rows are independent
CURVED = [name for name in PROGRAMS if dense_constraints(name) and name.startswith(("soc", "norm"))]


@pytest.mark.parametrize("name", CURVED)
def test_the_ghost_of_cones_is_that_of_the_core(name: str) -> None:
    known = build(name, batched=True)
    program, at = dense_form(known.program, known.solution)
    verdict = judge(program, at)
    ghost = factorize(program, verdict.rows, verdict.bounds, Faces.of(program, verdict))
    if not bool(ghost.sound.all()):
        pytest.skip("left to the core")
    order = torch.tensor(dense_order(known.program)[0])
    r_x, r_s = normal(*known.x.shape, seed=1), normal(*known.y.shape, seed=2)
    u, t, residual = ghost.solve(r_x, r_s[:, order])
    assert residual.max() < 1e-10
    core = linearize(known.program, known.solution, Direct()).sensitivity(r_x.numpy(), r_s.numpy())
    torch.testing.assert_close(u, torch.tensor(core.u), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(t, torch.tensor(core.w)[:, order], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", CURVED)
def test_the_interior_point_method_reaches_known_solutions(name: str) -> None:
    known = build(name, batched=True)
    program, _ = dense_form(known.program, known.solution)
    point, error, iterations = interior_point(program, 1e-6)
    assert error.max() <= 1e-6
    assert iterations.max() <= 30
    torch.testing.assert_close(point.z, torch.tensor(known.x), rtol=0, atol=2e-2)


def test_steps_may_overwrite_their_state_with_cones() -> None:
    known = build("norm balls with bounds", batched=True)
    program, _ = dense_form(known.program, known.solution)
    expected, found = (finish(begin(program, interior, True), interior, True, run) for run in (Eager(), Overwriting()))
    assert expected is not None
    assert found is not None
    assert found.solved.all()
    for a, b in zip(flatten(found)[0], flatten(expected)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
