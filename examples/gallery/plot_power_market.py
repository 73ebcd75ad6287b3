r"""
Prices in a power network, and what they reveal
===============================================

In many electricity markets the price differs from place to place. The market operator
decides which plants run, so that demand is met at the least cost and no line is overloaded.
The price at a node is the *multiplier* of its power balance: the cost of one more megawatt
there. If no line is at capacity, all prices are equal. If a line is at capacity, power
costs more behind it.

Prices and flows are published, but the costs of the plants are known only to their owners.
This example recovers them. The market is a layer that returns dual variables, and these are
differentiated like any other output.
"""

# %%
# The network
# -----------
# The network has six nodes, eight lines with limited capacity, and four plants. Power
# follows the laws of physics: the flow on a line is proportional to the difference of the
# voltage angles at its ends.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D = torch.float64
torch.manual_seed(0)
places = np.array([[0, 1.0], [1, 1.55], [2.1, 1.5], [2.9, 0.8], [1.9, 0.1], [0.8, 0.1]])
lines = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [1, 5], [2, 4]])
capacity = np.array([0.9, 0.75, 1.0, 0.6, 0.55, 1.0, 0.6, 0.6])
plants = np.array([0, 2, 3, 5])
largest = np.array([1.8, 1.2, 1.4, 1.2])
NODES, LINES, PLANTS = len(places), len(lines), len(plants)

incidence = np.zeros((NODES, LINES))
incidence[lines[:, 0], np.arange(LINES)], incidence[lines[:, 1], np.arange(LINES)] = 1, -1
at = np.zeros((NODES, PLANTS))
at[plants, np.arange(PLANTS)] = 1

# %%
# The market as a layer
# ---------------------
# A plant's cost per megawatt begins at a *base* and grows with its output. The base costs
# are hidden.

output, flow, phase = cp.Variable(PLANTS), cp.Variable(LINES), cp.Variable(NODES)
demand, base = cp.Parameter(NODES), cp.Parameter(PLANTS)
balance = at @ output - incidence @ flow == demand
rules = [
    balance,
    flow == 2 * incidence.T @ phase,
    phase[0] == 0,
    cp.abs(flow) <= capacity,
    output >= 0,
    output <= largest,
]
cost = base @ output + 2.5 * cp.sum_squares(output)
market = FFOLayer(
    cp.Problem(cp.Minimize(cost), rules),
    parameters=[demand, base],
    variables=[balance.dual_variables[0], output, flow],
)


def clear(demand: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Prices (hours, NODES), outputs and flows."""
    duals, output, flow = market(demand, base)
    return -duals, output, flow  # CVXPY's sign: the multiplier of supply - demand


# %%
# Published hours
# ---------------
# Demand changes from hour to hour. We observe prices and flows, with small errors.

true_base = torch.tensor([14.0, 23.0, 21.0, 17.0], dtype=D)
typical = torch.tensor([0.2, 0.5, 0.6, 0.3, 0.9, 0.4], dtype=D)


def draw(hours: int) -> torch.Tensor:
    """(hours, NODES) demand."""
    return typical * (
        0.8
        + 0.25 * torch.rand(hours, 1, dtype=D)
        + 0.25 * torch.rand(hours, NODES, dtype=D)
    )


hours = draw(60)
prices, _, flows = clear(hours, true_base)
congested = (flows.abs() > torch.tensor(capacity) - 1e-6).any(1)
print(f"hours with a full line: {int(congested.sum())} of {len(hours)}")
published = (
    prices + 0.3 * torch.randn(60, NODES, dtype=D),
    flows + 0.02 * torch.randn(60, LINES, dtype=D),
)

# %%
# Recovering the costs
# --------------------
# The first guess is equal costs, for which no line is at capacity and all prices are equal.

guess = torch.full((PLANTS,), 20.0, dtype=D, requires_grad=True)
optimizer = torch.optim.Adam([guess], lr=0.5)
path = []
for _ in range(80):
    path.append(guess.detach().clone())
    prices, _, flows = clear(hours, guess)
    loss = (prices - published[0]).square().mean() + 100 * (
        flows - published[1]
    ).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
found = guess.detach()
for k in range(PLANTS):
    print(
        f"plant at node {plants[k]}: base cost {found[k]:.2f}, in truth {true_base[k]:.2f}"
    )
assert (found - true_base).abs().max() < 0.5  # checked whenever this page is built

# %%
# The picture
# -----------
# Left and middle: one hour of the market with equal costs, and with the recovered costs.
# Numbers are prices; wide lines carry more power; lines at capacity are orange. Right: the
# guesses during training.

hour = hours[congested][:1]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), width_ratios=(1.15, 1.15, 0.95))
for axis, title, costs in zip(
    axes, ("Equal costs", "Costs found"), (path[0], found), strict=False
):
    price, made, carried = (v[0].numpy() for v in clear(hour, costs))
    for k, (i, j) in enumerate(lines):
        is_full = abs(carried[k]) > capacity[k] - 1e-6
        axis.plot(
            *places[[i, j]].T,
            color="C1" if is_full else "0.7",
            linewidth=1 + 8 * abs(carried[k]),
            zorder=1,
        )
        middle, way = places[[i, j]].mean(0), np.sign(carried[k]) * (places[j] - places[i])
        axis.annotate(
            "",
            middle + 0.09 * way,
            middle - 0.09 * way,
            zorder=2,
            arrowprops={"arrowstyle": "-|>", "color": "black"},
        )
    dots = axis.scatter(
        *places.T,
        c=price,
        s=620,
        cmap="viridis",
        vmin=18,
        vmax=28,
        zorder=3,
        edgecolor="white",
    )
    for k, place in enumerate(places):
        axis.text(
            *place,
            f"{price[k]:.1f}",
            ha="center",
            va="center",
            fontsize=8,
            color="white",
            zorder=4,
        )
    for k, plant in enumerate(plants):
        label = places[plant] + [0, 0.27 if plant in (0, 2) else -0.33]
        axis.text(*label, f"plant: {made[k].clip(0):.2f}", ha="center", color=f"C{k}")
    axis.set(
        title=title,
        aspect="equal",
        xlim=(-0.4, 3.3),
        ylim=(-0.45, 1.95),
        xticks=[],
        yticks=[],
    )
    axis.spines[:].set_visible(False)
figure.colorbar(dots, ax=axes[1], label="price", shrink=0.8)
for k in range(PLANTS):
    axes[2].plot(torch.stack(path)[:, k], color=f"C{k}")
    axes[2].axhline(float(true_base[k]), color=f"C{k}", linestyle=":", linewidth=1)
    axes[2].text(
        80,
        float(true_base[k]) + 0.25,
        f"plant at node {plants[k]}",
        color=f"C{k}",
        ha="right",
    )
axes[2].set(title="Base costs: guesses and truth", xlabel="step")
plt.show()
