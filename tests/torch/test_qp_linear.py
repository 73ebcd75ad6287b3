"""Linear programs: a vertex does not move with the costs; smoothing gives a useful derivative."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import qps
import torch
from qps import KINDS, call, loss_of, tensors
from scipy.stats import norm

from ffo.errors import InputError
from ffo.torch import FFOQPLayer, Smoothing

D = torch.float64


@pytest.mark.parametrize("zeros", [False, True], ids=["no Q", "Q of zeros"])
@pytest.mark.parametrize("options", [{}, {"solver": "CLARABEL"}, {"solver": "HIGHS"}], ids=["own", "Clarabel", "HiGHS"])
@pytest.mark.parametrize("name", ["linear", "linear with bounds"])
def test_at_a_vertex_the_derivative_in_the_costs_is_zero(name: str, options: dict[str, object], zeros: bool) -> None:
    known = KINDS[name]
    blocks = dict(known.blocks)
    if zeros:
        blocks["Q"] = np.zeros((4, 4))
    z, gradients = qps.gradients(FFOQPLayer(**options), blocks)
    np.testing.assert_allclose(z.detach().numpy(), known.z, atol=1e-9)
    assert np.abs(gradients["p"]).max() < 1e-10
    # ... while the vertex itself moves with the right-hand sides
    step, moved = 1e-5, {k: v.copy() for k, v in blocks.items()}
    direction = np.cos(np.arange(len(moved["h"])))
    moved["h"] = moved["h"] + step * direction
    change = loss_of(call(FFOQPLayer(**options), tensors(moved))) - loss_of(z)
    assert gradients["h"] @ direction == pytest.approx(float(change.detach()) / step, rel=1e-6, abs=1e-8)


#: 0 <= z <= 1 and two more rows
G = torch.tensor([[1.0, 1.0, 1.0], [2.0, -1.0, 0.5]], dtype=D)
H = torch.tensor([1.4, 0.9], dtype=D)
P = torch.tensor([-1.0, -0.9, -0.4], dtype=D)
WEIGHTS = torch.tensor([1.0, -0.5, 2.0], dtype=D)


def smoothed(p: torch.Tensor, h: torch.Tensor, smoothing: Smoothing, **options: object) -> torch.Tensor:
    layer = FFOQPLayer(smoothing=smoothing, **options)
    return layer(None, p, G, h, lb=torch.zeros(3, dtype=D), ub=torch.ones(3, dtype=D)) @ WEIGHTS


def differences(at: torch.Tensor, which: str, smoothing: Smoothing, step: float) -> torch.Tensor:
    """Central differences of the mean solution, with the same draws on both sides."""
    found = []
    with torch.no_grad():
        for shift in step * torch.eye(len(at), dtype=D):
            given = {"p": P, "h": H, "smoothing": smoothing}
            plus, minus = (smoothed(**(given | {which: at + s * shift})) for s in (1, -1))
            found.append((plus - minus) / (2 * step))
    return torch.stack(found)


def test_smoothed_right_hand_sides() -> None:
    """d/dh E z(h + xi) where the vertex itself changes within reach of xi."""
    smoothing = Smoothing(0.3, draws=2000, seed=1)
    h = H.clone().requires_grad_()
    smoothed(P, h, smoothing).backward()
    torch.testing.assert_close(h.grad, differences(H, "h", smoothing, 0.02), rtol=0, atol=0.03)
    assert h.grad.abs().max() > 0.1


def test_smoothed_right_hand_sides_leave_the_costs_without_derivative() -> None:
    """Each draw is a linear program at a vertex, so their mean is piecewise constant in p."""
    p = P.clone().requires_grad_()
    smoothed(p, H, Smoothing(0.3, draws=50)).backward()
    assert p.grad.abs().max() < 1e-10
    assert differences(P, "p", Smoothing(0.3, draws=50), 1e-3).abs().max() < 1e-5


def test_smoothed_costs() -> None:
    """d/dp E z(p + xi), against differences of the mean over the same draws (which jump: hence the step)."""
    smoothing = Smoothing(costs=0.4, draws=6000, seed=3)
    p = P.clone().requires_grad_()
    smoothed(p, H, smoothing).backward()
    torch.testing.assert_close(p.grad, differences(P, "p", smoothing, 0.1), rtol=0, atol=0.15)
    assert p.grad.abs().max() > 0.5


@pytest.mark.parametrize("at", [-0.3, 0.0, 0.5])
def test_smoothed_costs_of_a_step_are_the_normal_distribution(at: float) -> None:
    """min pz over [0, 1]: z = 1 for p < 0, so E z = Phi(-p/c) and its slope is the density."""
    scale, draws = 0.5, 8000
    p = torch.tensor([at], dtype=D, requires_grad=True)
    z = FFOQPLayer(smoothing=Smoothing(costs=scale, draws=draws))(
        None, p, lb=torch.zeros(1, dtype=D), ub=torch.ones(1, dtype=D)
    )
    z.sum().backward()
    assert float(z.detach()) == pytest.approx(norm.cdf(-at / scale), abs=4 * 0.5 / np.sqrt(draws))
    assert float(p.grad) == pytest.approx(-norm.pdf(at / scale) / scale, abs=4 / np.sqrt(draws) / scale)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_smoothed_costs_in_forward_mode_and_on_quadratic_programs() -> None:
    """Forward and reverse agree on the same draws; on a smooth program the estimate is the derivative."""
    direction = torch.tensor([0.3, -1.0, 0.5], dtype=D)
    smoothing = Smoothing(costs=0.4, draws=64, seed=5)
    p = P.clone().requires_grad_()
    smoothed(p, H, smoothing).backward()
    _, slope = torch.func.jvp(lambda p: smoothed(p, H, smoothing), (P,), (direction,))
    assert float(slope) == pytest.approx(float(p.grad @ direction))
    q = P.clone().requires_grad_()
    FFOQPLayer(smoothing=Smoothing(costs=0.1, draws=4000))(torch.eye(3, dtype=D), q).sum().backward()
    torch.testing.assert_close(q.grad, -torch.ones(3, dtype=D), rtol=0, atol=0.15)


def test_smoothing_options_are_checked() -> None:
    for wrong in (
        {"radius": 0.0},
        {"radius": -1.0, "costs": 1.0},
        {"costs": -1.0, "radius": 1.0},
        {"costs": 1.0, "draws": 1},
    ):
        with pytest.raises(InputError, match="smoothing"):
            Smoothing(**wrong)


def test_the_picture_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra demo")
    page = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lp_smoothing.py"))
    monkeypatch.setitem(page["curves"].__globals__, "DRAWS", 100)
    costs, found = page["curves"](points=9)
    largest = [float(slope.abs().max()) for _, slope in found.values()]
    assert largest[0] < 1e-8
    assert min(largest[1:]) > 0.5
    page["draw"](tmp_path / "picture.svg", costs, found)
    assert (tmp_path / "picture.svg").stat().st_size > 5000
