"""The same problem written in different ways must take the same time; degenerate problems must not be slow.

Bounds as rows of G (the way qpth's users write them) against `lb=`; matrices expanded over the batch against
shared ones; problems with dependent equalities and linear programs, whose solutions are vertices, against
other packages, and the time of Newton steps and verification on them relative to the solver's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import torch

from benchmarks import peers, problems
from benchmarks.families import cvxpylayers
from benchmarks.family_problems import transport
from benchmarks.peers import Contender, Step, Tensors, quadratic_blocks
from benchmarks.problems import Array, Case
from benchmarks.report import Figure, Suite
from benchmarks.timing import Entry, Timing, measure

Progress = Callable[[str], None]
#: allowed slowdown for another form of the same problem
SAME = 1.2
TRANSPORT_RATIO, PATH_RATIO, SMOOTHED = 15.0, 8.0, 20.0
DRAWS = 16
#: qpth needs a positive definite Q: what its users add to a linear program
PROXIMAL = 1e-2


def suite(repeats: int, progress: Progress) -> Suite:
    """All forms; every ratio comes from interleaved measurements."""
    parts = [
        part(repeats, progress) for part in (bounds_as_rows, expanded_matrices, quadratic_transport, paths, polish)
    ]
    return Suite("forms", [f for part in parts for f in part[0]], [row for part in parts for row in part[1]])


Part = tuple[list[Figure], list[dict[str, Any]]]


def bounds_as_rows(repeats: int, progress: Progress) -> Part:
    """The Sudoku layer with y >= 0 as rows of G and as `lb=`."""
    bounds = problems.sudoku()
    blocks = {name: v for name, v in bounds.shared.items() if name != "lb"}
    n = len(bounds.shared["lb"])
    rows = replace(bounds, shared={**blocks, "G": -np.eye(n), "h": np.zeros(n)})
    timings = measure(
        [Entry("lb=", peers.ffo_qp, bounds), Entry("G = -I", peers.ffo_qp, rows)], repeats, progress=progress
    )
    return [_slower("Sudoku: G = -I against lb=", timings[0], timings[1], SAME)], _rows("Sudoku, batch 8", timings)


def expanded_matrices(repeats: int, progress: Progress) -> Part:
    """The decision QP with its matrices shared, as expanded views, and as copies for every sample."""
    case = problems.decision_qp(500)
    entries = [
        Entry("shared", peers.ffo_qp, case),
        Entry("expanded", _expanded(copy=False), case),
        Entry("copied", _expanded(copy=True), case),
    ]
    timings = measure(entries, repeats, progress=progress)
    figure = _slower("QP n=500: expanded matrices against shared ones", timings[0], timings[1], SAME)
    return [figure], _rows("QP n=500, batch 32", timings)


def quadratic_transport(repeats: int, progress: Progress) -> Part:
    """Dependent equalities."""
    case = transport(64)
    entries = [Entry("FFOLayer", peers.ffo, case), Entry("cvxpylayers", cvxpylayers, case)]
    timings = measure(entries, repeats, progress=progress)
    figure = _faster("transport 10x10: FFOLayer against cvxpylayers", timings[0], timings[1], TRANSPORT_RATIO)
    return [figure], _rows("quadratic transport, batch 64", timings)


def shortest_path(batch: int = 32, size: int = 5) -> Case:
    """The shortest path through a grid, right and down, as a linear program over its edges.

    minimize c'x subject to Ax = b, x >= 0, A the incidence matrix: its rows sum to zero.
    """
    A, b = _incidence(size)

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(A.shape[1])
        return cp.Problem(cp.Minimize(d["c"] @ x), [A @ x == b, x >= 0]), x

    draw = lambda seed: {"c": np.random.default_rng(seed).uniform(0.5, 2.0, (batch, A.shape[1]))}  # noqa: E731
    return Case(f"shortest path {size}x{size}", formulate, {}, draw, ("c",))


def path_blocks(batch: int = 32, size: int = 5, proximal: float = 0.0) -> Case:
    """The same given by matrices; with a proximal term the last, dependent row of A is left out too."""
    path, (A, b) = shortest_path(batch, size), _incidence(size)
    edges, rows = A.shape[1], len(A) - bool(proximal)
    blocks = {"A": A[:rows], "b": b[:rows], "lb": np.zeros(edges)}
    draw = lambda seed: {"p": path.draw(seed)["c"]}  # noqa: E731
    shared = {**blocks, **({"Q": proximal * np.eye(edges)} if proximal else {})}
    formulate = lambda d: path.formulate({"c": d["p"]})  # noqa: E731
    return replace(path, formulate=formulate, shared=shared, draw=draw, differentiate=("p",))


def paths(repeats: int, progress: Progress) -> Part:
    """Linear programs: both layers against other packages, and their smoothed versions against the plain ones."""
    from ffo.torch import Smoothing

    smoothing = Smoothing(costs=0.2, draws=DRAWS)
    program, blocks = shortest_path(), path_blocks()
    entries = [
        Entry("FFOLayer", peers.ffo, program),
        Entry("FFOQPLayer", _linear_layer, blocks),
        Entry("cvxpylayers", cvxpylayers, program),
        Entry("qpth, proximal term", peers.qpth, path_blocks(proximal=PROXIMAL)),
        Entry("FFOLayer, smoothed", lambda case: peers.ffo(case, smoothing=smoothing), program),
        Entry("FFOQPLayer, smoothed", lambda case: _linear_layer(case, smoothing=smoothing), blocks),
    ]
    timings = measure(entries, repeats, progress=progress)
    layers, rivals, smoothed = timings[:2], timings[2:4], timings[4:]
    name = program.name
    figures = [_faster(f"{name}: {o.label} against {r.label}", o, r, PATH_RATIO) for o in layers for r in rivals]
    figures += [
        _slower(f"{name}: {s.label}, in plain steps", plain, s, SMOOTHED)
        for plain, s in zip(layers, smoothed, strict=True)
    ]
    return figures, _rows(f"{name}, batch 32", timings)


def capped_portfolio(batch: int = 64, assets: int = 50) -> Case:
    """Strong convictions late in training: ten weights at their cap of a tenth, none between the bounds.

    At such a vertex the budget depends on the active bounds.
    """
    spread = np.random.default_rng(8).uniform(0.3, 0.8, assets)

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        w = cp.Variable(assets)
        risk = cp.sum_squares(cp.multiply(spread, w))
        return cp.Problem(cp.Maximize(d["mu"] @ w - risk), [cp.sum(w) == 1, w >= 0, w <= 0.1]), w

    draw = lambda seed: {"mu": 20 * np.random.default_rng(seed).standard_normal((batch, assets))}  # noqa: E731
    return Case("portfolio at a vertex", formulate, {}, draw, ("mu",))


def polish(repeats: int, progress: Progress) -> Part:
    """Time of Newton steps and verification relative to the solver's, medians of `layer.info.times`."""
    figures, rows = [], []
    for case in (transport(64), shortest_path(), capped_portfolio()):
        progress(f"{case.name}: polish")
        solve, newton, forward = np.median(_layer_times(case, repeats), axis=0)
        name = f"{case.name}: polish and verification, in units of the solver's time"
        figures.append(Figure(name, newton / solve, 1.0, "x", False))
        rows.append({"case": case.name, "label": "FFOLayer", "solver": solve, "polish": newton, "forward": forward})
    return figures, rows


def _layer_times(case: Case, repeats: int, warmup: int = 2) -> Array:
    """(repeats, 3): seconds in the solver, in the polish, and in the whole forward pass."""
    from ffo.torch import FFOLayer

    problem, parameters, variable = case.parametrised()
    layer = FFOLayer(problem, parameters=parameters, variables=[variable])
    found = []
    for seed in range(repeats + warmup):
        layer(*(torch.tensor(v, requires_grad=name in case.differentiate) for name, v in case.data(seed).items()))
        times = layer.info.times
        found.append((times.setup + times.solve, times.polish, times.forward))
    return np.array(found[warmup:])


def _incidence(size: int) -> tuple[Array, Array]:
    """(nodes, edges) incidence matrix of a grid with edges to the right and down, and the supply of a path."""
    node = np.arange(size * size).reshape(size, size)
    ends = [*zip(node[:, :-1].ravel(), node[:, 1:].ravel(), strict=True)]
    ends += [*zip(node[:-1].ravel(), node[1:].ravel(), strict=True)]
    A = np.zeros((node.size, len(ends)))
    for edge, (tail, head) in enumerate(ends):
        A[tail, edge], A[head, edge] = 1.0, -1.0
    b = np.zeros(node.size)
    b[0], b[-1] = 1.0, -1.0
    return A, b


def _linear_layer(case: Case, **options: Any) -> Step:
    """FFOQPLayer without Q."""
    from ffo.torch import FFOQPLayer

    layer = FFOQPLayer(**options)
    return Step(lambda t: layer(None, **t), case.differentiate)


def _expanded(copy: bool) -> Contender:
    """FFOQPLayer on matrices with a batch dimension: views of one matrix, or copies of it."""

    def contender(case: Case) -> Step:
        from ffo.torch import FFOQPLayer

        layer, held = FFOQPLayer(), {}

        def forward(t: Tensors) -> torch.Tensor:
            if not held:  # once, in the warm-up: copying is not measured
                views = {name: t[name].expand(len(t["q"]), *t[name].shape) for name in case.shared}
                held.update({name: v.contiguous() if copy else v for name, v in views.items()})
            return layer(**quadratic_blocks({**t, **held}))

        return Step(forward, case.differentiate)

    return contender


def _faster(name: str, ours: Timing, peer: Timing, target: float) -> Figure:
    """The smaller of the ratios of medians and of best times."""
    ratio = min(peer.total / ours.total, peer.best / ours.best)
    return Figure(name, ratio, target, reason=ours.reason or peer.reason)


def _slower(name: str, plain: Timing, other: Timing, target: float) -> Figure:
    """The larger of the ratios of medians and of best times."""
    ratio = max(other.total / plain.total, other.best / plain.best)
    return Figure(name, ratio, target, "x", False, plain.reason or other.reason)


def _rows(case: str, timings: Sequence[Timing]) -> list[dict[str, Any]]:
    keys = ("label", "forward", "backward", "total", "best", "reason")
    return [{"case": case, **{key: getattr(t, key) for key in keys}} for t in timings]
