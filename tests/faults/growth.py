"""Training steps of every layer, whose memory must not grow: `python -m faults.growth 10000` (in tests/) for long."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable

import cvxpy as cp
import torch
from faults.faulty import N, blocks

from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer

Step = Callable[[int], None]
BATCH = 4


def _given(k: int) -> list[torch.Tensor]:
    """The blocks of step k; every hundredth has a sample that fails."""
    given = [torch.tensor(v) for v in blocks(batch=BATCH).values()]
    given[1] = given[1] + 0.3 * torch.cos(torch.arange(BATCH * N, dtype=torch.float64) * (k + 1)).reshape(BATCH, N)
    if k % 100 == 99:
        given[1][0, 0] = torch.nan
    return [t.requires_grad_() for t in given]


def quadratic(**options: object) -> Step:
    layer = FFOQPLayer(on_fail="nan", **options)

    def step(k: int) -> None:
        layer(*_given(k)).nan_to_num(0.0).square().sum().backward()

    return step


def warm() -> Step:
    layer = FFOQPLayer(on_fail="nan", warm_start=True)

    def step(k: int) -> None:
        keys = [(k * BATCH + i) % 64 for i in range(BATCH)]
        layer(*_given(k), keys=keys).nan_to_num(0.0).square().sum().backward()

    return step


def patterns() -> Step:
    """Another sparsity pattern at every step: caches of structures must be bounded."""
    layer = FFOQPLayer()

    def step(k: int) -> None:
        Q, p, G, h = _given(k - k // 100 * 100 if k % 100 < 99 else 0)
        mask = (torch.arange(G.shape[1] * N) * (k + 3) % 7 > 2).reshape(G.shape[1:])
        layer(Q.detach(), p, (G.detach() * mask).to_sparse(), h).square().sum().backward()

    return step


def cones() -> Step:
    x, q, r = cp.Variable(3), cp.Parameter(3), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - q) + cp.sum(cp.exp(x))), [cp.norm(x) <= r])
    layer = FFOLayer(problem, [q, r], [x])

    def step(k: int) -> None:
        q_t = torch.cos(torch.arange(6.0, dtype=torch.float64) * (k + 1)).reshape(2, 3).requires_grad_()
        layer(q_t, torch.tensor(1.0, dtype=torch.float64))[0].square().sum().backward()

    return step


def functions() -> Step:
    layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum(), lambda a, y: y.sum() - 1, shape=2, dims=(1,))

    def step(k: int) -> None:
        a = torch.cos(torch.arange(4.0, dtype=torch.float64) * (k + 1)).reshape(2, 2).requires_grad_()
        layer(a).square().sum().backward()

    return step


STEPS: dict[str, Callable[[], Step]] = {
    "FFOQPLayer": quadratic,
    "FFOQPLayer, Clarabel": lambda: quadratic(solver="CLARABEL"),
    "FFOQPLayer, keys": warm,
    "FFOQPLayer, time limit": lambda: quadratic(time_limit=60.0),
    "FFOQPLayer, patterns": patterns,
    "FFOLayer": cones,
    "FFOFunctionLayer": functions,
}


def grown(step: Step, first: int, last: int) -> int:
    """Growth of the number of allocated Python blocks from step `first` to step `last`."""
    before = 0
    for k in range(last + 1):
        step(k)
        if k in (first, last):
            gc.collect()
            before = sys.getallocatedblocks() - before
    return before


def resident() -> float:
    """Megabytes of this process (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def main(steps: int) -> None:
    warnings.simplefilter("ignore")
    for name, make in STEPS.items():
        step, seen = make(), []
        for k in range(steps + 1):
            step(k)
            if k % (steps // 10) == 0 and k:
                gc.collect()
                seen.append(resident())
        sys.stdout.write(f"{name:26} MB after each tenth: {' '.join(f'{v:.1f}' for v in seen)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
