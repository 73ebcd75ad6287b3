"""
When can a gradient be trusted?
===============================

The solution of a quadratic program is piecewise linear in its data. There is one piece for
each set of active constraints, and on the borders between two pieces the solution has a
kink. This page draws the pieces, the gradients on them, and the verdict of the layer's
*certificate* on each gradient.
"""

# %%
# A projection
# ------------
# The layer projects a point in the plane onto a pentagon. The point is the data, and the
# nearest point of the pentagon is the solution. The loss is the distance of the solution
# from a target in the corner.

import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.errors import GradientWarning
from ffo.torch import FFOQPLayer, Smoothing

D = torch.float64
turn = 2 * np.pi * (np.arange(5) + 0.15) / 5
corners = np.stack([np.cos(turn), np.sin(turn)], axis=1)
middle = 2 * np.pi * (np.arange(5) + 0.65) / 5
G = torch.tensor(np.stack([np.cos(middle), np.sin(middle)], axis=1))
h = torch.full((5,), np.cos(np.pi / 5), dtype=D)
target = torch.tensor([0.9, 1.2], dtype=D)
layer = FFOQPLayer(duals=True)


def project(
    points: torch.Tensor, layer: FFOQPLayer = layer
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solutions (count, 2) and multipliers (count, 5)."""
    found = layer(torch.eye(2, dtype=D), -points, G, h)
    return found.z, found.lam


def gradients(
    points: torch.Tensor, layer: FFOQPLayer = layer
) -> tuple[torch.Tensor, np.ndarray]:
    """Gradient of the loss with respect to the points, and the verdict on each."""
    points = points.clone().requires_grad_()
    z, _ = project(points, layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # the verdicts are drawn instead
        (found,) = torch.autograd.grad((z - target).norm(dim=1).sum(), points)
    return found, layer.info.certificate.good


# %%
# The pieces
# ----------
# There are eleven: the pentagon itself, where no constraint is active, five strips with one
# active constraint, and five wedges with two. The multipliers tell which.

size = 220
line = torch.linspace(-2.2, 2.2, size, dtype=D)
plane = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=2).view(-1, 2)
with torch.no_grad():
    active = project(plane)[1] > 1e-9
pieces = (active * 2 ** torch.arange(5)).sum(1)
print(f"pieces: {len(pieces.unique())}")
assert len(pieces.unique()) == 11  # checked whenever this page is built

# %%
# Gradients
# ---------
# Gradients are computed on a coarse grid, and at points that lie exactly on borders: on the
# sides of the pentagon, and on the rays that separate strips from wedges.

coarse = torch.linspace(-2, 2, 13, dtype=D)
arrows = torch.stack(torch.meshgrid(coarse, coarse, indexing="xy"), dim=2).view(-1, 2)
slopes, verdicts = gradients(arrows)
vertices = torch.tensor(corners)
share = torch.tensor([0.2, 0.5, 0.8], dtype=D)[:, None]
sides = (share * vertices[:, None] + (1 - share) * vertices.roll(-1, 0)[:, None]).view(
    -1, 2
)
normals = torch.stack([G, G.roll(1, 0)], dim=1)[
    :, :, None
]  # of the sides that meet at a corner
rays = vertices[:, None, None] + normals * torch.tensor([0.3, 0.7], dtype=D)[:, None]
borders = torch.cat([sides, rays.view(-1, 2)])
one_sided, flags = gradients(borders)
print(f"on the grid: {verdicts.sum()} of {len(verdicts)} gradients are good")
print(f"on borders: {flags.sum()} of {len(flags)} gradients are good")
assert verdicts.all()
assert not flags.any()
print("reason:", layer.info.certificate.reasons(int(np.argmin(flags)))[0])

# %%
# Smoothing
# ---------
# Along a line that crosses the pentagon, the gradient jumps at each kink. ``smoothing=``
# perturbs the right-hand sides at random and averages over 256 solutions. The gradient of
# the mean is continuous, up to sampling noise.

path = torch.stack(
    [torch.linspace(-2, 2, 161, dtype=D), torch.full((161,), 0.35, dtype=D)], dim=1
)
smooth = FFOQPLayer(duals=True, smoothing=Smoothing(0.3, draws=256))
along, _ = gradients(path)
softly, _ = gradients(path, smooth)

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), width_ratios=(1, 1.1))
palette = plt.get_cmap("Set3")
order = {value: k for k, value in enumerate(pieces.unique().tolist())}
shades = np.array([palette(order[value] % 12) for value in pieces.tolist()]).reshape(
    size, size, 4
)
left.imshow(shades, extent=(-2.2, 2.2, -2.2, 2.2), origin="lower", alpha=0.75)
left.fill(*corners.T, facecolor="none", edgecolor="black", linewidth=1.5)
moving = slopes.norm(dim=1) > 1e-9
left.quiver(*arrows[moving].T, *-slopes[moving].T, scale=22, width=0.005, color="0.15")
left.plot(*arrows[~moving].T, ".", color="0.15", markersize=3)
left.plot(
    *borders[~flags].T,
    "o",
    markerfacecolor="none",
    color="C1",
    markersize=7,
    label="flagged",
)
left.plot(*target, "*", color="C0", markersize=14, markeredgecolor="white", label="target")
left.axhline(0.35, color="0.4", linewidth=0.8, linestyle=":")
left.set(
    title="Pieces, and descent directions on them",
    xticks=[],
    yticks=[],
    xlim=(-2.2, 2.2),
    ylim=(-2.2, 2.2),
)
left.legend(loc="lower left", frameon=True)
right.plot(path[:, 0], along[:, 0], color="black", label="gradient")
right.plot(path[:, 0], softly[:, 0], color="C0", label="with smoothing=0.3")
right.set(
    title="Gradient along the dotted line",
    xlabel="first coordinate",
    ylabel="first entry of the gradient",
)
right.legend()
plt.show()
