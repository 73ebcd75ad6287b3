"""Ways to call the package: layer, solver, derivative, and memory layout of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from torch.autograd import forward_ad

from ffo import solve_qp_batch
from ffo.engine import Smoothing
from ffo.errors import UnsupportedProblemError
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer
from fuzz.exact import MATRICES, QP, Weights

Array = np.ndarray
Random = np.random.Generator

#: the default (None) is drawn as often as all others together
SOLVERS = (None, "INTERIOR", "DENSE", "SEPARABLE", "CLARABEL", "PIQP", "OSQP", "SCS", "QOCO", "PROXQP", "HIGHS", "DAQP")
LAYERS = ("qp", "qp", "sparse", "cvxpy", "array", "function")
BACKWARDS = ("auto", "auto", "direct", "iterative", "resolve")
LAYOUTS = ("plain", "plain", "strided", "expanded")


@dataclass(frozen=True)
class Route:
    """derivative: "none", "reverse", "forward" or "jacobian"; layout: of tensors; alone: samples one by one, without a
    batch dimension; wanted: the blocks that are differentiated; duals: whether the loss includes multipliers, or has
    ("only") multipliers; warm: after a call on nearby programs that are remembered; smoothed: with a tiny radius."""

    layer: str = "qp"
    solver: str | None = None
    backward: str = "auto"
    derivative: str = "reverse"
    layout: str = "plain"
    alone: bool = False
    single: bool = False  # float32
    wanted: tuple[str, ...] = ("p",)
    duals: str = ""
    warm: bool = False
    smoothed: bool = False

    def __str__(self) -> str:
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"Route({', '.join(f'{name}={value!r}' for name, value in chosen.items())})"


@dataclass(frozen=True)
class Found:
    """A route's answer for a sample: status in lower case, the residual; multipliers (nu, lam, mu); gradient by block,
    or the terms of a slope, or the Jacobian of z (n, *block) by block."""

    status: str
    z: Array
    residual: float = 0.0
    good: bool | None = None
    reasons: Sequence[str] = ()
    gradient: Mapping[str, Array] = field(default_factory=dict)
    slope: Array | None = None
    duals: Sequence[Array] = ()
    jacobian: Mapping[str, Array] | None = None


class SkipError(Exception):
    """This route does not support such a program."""


def draw_route(rng: Random, wanted: Sequence[str], single: bool, masked: bool) -> Route:
    layer = str(rng.choice([name for name in LAYERS if masked or name != "sparse"]))
    derivative = "none" if layer == "array" else str(rng.choice(["none", "reverse", "forward"], p=[0.2, 0.6, 0.2]))
    return Route(
        layer,
        None if rng.random() < 0.5 or layer == "function" else SOLVERS[rng.integers(1, len(SOLVERS))],
        "auto" if layer in ("array", "function") else str(rng.choice(BACKWARDS)),
        "reverse" if derivative == "forward" and layer in ("sparse", "function") else derivative,
        "plain" if layer in ("sparse", "array") or derivative == "forward" else str(rng.choice(LAYOUTS)),
        bool(rng.random() < 0.3),
        single,
        tuple(name for name in wanted if rng.random() < 0.7) or ("p",),
    )


def vary(route: Route, rng: Random) -> Route:
    """The route, sometimes with multipliers, full Jacobians, remembered solutions, or smoothing."""
    chance = rng.random(4) < (0.25, 0.15, 0.15, 0.08)
    if route.layer not in ("qp", "sparse", "cvxpy"):
        return route
    if chance[1] and route.derivative == "reverse" and route.layer != "sparse" and not route.single:
        return replace(route, derivative="jacobian", warm=bool(chance[2]))
    quadratic = route.layer != "cvxpy"
    duals = str(rng.choice(["too", "only"])) if chance[0] and quadratic and route.derivative != "none" else ""
    return replace(route, duals=duals, warm=bool(chance[2]), smoothed=bool(chance[3] and quadratic))


def run(
    route: Route, samples: Sequence[QP], cs: Sequence[Array], directions: Sequence[Mapping[str, Array]],
    weights: Sequence[Weights],
) -> list[Found]:  # fmt: skip
    """Solve the samples on a route, with the loss c'z of each, and its derivative along a direction in forward mode;
    weights: of multipliers in the loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not route.alone:
                return _run(route, samples, cs, directions, weights)
            return [_run(route, *([v] for v in each))[0] for each in zip(samples, cs, directions, weights, strict=True)]
        except UnsupportedProblemError as error:
            raise SkipError(str(error)) from None


def _run(
    route: Route, samples: Sequence[QP], cs: Sequence[Array], directions: Sequence[Mapping[str, Array]],
    weights: Sequence[Weights],
) -> list[Found]:  # fmt: skip
    if route.layer == "array":
        return _array(route, samples)
    call, names, owner = _function_call(samples) if route.layer == "function" else _layer_call(route, samples)
    tensors = {name: _tensor(route, [getattr(qp, name) for qp in samples], name) for name in names}
    if route.warm:
        with torch.no_grad():
            call({**tensors, "p": 1.01 * tensors["p"]})
    batch, wanted, gradients = len(samples), route.wanted, {}
    slopes = jacobian = None
    if route.derivative == "forward":
        with forward_ad.dual_level():
            moving = dict(tensors)
            for name in wanted:
                d = torch.tensor(np.stack([d[name] for d in directions]), dtype=tensors[name].dtype)
                moving[name] = forward_ad.make_dual(tensors[name], d.reshape(tensors[name].shape))
            parts = [forward_ad.unpack_dual(v) for v in call(moving)]
            out = [part.primal for part in parts]
            moved = [0.0 * part.primal if part.tangent is None else part.tangent for part in parts]
            slopes = torch.cat(_terms(route, moved, cs, weights), dim=1).detach().numpy()
    elif route.derivative == "jacobian":
        jacobian, out = _jacobian(route, call, tensors, batch)
    else:
        with torch.set_grad_enabled(route.derivative == "reverse"):
            if route.derivative == "reverse":
                for name in wanted:
                    tensors[name].requires_grad_()
            out = call(tensors)
        if route.derivative == "reverse":
            loss = sum(t.sum() for t in _terms(route, [v.nan_to_num(0.0) for v in out], cs, weights))
            for name, g in zip(wanted, torch.autograd.grad(loss, [tensors[name] for name in wanted]), strict=True):
                dense = g.to_dense() if g.layout is not torch.strided else g
                gradients[name] = dense.reshape(batch, *np.shape(getattr(samples[0], name))).double().numpy()
    info, values = owner.info, [v.detach().reshape(batch, -1).double().numpy() for v in out]
    known = info.evidence is not None and route.derivative != "none"
    good = info.certificate.good if known else [None] * batch
    copies = len(info.status) // batch  # draws of smoothing
    return [
        Found(
            next(
                (s for s in info.status[k * copies : (k + 1) * copies] if s.value), info.status[k * copies]
            ).name.lower(),
            values[0][k],
            float(info.residual[k * copies : (k + 1) * copies].max()),
            None if good[0] is None else bool(np.all(good[k * copies : (k + 1) * copies])),
            info.certificate.reasons(k * copies) if known else (),
            {name: g[k] for name, g in gradients.items()},
            None if slopes is None else slopes[k],
            [v[k] for v in values[1:]],
            None if jacobian is None else {name: J[k] for name, J in jacobian.items()},
        )
        for k in range(batch)
    ]


def _terms(
    route: Route, out: Sequence[torch.Tensor], cs: Sequence[Array], weights: Sequence[Weights]
) -> list[torch.Tensor]:
    """The terms of the loss, (batch, ·) each: of z, and of multipliers."""
    factors = [cs if route.duals != "only" else [0.0 * c for c in cs]]
    if route.duals:
        factors += [[getattr(w, name) for w in weights] for name in ("nu", "lam", "mu")]
    stacked = [torch.tensor(np.stack(f), dtype=torch.float64) for f in factors]
    return [f * v.reshape(f.shape) for f, v in zip(stacked, out, strict=False)]


def _jacobian(
    route: Route, call: Any, tensors: Mapping[str, torch.Tensor], batch: int
) -> tuple[dict[str, Array], list[torch.Tensor]]:
    """(batch, n, *block) by block, and z."""

    def solve(*moving: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = call({**tensors, **dict(zip(route.wanted, moving, strict=True))})[0]
        return z.nan_to_num(0.0), z

    moving = [tensors[name] for name in route.wanted]
    rows, z = torch.func.jacrev(solve, argnums=tuple(range(len(moving))), has_aux=True)(*moving)
    found = {}
    for name, J in zip(route.wanted, rows, strict=True):
        block = tensors[name].shape if route.alone else tensors[name].shape[1:]
        whole = J.reshape(batch, -1, batch, *block)
        found[name] = np.stack([whole[k, :, k].detach().numpy() for k in range(batch)])
    return found, [z]


def _tensor(route: Route, values: Sequence[Array], name: str) -> torch.Tensor:
    """The block of all samples as one tensor, laid out as the route says."""
    stack = torch.tensor(np.stack(values), dtype=torch.float32 if route.single else torch.float64)
    if route.layout == "expanded" and len(values) > 1 and bool((stack == stack[:1]).all()):
        stack = stack[:1].expand(stack.shape)
    elif route.layout == "strided":
        wide = torch.zeros(*stack.shape[:-1], 2 * stack.shape[-1] + 1, dtype=stack.dtype)
        wide[..., 1::2] = stack
        stack = wide[..., 1::2]
    if route.alone:
        stack = stack[0]
    return stack.to_sparse() if route.layer == "sparse" and name in MATRICES else stack


def _layer_call(route: Route, samples: Sequence[QP]) -> tuple[Any, tuple[str, ...], Any]:
    names = tuple(samples[0].blocks)
    if route.layer != "cvxpy":
        qp_layer = FFOQPLayer(
            duals=bool(route.duals),
            solver=route.solver,
            backward=route.backward,
            on_fail="nan",
            warm_start=route.warm,
            smoothing=_smoothing(samples) if route.smoothed else None,
        )
        keywords = ("lb", "ub", "lower")

        def solve(t: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
            bounds = {name: t.get(name) for name in keywords}
            found = qp_layer(*(t.get(name) for name in ("Q", "p", "G", "h", "A", "b")), **bounds)
            return found if isinstance(found, tuple) else (found,)

        return solve, names, qp_layer
    for qp in samples:
        if any(np.isinf(getattr(qp, name)).any() for name in ("lb", "ub", "lower", "h") if name in names):
            raise SkipError("CVXPY has no infinite bounds")
    shapes = tuple((name, np.shape(getattr(samples[0], name))) for name in names)
    if any(0 in shape for _, shape in shapes):
        raise SkipError("CVXPY has no empty blocks")
    layer = cvxpy_layer(shapes, route.solver, route.backward, route.warm)
    return lambda t: layer(*(t[name] for name in names)), names, layer


def smoothing_radius(samples: Sequence[QP]) -> float:
    """Negligible relative to every bound but zero."""
    return 1e-10 * min(qp.least_bound for qp in samples)


def _smoothing(samples: Sequence[QP]) -> Smoothing:
    if not np.isfinite(radius := smoothing_radius(samples)):
        raise SkipError("there is nothing to smooth")
    return Smoothing(radius, draws=2)


@lru_cache(maxsize=64)
def cvxpy_layer(
    shapes: tuple[tuple[str, tuple[int, ...]], ...], solver: str | None, backward: str, warm: bool = False
) -> FFOLayer:
    """The general quadratic program in CVXPY, every block a parameter."""
    P = {name: cp.Parameter(shape, PSD=True if name == "Q" else None) for name, shape in shapes}
    z = cp.Variable(P["p"].shape)
    cost = P["p"] @ z + (0.5 * cp.quad_form(z, P["Q"]) if "Q" in P else 0.0)
    rows = {
        "h": lambda: P["G"] @ z <= P["h"],
        "b": lambda: P["A"] @ z == P["b"],
        "lb": lambda: z >= P["lb"],
        "ub": lambda: z <= P["ub"],
        "lower": lambda: P["G"] @ z >= P["lower"],
    }
    problem = cp.Problem(cp.Minimize(cost), [row() for name, row in rows.items() if name in P])
    return FFOLayer(problem, list(P.values()), [z], solver, backward=backward, on_fail="nan", warm_start=warm)


def _function_call(samples: Sequence[QP]) -> tuple[Any, tuple[str, ...], Any]:
    """The program as torch functions; only well-posed ones, which local methods can solve."""
    first, names = samples[0], tuple(samples[0].blocks)
    if any(np.isinf(v).any() or not v.size for qp in samples for v in qp.blocks.values()) or not _convex(samples):
        raise SkipError("for functions, programs must be strictly convex without infinite bounds")
    sides = [name for name in ("h", "lower", "ub", "lb") if name in names]

    def objective(*arguments: torch.Tensor) -> torch.Tensor:
        *theta, z = arguments
        t = dict(zip(names, theta, strict=True))
        return 0.5 * z @ t["Q"] @ z + t["p"] @ z

    def inequality(*arguments: torch.Tensor) -> torch.Tensor:
        *theta, z = arguments
        t = dict(zip(names, theta, strict=True))
        rows = {"h": lambda: t["G"] @ z - t["h"], "lower": lambda: t["lower"] - t["G"] @ z}
        rows |= {"ub": lambda: z - t["ub"], "lb": lambda: t["lb"] - z}
        return torch.cat([rows[name]() for name in sides])

    def equality(*arguments: torch.Tensor) -> torch.Tensor:
        *theta, z = arguments
        t = dict(zip(names, theta, strict=True))
        return t["A"] @ z - t["b"]

    layer = FFOFunctionLayer(
        objective,
        inequality if sides else None,
        equality if "A" in names else None,
        shape=first.n,
        dims=[2 if name in MATRICES else 1 for name in names],
        on_fail="nan",
    )
    return lambda t: (layer(*(t[name] for name in names)),), names, layer


def _convex(samples: Sequence[QP]) -> bool:
    if samples[0].Q is None:
        return False
    return all(np.linalg.eigvalsh(np.nan_to_num(qp.Q + qp.Q.T)).min() > 1e-6 for qp in samples)


def _array(route: Route, samples: Sequence[QP]) -> list[Found]:
    blocks: dict[str, Any] = {}
    for name in samples[0].blocks:
        values = [getattr(qp, name) for qp in samples]
        blocks[name] = [sp.csc_array(v) for v in values] if name in MATRICES and values[0].size else np.stack(values)
    if route.alone:
        blocks = {name: v[0] for name, v in blocks.items()}
    found = solve_qp_batch(blocks.pop("Q", None), blocks.pop("p"), **blocks, solver=route.solver, on_fail="nan")
    z = np.atleast_2d(found.z)
    return [Found(status.name.lower(), z[k], float(found.info.residual[k])) for k, status in enumerate(found.status)]
