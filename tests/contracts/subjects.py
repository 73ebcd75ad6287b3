"""Every layer with every kind of program it takes, all called the same way.

`QP_LAYERS` are tried on quadratic programs with known solutions, whose active sets differ from sample to sample;
FFOLayer is also tried on CVXPY problems of every cone. To test a new front end, add a line to `QP_LAYERS` or
`SUBJECTS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import cvxpy as cp
import numpy as np
import qps
import torch
import zoo
from layers import make_layer

from ffo import solve_qp_batch
from ffo.engine.info import Info
from ffo.torch import FFOLayer, FFOQPLayer

Array = np.ndarray
Tensors = Sequence[torch.Tensor]
SIZE = 3


class QPLayer:
    """FFOQPLayer on a list of blocks; outputs are z and all multipliers that there are."""

    def __init__(self, names: Sequence[str], **options: object) -> None:
        self.names, self.layer = names, FFOQPLayer(duals=True, **options)

    def __call__(self, *values: torch.Tensor, **options: object) -> Tensors:
        found = qps.call(self.layer, dict(zip(self.names, values, strict=True)), **options)
        return [v for v in found if v.numel()]

    @property
    def info(self) -> Info:
        return self.layer.info


class QPArrays:
    """`solve_qp_batch`, which has no gradients."""

    info: Info

    def __init__(self, names: Sequence[str], **options: object) -> None:
        self.names, self.options = names, options

    def __call__(self, *values: torch.Tensor) -> Tensors:
        blocks = {name: v.detach().numpy() for name, v in zip(self.names, values, strict=True)}
        found = solve_qp_batch(blocks.pop("Q", None), blocks.pop("p"), **blocks, **self.options)
        self.info = found.info
        return [torch.tensor(v) for v in (found.z, found.nu, found.lam, found.mu) if v.size]


class QPProblem:
    """FFOLayer on the same program written in CVXPY; the output is z."""

    def __init__(self, names: Sequence[str], shapes: dict[str, tuple[int, ...]], **options: object) -> None:
        p = {name: cp.Parameter(shapes[name], PSD=name == "Q") for name in names}
        z = cp.Variable(shapes["p"])
        cost = p["p"] @ z + (0.5 * cp.quad_form(z, p["Q"]) if "Q" in p else 0.0)
        sides: dict[str, Callable[[], cp.Constraint]] = {
            "h": lambda: p["G"] @ z <= p["h"],
            "lower": lambda: p["G"] @ z >= p["lower"],
            "b": lambda: p["A"] @ z == p["b"],
            "lb": lambda: z >= p["lb"],
            "ub": lambda: z <= p["ub"],
        }
        constraints = [side() for name, side in sides.items() if name in p]
        self.layer = FFOLayer(cp.Problem(cp.Minimize(cost), constraints), list(p.values()), [z], **options)

    def __call__(self, *values: torch.Tensor, **options: object) -> Tensors:
        return self.layer(*values, **options)

    @property
    def info(self) -> Info:
        return self.layer.info


@dataclass(frozen=True)
class Subject:
    """A layer and a batch of `SIZE` samples for it.

    Attributes:
        make: the layer with these options.
        names, values: of its arguments; every value (SIZE, ...).
        directions: one for each value, of its structure.
        differentiable: whether it has gradients, and takes keys.
        known: (SIZE, n) the solution, where it is the first output.
        open_sides: whether infinite bounds mean that a sample lacks a row.
    """

    make: Callable[..., Callable[..., Tensors]]
    names: tuple[str, ...]
    values: tuple[Array, ...]
    directions: tuple[Array, ...]
    differentiable: bool = True
    known: Array | None = None
    open_sides: bool = False

    @property
    def blocks(self) -> dict[str, Array]:
        return dict(zip(self.names, self.values, strict=True))


#: quadratic programs: keywords of `qps.known_qp`
QPS: dict[str, dict[str, object]] = {
    "inequalities and equalities": {},
    "equalities": {"rows": 0, "equalities": 2},
    "bounds": {"rows": 0, "equalities": 0, "bounds": True},
    "everything": {"n": 6, "rows": 4, "equalities": 2, "lower": True, "bounds": True},
    "singular Q": {"n": 5, "rank": 2, "bounds": True},
    "linear with bounds": {"rows": 3, "rank": 0, "bounds": True, "lower": True},
}

#: layers for quadratic programs: from names and shapes of blocks, and options
QP_LAYERS: dict[str, Callable[..., Callable[..., Tensors]]] = {
    "FFOQPLayer": lambda names, shapes, **o: QPLayer(names, **o),
    "FFOQPLayer by the core": lambda names, shapes, **o: QPLayer(names, solver="PIQP", **o),
    "FFOLayer": QPProblem,
    "solve_qp_batch": lambda names, shapes, **o: QPArrays(names, polish=True, **o),
}

#: CVXPY problems of the zoo
PROBLEMS = (
    "sparsemax",
    "structured_variables",
    "linear_program",
    "ball_constrained",
    "group_lasso",
    "second_order_duals",
    "smallest_eigenvalue",
    "matrix_inequality",
    "softmax",
    "exponential_duals",
    "power_penalty",
    "box_volume",
)


def quadratic(layer: str, kind: str) -> Subject:
    known = [qps.known_qp(seed, **QPS[kind]) for seed in range(SIZE)]
    blocks = qps.stacked([each.blocks for each in known])
    rng = np.random.default_rng(11)
    directions = {name: rng.normal(size=v.shape) for name, v in blocks.items()}
    if "Q" in directions:
        directions["Q"] = directions["Q"] + directions["Q"].transpose(0, 2, 1)
    return Subject(
        make=partial(QP_LAYERS[layer], tuple(blocks), {name: v.shape[1:] for name, v in blocks.items()}),
        names=tuple(blocks),
        values=tuple(blocks.values()),
        directions=tuple(directions.values()),
        differentiable=layer != "solve_qp_batch",
        known=np.stack([each.z for each in known]),
        open_sides=layer != "FFOLayer",
    )


def problem(name: str) -> Subject:
    case = zoo.build(name)
    rng = np.random.default_rng(5)
    values = case.batch(SIZE, rng)
    directions = [np.stack(each) for each in zip(*(case.directions(rng) for _ in range(SIZE)), strict=True)]
    return Subject(
        make=partial(make_layer, case),
        names=tuple(p.name() for p in case.parameters),
        values=tuple(values),
        directions=tuple(directions),
    )


SUBJECTS: dict[str, Callable[[], Subject]] = {
    **{f"{layer}: {kind}": partial(quadratic, layer, kind) for layer in QP_LAYERS for kind in QPS},
    **{f"FFOLayer: {name}": partial(problem, name) for name in PROBLEMS},
}
QUADRATIC = [f"{layer}: {kind}" for layer in QP_LAYERS for kind in QPS]
DIFFERENTIABLE = [name for name in SUBJECTS if not name.startswith("solve_qp_batch")]


@cache
def subject(name: str) -> Subject:
    return SUBJECTS[name]()


@cache
def layer_of(name: str) -> Callable[..., Tensors]:
    """A layer with on_fail="nan", shared by the tests."""
    return subject(name).make(on_fail="nan")
