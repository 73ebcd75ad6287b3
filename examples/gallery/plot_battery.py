"""
A battery on the electricity market
===================================

A battery buys electricity when it is cheap and sells it when it is expensive. The schedule
for tomorrow is decided today, from a forecast of the 24 hourly prices. Which errors of a
forecast matter? The level of the price does not: if all prices are ten euros higher, the
schedule stays the same. What matters is which hours are cheap and which are expensive.

Minimizing the squared error of the forecast ignores that. Here the same linear model is
trained twice: on the squared error, and through the schedule, on the profit
(*decision-focused learning*).
"""

# %%
# Prices
# ------
# Demand has a morning and an evening peak, and grows when it is cold. Sun and wind push
# prices down. Scarcity makes prices rise steeply: they are a nonlinear function of the
# weather, and on windless winter days there are spikes.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D, HOURS = torch.float64, 24
rng = np.random.default_rng(0)
torch.manual_seed(0)
hour = np.arange(HOURS)
peaks = np.exp(-((hour - 8) ** 2) / 6) + 1.2 * np.exp(-((hour - 19) ** 2) / 8)
daylight = np.clip(np.sin(np.pi * (hour - 6) / 12), 0, None)


def draw(days: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weather (days, 4) and prices (days, HOURS) in euros per MWh."""
    cold, wind, sun, weekend = rng.normal(size=(4, days, 1))
    weekend = (weekend > 0.5).astype(float)
    demand = 0.6 + (0.8 - 0.4 * weekend) * peaks + 0.25 * cold * (0.5 + peaks)
    supply = (
        0.45 * wind * (1 + 0.4 * np.cos(2 * np.pi * (hour - 3) / 24))
        + 0.7 * (1 + 0.6 * sun) * daylight
    )
    prices = 40 * np.exp(0.75 * (demand - supply)) + rng.normal(
        scale=4.0, size=(days, HOURS)
    )
    prices += rng.normal(scale=12.0, size=(days, 1))  # gas: moves all hours together
    return torch.tensor(np.concatenate([cold, wind, sun, weekend], axis=1)), torch.tensor(
        prices
    )


train, test = draw(500), draw(500)

# %%
# The schedule
# ------------
# The battery has a power of one megawatt and four hours of storage, and loses ten per cent
# when charging and when discharging. Wear is a small quadratic cost. The battery ends the
# day as full as it began.

buy, sell, level = cp.Variable(HOURS), cp.Variable(HOURS), cp.Variable(HOURS + 1)
price = cp.Parameter(HOURS)
wear = 4.0 * (cp.sum_squares(buy) + cp.sum_squares(sell))
rules = [buy >= 0, buy <= 1, sell >= 0, sell <= 1, level >= 0, level <= 4]
rules += [level[1:] == level[:-1] + 0.9 * buy - sell / 0.9, level[0] == 2, level[-1] == 2]
problem = cp.Problem(cp.Maximize(price @ (sell - buy) - wear), rules)
layer = FFOLayer(problem, parameters=[price], variables=[buy, sell, level])


def profit(forecast: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """(days,) profit of the schedules made from a forecast, at the actual prices."""
    bought, sold, _ = layer(forecast)
    worn = 4.0 * (bought.square() + sold.square()).sum(1)
    return (actual * (sold - bought)).sum(1) - worn


# %%
# Two ways to train one model
# ---------------------------
# Both models start with the least-squares fit. The second is then trained through the
# schedule.

features = torch.cat([train[0], torch.ones(len(train[0]), 1, dtype=D)], dim=1)
test_features = torch.cat([test[0], torch.ones(len(test[0]), 1, dtype=D)], dim=1)
fit = torch.linalg.lstsq(features, train[1]).solution  # (5, HOURS)

model = fit.clone().requires_grad_()
optimizer = torch.optim.Adam([model], lr=0.5)
with torch.no_grad():
    best = profit(test[1], test[1]).mean().item()
curve = []
for epoch in range(21):
    with torch.no_grad():
        curve.append(
            100 * (1 - profit(test_features @ model, test[1]).mean().item() / best)
        )
    if epoch == 20:
        break
    for batch in torch.randperm(len(features)).split(100):
        loss = -profit(features[batch] @ model, train[1][batch]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
trained = model.detach()
errors = [
    float((test_features @ m - test[1]).square().mean().sqrt()) for m in (fit, trained)
]
print(f"profit with perfect foresight: {best:.1f} euros a day")
print(
    f"regret: {curve[0]:.1f} % with least squares, {curve[-1]:.1f} % through the schedule"
)
print(f"error of the forecast: {errors[0]:.1f} and {errors[1]:.1f} euros")
assert curve[-1] < 0.85 * curve[0]  # checked whenever this page is built

# %%
# The picture
# -----------
# Left: a day of the test set. Least squares is closer to the prices on average; the other
# forecast is better at ranking the hours. Right: the loss against perfect foresight, and
# the errors of both forecasts.

gaps = profit(test_features @ trained, test[1]) - profit(test_features @ fit, test[1])
day = int(gaps.argsort()[-25])
figure, axes = plt.subplot_mosaic(
    [["price", "regret"], ["fit", "error"], ["trained", "error"]],
    figsize=(10, 6.2),
    width_ratios=(2.6, 1),
    height_ratios=(2.2, 1.3, 1.3),
)
axis = axes["price"]
axis.step(hour, test[1][day].numpy(), where="mid", color="black", label="price")
axis.step(
    hour, (test_features[day] @ fit).numpy(), where="mid", color="C1", label="least squares"
)
axis.step(
    hour,
    (test_features[day] @ trained).numpy(),
    where="mid",
    color="C0",
    label="through the schedule",
)
axis.set(title="One day's prices, and two forecasts", ylabel="€/MWh", xlim=(-0.5, 23.5))
axis.legend(ncols=3)
for key, weights, colour in (("fit", fit, "C1"), ("trained", trained, "C0")):
    bought, sold, _ = (v[0] for v in layer((test_features[day] @ weights)[None]))
    earned = profit((test_features[day] @ weights)[None], test[1][day][None]).item()
    axes[key].bar(hour, sold.numpy(), color=colour, width=0.9)
    axes[key].bar(hour, -bought.numpy(), color=colour, width=0.9, alpha=0.35)
    axes[key].axhline(0, color="black", linewidth=0.8)
    axes[key].set_title(f"Schedule: earns {earned:.0f} €", fontsize=10, color=colour)
    axes[key].set(
        ylabel="buy      sell", ylim=(-1.1, 1.1), xlim=(-0.5, 23.5), yticks=[-1, 0, 1]
    )
axes["trained"].set_xlabel("hour")
axes["regret"].plot(curve)
axes["regret"].set(
    title="Regret, % of the best profit", xlabel="epoch", ylim=(0, 1.1 * curve[0])
)
bars = axes["error"].bar(
    ["least\nsquares", "through the\nschedule"], errors, color=["C1", "C0"]
)
axes["error"].bar_label(bars, fmt="%.1f")
axes["error"].set(title="Error of the forecast, €/MWh")
plt.show()
