"""Draws the pictures of docs/how_it_works.md: `python docs/figures/how_it_works.py` writes them to docs/img/."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from ffo.torch import FFOQPLayer

DOCS = Path(__file__).parents[1]
D = torch.float64
# minimize 1/2 |y - a|^2 over a polygon; LOSS is the gradient of the loss 1/2 |y - w|^2 at the solution
CORNERS = np.array([[0.0, 0.0], [2.6, 0.0], [2.6, 0.9], [1.3, 2.2], [0.0, 2.2]])
TARGET, LOSS, DELTA = np.array([2.75, 2.35]), np.array([-0.35, 0.9]), 0.45
EXTENT = (-0.25, 3.2, -0.25, 2.9)
GREEN, BLUE, RED, GREY = "#009E73", "#0072B2", "#D55E00", "#777777"


def sides(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The polygon as Gy <= h."""
    edges = np.roll(corners, -1, axis=0) - corners
    G = np.stack([edges[:, 1], -edges[:, 0]], axis=1)
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    return G, (G * corners).sum(1)


def solve(a: torch.Tensor) -> torch.Tensor:
    G, h = (torch.tensor(v) for v in sides(CORNERS))
    return FFOQPLayer()(torch.eye(2, dtype=D), -a, G, h)


def frame(axes: Axes, title: str) -> None:
    axes.fill(*CORNERS.T, facecolor="#EAF2F8", edgecolor=GREY, linewidth=1)
    axes.set(xlim=EXTENT[:2], ylim=EXTENT[2:], aspect="equal", xticks=[], yticks=[], title=title)
    for spine in axes.spines.values():
        spine.set_visible(False)


def contours(axes: Axes, centre: np.ndarray, colour: str) -> None:
    u, v = np.meshgrid(np.linspace(*EXTENT[:2], 200), np.linspace(*EXTENT[2:], 200))
    distance = np.hypot(u - centre[0], v - centre[1])
    axes.contour(u, v, distance, levels=np.arange(0.25, 4, 0.35), colors=colour, linewidths=0.7, alpha=0.5)


def arrow(axes: Axes, start: np.ndarray, end: np.ndarray, colour: str) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2, "shrinkA": 3})


def draw_original(axes: Axes, y: np.ndarray) -> None:
    frame(axes, "1. Solve")
    contours(axes, TARGET, BLUE)
    axes.plot(*CORNERS[[2, 3]].T, color=GREEN, linewidth=3)
    axes.plot(*TARGET, "+", color=BLUE, markersize=9)
    axes.text(*np.add(TARGET, [0.05, 0.14]), "minimum of g", color=BLUE, fontsize=9, ha="center")
    axes.plot(*y, "o", color="black")
    axes.text(*np.add(y, [-0.09, -0.17]), "y*", ha="right")
    axes.text(1.05, 0.75, "h(y) ≤ 0", color=GREY, ha="center")
    axes.text(1.42, 2.26, "active", color=GREEN, fontsize=9)


def draw_ghost(axes: Axes, y: np.ndarray, moved: np.ndarray) -> None:
    frame(axes, "2. Perturb the ghost problem")
    axes.patches[0].set_alpha(0.35)
    contours(axes, y, BLUE)
    along = (CORNERS[3] - CORNERS[2]) / np.linalg.norm(CORNERS[3] - CORNERS[2])
    line = y + np.outer([-2.3, 2.3], along)
    axes.plot(*line.T, color=GREEN, linewidth=3)
    axes.text(0.86, 2.62, "held as an equality", color=GREEN, fontsize=9)
    arrow(axes, y, y - DELTA * LOSS / np.linalg.norm(LOSS) * 1.3, RED)
    axes.text(*(y - DELTA * LOSS * 1.3 + [-0.1, -0.25]), "−δ∇f", color=RED, ha="center")
    axes.plot(*y, "o", color="black")
    axes.text(*np.add(y, [0.1, 0.1]), "y*")
    axes.plot(*moved, "o", color=RED)
    axes.text(*np.add(moved, [0.1, 0.07]), "y*(δ)", color=RED)


def draw_loss(axes: Axes, slope: float) -> None:
    """The loss as one entry of the data moves, and the slope that the ghost gives."""
    shifts = np.linspace(-2.9, 2.4, 213)
    a = torch.tensor(TARGET + np.outer(shifts, [1.0, 0.0]))
    y = solve(torch.tensor(TARGET)).numpy()
    values = 0.5 * ((solve(a).numpy() - (y - LOSS)) ** 2).sum(1)
    here = 0.5 * LOSS @ LOSS
    axes.plot(TARGET[0] + shifts, values, color="black")
    reach = np.array([-0.95, 0.7])
    axes.plot(TARGET[0] + reach, here + slope * reach, color=RED, linewidth=2.4, alpha=0.8)
    axes.plot(TARGET[0], here, "o", color="black")
    axes.annotate("slope from\nthe ghost", (TARGET[0] - 0.3, here - 0.3 * slope), xytext=(14, 6),
                  textcoords="offset points", color=RED, fontsize=9)  # fmt: skip
    axes.set(
        title="3. The difference is the gradient",
        xlabel="θ (here: first entry of the minimum of g)",
        ylabel="loss f(y*(θ))",
    )
    axes.set_xticks([])
    axes.set_yticks([])


def draw_ghost_problem(path: Path) -> None:
    a = torch.tensor(TARGET, requires_grad=True)
    found = solve(a)
    (gradient,) = torch.autograd.grad(found @ torch.tensor(LOSS), a)
    y = found.detach().numpy()
    # the ghost of a projection: minimize 1/2 |y - y*|^2 + delta l'y on the line of the active side
    G, h = sides(CORNERS)
    normal = G[np.argmin(h - G @ y)]
    moved = y - DELTA * (LOSS - normal * (normal @ LOSS)) * 1.3
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), width_ratios=(1.15, 1.15, 1))
    draw_original(axes[0], y)
    draw_ghost(axes[1], y, moved)
    draw_loss(axes[2], float(gradient[0]))
    save(figure, path)


def draw_active_sets(path: Path) -> None:
    """Solution and derivative as the data moves through three active sets."""
    grid = torch.unique(torch.cat([torch.linspace(-0.3, 2.3, 157, dtype=D), torch.tensor([0.5, 1.5], dtype=D)]))
    p = torch.stack([-grid, torch.full_like(grid, -0.5)], dim=1).requires_grad_()
    layer = FFOQPLayer()
    z = layer(torch.eye(2, dtype=D), p, torch.ones(1, 2, dtype=D), torch.ones(1, dtype=D), lb=torch.zeros(2, dtype=D))
    z[:, 0].sum().backward()
    good = layer.info.certificate.good
    slope = -p.grad[:, 0].numpy()
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 4.4), sharex=True, height_ratios=(3, 2))
    x, y = grid.numpy(), z[:, 0].detach().numpy()
    bands = [
        (-0.3, 0.0, "z₁ = 0"),
        (0.0, 0.5, "nothing active"),
        (0.5, 1.5, "z₁ + z₂ = 1"),
        (1.5, 2.3, "z₁ = 1, z₂ = 0"),
    ]
    for k, (low, high, name) in enumerate(bands):
        for axes in (top, bottom):
            axes.axvspan(low, high, color=("#F2F2F2", "white")[k % 2], zorder=0)
        top.text((low + high) / 2, 1.1, name, ha="center", fontsize=9, color="#444444")
    top.plot(x, y, color=BLUE)
    top.set(ylabel="solution z₁", ylim=(-0.1, 1.25), title="One active set after another")
    bottom.plot(x[good], slope[good], ".", color=BLUE, markersize=4, label="certificate: good")
    bottom.plot(x[~good], slope[~good], "o", color=RED, markerfacecolor="none", markersize=8, label="flagged")
    bottom.set(xlabel="θ", ylabel="derivative", ylim=(-0.15, 1.2), xlim=(-0.3, 2.3))
    bottom.legend(loc="upper left", bbox_to_anchor=(0.62, 1.0))
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    plt.switch_backend("Agg")
    plt.style.use(DOCS / "_static" / "ffo.mplstyle")
    draw_ghost_problem(DOCS / "img" / "ghost_problem.svg")
    draw_active_sets(DOCS / "img" / "active_sets.svg")


if __name__ == "__main__":
    main()
