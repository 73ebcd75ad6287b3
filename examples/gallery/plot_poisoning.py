"""
Poisoning a support vector machine
==================================

Suppose an attacker can add a few points to the training data of a classifier. How much harm
can they do? The attacker wants the *trained* classifier to fail on clean data, so the
attack has two levels: training is itself an optimization problem, and the attacker needs
the derivative of its solution with respect to the training points.

Here the classifier is a linear support vector machine. Its training problem is a layer, and
the attacker's points are parameters of it.
"""

# %%
# Data
# ----
# Two classes in the plane, with a few outliers. Eight points, four with each label, belong
# to the attacker, who may place them anywhere in the square.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D, POISON, BOX = torch.float64, 8, 4.0
torch.manual_seed(1)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (count, 2) and labels -1 or 1."""
    labels = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0).to(D)
    centres = labels[:, None] * torch.tensor([1.2, 0.8], dtype=D)
    return centres + torch.randn(count, 2, dtype=D) @ torch.tensor(
        [[1.0, 0.3], [0.0, 0.7]], dtype=D
    ), labels


clean, labels = draw(60)
valid, valid_labels = draw(400)
test, test_labels = draw(2000)

# %%
# Training as a layer
# -------------------
# Weights w and offset b minimize the hinge loss plus a ridge term. The clean points are
# constants of the problem.

w, b = cp.Variable(2), cp.Variable()
points = cp.Parameter((POISON, 2))
poison_labels = np.where(np.arange(POISON) % 2 == 0, 1.0, -1.0)
margins = [labels.numpy(), poison_labels]
losses = cp.sum(cp.pos(1 - cp.multiply(margins[0], clean.numpy() @ w + b)))
losses += cp.sum(cp.pos(1 - cp.multiply(margins[1], points @ w + b)))
problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(w) + 0.5 * losses))
train = FFOLayer(problem, parameters=[points], variables=[w, b])


def accuracy(w: torch.Tensor, b: torch.Tensor) -> float:
    return float(((test @ w + b) * test_labels > 0).double().mean())


# %%
# The attack
# ----------
# Gradient ascent on the loss of held-out data. The support vectors change along the way. At
# each change the solution has a kink, and the one-sided gradient from either side will do.

start = 0.5 * torch.randn(POISON, 2, dtype=D)
poison = start.clone().requires_grad_()
optimizer = torch.optim.Adam([poison], lr=0.1, maximize=True)
path, curve = [], []
for _ in range(120):
    found_w, found_b = train(poison)
    loss = (1 - valid_labels * (valid @ found_w + found_b)).clamp(min=0).mean()
    optimizer.zero_grad()
    loss.backward()
    path.append(poison.detach().clone())
    curve.append(accuracy(found_w.detach(), found_b.detach()))
    optimizer.step()
    with torch.no_grad():
        poison.clamp_(-BOX, BOX)
path = torch.stack(path)

# %%
# Is the optimization worth it? For comparison, the same number of points at random
# positions, the worst of two hundred tries:

torch.manual_seed(2)
with torch.no_grad():
    guesses = BOX * (2 * torch.rand(200, POISON, 2, dtype=D) - 1)
    many_w, many_b = train(guesses)
random_worst = min(accuracy(*each) for each in zip(many_w, many_b, strict=True))
print(f"accuracy at the start: {100 * curve[0]:.1f} %")
print(f"accuracy after the worst random attack: {100 * random_worst:.1f} %")
print(f"accuracy after this attack: {100 * curve[-1]:.1f} %")
assert curve[-1] < random_worst - 0.02  # checked whenever this page is built

# %%
# The picture
# -----------

figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), width_ratios=(1, 1, 0.8))
u, v = np.meshgrid(np.linspace(-BOX, BOX, 200), np.linspace(-BOX, BOX, 200))
for axis, title, where in zip(
    axes, ("Before the attack", "After"), (path[0], path[-1]), strict=False
):
    with torch.no_grad():
        ws, bs = train(where)
    score = ws[0].item() * u + ws[1].item() * v + bs.item()
    axis.contourf(u, v, np.sign(score), levels=[-2, 0, 2], colors=["#FBE3D6", "#D6E8F5"])
    axis.contour(
        u,
        v,
        score,
        levels=[-1, 0, 1],
        colors="black",
        linewidths=[0.6, 1.6, 0.6],
        linestyles=["--", "-", "--"],
    )
    for label, colour in ((1, "C0"), (-1, "C1")):
        axis.plot(*clean[labels == label].T, ".", color=colour, markersize=5, alpha=0.7)
        mine = torch.tensor(poison_labels == label)
        axis.plot(*where[mine].T, "X", color=colour, markersize=9, markeredgecolor="black")
    axis.set(
        title=title,
        aspect="equal",
        xlim=(-BOX, BOX),
        ylim=(-BOX, BOX),
        xticks=[],
        yticks=[],
    )
for k in range(POISON):
    axes[1].plot(*path[:, k].T, color="black", linewidth=0.8, alpha=0.6)
axes[0].plot(
    [], [], "X", color="white", markeredgecolor="black", markersize=8, label="poison"
)
axes[0].legend(loc="lower right", frameon=True)
axes[2].plot(100 * np.array(curve))
axes[2].axhline(100 * random_worst, color="0.5", linestyle="--", linewidth=1)
axes[2].text(
    119, 100 * random_worst + 0.2, "worst of 200\nrandom attacks", color="0.4", ha="right"
)
axes[2].set(title="Accuracy on clean data", xlabel="step of the attack", ylabel="%")
plt.show()
