"""FFOFunctionLayer: cost and memory of its backward pass at scale, and its accuracy on ten problems."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.nonlinear import cases, gradient_error
from benchmarks.report import Figure, Suite
from ffo.torch import FFOFunctionLayer

if TYPE_CHECKING:
    from benchmarks.suites import Options

Tensor = torch.Tensor


@dataclass(frozen=True)
class Large:
    """A problem of the scale benchmark; theta are vectors, so that gradients are small compared with the problem."""

    name: str
    objective: Callable[..., Tensor]
    inequality: Callable[..., Tensor]
    theta: tuple[Tensor, ...]
    n: int

    def layer(self, **options: Any) -> FFOFunctionLayer:
        return FFOFunctionLayer(self.objective, self.inequality, shape=self.n, dims=(1,) * len(self.theta), **options)


def dense_quadratic(n: int = 2000, m: int = 500, condition: float = 1e2, seed: int = 0) -> Large:
    """A dense quadratic objective and m dense linear inequalities, about a fifth of which are active."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    vectors, _ = torch.linalg.qr(normal(n, n))
    Q = (vectors * torch.logspace(0, float(np.log10(condition)), n, dtype=torch.float64)) @ vectors.T
    q, G = normal(n), normal(m, n) / n**0.5
    free = G @ (vectors @ ((vectors.T @ -q) / torch.logspace(0, float(np.log10(condition)), n, dtype=torch.float64)))
    h = torch.full((m,), 0.75 * float(free.std()), dtype=torch.float64)
    return Large(
        f"dense quadratic, n={n}, m={m}",
        lambda q, h, y: 0.5 * y @ (Q @ y) + q @ y,
        lambda q, h, y: G @ y - h,
        (q, h),
        n,
    )


def sparse_chain(n: int = 10_000, seed: int = 0) -> Large:
    """A chain of variables within bounds, neighbours tied to each other: gradients are sparse operations."""
    source = torch.Generator().manual_seed(seed)
    a = torch.randn(n, generator=source, dtype=torch.float64).cumsum(0) / n**0.5 * 3
    return Large(
        f"sparse chain, n={n}",
        lambda a, u, y: 0.5 * (y - a).square().sum() + 5 * (y[1:] - y[:-1]).square().sum(),
        lambda a, u, y: torch.cat([y - u, -u - y]),
        (a, torch.full((n,), 0.8, dtype=torch.float64)),
        n,
    )


@dataclass(frozen=True)
class Cost:
    """Seconds (medians) and megabytes (peaks above the initial level) of one training step.

    `gradient` is one evaluation of the gradient of the Lagrangian in y.
    """

    case: str
    active: int
    forward: float
    backward: float
    gradient: float
    gradient_memory: float
    backward_memory: float
    residual: float


def cost(case: Large, repeats: int, progress: Callable[[str], None]) -> Cost:
    """Measure forward and backward passes, and one gradient evaluation for comparison."""
    layer, weights = case.layer(), torch.cos(1.7 * torch.arange(case.n, dtype=torch.float64))
    times = []
    for k in range(repeats):
        progress(f"functions: {case.name}, repetition {k + 1}/{repeats}")
        theta = [t.clone().requires_grad_() for t in case.theta]
        start = time.perf_counter()
        y = layer(*theta)
        middle = time.perf_counter()
        (weights * y).sum().backward()
        times.append((middle - start, time.perf_counter() - middle))
    theta = [t.clone().requires_grad_() for t in case.theta]
    loss = (weights * layer(*theta)).sum()
    backward = peak_megabytes(loss.backward)
    at = y.detach()
    multipliers = torch.rand(len(case.inequality(*case.theta, at)), dtype=torch.float64)

    def gradient() -> None:
        leaf = at.clone().requires_grad_()
        value = case.objective(*case.theta, leaf) + multipliers @ case.inequality(*case.theta, leaf)
        torch.autograd.grad(value, leaf)

    once = peak_megabytes(gradient)
    start = time.perf_counter()
    gradient()
    seconds = time.perf_counter() - start
    assert layer.info is not None
    forward, back = np.median(np.array(times), axis=0)
    active = int((theta[1].grad != 0).sum()) if theta[1].grad is not None else 0
    return Cost(case.name, active, forward, back, seconds, once, backward, float(layer.info.residual[0]))


def peak_megabytes(function: Callable[[], object]) -> float:
    """The most memory that tensors allocated inside held at once, as the allocator saw it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    assert seen.profiler is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return float(held.max(initial=0)) / 2**20


def functions(options: Options) -> Suite:
    """The figures of FFOFunctionLayer: backward against forward, memory, and gradient errors."""
    rows: list[dict[str, Any]] = []
    dense = cost(dense_quadratic(), max(options.repeats // 3, 1), options.progress)
    sparse = cost(sparse_chain(), max(options.repeats // 3, 1), options.progress)
    rows += [asdict(dense), asdict(sparse)]
    figures = [
        Figure("functions n=2000: backward over forward", dense.backward / dense.forward, 3.0, "x", False),
        Figure(
            "functions n=2000: backward memory over one gradient",
            dense.backward_memory / dense.gradient_memory,
            10.0,
            "x",
            False,
        ),
        Figure("functions n=10000: residual of the forward pass", sparse.residual, 1e-8, "", False),
    ]
    for hvp, target in (("difference", 1e-4), ("autograd", 1e-7)):
        worst = 0.0
        for case in cases():
            options.progress(f"functions: {case.name}, hvp={hvp}")
            layer = FFOFunctionLayer(
                case.objective, case.inequality, case.equality, dims=case.dims, modules=case.modules, hvp=hvp
            )
            error, reference = gradient_error(case, layer)
            worst = max(worst, error)
            rows.append({"case": case.name, "hvp": hvp, "error": error, "condition": reference.condition()})
        figures.append(Figure(f"functions: worst gradient error of ten problems, hvp={hvp}", worst, target, "", False))
    return Suite("functions", figures, rows)
