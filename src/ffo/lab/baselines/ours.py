"""This package: FFOCP (`FFOLayer`) and FFOQP (`FFOQPLayer`), with each way of the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ffo.lab.baselines.base import Baseline, Layer, Settings, only_given
from ffo.lab.tasks.inner import Inner

SETTINGS = frozenset({"tolerance", "solver"})
NAMES = {"auto": "", "iterative": " iterative", "resolve": " resolve"}


def _options(settings: Settings) -> dict[str, Any]:
    tolerance = {"eps": settings.tolerance} if settings.tolerance is not None else None
    return only_given(solver=settings.solver, delta=settings.delta, solver_args=tolerance)


def _conic(backward: str) -> Baseline:
    def make(inner: Inner, settings: Settings) -> Layer:
        from ffo.torch import FFOLayer

        problem, parameters, y = inner.cvxpy()
        layer = FFOLayer(problem, parameters, [y], backward=backward, **_options(settings))

        def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return layer(*inner.arguments(values))[0]

        return solve

    settings = SETTINGS | ({"delta"} if backward == "resolve" else set())
    return Baseline(f"FFOCP{NAMES[backward]}", "conic", make, settings=settings, ours=True)


def _quadratic(backward: str) -> Baseline:
    def make(inner: Inner, settings: Settings) -> Layer:
        from ffo.torch import FFOQPLayer

        layer = FFOQPLayer(backward=backward, **_options(settings))
        fixed = inner.fixed
        G, h, lb = (None, None, fixed["h"]) if inner.nonnegative else (fixed["G"], fixed["h"], None)

        def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return layer(fixed["Q"], -values["q"], G, h, values.get("A"), values.get("b"), lb=lb)

        return solve

    settings = SETTINGS | ({"delta"} if backward == "resolve" else set())
    return Baseline(f"FFOQP{NAMES[backward]}", "qp", make, settings=settings, ours=True)


OURS = [make(backward) for make in (_conic, _quadratic) for backward in NAMES]
