r"""
What a taxi driver knows: a second-order cone program
=====================================================

Between two rides, an experienced taxi driver waits close to where the next call is likely
to come from. Each district calls with a frequency :math:`w_i` that depends on the hour and
on the weather, and the driver waits at the point

.. math::

   \min_x \; \sum_i w_i |x - p_i| \quad\text{subject to}\quad |x| \le 1,

the weighted median of the districts, without leaving the ring road. Distances are norms, so
this is a second-order cone program.

Only the driver knows the frequencies. What we can observe is where the driver waits. From
that alone, a network learns the frequencies: it predicts them, the layer turns them into a
place, and the loss is the distance to the observed place.
"""

# %%
# The town
# --------

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D, DISTRICTS = torch.float64, 7
rng = np.random.default_rng(4)
torch.manual_seed(0)
turn = 2 * np.pi * (np.arange(DISTRICTS) + 0.6 * rng.random(DISTRICTS)) / DISTRICTS
centres = np.stack([np.cos(turn), np.sin(turn)], axis=1) * rng.uniform(
    0.5, 1.4, (DISTRICTS, 1)
)

x, w = cp.Variable(2), cp.Parameter(DISTRICTS, nonneg=True)
distances = cp.hstack([cp.norm(x - centre) for centre in centres])
layer = FFOLayer(
    cp.Problem(cp.Minimize(w @ distances), [cp.norm(x) <= 1]), parameters=[w], variables=[x]
)

# %%
# What the driver knows
# ---------------------
# Every district has its busy hour. Rain makes some of them busier. We observe 400 waiting
# places, each with a small error.

peak = torch.tensor(rng.uniform(0, 24, DISTRICTS))
rain_effect = torch.tensor(rng.normal(scale=0.8, size=DISTRICTS))


def true_frequencies(hour: torch.Tensor, rain: torch.Tensor) -> torch.Tensor:
    """(count, DISTRICTS), each row with sum one."""
    phase = 2 * np.pi * (hour[:, None] - peak) / 24
    return torch.softmax(1.5 * phase.cos() + rain[:, None] * rain_effect, dim=1)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hours, rain and the places of the driver."""
    hour, rain = 24 * torch.rand(count, dtype=D), (torch.rand(count, dtype=D) < 0.4).to(D)
    (place,) = layer(true_frequencies(hour, rain))
    return hour, rain, place + 0.01 * torch.randn(count, 2, dtype=D)


train, test = draw(400), draw(200)

# %%
# Learning
# --------

network = torch.nn.Sequential(
    torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, DISTRICTS)
).double()


def frequencies(hour: torch.Tensor, rain: torch.Tensor) -> torch.Tensor:
    day = 2 * np.pi * hour / 24
    features = [day.sin(), day.cos(), (2 * day).sin(), (2 * day).cos(), rain]
    return torch.softmax(network(torch.stack(features, dim=1)), dim=1)


def places(hour: torch.Tensor, rain: torch.Tensor) -> torch.Tensor:
    return layer(frequencies(hour, rain))[0]


optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
curve = []
for _ in range(40):
    with torch.no_grad():
        curve.append(float((places(*test[:2]) - test[2]).norm(dim=1).mean()))
    for batch in torch.randperm(len(train[0])).split(50):
        hour, rain, seen = (v[batch] for v in train)
        loss = (places(hour, rain) - seen).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    guess, truth = frequencies(*test[:2]), true_frequencies(*test[:2])
agreement = float(torch.corrcoef(torch.stack([guess.flatten(), truth.flatten()]))[0, 1])
print(f"distance to the driver, test data: {curve[0]:.3f} before, {curve[-1]:.3f} after")
print(f"correlation of learnt and true frequencies: {agreement:.2f}")
assert curve[-1] < 0.15 * curve[0]  # checked whenever this page is built
assert agreement > 0.8

# %%
# The picture
# -----------
# Three times of day. Rings show how often a district really calls; discs show what was
# learnt from observing the driver. They agree where the driver's place depends on them, and
# less where it does not. Grey lines connect places of equal mean distance; the dashed line
# is the ring road.

figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), width_ratios=(1, 1, 1, 0.9))
u, v = np.meshgrid(np.linspace(-1.6, 1.6, 120), np.linspace(-1.6, 1.6, 120))
circle = np.linspace(0, 2 * np.pi, 200)
moments = ((8.0, 0.0, "8:00"), (14.0, 0.0, "14:00"), (21.0, 1.0, "21:00, rain"))
for axis, (hour, rain, title) in zip(axes, moments, strict=False):
    inputs = torch.tensor([hour], dtype=D), torch.tensor([rain], dtype=D)
    with torch.no_grad():
        learnt, real = frequencies(*inputs)[0], true_frequencies(*inputs)[0]
        here, there = places(*inputs)[0], layer(real)[0]
    cost = sum(
        float(f) * np.hypot(u - c[0], v - c[1]) for f, c in zip(real, centres, strict=True)
    )
    axis.contour(u, v, cost, levels=12, colors="0.88", linewidths=0.8)
    axis.plot(np.cos(circle), np.sin(circle), color="0.6", linewidth=1, linestyle="--")
    axis.scatter(*centres.T, s=1500 * learnt, color="C5", alpha=0.6, linewidth=0)
    axis.scatter(*centres.T, s=1500 * real, facecolor="none", edgecolor="C0", linewidth=1.2)
    axis.plot(*there, "o", color="black", markersize=7, label="driver")
    axis.plot(*here, "x", color="C1", markersize=9, markeredgewidth=2.2, label="learnt")
    axis.set(
        title=title,
        aspect="equal",
        xticks=[],
        yticks=[],
        xlim=(-1.6, 1.6),
        ylim=(-1.6, 1.6),
    )
    axis.spines[:].set_visible(False)
axes[0].legend(loc="lower left")
axes[3].semilogy(curve)
axes[3].set(title="Distance to the driver", xlabel="epoch", ylabel="test data")
axes[3].set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
axes[3].minorticks_off()
plt.show()
