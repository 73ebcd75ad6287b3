"""
A portfolio with a learnt risk model
====================================

An investor splits wealth between twelve assets. Their risk depends on the state of the
market: in calm times most of them move independently, under stress they fall together. The
covariance is unknown and has to be learnt from past returns.

A risk model is usually fitted to explain the *returns*. But what the investor cares about
is the portfolio. Here a model with a single risk factor is first fitted by maximum
likelihood, and then trained further *through* the portfolio problem. The fit spends its one
factor on the most volatile assets, because that explains most of the returns. But the
investor hardly holds these assets. Training through the portfolio moves the factor to where
the money is.
"""

# %%
# The market
# ----------
# Two factors drive the returns. The first is the market: eight ordinary assets depend on
# it, and its volatility grows with stress. The second drives four speculative assets, whose
# volatility is always high. Expected returns are known.

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import torch

from ffo.torch import FFOLayer

D = torch.float64
ASSETS, RISK, CAP = 12, 8.0, 0.35
torch.manual_seed(0)

speculative = torch.arange(ASSETS) >= 8
market = torch.where(
    speculative, 0.3, torch.linspace(0.1, 1.4, ASSETS, dtype=D)
)  # from government bonds to small firms
wild = torch.where(speculative, 1.0, 0.0).to(D)
own = torch.where(speculative, 0.25, 0.05 + 0.07 * torch.rand(ASSETS, dtype=D))
mean = torch.where(speculative, 0.08, 0.02 + 0.09 * market)


def covariance(stress: torch.Tensor) -> torch.Tensor:
    """(days, ASSETS, ASSETS) the true one, for a stress between 0 (calm) and 1."""
    factors = torch.stack(
        [(0.04 + 0.30 * stress**2)[:, None] * market, (0.5 * wild).expand(len(stress), -1)],
        dim=2,
    )
    return factors @ factors.mT + torch.diag(own**2)


def draw(days: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stress (days,) and returns (days, ASSETS), with heavy tails."""
    stress = torch.rand(days, dtype=D)
    normal = torch.randn(days, ASSETS, dtype=D)
    chi = torch.distributions.Chi2(torch.tensor(6.0, dtype=D)).sample((days, 1))
    student = normal * (4.0 / chi).sqrt()  # unit variance
    return stress, mean + (torch.linalg.cholesky(covariance(stress)) @ student[..., None])[
        ..., 0
    ]


stress, returns = draw(2000)  # all the data there is

# %%
# The portfolio problem
# ---------------------
# The investor maximizes expected return minus a penalty on the variance. The risk model
# enters as a matrix of factors and a vector of individual volatilities, both predicted for
# each day.

y = cp.Variable(ASSETS)
F, s = cp.Parameter((ASSETS, 1)), cp.Parameter(ASSETS, nonneg=True)
variance = cp.sum_squares(F.T @ y) + cp.sum_squares(cp.multiply(s, y))
problem = cp.Problem(
    cp.Minimize(-mean.numpy() @ y + RISK / 2 * variance), [y >= 0, y <= CAP, cp.sum(y) == 1]
)
layer = FFOLayer(problem, parameters=[F, s], variables=[y])

# %%
# The risk model
# --------------
# The model has one factor. The truth has two, so the model must make errors. Volatilities
# are log-linear in the stress.


class RiskModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.direction = torch.nn.Parameter(0.1 * torch.ones(ASSETS, dtype=D))
        self.slope = torch.nn.Parameter(torch.zeros((), dtype=D))
        self.own = torch.nn.Parameter(torch.full((ASSETS,), -2.0, dtype=D))
        self.own_slope = torch.nn.Parameter(torch.zeros(ASSETS, dtype=D))

    def forward(self, stress: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factor = self.direction * (self.slope * stress).exp()[:, None]
        return factor[..., None], (self.own + self.own_slope * stress[:, None]).exp()

    def log_likelihood(self, stress: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        factor, own = self(stress)
        normal = torch.distributions.LowRankMultivariateNormal(
            mean.expand(len(stress), -1), factor, own.square()
        )
        return normal.log_prob(returns).mean()


def realized_utility(portfolio: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """The objective, with the squared deviation of the day in place of the variance."""
    deviation = ((returns - mean) * portfolio).sum(1)
    return ((mean * portfolio).sum(1) - RISK / 2 * deviation.square()).mean()


# %%
# Training
# --------
# Both stages use the same 2000 days. The reported utility is exact: it is computed from the
# true covariance.

test_stress = torch.linspace(0, 1, 60, dtype=D)
test_covariance = covariance(test_stress)


def utility(portfolio: torch.Tensor) -> float:
    spread = (portfolio[:, None] @ test_covariance @ portfolio[..., None])[:, 0, 0]
    return float(((portfolio * mean).sum(1) - RISK / 2 * spread).mean())


@torch.no_grad()
def decide(model: RiskModel) -> torch.Tensor:
    return layer(*model(test_stress))[0]


model, steps, curve = RiskModel(), [], []
FIT, TOTAL = 200, 400
for step in range(TOTAL + 1):
    if step in (0, FIT):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    if step == FIT:
        fitted = decide(model)
    if step % 5 == 0:
        steps.append(step)
        curve.append(utility(decide(model)))
    if step < FIT:
        loss = -model.log_likelihood(stress, returns)
    else:
        day = torch.randperm(len(stress))[:400]
        (portfolio,) = layer(*model(stress[day]))
        loss = -realized_utility(portfolio, returns[day])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
trained = decide(model)

# %%
# Baselines
# ---------
# The result is compared with a constant covariance, estimated from the same days, and with
# the best portfolios, computed from the true covariance.

sample = np.cov(returns.numpy().T)
free = cp.Variable(ASSETS)
truth = cp.Parameter((ASSETS, ASSETS), PSD=True)
best_problem = cp.Problem(
    cp.Minimize(-mean.numpy() @ free + RISK / 2 * cp.quad_form(free, truth)),
    [free >= 0, free <= CAP, cp.sum(free) == 1],
)
best_layer = FFOLayer(best_problem, parameters=[truth], variables=[free])
(best,) = best_layer(test_covariance)
(constant,) = best_layer(torch.tensor(sample).expand(len(test_stress), -1, -1))
scores = {"constant covariance": utility(constant), "best possible": utility(best)}
scores |= {
    "maximum likelihood": utility(fitted),
    "trained through the layer": utility(trained),
}
for name, score in scores.items():
    print(f"{name:28s} utility {100 * score:.2f} %")
gain = scores["trained through the layer"] - scores["maximum likelihood"]
assert gain > 0.5 * (
    scores["best possible"] - scores["maximum likelihood"]
)  # checked whenever this page is built

# %%
# The picture
# -----------
# Top: how good the decisions are. Bottom: the portfolios, from calm to stress. The fitted
# model does not see that ordinary assets fall together under stress, and keeps them. The
# trained model moves to bonds, as the best portfolio does.

figure, axes = plt.subplot_mosaic(
    [["curve"] * 4, ["constant", "fitted", "trained", "best"]], figsize=(9.5, 6)
)
axis = axes["curve"]
axis.plot(steps, 100 * np.array(curve))
axis.axvline(FIT, color="0.7", linewidth=1)
axis.text(
    FIT - 4,
    0.05,
    "maximum likelihood",
    ha="right",
    transform=axis.get_xaxis_transform(),
    color="0.4",
)
axis.text(
    FIT + 4,
    0.05,
    "through the portfolio",
    transform=axis.get_xaxis_transform(),
    color="0.4",
)
for name in ("constant covariance", "best possible"):
    axis.axhline(100 * scores[name], color="0.4", linestyle="--", linewidth=1)
    axis.text(
        TOTAL - 2,
        100 * scores[name],
        name,
        va="bottom",
        ha="right",
        color="0.4",
        fontsize=9,
    )
axis.set(
    title="Utility of the decisions (true covariance)",
    ylabel="% a year",
    xlabel="step",
    xlim=(0, TOTAL),
    ylim=(2, 5.4),
)

blues, reds = plt.get_cmap("Blues"), plt.get_cmap("Oranges")
colours = [*blues(np.linspace(0.25, 0.95, 8)), *reds(np.linspace(0.35, 0.75, 4))]
for key, title, weights in (
    ("constant", "Constant covariance", constant),
    ("fitted", "Maximum likelihood", fitted),
    ("trained", "Through the portfolio", trained),
    ("best", "Best possible", best),
):
    axes[key].stackplot(
        test_stress, weights.T.detach(), colors=colours, edgecolor="white", linewidth=0.3
    )
    axes[key].set(xlabel="stress", xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1])
    axes[key].set_title(title, fontsize=10)
axes["constant"].set_ylabel("weights, bonds at the bottom,\nspeculative assets orange")
plt.show()
