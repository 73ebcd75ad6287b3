"""
Denoising with learnt total variation
=====================================

Total variation denoising removes noise and keeps jumps. It solves

.. math::

   \\min_x \\; \\tfrac{1}{2} |x - y|^2 + \\sum_i w_i |x_{i+1} - x_i|

for a noisy signal y. Usually all weights are equal, and one number has to suit the whole
signal. Here a small network looks at the signal and predicts a weight for every position.
It is trained through the denoising problem, on pairs of noisy and clean signals.
"""

# %%
# Signals
# -------
# The signals are piecewise constant, with segments of two kinds: some have many jumps and
# little noise, others few jumps and a lot of noise. The first need small weights, which
# keep every detail; the second need large ones.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D, LENGTH = torch.float64, 100
rng = np.random.default_rng(0)
torch.manual_seed(0)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy and clean signals, (count, LENGTH) each."""
    clean, level = np.zeros((2, count, LENGTH))
    for k in range(count):
        calm = np.cumsum(rng.random(LENGTH) < 0.04) % 2 == rng.integers(2)
        jumps = rng.random(LENGTH) < np.where(calm, 0.04, 0.4)
        clean[k] = np.cumsum(jumps * rng.normal(scale=0.4, size=LENGTH))
        level[k] = np.where(calm, 0.4, 0.05)
    clean -= clean.mean(1, keepdims=True)
    noisy = clean + level * rng.normal(size=clean.shape)
    return torch.tensor(noisy), torch.tensor(clean)


train, test = draw(256), draw(128)

# %%
# The layer
# ---------
# The weights must not be negative. This keeps the problem convex, and the layer checks it.

x, y, w = cp.Variable(LENGTH), cp.Parameter(LENGTH), cp.Parameter(LENGTH - 1, nonneg=True)
objective = 0.5 * cp.sum_squares(x - y) + w @ cp.abs(cp.diff(x))
layer = FFOLayer(cp.Problem(cp.Minimize(objective)), parameters=[y, w], variables=[x])

# %%
# One weight for everything
# -------------------------
# The best of twelve single weights, on the training signals.


def error(found: torch.Tensor, clean: torch.Tensor) -> float:
    """Root of the mean squared error."""
    return float((found - clean).square().mean().sqrt())


candidates = np.geomspace(0.03, 3, 12)
with torch.no_grad():
    errors = [
        error(layer(train[0], torch.full((LENGTH - 1,), c, dtype=D))[0], train[1])
        for c in candidates
    ]
    single = float(candidates[np.argmin(errors)])
    (by_single,) = layer(test[0], torch.full((LENGTH - 1,), single, dtype=D))

# %%
# A weight for every position
# ---------------------------
# The network sees the signal and its differences in a window of a few samples. It starts at
# the best single weight.

network = torch.nn.Sequential(
    torch.nn.Conv1d(2, 16, 9, padding=4),
    torch.nn.ReLU(),
    torch.nn.Conv1d(16, 16, 9, padding=4),
    torch.nn.ReLU(),
    torch.nn.Conv1d(16, 1, 1),
).double()
with torch.no_grad():
    network[-1].weight.mul_(0.1)
    network[-1].bias.fill_(np.log(single))


def weights(noisy: torch.Tensor) -> torch.Tensor:
    steps = noisy.diff(dim=1)
    return network(torch.stack([steps, steps.abs()], dim=1))[:, 0].exp()


optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(20):
    for batch in torch.randperm(len(train[0])).split(32):
        (found,) = layer(train[0][batch], weights(train[0][batch]))
        loss = (found - train[1][batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

with torch.no_grad():
    test_weights = weights(test[0])
    (by_network,) = layer(test[0], test_weights)
results = {
    "noisy signal": error(test[0], test[1]),
    "one weight": error(by_single, test[1]),
    "learnt weights": error(by_network, test[1]),
}
for name, value in results.items():
    print(f"{name:16s} error {value:.3f}")
assert (
    results["learnt weights"] < 0.9 * results["one weight"]
)  # checked whenever this page is built

# %%
# The picture
# -----------
# A test signal. The single weight is a compromise: too small for the noise, too large for
# the details. The network has learnt to tell the segments apart, although it was never told
# where they are.

k = 5
figure, axes = plt.subplot_mosaic(
    [["one", "bars"], ["learnt", "bars"], ["weights", "bars"]],
    figsize=(9.5, 6.4),
    width_ratios=(3.4, 1),
    height_ratios=(3, 3, 2),
)
for key, title, found, colour in (
    ("one", "One weight", by_single, "C1"),
    ("learnt", "Learnt weights", by_network, "C0"),
):
    axes[key].plot(test[0][k], ".", color="0.7", markersize=5, label="noisy")
    axes[key].plot(
        test[1][k], color="black", linewidth=1, drawstyle="steps-mid", label="clean"
    )
    axes[key].plot(found[k], color=colour, label="denoised")
    axes[key].set(title=title, xlim=(0, LENGTH - 1), xticklabels=[])
    axes[key].legend(ncols=3, loc="best")
axes["weights"].semilogy(test_weights[k], color="C0")
axes["weights"].axhline(single, color="C1", linewidth=1.2)
axes["weights"].set(title="Weights", xlim=(0, LENGTH - 1), xlabel="position in the signal")
bars = axes["bars"].bar(
    ["noisy", "one\nweight", "learnt"], results.values(), color=["0.7", "C1", "C0"]
)
axes["bars"].bar_label(bars, fmt="%.2f")
axes["bars"].set_title("Error, 128 signals")
plt.show()
