"""
Model predictive control with a learnt cost
===========================================

A crane moves a load that hangs on a rope. Every fifth of a second the controller plans one
second ahead, applies the first step of its plan, and plans again. One second is too short
to see that the load will swing: a controller that only penalizes the distance to the target
is fast, but leaves the load swinging.

The remedy is a better cost at the end of the plan. Here it is learnt: the closed loop of
forty plans is differentiated from end to end, through every optimization problem and
through the simulated physics.
"""

# %%
# The physics
# -----------
# The state consists of the position and speed of the cart, and the angle and angular
# velocity of the rope. The control is the acceleration of the cart. The simulated crane is
# nonlinear and has friction. The controller does not know this: it plans with a linear
# model without friction.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D = torch.float64
STEP, ROPE, GRAVITY, FRICTION = 0.2, 1.5, 9.81, 0.03
AHEAD, STEPS = 5, 40  # steps of a plan, and of the closed loop
FASTEST, STRONGEST = 1.3, 1.1  # limits of speed and acceleration


def simulate(state: torch.Tensor, control: torch.Tensor) -> torch.Tensor:
    """(batch, 4) one step of the crane, as ten small steps."""
    position, speed, angle, rate = state.unbind(1)
    for _ in range(10):
        small = STEP / 10
        turn = -(GRAVITY * angle.sin() + control * angle.cos()) / ROPE - FRICTION * rate
        speed = speed + small * control
        rate = rate + small * turn
        position = position + small * speed
        angle = angle + small * rate
    return torch.stack([position, speed, angle, rate], dim=1)


frequency = np.sqrt(GRAVITY / ROPE)
c, s = np.cos(frequency * STEP), np.sin(frequency * STEP)
A = np.array(
    [[1, STEP, 0, 0], [0, 1, 0, 0], [0, 0, c, s / frequency], [0, 0, -frequency * s, c]]
)
B = np.array([STEP**2 / 2, STEP, (c - 1) / GRAVITY, -s * frequency / GRAVITY])

# %%
# The plan
# --------
# The plan is the solution of a quadratic program. Its parameters are the weights of the
# states along the plan and the matrix of the cost at its end.

x, u = cp.Variable((AHEAD + 1, 4)), cp.Variable(AHEAD)
start, weights, end = cp.Parameter(4), cp.Parameter(4), cp.Parameter((4, 4))
cost = 0.05 * cp.sum_squares(u) + cp.sum_squares(end @ x[AHEAD])
rules = [x[0] == start, cp.abs(u) <= STRONGEST]
for k in range(AHEAD):
    cost += cp.sum_squares(cp.multiply(weights, x[k + 1]))
    rules += [x[k + 1] == A @ x[k] + B * u[k], cp.abs(x[k + 1, 1]) <= FASTEST]
plan = FFOLayer(
    cp.Problem(cp.Minimize(cost), rules), parameters=[start, weights, end], variables=[u]
)


def drive(
    state: torch.Tensor, weights: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """States (STEPS + 1, batch, 4) and controls (STEPS, batch) of the closed loop."""
    states, controls = [state], []
    for _ in range(STEPS):
        (planned,) = plan(states[-1], weights, end)
        controls.append(planned[:, 0])
        states.append(simulate(states[-1], planned[:, 0]))
    return torch.stack(states), torch.stack(controls)


def true_cost(states: torch.Tensor, controls: torch.Tensor) -> torch.Tensor:
    """What we really want: the load at the target, soon, and at rest there."""
    load = states[..., 0] + ROPE * states[..., 2].sin()
    late = states[STEPS // 2 :, :, 2]
    return (
        (load.square() + 0.01).sqrt().mean()
        + 20 * late.square().mean()
        + 0.01 * controls.square().mean()
    )


# %%
# Training
# --------
# Loads start at rest, between one and four metres from the target. The gradient of the true
# cost goes back through forty steps of physics and forty quadratic programs.

torch.manual_seed(0)
distances = torch.tensor([-4.0, -2.5, -1.0, 1.5, 3.0], dtype=D)
starts = torch.zeros(len(distances), 4, dtype=D)
starts[:, 0] = distances

weights_t = torch.tensor([1.0, 0.1, 0.1, 0.1], dtype=D, requires_grad=True)
end_t = (0.1 * torch.eye(4, dtype=D)).requires_grad_()
before = [v.detach() for v in drive(starts, weights_t, end_t)]

optimizer = torch.optim.Adam([weights_t, end_t], lr=0.15)
curve = []
for _ in range(40):
    loss = true_cost(*drive(starts, weights_t, end_t))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    curve.append(float(loss.detach()))
after = [v.detach() for v in drive(starts, weights_t, end_t)]
print(f"true cost: {curve[0]:.3f} before, {float(true_cost(*after)):.3f} after training")

# %%
# A distance that was not among the training data shows the same:

unseen = torch.zeros(1, 4, dtype=D)
unseen[0, 0] = -3.3
first = torch.tensor([1.0, 0.1, 0.1, 0.1], dtype=D), 0.1 * torch.eye(4, dtype=D)
with torch.no_grad():
    runs = {"Before": drive(unseen, *first), "After": drive(unseen, weights_t, end_t)}
for name, run in runs.items():
    print(f"{name}: true cost {float(true_cost(*run)):.3f}")
swing = [run[0][STEPS // 2 :, 0, 2].abs().max().item() for run in runs.values()]
print("largest angle after four seconds, before and after:", np.degrees(swing).round(1))
assert swing[1] < 0.25 * swing[0]  # checked whenever this page is built

# %%
# The picture
# -----------
# The crane drives from left to right, to the target at zero. Top: a snapshot every 0.4
# seconds; darker is later. Bottom: the angle of the rope, and the acceleration with its
# limits.

figure, axes = plt.subplot_mosaic(
    [["Before", "After"], ["angle", "control"]], figsize=(9.5, 5.4), height_ratios=(3, 2.4)
)
shades = plt.get_cmap("Blues")
for name, (states, _) in runs.items():
    axis = axes[name]
    for k in range(0, STEPS + 1, 2):
        cart, angle = float(states[k, 0, 0]), float(states[k, 0, 2])
        load = (cart + ROPE * np.sin(angle), -ROPE * np.cos(angle))
        shade = shades(0.25 + 0.75 * k / STEPS)
        axis.plot([cart, load[0]], [0, load[1]], color=shade, linewidth=1)
        axis.plot(*load, "o", color=shade, markersize=8)
        axis.plot(cart, 0, "s", color=shade, markersize=4)
    axis.axvline(0, color="C1", linestyle=":", linewidth=1.2, zorder=0)
    axis.set(title=f"{name} training", aspect="equal", xlim=(-4.1, 1.3), ylim=(-1.85, 0.25))
    axis.set(yticks=[], xlabel="metres from the target")
    axis.spines["left"].set_visible(False)
time = STEP * np.arange(STEPS + 1)
for (name, (states, controls)), colour in zip(runs.items(), ("0.5", "C0"), strict=True):
    axes["angle"].plot(
        time, np.degrees(states[:, 0, 2].numpy()), color=colour, label=name.lower()
    )
    axes["control"].step(time[:-1], controls[:, 0], color=colour, where="post")
axes["angle"].set(
    title="Angle of the rope", xlabel="seconds", ylabel="degrees", xlim=(0, 8)
)
axes["angle"].legend()
for limit in (-STRONGEST, STRONGEST):
    axes["control"].axhline(limit, color="C1", linewidth=1, linestyle=":")
axes["control"].set(
    title="Acceleration of the cart", xlabel="seconds", ylabel="m/s²", xlim=(0, 8)
)
plt.show()
