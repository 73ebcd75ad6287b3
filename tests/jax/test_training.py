"""The example that trains a model of Equinox with optax."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax


def test_the_example_learns() -> None:
    jax.config.update("jax_enable_x64", False)  # as users find it; the fixture puts it back
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "jax_training.py"))
    regrets = example["train"](epochs=4)
    assert regrets[-1] < 0.5 * regrets[0]
