r"""
Clustering by max-cut, a semidefinite program
=============================================

Max-cut divides a graph into two parts so that the edges between them have the largest total
weight. This is hard to solve exactly. Its semidefinite relaxation

.. math::

   \max_X \; \tfrac{1}{4} \sum_{ij} w_{ij} (1 - X_{ij})
   \quad\text{subject to}\quad X \succeq 0, \; X_{ii} = 1

is convex, and its solution shows which nodes belong together: X is near 1 within a part,
and near -1 across.

If the weights are distances, the cut separates what is far apart. For two interlocking
moons this fails: plain distance cuts both in half. Here a small network learns an embedding
from examples that only say which points belong together. The gradient goes through the
semidefinite program.
"""

# %%
# Moons
# -----

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D, NODES = torch.float64, 12
torch.manual_seed(0)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (count, NODES, 2) and the moon of each, -1 or 1."""
    moon = torch.where(torch.arange(NODES) % 2 == 0, 1.0, -1.0).to(D).expand(count, -1)
    turn = np.pi * torch.rand(count, NODES, dtype=D)
    upper = torch.stack([turn.cos(), turn.sin()], dim=2)
    lower = torch.stack([1 - turn.cos(), 0.4 - turn.sin()], dim=2)
    points = torch.where(moon[..., None] > 0, upper, lower)
    return points + 0.07 * torch.randn(count, NODES, 2, dtype=D), moon


train, test = draw(64), draw(40)

# %%
# The layer
# ---------
# The variable is a positive semidefinite matrix of order 12, the weights are a symmetric
# parameter. A small quadratic term makes the solution unique.

X = cp.Variable((NODES, NODES), PSD=True)
W = cp.Parameter((NODES, NODES), symmetric=True)
cut = cp.sum(cp.multiply(W, 1 - X)) / 4
layer = FFOLayer(
    cp.Problem(cp.Maximize(cut - 0.05 * cp.sum_squares(X)), [cp.diag(X) == 1]),
    parameters=[W],
    variables=[X],
)


def weights(embedded: torch.Tensor) -> torch.Tensor:
    """Squared distances (count, NODES, NODES), scaled to a mean of one."""
    found = torch.cdist(embedded, embedded).square()
    return found / found.mean((1, 2), keepdim=True)


def accuracy(found: torch.Tensor, moon: torch.Tensor) -> torch.Tensor:
    """(count,) share of the points on the right side, by the leading eigenvector."""
    side = torch.linalg.eigh(found)[1][..., -1].sign()
    share = (side == moon).double().mean(1)
    return torch.maximum(share, 1 - share)  # the names of the parts do not matter


# %%
# Training
# --------
# X should be 1 where two points belong together, and -1 where they do not.

network = torch.nn.Sequential(
    torch.nn.Linear(2, 32),
    torch.nn.Tanh(),
    torch.nn.Linear(32, 32),
    torch.nn.Tanh(),
    torch.nn.Linear(32, 3),
).double()
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
curve = []
for _ in range(15):
    for batch in torch.randperm(len(train[0])).split(16):
        points, moon = train[0][batch], train[1][batch]
        (found,) = layer(weights(network(points)))
        loss = (found - moon[:, :, None] * moon[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        (learnt,) = layer(weights(network(test[0])))
    curve.append(100 * accuracy(learnt, test[1]).mean().item())
(plain,) = layer(weights(test[0]))
first = 100 * accuracy(plain, test[1]).mean().item()
print(
    f"points on the right side: {first:.0f} % with plain distance, {curve[-1]:.0f} % learnt"
)
assert curve[-1] > 95 > 85 > first  # checked whenever this page is built

# %%
# The picture
# -----------
# An unseen graph. Lines connect nodes on different sides of the cut; colours are the sides.
# The matrices show X, with the points sorted by moon: after training it has two blocks.

k = int(accuracy(plain, test[1]).argmin())
order = test[1][k].argsort(descending=True)
figure, axes = plt.subplots(1, 4, figsize=(11, 2.7), width_ratios=(1.35, 0.8, 1.35, 0.8))
for place, (title, found) in enumerate(
    (("Plain distance", plain[k]), ("Learnt embedding", learnt[k]))
):
    axis, matrix = axes[2 * place], axes[2 * place + 1]
    points, side = test[0][k], torch.linalg.eigh(found)[1][:, -1].sign()
    turn = np.linspace(0, np.pi, 60)
    axis.plot(np.cos(turn), np.sin(turn), color="0.92", linewidth=16, zorder=-1)
    axis.plot(1 - np.cos(turn), 0.4 - np.sin(turn), color="0.92", linewidth=16, zorder=-1)
    for i in range(NODES):
        for j in range(i):
            if side[i] != side[j]:
                axis.plot(
                    *points[[i, j]].T, color="0.6", linewidth=0.5, alpha=0.5, zorder=0
                )
    for value, colour in ((1, "C0"), (-1, "C1")):
        for moon, marker in ((1, "o"), (-1, "s")):
            chosen = (side == value) & (test[1][k] == moon)
            axis.scatter(
                *points[chosen].T, s=55, color=colour, marker=marker, edgecolor="white"
            )
    axis.set(title=title, aspect="equal", xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    matrix.imshow(found[order][:, order].numpy(), cmap="RdBu", vmin=-1, vmax=1)
    matrix.set(xticks=[], yticks=[])
    matrix.set_title("X", loc="center")
plt.show()
