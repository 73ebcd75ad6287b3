"""This package: FFOCP (`FFOLayer`) and FFOQP (`FFOQPLayer`), with each way of the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from ffo.lab.baselines.base import CUDA, Baseline, Layer, Settings, moved, only_given
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

    return _baseline(f"FFOCP{NAMES[backward]}", "conic", make, backward)


def _qp_layer(inner: Inner, settings: Settings, backward: str, device: str) -> Layer:
    from ffo.torch import FFOQPLayer

    layer = FFOQPLayer(backward=backward, **_options(settings))
    fixed = moved(inner.fixed, device)
    G, h, lb = (None, None, fixed["h"]) if inner.nonnegative else (fixed["G"], fixed["h"], None)

    def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        values = moved(values, device)
        return layer(fixed["Q"], -values["q"], G, h, values.get("A"), values.get("b"), lb=lb).cpu()

    return solve


def _quadratic(backward: str) -> Baseline:
    def make(inner: Inner, settings: Settings) -> Layer:
        return _qp_layer(inner, settings, backward, "cpu")

    return _baseline(f"FFOQP{NAMES[backward]}", "qp", make, backward)


def _baseline(
    name: str, family: Literal["qp", "conic"], make: Callable[[Inner, Settings], Layer], backward: str
) -> Baseline:
    settings = SETTINGS | ({"delta"} if backward == "resolve" else set())
    first_order = backward in ("iterative", "resolve")
    return Baseline(
        name, family, make, packages=("numba",), settings=settings, first_order=first_order, any_solver=True, ours=True
    )


def _on_device(inner: Inner, settings: Settings) -> Layer:
    return _qp_layer(inner, settings, "auto", settings.device or CUDA)


ON_DEVICE = Baseline(
    "FFOQP (GPU)", "qp", _on_device, settings=frozenset({"tolerance", "device"}), ours=True, on_device=True
)
OURS = [*(make(backward) for make in (_conic, _quadratic) for backward in NAMES), ON_DEVICE]
