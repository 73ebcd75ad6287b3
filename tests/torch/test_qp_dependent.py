"""Active constraints that depend on each other: flagged if, and only if, it matters.

Derivatives in the objective exist (the solution moves within the constraints all the same); those in right-hand
sides and coefficients are one-sided.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from ffo.errors import GradientWarning
from ffo.torch import FFOQPLayer
from ffo.torch.dense.ghost import factorize
from ffo.torch.dense.program import DenseProgram

D = torch.float64
#: ways whose multipliers are positive on both of two equal rows
INTERIOR = {
    "clarabel": {"solver": "CLARABEL"},
    "qoco": {"solver": "QOCO"},
    "iterative": {"solver": "CLARABEL", "backward": "iterative"},
    "resolve": {"solver": "CLARABEL", "backward": "resolve"},
}


def twice(rows: int = 2) -> dict[str, torch.Tensor]:
    """min |z|^2 / 2 - (2, 1, 0.5)'z, the row z1 + z2 <= 1 given twice: both are active."""
    row = torch.tensor([1.0, 1.0, 0.0], dtype=D)
    return {
        "Q": torch.eye(3, dtype=D),
        "p": torch.tensor([-2.0, -1.0, -0.5], dtype=D),
        "G": torch.stack([row] * rows),
        "h": torch.ones(rows, dtype=D),
    }


def gradient(layer: FFOQPLayer, blocks: dict[str, torch.Tensor], *wanted: str) -> list[torch.Tensor]:
    leaves = {k: v.clone().requires_grad_(k in wanted) for k, v in blocks.items()}
    z = layer(**leaves)
    return list(torch.autograd.grad(z @ torch.tensor([1.0, 2.0, 3.0], dtype=D), [leaves[k] for k in wanted]))


@pytest.mark.parametrize("options", INTERIOR.values(), ids=INTERIOR)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_gradients_in_the_objective_are_good(options: dict[str, object], sparse: bool) -> None:
    layer = FFOQPLayer(**options)
    blocks = twice()
    if sparse:
        blocks["G"] = blocks["G"].to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        found = gradient(layer, blocks, "p", "Q")
    assert layer.info.certificate.good.all()
    for mine, right in zip(found, gradient(FFOQPLayer(), twice(1), "p", "Q"), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-10)
    with pytest.warns(GradientWarning, match="depend on each other"):
        gradient(layer, blocks, "h")
    assert layer.info.certificate.dependent.all()


@pytest.mark.parametrize("options", INTERIOR.values(), ids=INTERIOR)
@pytest.mark.parametrize("wanted", ["h", "G"])
def test_gradients_in_the_constraints_are_not(options: dict[str, object], wanted: str) -> None:
    layer = FFOQPLayer(**options)
    with pytest.warns(GradientWarning, match="depend on each other"):
        gradient(layer, twice(), "p", wanted)
    assert not layer.info.certificate.good.any()
    with warnings.catch_warnings():  # the next pass may ask for less
        warnings.simplefilter("error", GradientWarning)
        gradient(layer, twice(), "p")
    assert layer.info.certificate.good.all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_forward_mode_knows_what_moves() -> None:
    blocks = twice()
    layer = FFOQPLayer(solver="CLARABEL")

    def push(name: str, *along: float) -> torch.Tensor:
        direction = torch.tensor(along, dtype=D)
        return torch.func.jvp(lambda v: layer(**{**blocks, name: v}), (blocks[name],), (direction,))[1]

    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        moved, together = push("p", 1.0, 1.0, 1.0), push("h", 1.0, 1.0)
    torch.testing.assert_close(moved, torch.tensor([0.0, 0.0, -1.0], dtype=D), rtol=0, atol=1e-9)
    torch.testing.assert_close(together, torch.tensor([0.5, 0.5, 0.0], dtype=D), rtol=0, atol=1e-9)
    with pytest.warns(GradientWarning, match="depend on each other"):
        push("h", 1.0, 0.0)


def test_sides_of_equalities_that_repeat_each_other_are_no_reason_to_warn() -> None:
    """Within the feasible data the derivative exists, and is the one returned. If coefficients change, the equalities
    may no longer be consistent: the solution jumps."""
    row = [1.0, 1.0, 1.0]
    blocks = {
        **twice(1),
        "A": torch.tensor([row, [2 * v for v in row]], dtype=D),
        "b": torch.tensor([1.0, 2.0], dtype=D),
    }
    for options in ({}, {"solver": "CLARABEL"}, {"solver": "CLARABEL", "backward": "iterative"}):
        layer = FFOQPLayer(**options)
        with warnings.catch_warnings():
            warnings.simplefilter("error", GradientWarning)
            (db,) = gradient(layer, blocks, "b")
        assert layer.info.certificate.good.all()
        with pytest.warns(GradientWarning, match="depend on each other"):
            (dA,) = gradient(layer, blocks, "A")
        single = {**blocks, "A": blocks["A"][:1], "b": blocks["b"][:1]}
        one_b, one_A = gradient(FFOQPLayer(), single, "b", "A")
        along = torch.tensor([1.0, 2.0], dtype=D)
        torch.testing.assert_close(db @ along, one_b[0], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(along @ dA, one_A[0], rtol=1e-8, atol=1e-10)


def combined(seed: int) -> dict[str, torch.Tensor]:
    """A random program, two of whose equalities are combinations of the others."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, dtype=D, generator=generator)  # noqa: E731
    number = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))  # noqa: E731
    n = number(3, 12)
    k, m = number(1, max(2, n // 2)), number(1, n)
    M, A, z = normal(n, n), normal(k, n), normal(n)
    A = torch.cat([A, normal(2, k) @ A])
    G = normal(m, n)
    h = G @ z + torch.rand(m, dtype=D, generator=generator)
    return {"Q": M @ M.mT + 0.1 * torch.eye(n, dtype=D), "p": 3 * normal(2, n), "G": G, "h": h, "A": A, "b": A @ z}


@pytest.mark.parametrize("options", [{}, {"solver_args": {"eps": 1e-10}}], ids=["own", "core"])
@pytest.mark.parametrize("seed", [5, 29, 65, 81, 99, 103, 141, 177, 185, 315])
def test_nor_are_equalities_that_are_combinations_of_others(seed: int, options: dict[str, object]) -> None:
    """However much of a random right-hand side they leave."""
    blocks = combined(seed)
    layer = FFOQPLayer(**options)
    leaves = {k: v.requires_grad_(k != "A") for k, v in blocks.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        layer(**leaves).sum().backward()
    assert not layer.info.certificate.dependent.any()
    leaves["A"].requires_grad_()
    with pytest.warns(GradientWarning, match="depend on each other"):
        layer(**leaves).sum().backward()


@pytest.mark.parametrize("options", [{}, {"solver": "CLARABEL"}, {"solver": "DENSE"}], ids=["own", "core", "dense"])
@pytest.mark.parametrize("sides", [("lb", "ub"), ("lower", "h")], ids=["bounds", "rows"])
def test_sides_that_meet_depend_on_each_other(sides: tuple[str, str], options: dict[str, object]) -> None:
    """z1 is fixed by two opposite bounds: moved one way they release it, moved the other way they cross."""
    below, above = sides
    blocks = {"Q": torch.eye(3, dtype=D), "p": torch.tensor([-2.0, 0.5, -0.5], dtype=D)}
    if below == "lower":
        blocks["G"] = torch.eye(3, dtype=D)
    blocks[above] = torch.ones(3, dtype=D)
    blocks[below] = torch.tensor([1.0, -torch.inf, -9.0], dtype=D)
    layer = FFOQPLayer(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        gradient(layer, blocks, "p")
    with pytest.warns(GradientWarning, match="depend on each other"):
        down, up = gradient(layer, blocks, below, above)
    assert (down + up)[0].item() == pytest.approx(1.0, abs=1e-9)  # together they move z1


@pytest.mark.parametrize(
    ("R", "equal", "bounds", "expected"),
    [
        ([[1, 1, 0], [1, 1, 0]], [False, False], [0, 0, 0], False),
        ([[1, 1, 0], [2, 2, 0]], [True, True], [0, 0, 0], False),
        ([[1, 1, 0], [1, 1, 1e-1]], [False, False], [0, 0, 0], True),
        ([[1, 1, 0]], [False], [1, -1, 0], False),  # a row and the bounds of its variables
        ([[1, 1, 0]], [True], [1, 0, 0], True),
        ([[1, 1, 1], [0, 1, 1]], [True, True], [1, 0, 0], False),
        ([[1, 1, 0], [0, 1, 1], [1, 2, 1]], [False] * 3, [0, 0, 0], False),
    ],
)
@pytest.mark.parametrize("units", [1.0, 1e-4, 1e4])
def test_the_dense_ghost_vouches_for_independent_rows_only(
    R: list[list[float]], equal: list[bool], bounds: list[int], expected: bool, units: float
) -> None:
    rows = torch.tensor(units * np.array(R), dtype=D)[None]
    r, n = rows.shape[1:]
    far, one = torch.full((1, n), 10.0, dtype=D), torch.ones(1, r, dtype=D)
    low = torch.where(torch.tensor(equal), one, -torch.inf)
    given = DenseProgram(torch.eye(n, dtype=D)[None], torch.zeros(1, n, dtype=D), rows, low, one, -far, far, sum(equal))
    ghost = factorize(given, torch.ones(1, r, dtype=torch.int8), torch.tensor([bounds], dtype=torch.int8))
    assert ghost.sound.tolist() == [expected]
