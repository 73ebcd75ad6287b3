r"""
Tuning hyperparameters by Goldstein descent
===========================================

A lasso selects features by a penalty on their weights. How strong should the penalty be?
This is a bilevel problem: choose the penalties so that the weights, which solve the
training problem, predict held-out data well. With two groups of features there are two
penalties, :math:`e^{x_1}` and :math:`e^{x_2}`.

Whenever a feature enters or leaves the model, the loss has a kink. Minima often lie at
kinks, and near them the gradient does not become small, so a gradient method cannot tell
whether it has converged. :func:`ffo.bilevel.minimize` can. It looks for a *Goldstein
stationary* point, where an average of nearby gradients is small, and that average is the
proof.
"""

# %%
# Data
# ----
# Twelve features come from reliable sensors, and twelve from cheap ones. Only a few of each
# matter.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.bilevel import minimize
from ffo.torch import FFOLayer

D = torch.float64
rng = np.random.default_rng(3)
truth = np.zeros(24)
truth[[0, 1, 2, 3]], truth[[12, 13]] = [1.5, -1.0, 0.7, 0.5], [0.8, -0.6]


def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
    features = rng.normal(size=(count, 24))
    return features, features @ truth + 1.0 * rng.normal(size=count)


(X, y), (X_valid, y_valid) = draw(40), draw(20)

# %%
# The training problem as a layer
# -------------------------------

w = cp.Variable(24)
penalties = cp.Parameter(2, nonneg=True)
objective = cp.sum_squares(X @ w - y) / len(y)
objective += penalties[0] * cp.norm1(w[:12]) + penalties[1] * cp.norm1(w[12:])
lasso = FFOLayer(cp.Problem(cp.Minimize(objective)), parameters=[penalties], variables=[w])
X_valid_t, y_valid_t = torch.tensor(X_valid), torch.tensor(y_valid)


def weights(x: torch.Tensor) -> torch.Tensor:
    return lasso(x.exp())[0]


def validation(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(...,) mean absolute error of the held-out data."""
    return (w @ X_valid_t.T - y_valid_t).abs().mean(-1)


# %%
# Minimization
# ------------
# Gradients may be averaged within a distance of 0.1, which is ten per cent of a penalty;
# the average should fall below 0.01. Nothing else has to be chosen.

torch.manual_seed(0)
path = []


def track(x: torch.Tensor) -> torch.Tensor:
    path.append(x.detach().clone())
    return weights(x)


start = torch.tensor([0.3, -3.0], dtype=D)
found = minimize(
    validation,
    track,
    start,
    delta=0.1,
    epsilon=0.01,
    budget=3000,
    generator=torch.Generator().manual_seed(0),
    progress=False,
)
print(found.reason.value)
print(
    f"stationarity {found.stationarity:.4f} within {found.radius:.3f}, {found.calls} calls"
)
print(f"penalties {found.x.exp().numpy().round(3)}, validation loss {found.value:.4f}")
assert found.converged  # checked whenever this page is built

# %%
# For comparison, Adam from the same start. It reaches the minimum too, but its gradient
# keeps jumping from one side of the kink to the other, and does not show that it has
# converged.

x = start.clone().requires_grad_()
optimizer = torch.optim.Adam([x], lr=0.05)
norms = []
for _ in range(300):
    loss = validation(x, weights(x))
    optimizer.zero_grad()
    loss.backward()
    norms.append(float(x.grad.norm()))
    optimizer.step()
print(f"Adam: validation loss {float(loss.detach()):.4f}")
late = norms[-100:]
print(f"norm of its last 100 gradients: between {min(late):.3f} and {max(late):.3f}")
assert min(late) > found.epsilon

# %%
# The picture
# -----------
# Left: the loss over both penalties, and the path to its minimum. Middle: how many features
# are selected; every border between two colours is a kink. Right: what the two methods see.

size = 70
axis_values = torch.linspace(-4, 0.7, size, dtype=D)
grid = torch.stack(torch.meshgrid(axis_values, axis_values, indexing="xy"), dim=2)
with torch.no_grad():
    surface = weights(grid.view(-1, 2))
losses = validation(grid.view(-1, 2), surface).view(size, size).log().numpy()
selected = (surface.abs() > 1e-9).sum(1).view(size, size).numpy()

figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), width_ratios=(1, 1.12, 0.95))
u, v = grid.numpy().transpose(2, 0, 1)
axes[0].contourf(u, v, losses, levels=22, cmap="cividis")
axes[0].contour(u, v, losses, levels=22, colors="white", linewidths=0.3)
axes[0].plot(*torch.stack(path).T, color="white", linewidth=1.2)
axes[0].plot(*start, "o", color="white", markersize=5)
axes[0].set(title="Validation loss", ylabel="log penalty, cheap sensors")
shown = axes[1].pcolormesh(u, v, selected, cmap="viridis", shading="nearest")
axes[1].set(title="Features selected", yticklabels=[])
figure.colorbar(shown, ax=axes[1])
for axis in axes[:2]:
    axis.plot(*found.x, "*", color="C1", markersize=13, markeredgecolor="white")
    axis.set_xlabel("log penalty, reliable sensors")
axes[2].semilogy(norms, color="0.7", linewidth=1, label="gradient of Adam")
axes[2].semilogy(
    found.history.calls,
    found.history.stationarity,
    "o-",
    markersize=3,
    label="averages of Goldstein descent",
)
axes[2].axhline(found.epsilon, color="C1", linestyle="--", linewidth=1)
axes[2].set(title="Norms, and when to stop", xlabel="gradients computed")
axes[2].set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
axes[2].legend()
plt.show()
