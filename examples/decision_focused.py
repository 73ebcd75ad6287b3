"""Learning to invest: predict returns so that the *portfolio* is good, not the prediction.

A portfolio is chosen every day by

    maximize  r'y - (risk/2) |F'y|^2 - (cost/2) |y|^2   subject to  y >= 0, sum(y) = 1, y <= cap

from predicted returns r. The true returns are a nonlinear function of the day's features and the model is
linear, so it must make errors. Trained on the squared error it makes them where they are cheap for the
prediction; trained through the optimization layer, where they are cheap for the investor.

Both models begin with the same epochs on the squared error. That matters: from random weights many
portfolios are vertices of the feasible set, where the decision does not react to the prediction and
the gradient is correctly zero, and training only through the layer often ends up worse.

Run it with `make demo`. It prints what both models lose against perfect foresight (their regret) in several markets,
the time of a training step next to cvxpylayers, and saves a picture to examples/output/.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cvxpy as cp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

matplotlib.use("Agg")

OUTPUT = Path(__file__).parent / "output"
ASSETS, FEATURES, FACTORS = 30, 5, 4
RISK, COST, CAP = 1.0, 0.2, 0.3
MARKETS, BATCH = 4, 64
WARMUP, EPOCHS = 15, 30  # epochs on the squared error for both models; epochs in total
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"  # Okabe and Ito's colours, distinguishable by everyone

Layer = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Days:
    """Features (days, FEATURES) and the actual returns (days, ASSETS)."""

    features: torch.Tensor
    returns: torch.Tensor


@dataclass(frozen=True)
class Market:
    """Factor loadings of the assets (ASSETS, FACTORS), training days and test days."""

    loadings: np.ndarray
    train: Days
    test: Days


def make_market(seed: int = 0) -> Market:
    """Returns are a cubic function of features, with noise: the usual synthetic decision-focused task."""
    rng = np.random.default_rng(seed)
    mixing = rng.binomial(1, 0.5, (ASSETS, FEATURES)).astype(float)
    loadings = rng.uniform(-0.5, 0.5, (ASSETS, FACTORS))

    def days(count: int) -> Days:
        features = rng.standard_normal((count, FEATURES))
        signal = (0.4 * features @ mixing.T / np.sqrt(FEATURES) + 0.6) ** 5
        returns = signal + 0.1 * rng.standard_normal((count, FACTORS)) @ loadings.T
        return Days(torch.tensor(features), torch.tensor(returns))

    return Market(loadings, days(512), days(512))


def portfolio_problem(loadings: np.ndarray) -> tuple[cp.Problem, cp.Parameter, cp.Variable]:
    """The investor's problem, with the returns as its parameter."""
    y, r = cp.Variable(ASSETS), cp.Parameter(ASSETS)
    penalty = RISK * cp.sum_squares(loadings.T @ y) + COST * cp.sum_squares(y)
    return cp.Problem(cp.Maximize(r @ y - 0.5 * penalty), [y >= 0, y <= CAP, cp.sum(y) == 1]), r, y


def utility(portfolio: torch.Tensor, returns: torch.Tensor, loadings: torch.Tensor) -> torch.Tensor:
    """(days,) what the investor gains, as in the problem's objective."""
    exposure = portfolio @ loadings
    penalty = RISK * exposure.square().sum(1) + COST * portfolio.square().sum(1)
    return (returns * portfolio).sum(1) - 0.5 * penalty


class Trainer:
    """Trains one linear model on the squared error, and then on that or through the layer."""

    def __init__(self, market: Market, layer: Layer, through_layer: bool, seed: int) -> None:
        torch.manual_seed(seed)
        self.market, self.layer, self.through_layer = market, layer, through_layer
        self.loadings = torch.tensor(market.loadings)
        self.model = torch.nn.Linear(FEATURES, ASSETS, dtype=torch.float64)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)
        self.best = self._gain(market.test.returns)

    def epoch(self, number: int) -> None:
        """One pass over the training days in random order; the rate drops after the warm-up."""
        if number == WARMUP:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        days = self.market.train
        for chosen in torch.randperm(len(days.features)).split(BATCH):
            predicted, returns = self.model(days.features[chosen]), days.returns[chosen]
            if self.through_layer and number >= WARMUP:
                (portfolio,) = self.layer(predicted)
                loss = -utility(portfolio, returns, self.loadings).mean()
            else:
                loss = (predicted - returns).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def regret(self) -> float:
        """Percentage of the attainable gain that is lost on the test days."""
        gain = self._gain(self.model(self.market.test.features))
        return float(100 * (self.best - gain) / self.best)

    @torch.no_grad()
    def _gain(self, predicted: torch.Tensor) -> torch.Tensor:
        (portfolio,) = self.layer(predicted)
        return utility(portfolio, self.market.test.returns, self.loadings).mean()


def train(console: Console, label: str, through_layer: bool) -> np.ndarray:
    """(MARKETS, EPOCHS + 1) test regret before training and after each epoch."""
    from ffo.torch import FFOLayer

    columns = TextColumn("{task.description:<18}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}")
    regrets = np.zeros((MARKETS, EPOCHS + 1))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=MARKETS * EPOCHS, note="")
        for k in range(MARKETS):
            market = make_market(k)
            problem, returns, portfolio = portfolio_problem(market.loadings)
            layer = FFOLayer(problem, parameters=[returns], variables=[portfolio])
            trainer = Trainer(market, layer, through_layer, seed=k)
            regrets[k, 0] = trainer.regret()
            for epoch in range(EPOCHS):
                trainer.epoch(epoch)
                regrets[k, epoch + 1] = trainer.regret()
                progress.update(task, advance=1, note=f"market {k + 1}: regret {regrets[k, epoch + 1]:5.1f} %")
    return regrets


def time_steps(layers: dict[str, Layer], repeats: int = 15) -> dict[str, tuple[float, float]]:
    """Median (forward, backward) milliseconds of one batch, with interleaved measurements."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    generator = torch.Generator().manual_seed(1)
    for _ in range(repeats + 2):
        returns = torch.randn(BATCH, ASSETS, dtype=torch.float64, generator=generator)
        for name, layer in layers.items():
            leaf = returns.clone().requires_grad_()
            start = time.perf_counter()
            (portfolio,) = layer(leaf)
            middle = time.perf_counter()
            portfolio.square().sum().backward()
            times[name].append((middle - start, time.perf_counter() - middle))
    return {name: tuple(1e3 * np.median(rows[2:], axis=0)) for name, rows in times.items()}


def save_picture(regrets: dict[str, np.ndarray], steps: dict[str, tuple[float, float]]) -> Path:
    """Left: regret by epoch, each market and their mean; right: milliseconds of a training step."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2), layout="constrained")
    for (label, values), colour, style in zip(regrets.items(), (ORANGE, BLUE), ("--", "-"), strict=True):
        left.plot(values.T, style, color=colour, linewidth=0.8, alpha=0.5)
        left.plot(values.mean(0), style, color=colour, linewidth=2.4, label=f"{label}: {values[:, -1].mean():.1f} %")
    left.axvline(WARMUP, color=GREY, linewidth=1)
    left.text(
        WARMUP + 0.3,
        0.55 * left.get_ylim()[1],
        "until here, both models\nare trained on\nthe squared error",
        color="#555555",
    )
    left.set(xlabel="epoch", ylabel="regret on unseen days (% of attainable gain)", ylim=(0, None), xlim=(0, EPOCHS))
    left.set_title("What the investor loses", loc="left")
    left.legend(frameon=False)
    names = list(steps)
    forward, backward = np.array([steps[name] for name in names]).T
    right.barh(names, forward, color=BLUE, label="forward")
    right.barh(names, backward, left=forward, color=GREY, label="backward")
    for place, total in enumerate(forward + backward):
        right.text(total, place, f" {total:.1f} ms", va="center")
    right.set(xlabel="milliseconds", xlim=(0, 1.25 * (forward + backward).max()))
    right.set_title(f"One training step, batch {BATCH}", loc="left")
    right.legend(frameon=False, loc="best")
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "decision_focused.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def main() -> None:
    from cvxpylayers.torch import CvxpyLayer

    from ffo.torch import FFOLayer

    console = Console()
    regrets = {
        "squared error": train(console, "squared error", through_layer=False),
        "decision-focused": train(console, "decision-focused", through_layer=True),
    }
    problem, returns, portfolio = portfolio_problem(make_market().loadings)
    layers = {
        name: make(problem, parameters=[returns], variables=[portfolio])
        for name, make in (("cvxpylayers", CvxpyLayer), ("ffo", FFOLayer))
    }
    steps = time_steps(layers)

    outcome = Table(title="Regret on unseen days (loss against perfect foresight)", title_justify="left")
    for column in ("model trained on", "before", f"mean of {MARKETS} markets", "best", "worst"):
        outcome.add_column(column)
    for label, values in regrets.items():
        start, last = values[:, 0].mean(), values[:, -1]
        outcome.add_row(label, *(f"{v:.1f} %" for v in (start, last.mean(), last.min(), last.max())))
    console.print(outcome)
    speed = Table(title=f"One training step, batch {BATCH}, {ASSETS} assets", title_justify="left")
    for column in ("layer", "forward", "backward", "total"):
        speed.add_column(column)
    for name, (forward, backward) in steps.items():
        speed.add_row(name, *(f"{ms:.1f} ms" for ms in (forward, backward, forward + backward)))
    console.print(speed)
    console.print(f"ffo is {sum(steps['cvxpylayers']) / sum(steps['ffo']):.1f} times as fast on this problem.")
    picture = save_picture(regrets, steps)
    console.print(f"Picture saved to {picture.relative_to(OUTPUT.parents[1])}")


if __name__ == "__main__":
    main()
