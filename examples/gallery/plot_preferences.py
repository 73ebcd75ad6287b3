r"""
A network inside the problem: learning preferences
==================================================

A household spends its budget on two goods. We observe what it buys at different prices, but
not its preferences. In economics, preferences are described by a utility function, which
the purchases maximize:

.. math::

   y(p, m) = \arg\max_y \; u(y) \quad\text{subject to}\quad p^T y \le m, \; y \ge 0.

Here u is a neural network. No modelling language accepts that, but
:class:`ffo.torch.FFOFunctionLayer` does: it takes torch functions, and its backward pass
needs only their gradients. The network is trained until the purchases that it implies match
the observed ones.
"""

# %%
# Purchases
# ---------
# The hidden utility has a constant elasticity of substitution, for which the demand is
# known in closed form. It is used only to make the data.

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import softplus

from ffo.torch import FFOFunctionLayer

D = torch.float64
torch.manual_seed(0)
SHARE, POWER = torch.tensor([0.65, 0.35], dtype=D), 0.4


def true_utility(y: torch.Tensor) -> torch.Tensor:
    return (SHARE * y**POWER).sum(-1) ** (1 / POWER)


def demand(prices: torch.Tensor, budget: torch.Tensor) -> torch.Tensor:
    """(count, 2) what the household buys."""
    elasticity = 1 / (1 - POWER)
    shares = SHARE**elasticity * prices ** (1 - elasticity)
    return budget[:, None] * shares / shares.sum(1, keepdim=True) / prices


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    prices = torch.exp(0.4 * torch.randn(count, 2, dtype=D))
    budget = 1 + torch.rand(count, dtype=D)
    bought = demand(prices, budget)
    return prices, budget, bought * torch.exp(0.02 * torch.randn(count, 2, dtype=D))


train, test = draw(64), draw(64)

# %%
# A concave network
# -----------------
# A utility should be increasing and concave: more is better, but less and less so. This
# network is both for any values of its parameters: nonnegative weights, a logarithm, and an
# activation that is concave and increasing.


class Utility(torch.nn.Module):
    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.inner = torch.nn.Parameter(torch.randn(hidden, 4, dtype=D))
        self.shift = torch.nn.Parameter(torch.randn(hidden, dtype=D))
        self.outer = torch.nn.Parameter(torch.zeros(hidden, dtype=D) - 2)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        features = torch.cat([y, (y + 0.05).log()])
        hidden = softplus(self.inner) @ features - self.shift
        return -softplus(self.outer) @ softplus(-hidden)


utility = Utility()
layer = FFOFunctionLayer(
    lambda prices, budget, y: -utility(y) + 1e-3 * y.square().sum(),
    lambda prices, budget, y: torch.cat([(prices @ y - budget).reshape(1), -y]),  # <= 0
    shape=2,
    dims=(1, 0),
    modules=[utility],
    hvp="autograd",
    warm_start=True,
)

# %%
# Training
# --------
# The solutions of one step are good starting points for the next: ``warm_start=True``.

optimizer = torch.optim.Adam(utility.parameters(), lr=0.1)
curve = []
for _ in range(80):
    bought = layer(train[0], train[1])
    loss = (bought - train[2]).square().sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    curve.append(float(loss.detach().sqrt()))
with torch.no_grad():
    predicted = layer(test[0], test[1])
error = float((predicted - test[2]).norm(dim=1).mean() / test[2].norm(dim=1).mean())
print(f"error of the predicted purchases at unseen prices: {100 * error:.1f} %")
assert error < 0.05  # checked whenever this page is built

# %%
# The picture
# -----------
# Left: indifference curves, which connect bundles of equal utility, true and learnt. They
# agree, although utility was never observed: only its level curves matter for purchases.
# Each budget line touches a curve at the bundle that is bought.

size = 120
amounts = np.linspace(0.05, 3.0, size)
plane = torch.tensor(np.stack(np.meshgrid(amounts, amounts), axis=-1))
with torch.no_grad():
    learnt_values = torch.func.vmap(utility)(plane.view(-1, 2)).view(size, size).numpy()
true_values = true_utility(plane).numpy()
choices = (((0.6, 1.3), 0.9), ((1.0, 0.6), 1.3), ((0.8, 0.9), 2.0))
prices, budgets = (torch.tensor(v, dtype=D) for v in zip(*choices, strict=True))
with torch.no_grad():
    bundles = layer(prices, budgets, warm_start=False)
    levels = torch.func.vmap(utility)(bundles).tolist()

figure, axes = plt.subplots(1, 3, figsize=(11, 3.7), width_ratios=(1.15, 1, 0.9))
axis = axes[0]
true_levels = sorted(true_utility(bundles).tolist())
axis.contour(
    amounts, amounts, true_values, levels=true_levels, colors="0.55", linewidths=2.5
)
axis.contour(
    amounts, amounts, learnt_values, levels=sorted(levels), colors="C0", linestyles="--"
)
for (first, second), budget in choices:
    axis.plot([0, budget / first], [budget / second, 0], color="C3", linewidth=1)
axis.plot(*bundles.T, "o", color="C1", markersize=7, label="bought (network)")
axis.plot([], [], color="0.55", linewidth=2.5, label="true")
axis.plot([], [], "--", color="C0", label="learnt")
axis.plot([], [], color="C3", linewidth=1, label="budget")
axis.set(title="Indifference curves", xlabel="first good", ylabel="second good")
axis.set(xlim=(0, 3), ylim=(0, 3), aspect="equal")
axis.legend(loc="upper right")
for good in range(2):
    axes[1].plot(
        test[2][:, good],
        predicted[:, good],
        "o",
        markersize=4,
        color=f"C{good}",
        label=f"good {good + 1}",
    )
top = float(test[2].max()) * 1.05
axes[1].plot([0, top], [0, top], color="0.6", linewidth=1, zorder=0)
axes[1].set(title="Unseen purchases", xlabel="actual", ylabel="predicted", aspect="equal")
axes[1].legend()
axes[2].semilogy(curve)
axes[2].set(title="Error during training", xlabel="step", ylabel="units of the goods")
axes[2].set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
axes[2].minorticks_off()
plt.show()
