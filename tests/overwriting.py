"""A stand-in for recorded CUDA graphs on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ffo.torch.dense.graphs import Eager, flatten


class Overwriting(Eager):
    """Steps overwrite their state, as recorded ones do."""

    def step(self, function: Callable[..., Any], state: Any, *arguments: Any) -> Any:
        for old, new in zip(flatten(state)[0], flatten(function(state, *arguments))[0], strict=True):
            old.copy_(new)
        return state
