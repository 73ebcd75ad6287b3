"""Dense quadratic programs and CVXPY problems on a GPU: milliseconds of a step (forward and backward).

Quadratic programs run against qpth and qpax, in one run.

All data is on the GPU before the clock starts, and the clock stops when the GPU is done. Solutions and gradients of
the first samples are compared with the CPU's. qpax smooths its gradients by a barrier, which by default leaves no
correct digits. It is measured twice: with its defaults, and with a tolerance of 1e-8 for solver and barrier.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks import problems
from benchmarks.latency import bounds_and_row
from benchmarks.problems import Case
from benchmarks.report import Figure, Suite

Blocks = dict[str, torch.Tensor]
Step = Callable[[], tuple[torch.Tensor, torch.Tensor]]
MATRICES = ("Q", "G", "A")
#: samples compared with the CPU, and the largest allowed difference
COMPARED, AGREEMENT = 4, 1e-10
#: required speed-up over each package
AGAINST = {"qpax": 2.0, "qpax, tight": 2.0, "qpth": 20.0}
WARMUP = 5


@dataclass(frozen=True)
class Work:
    """A case, its batch, its target in milliseconds, and the packages with enough memory and time for it."""

    case: Callable[[int], Case]
    batch: int
    goal: float
    peers: tuple[str, ...] = ("qpth", "qpax", "qpax, tight")


def _budget(n: int, rows: bool) -> Callable[[int], Case]:
    def make(batch: int) -> Case:
        case = problems.decision_qp(n, batch=batch) if rows else bounds_and_row(n)
        draw = lambda seed: {"p": -np.random.default_rng(seed).standard_normal((batch, n))}  # noqa: E731
        return Case(case.name, case.formulate, case.shared, draw, ("p",))

    return make


WORK: dict[str, Work] = {
    "dense n=m=10, batch 4096": Work(lambda b: problems.dense_qp(10, b), 4096, 3.0),
    "dense n=m=10, batch 32768": Work(lambda b: problems.dense_qp(10, b), 32768, 12.0, ("qpax", "qpax, tight")),
    "dense n=m=100, batch 128": Work(lambda b: problems.dense_qp(100, b), 128, 8.0),
    "dense n=m=100, batch 1024": Work(lambda b: problems.dense_qp(100, b), 1024, 18.0),
    "dense n=m=100, batch 4096": Work(lambda b: problems.dense_qp(100, b), 4096, 60.0, ("qpax", "qpax, tight")),
    "dense n=m=200, batch 512": Work(lambda b: problems.dense_qp(200, b), 512, 35.0),
    "Sudoku, batch 8": Work(lambda b: problems.sudoku(batch=b), 8, 20.0),
    "Sudoku, batch 64": Work(lambda b: problems.sudoku(batch=b), 64, 40.0, ()),
    "Sudoku, batch 512": Work(lambda b: problems.sudoku(batch=b), 512, 200.0, ()),
    "budget n=200, bounds, batch 512": Work(_budget(200, rows=False), 512, 10.0),
    "budget n=200, rows of G, batch 512": Work(_budget(200, rows=True), 512, 10.0, ()),
    "budget n=800, bounds, batch 512": Work(_budget(800, rows=False), 512, 60.0, ()),
    "budget n=800, rows of G, batch 512": Work(_budget(800, rows=True), 512, 60.0, ()),
}

#: CVXPY problems by FFOLayer
PROBLEMS: dict[str, Work] = {
    "FFOLayer, QP n=200, batch 512": Work(lambda b: problems.decision_qp(200, batch=b), 512, 20.0, ()),
    "FFOLayer, SOCP n=200, batch 512": Work(
        lambda b: problems.decision_qp(200, norm_ball=True, batch=b), 512, 60.0, ()
    ),
}


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a step in the median; the largest differences of solutions and gradients in p from the CPU's."""

    case: str
    label: str
    milliseconds: float = np.nan
    solution: float = np.nan
    gradient: float = np.nan
    reason: str = ""


def suite(repeats: int, progress: Callable[[str], None], only: str = "") -> Suite:
    """The table; without a GPU, a message."""
    rows, figures = [], []
    for name, work in {**WORK, **PROBLEMS}.items():
        if only not in name:
            continue
        found = {}
        case = work.case(work.batch)
        if name in PROBLEMS:
            progress(name)
            found["FFOLayer"] = _measured(
                name, "FFOLayer", partial(_layer_step, case, "cuda"), partial(_on_cpu, case), repeats
            )
        else:
            blocks, wanted = _blocks(case)
            weights = np.random.default_rng(1).standard_normal(blocks["p"].shape)
            for label, contender in {"FFOQPLayer": ours, **{peer: PEERS[peer] for peer in work.peers}}.items():
                progress(f"{name}: {label}")
                found[label] = _measured(
                    name,
                    label,
                    partial(contender, blocks, wanted, weights),
                    partial(_reference, blocks, weights),
                    repeats,
                )
        rows.extend(asdict(each) for each in found.values())
        mine = found.pop(next(iter(found)))
        figures.append(Figure(name, mine.milliseconds, work.goal, "ms", at_least=False, reason=mine.reason))
        worst = max(mine.solution, mine.gradient)
        figures.append(Figure(f"{name}: difference from the CPU", worst, AGREEMENT, "", False, mine.reason))
        for label, other in found.items():
            ratio = other.milliseconds / mine.milliseconds
            figures.append(Figure(f"{name}: against {label}", ratio, AGAINST[label], reason=other.reason))
    return Suite("cuda", figures, rows)


def _blocks(case: Case) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The blocks of a case by their names in FFOQPLayer, and which are differentiated."""
    data = case.data(0)
    if "q" in data:
        data["p"] = -data.pop("q")
    return data, tuple(dict.fromkeys(("p", *case.differentiate)))


def _measured(
    name: str,
    label: str,
    make: Callable[[], Step],
    reference: Callable[[], tuple[np.ndarray, np.ndarray]],
    repeats: int,
) -> Measured:
    if not torch.cuda.is_available():
        return Measured(name, label, reason="no GPU here")
    try:
        step = make()
        times = []
        for k in range(WARMUP + repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            z, gradient = step()
            torch.cuda.synchronize()
            if k >= WARMUP:
                times.append(1e3 * (time.perf_counter() - start))
    except Exception as error:  # other packages run out of memory, or are not installed
        return Measured(name, label, reason=f"{type(error).__name__}: {error}"[:100])
    z0, g0 = reference()
    differences = (np.abs(np.asarray(v.cpu() if isinstance(v, torch.Tensor) else v)[:COMPARED] - w).max()
                   for v, w in ((z, z0), (gradient, g0)))  # fmt: skip
    torch.cuda.empty_cache()
    return Measured(name, label, statistics.median(times), *(float(d) for d in differences))


def _reference(blocks: Mapping[str, np.ndarray], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solutions and gradients in p of the first samples, by the core."""
    from ffo.torch import FFOQPLayer

    few = {name: v[:COMPARED] if v.ndim == (3 if name in MATRICES else 2) else v for name, v in blocks.items()}
    given = {name: torch.tensor(v) for name, v in few.items()}
    given["p"].requires_grad_()
    z = FFOQPLayer()(**given)
    (z * torch.tensor(weights[:COMPARED])).sum().backward()
    assert isinstance(z, torch.Tensor)
    assert given["p"].grad is not None
    return z.detach().numpy(), given["p"].grad.numpy()


def _there(blocks: Mapping[str, np.ndarray], wanted: tuple[str, ...]) -> Blocks:
    return {name: torch.tensor(v, device="cuda").requires_grad_(name in wanted) for name, v in blocks.items()}


def ours(blocks: Mapping[str, np.ndarray], wanted: tuple[str, ...], weights: np.ndarray) -> Step:
    from ffo.torch import FFOQPLayer

    layer, given, w = FFOQPLayer(), _there(blocks, wanted), torch.tensor(weights, device="cuda")

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        z = layer(**given)
        found = torch.autograd.grad((z * w).sum(), [given[name] for name in wanted])
        return z.detach(), found[0]

    return step


def _layer_step(case: Case, device: str, samples: int | None = None) -> Step:
    """A step of FFOLayer on a device, for all samples or the first ones."""
    from ffo.torch import FFOLayer

    problem, parameters, variable = case.parametrised()
    layer, data, weights = FFOLayer(problem, parameters, [variable]), case.data(0), case.weights(0)[:samples]
    few = {name: v if name in case.shared else v[:samples] for name, v in data.items()}
    given = {name: torch.tensor(v, device=device).requires_grad_(name in case.differentiate) for name, v in few.items()}
    w = torch.tensor(weights, device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        (y,) = layer(*given.values())
        found = torch.autograd.grad((y * w).sum(), [given[name] for name in case.differentiate])
        return y.detach(), found[0]

    return step


def _on_cpu(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Solutions and gradients of the first samples, by the core."""
    y, gradient = _layer_step(case, "cpu", COMPARED)()
    return y.numpy(), gradient.numpy()


def _rows(blocks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The blocks with bounds as rows of G, as the other packages need them."""
    given, n = dict(blocks), blocks["p"].shape[-1]
    G = [given.pop("G")] if "G" in given else []
    h = [given.pop("h")] if "h" in given else []
    for name, sign in (("ub", 1.0), ("lb", -1.0)):
        if name in given:
            G.append(sign * np.eye(n))
            h.append(sign * given.pop(name))
    return {**given, "G": np.concatenate(G), "h": np.concatenate(h)} if len(G) > 1 else {**given, "G": G[0], "h": h[0]}


def qpth(blocks: Mapping[str, np.ndarray], wanted: tuple[str, ...], weights: np.ndarray) -> Step:
    from qpth.qp import QPFunction

    given, w = _there(_rows(blocks), wanted), torch.tensor(weights, device="cuda")
    none, solve = torch.zeros(0, dtype=torch.float64, device="cuda"), QPFunction(verbose=-1)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        z = solve(*(given.get(name, none) for name in ("Q", "p", "G", "h", "A", "b")))
        found = torch.autograd.grad((z * w).sum(), [given[name] for name in wanted if name in given])
        return z.detach(), found[0]

    return step


def qpax(blocks: Mapping[str, np.ndarray], wanted: tuple[str, ...], weights: np.ndarray, **settings: float) -> Step:
    import jax
    from qpax import solve_qp_primal

    jax.config.update("jax_enable_x64", True)
    data, n = _rows(blocks), blocks["p"].shape[-1]
    data = {"A": np.zeros((0, n)), "b": np.zeros(0), **data}
    names = ("Q", "p", "A", "b", "G", "h")
    axes = tuple(0 if data[name].ndim == (3 if name in MATRICES else 2) else None for name in names)
    arrays = [jax.numpy.asarray(data[name]) for name in names]
    w = jax.numpy.asarray(weights)
    solve = jax.vmap(partial(solve_qp_primal, **settings), in_axes=axes)

    def loss(*given: Any) -> Any:
        z = solve(*given)
        return (z * w).sum(), z

    places = tuple(names.index(name) for name in wanted if name in names)
    both = jax.jit(jax.value_and_grad(loss, argnums=places, has_aux=True))

    def step() -> tuple[Any, Any]:
        (_, z), found = jax.block_until_ready(both(*arrays))
        return z, found[0]

    return step


PEERS: dict[str, Callable[..., Step]] = {
    "qpth": qpth,
    "qpax": qpax,
    "qpax, tight": partial(qpax, solver_tol=1e-8, target_kappa=1e-8),
}
