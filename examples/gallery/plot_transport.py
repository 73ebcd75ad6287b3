"""
Optimal transport with a learnt cost
====================================

Given two photographs of a swarm, taken a moment apart: which dot is which? Optimal
transport matches the dots so that the total cost of moving them is smallest. The answer
depends on the cost. With plain squared distance it is wrong here, because the wind carries
each dot sideways by a different, unknown amount.

The cost is learnt from a few swarms with known matching. It is a 2×2 metric, trained
through the transport problem.
"""

# %%
# Swarms
# ------
# The wind moves every dot by a random distance; across the wind, dots move only a little.
# The wind direction is the same in all photographs, but unknown.

import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOQPLayer

D, DOTS = torch.float64, 12
torch.manual_seed(3)
angle = np.radians(25)
wind = torch.tensor([np.cos(angle), np.sin(angle)])
across = torch.tensor([-np.sin(angle), np.cos(angle)])


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions before and after, (count, DOTS, 2) each; dot k stays dot k."""
    before = torch.randn(count, DOTS, 2, dtype=D)
    along = 1.0 + 1.0 * torch.randn(count, DOTS, 1, dtype=D)
    return before, before + along * wind + 0.04 * torch.randn(
        count, DOTS, 1, dtype=D
    ) * across


train, test = draw(24), draw(40)

# %%
# The layer
# ---------
# The transport plan says how much of each dot goes where. Each row and each column sums to
# one. A small quadratic term makes the plan unique, and lets it respond to the cost:
# without it the problem is linear, its solution is a vertex, and the gradient is zero.

ones, eye = torch.ones(1, DOTS, dtype=D), torch.eye(DOTS, dtype=D)
rows = torch.cat([torch.kron(eye, ones), torch.kron(ones, eye)])[
    :-1
]  # the last one follows from the others
sums, zeros = torch.ones(2 * DOTS - 1, dtype=D), torch.zeros(DOTS**2, dtype=D)
layer = FFOQPLayer()


def transport(cost: torch.Tensor, smooth: float = 0.05) -> torch.Tensor:
    """(count, DOTS, DOTS) the plan for costs of the same shape."""
    Q = smooth * torch.eye(DOTS**2, dtype=D)
    return layer(Q, cost.flatten(1), A=rows, b=sums, lb=zeros).view(cost.shape)


def costs(metric: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Squared length of all moves, measured by the metric (2, 2); their mean is one."""
    moves = (after[:, None] - before[:, :, None]) @ metric.T
    found = moves.square().sum(-1)
    return found / found.mean((1, 2), keepdim=True)


def accuracy(plan: torch.Tensor) -> float:
    """Share of the dots whose largest entry is the right one."""
    return float((plan.argmax(2) == torch.arange(DOTS)).double().mean())


# %%
# Training
# --------
# Once the metric is learnt, plans are computed with less smoothing.

metric = torch.eye(2, dtype=D).requires_grad_()
plain = transport(costs(torch.eye(2, dtype=D), *test), smooth=0.005)
optimizer = torch.optim.Adam([metric], lr=0.1)
curve = []
for _ in range(40):
    plan = transport(costs(metric, *train))
    loss = (plan - eye).square().sum((1, 2)).mean() / DOTS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        curve.append(accuracy(transport(costs(metric, *test), smooth=0.005)))
with torch.no_grad():
    learnt = transport(costs(metric, *test), smooth=0.005)
print(f"dots matched with plain distance: {100 * accuracy(plain):.0f} %")
print(f"dots matched with the learnt metric: {100 * accuracy(learnt):.0f} %")

# %%
# In the learnt metric, moves along the wind are short. Its weakest direction is that of the
# wind:

_, strengths, directions = torch.linalg.svd(metric.detach())
found = torch.rad2deg(torch.atan2(directions[1, 1], directions[1, 0])) % 180
print(f"wind at {np.degrees(angle):.0f}°, weakest direction of the metric at {found:.0f}°")
assert accuracy(learnt) > 0.8 > 0.6 > accuracy(plain)  # checked whenever this page is built
assert abs(found - np.degrees(angle)) < 5

# %%
# The picture
# -----------

k = 1
figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.7), width_ratios=(1, 1, 0.75))
for axis, title, plan in zip(
    axes, ("Plain distance", "Learnt metric"), (plain[k], learnt[k]), strict=False
):
    before, after = test[0][k], test[1][k]
    for i in range(DOTS):
        for j in range(DOTS):
            if plan[i, j] > 0.02:
                axis.plot(
                    *torch.stack([before[i], after[j]]).T,
                    color="C0" if i == j else "C1",
                    alpha=float(plan[i, j].clamp(0, 1)),
                    linewidth=1.5,
                )
    axis.scatter(*before.T, s=26, color="black", zorder=3, label="before")
    axis.scatter(
        *after.T, s=26, facecolor="white", edgecolor="black", zorder=3, label="after"
    )
    axis.set(
        title=f"{title}: {round(DOTS * accuracy(plan[None]))} of {DOTS} right",
        aspect="equal",
    )
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
axes[0].legend(loc="lower right")
corner = np.array([0.45, 0.9])
axes[0].annotate(
    "wind",
    corner + 0.25 * wind.numpy(),
    corner,
    xycoords="axes fraction",
    va="center",
    ha="center",
    color="0.4",
    arrowprops={"arrowstyle": "-|>", "color": "0.4"},
)
axes[2].plot(100 * np.array(curve))
axes[2].axhline(100 * accuracy(plain), color="C1", linestyle="--", linewidth=1)
axes[2].set(title="Dots matched, unseen swarms", xlabel="step", ylabel="%", ylim=(0, 102))
axes[2].text(39, 100 * accuracy(plain) + 2, "plain distance", color="C1", ha="right")
plt.show()
