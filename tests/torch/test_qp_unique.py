"""Solutions that are not unique: a gradient that could as well be another is not called good.

The ghost of such a program may have a solution all the same (many, in fact), for instance where the loss is one
of multipliers, or of the part of z that is unique. Gradients that do not depend on the choice are good.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import GradientWarning
from ffo.torch import FFOLayer, FFOQPLayer, QPSolution

D = torch.float64
ROUTES = {"own": {}, "core": {"solver_args": {"eps": 1e-10}}, "resolve": {"backward": "resolve"}}
route = pytest.mark.parametrize("options", ROUTES.values(), ids=ROUTES)
ignored = pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")


def program(n: int, seed: int, rank: int, units: float = 1.0, batch: int = 2) -> dict[str, torch.Tensor]:
    """Rank-deficient Q and one strictly active row, for some z that is unique up to what they leave of it."""
    rng = np.random.default_rng(seed)
    B, G = rng.standard_normal((batch, rank, n)), rng.standard_normal((batch, 1, n))
    z = rng.standard_normal((batch, n, 1))
    Q = np.swapaxes(B, 1, 2) @ B
    p = -Q @ z - np.swapaxes(G, 1, 2)
    blocks = {"Q": units * Q, "p": units * p[..., 0], "G": G, "h": (G @ z)[..., 0]}
    return {k: torch.tensor(v, dtype=D) for k, v in blocks.items()}


def good(blocks: dict[str, torch.Tensor], wanted: str, loss: str, options: dict[str, object]) -> list[bool]:
    """Whether the gradient of each sample in some block is called good."""
    layer = FFOQPLayer(duals=True, **options)
    blocks[wanted].requires_grad_()
    found = layer(blocks["Q"], blocks["p"], blocks["G"], blocks["h"])
    assert isinstance(found, QPSolution)
    values = {"lam": found.lam, "curved": (blocks["Q"].detach() @ found.z.unsqueeze(2)).squeeze(2)}[loss]
    (values * torch.linspace(0.5, 1.0, values.shape[1], dtype=D)).sum().backward()
    assert layer.info is not None
    assert layer.info.certificate is not None
    return layer.info.certificate.good.tolist()


@ignored
@route
@pytest.mark.parametrize("loss", ["lam", "curved"])
@pytest.mark.parametrize("n", [4, 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_that_could_be_another_is_not_called_good(
    n: int, seed: int, loss: str, options: dict[str, object]
) -> None:
    for wanted in ("Q", "p", "G"):
        assert good(program(n, seed, n - 2), wanted, loss, options) == [False, False]


@route
@pytest.mark.parametrize("loss", ["lam", "curved"])
def test_a_gradient_that_all_solutions_share_is_good(loss: str, options: dict[str, object]) -> None:
    """That in the right-hand side holds no part of z."""
    assert good(program(6, 1, 4), "h", loss, options) == [True, True]


@route
@pytest.mark.parametrize("loss", ["lam", "curved"])
def test_a_row_that_holds_what_the_objective_leaves_makes_the_solution_unique(
    loss: str, options: dict[str, object]
) -> None:
    for wanted in ("Q", "p", "G", "h"):
        assert good(program(6, 1, 5), wanted, loss, options) == [True, True]


@ignored
@pytest.mark.parametrize("units", [1e-7, 1e6])
@route
def test_units_of_the_objective_do_not_matter(units: float, options: dict[str, object]) -> None:
    assert good(program(5, 2, 3, units), "p", "lam", options) == [False, False]
    assert good(program(5, 2, 4, units), "p", "lam", options) == [True, True]


@ignored
@route
def test_only_the_samples_in_doubt_are_named(options: dict[str, object]) -> None:
    loose, held = program(5, 3, 3, batch=1), program(5, 4, 4, batch=1)
    both = {k: torch.cat([loose[k], held[k]]) for k in loose}
    both["G"] = torch.cat([both["G"], -both["G"]], dim=1)
    both["h"] = torch.cat([both["h"], torch.tensor([[torch.inf], [100.0]], dtype=D)], dim=1)
    assert good(both, "p", "lam", options) == [False, True]


@route
def test_it_is_said(options: dict[str, object]) -> None:
    with pytest.warns(GradientWarning, match="1 of 1 samples is in doubt.*not unique"):
        good(program(4, 0, 2, batch=1), "p", "lam", options)


def test_variables_that_only_canonicalization_knows_need_not_be_unique() -> None:
    """Bounds on |x| are no constraint here, so nothing says what the auxiliary variables for |x| are."""
    x, c, radius = cp.Variable(4), cp.Parameter(4), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - c)), [cp.norm1(x) <= radius])
    layer = FFOLayer(problem, parameters=[c, radius], variables=[x], solver="CLARABEL")
    at = [torch.tensor(v, dtype=D, requires_grad=True) for v in ([1.0, -2.0, 0.5, 3.0], 100.0)]
    layer(*at)[0].sum().backward()
    np.testing.assert_allclose(at[0].grad, 1.0, atol=1e-9)
    assert layer.info is not None
    assert layer.info.certificate is not None
    assert layer.info.certificate.good.all()
