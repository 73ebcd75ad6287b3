"""Learning to invest in JAX: an Equinox model trained with optax through an optimization layer.

A portfolio is chosen every day by

    maximize  r'y - (cost/2) |y|^2   subject to  y >= 0, sum(y) = 1, y <= cap

from predicted returns r. The true returns are a nonlinear function of the day's features and the model is linear, so
it must err somewhere. The loss is the regret: what the portfolio earns less than one chosen with perfect foresight.
One compiled step predicts, solves a batch of problems, and updates the weights; samples are known by their
numbers (`keys=`), so that from the second epoch on most of them start from their last solution.

    python examples/jax_training.py
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ffo.jax import FFOLayer

ASSETS, FEATURES, DAYS, BATCH = 12, 5, 512, 64
COST, CAP = 0.3, 0.4


class Investor(eqx.Module):
    """Features of a day -> predicted returns -> portfolio."""

    returns: eqx.nn.Linear
    layer: FFOLayer

    def __call__(self, features: jax.Array, keys: jax.Array) -> jax.Array:
        (portfolio,) = self.layer(jax.vmap(self.returns)(features), keys=keys)
        return portfolio


def make_layer() -> FFOLayer:
    y, r = cp.Variable(ASSETS), cp.Parameter(ASSETS)
    gain = r @ y - 0.5 * COST * cp.sum_squares(y)
    return FFOLayer(cp.Problem(cp.Maximize(gain), [y >= 0, cp.sum(y) == 1, y <= CAP]), [r], [y])


def make_days(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    """Features (DAYS, FEATURES) and the returns that came true (DAYS, ASSETS)."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(DAYS, FEATURES))
    signal = features @ rng.binomial(1, 0.5, (FEATURES, ASSETS)) / np.sqrt(FEATURES)
    returns = 0.3 * (signal + 0.5 * signal**3) + 0.05 * rng.normal(size=(DAYS, ASSETS))
    return jnp.asarray(features), jnp.asarray(returns)


def earned(portfolio: jax.Array, returns: jax.Array) -> jax.Array:
    return ((portfolio * returns).sum(1) - 0.5 * COST * jnp.square(portfolio).sum(1)).mean()


def train(epochs: int = 10, seed: int = 0) -> list[float]:
    """Mean regret of each epoch."""
    features, returns = make_days(seed)
    best = make_layer()(returns)[0]
    investor = Investor(eqx.nn.Linear(FEATURES, ASSETS, key=jax.random.key(seed)), make_layer())
    optimizer = optax.adam(3e-2)
    state = optimizer.init(eqx.filter(investor, eqx.is_array))

    @eqx.filter_jit
    def step(investor: Investor, state: Any, days: jax.Array) -> tuple[Investor, Any, jax.Array]:
        def regret(investor: Investor) -> jax.Array:
            found = earned(investor(features[days], days), returns[days])
            return earned(best[days], returns[days]) - found

        value, gradient = eqx.filter_value_and_grad(regret)(investor)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(investor, updates), state, value

    regrets, rng = [], np.random.default_rng(seed)
    for _ in range(epochs):
        values = []
        for days in rng.permutation(DAYS).reshape(-1, BATCH):
            investor, state, value = step(investor, state, jnp.asarray(days))
            values.append(float(value))
        regrets.append(float(np.mean(values)))
    return regrets


if __name__ == "__main__":
    for epoch, regret in enumerate(train()):
        print(f"epoch {epoch}: regret {regret:.4f}")
