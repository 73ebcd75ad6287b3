"""CVXPY problems through FFOLayer: the families of `tests/catalogue.py`, and random mixes of all cones.

They are judged by tight solves of two other solvers and differences of these, or exactly, where the solution and its
derivative are known.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import cvxpy as cp
import numpy as np
import torch
from tests.catalogue import FAMILIES, Family, build
from torch.autograd import forward_ad

from ffo.errors import UnsupportedProblemError
from ffo.torch import FFOLayer
from fuzz.judge import Outcome, Verdict
from fuzz.mixes import MIXES, TOUCHING, Touching, mix, mix_touching

Array = np.ndarray

NAMES = (*FAMILIES, *MIXES)
#: steps of differences, relative to the parameters
STEP, SMALL = 2e-4, 4e-6
#: error of a derivative that counts as wrong, and if the derivative is known exactly; half of the former is the largest
#: uncertainty with which it is judged
WRONG, WRONG_EXACTLY = 1e-2, 1e-5
#: a flagged derivative is wrong if it is off by more than this much of the uncertainty, and than rounding
BEYOND, ROUNDING = 5.0, 1e-6
#: error of a solution on curved cones, beyond the disagreement of the other solvers
SOLUTION = 1e-3
FLAGGED = ", flagged"
BATCH = 3
SOLVERS = ("INTERIOR", "CLARABEL", "SCS", "PIQP", "DENSE", "OSQP", "QOCO", "DAQP", "ECOS")
TIGHT = {
    "CLARABEL": dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12),
    "PIQP": {"eps_abs": 1e-12, "eps_rel": 1e-12},
    "HIGHS": {},
    "ECOS": {"abstol": 1e-12, "reltol": 1e-12, "feastol": 1e-12, "max_iters": 200},
    "SCS": {"eps_abs": 1e-10, "eps_rel": 1e-10, "max_iters": 20000},
}


@dataclass(frozen=True)
class Way:
    """solver, backward, and derivative ("reverse" or "forward") of a layer."""

    solver: str | None = None
    backward: str = "auto"
    derivative: str = "reverse"


# References


class Reference:
    """The answers of two other solvers for a family."""

    def __init__(self, family: Family) -> None:
        self.family = family
        problem, second = family.problem, ["ECOS", "SCS"]
        if not family.gp and problem.is_qp():
            second = ["HIGHS"] if problem.is_lp() else ["PIQP"]
        self.solvers = ["CLARABEL", next(s for s in second if self._takes(s))]

    def _takes(self, solver: str) -> bool:
        try:
            for p, v in zip(self.family.parameters, self.family.draw(np.random.default_rng(0)), strict=True):
                p.value = v
            self.family.problem.get_problem_data(solver, gp=self.family.gp)
        except cp.error.SolverError:
            return False
        return True

    def solve(self, values: Sequence[Array], solver: str) -> Array | None:
        """All outputs in one vector; None if it fails."""
        for p, v in zip(self.family.parameters, values, strict=True):
            p.value = v
        try:
            self.family.problem.solve(solver=solver, gp=self.family.gp, **TIGHT[solver])
        except cp.error.SolverError:
            return None
        if self.family.problem.status not in ("optimal", "optimal_inaccurate"):
            return None
        return np.concatenate([np.ravel(v.value, order="C") for v in self.family.variables])

    def worth(self, values: Sequence[Array], x: Array) -> tuple[float, float]:
        """The objective at x, and the largest violation of a constraint."""
        for p, v in zip(self.family.parameters, values, strict=True):
            p.value = v
        start = 0
        for variable in self.family.variables:
            variable.save_value(x[start : start + variable.size].reshape(variable.shape))
            start += variable.size
        over = [float(np.max(row.violation())) for row in self.family.problem.constraints]
        return float(self.family.problem.objective.value), max(over, default=0.0)


def made(name: str, structure: int) -> Family:
    rng = np.random.default_rng([structure, *map(ord, name)])
    return build(name) if name in FAMILIES else mix_touching(rng) if name == TOUCHING else mix(rng, name)


@lru_cache(maxsize=32)
def reference(name: str, structure: int) -> Reference:
    return Reference(made(name, structure))


@lru_cache(maxsize=64)
def layer_of(name: str, structure: int, way: Way) -> FFOLayer:
    f = made(name, structure)
    options = {"backward": way.backward, "on_fail": "nan"}
    return FFOLayer(f.problem, f.parameters, f.variables, way.solver, gp=f.gp, **options)


# Cases


def play(seed: int, index: int, kind: str) -> Iterator[tuple[None, Way, list[Verdict]]]:
    """A batch of one family on two routes: the default one, and another."""
    rng = np.random.default_rng([seed, index, *map(ord, kind)])
    structure = 0 if kind in FAMILIES else int(rng.integers(30))
    truth = reference(kind, structure)
    family = truth.family
    samples = [family.draw(rng) for _ in range(BATCH)]
    other = Way(
        None if rng.random() < 0.3 else str(rng.choice(SOLVERS)),
        str(rng.choice(["auto", "direct", "iterative", "resolve"])),
        str(rng.choice(["reverse", "forward"])),
    )
    cs = [rng.normal(size=sum(v.size for v in family.variables)) for _ in samples]
    directions = [[rng.uniform(-1, 1, size=v.shape) * (np.abs(v) + 0.1) for v in values] for values in samples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = [_known(truth, *each) for each in zip(samples, cs, directions, strict=True)]
        for way in (Way(), other):
            try:
                found = _run(layer_of(kind, structure, way), way, samples, cs, directions)
            except UnsupportedProblemError:
                continue
            except Exception as error:  # anything else is a finding
                yield None, way, [Verdict(Outcome.ERROR, f"{type(error).__name__}: {error}")]
                continue
            verdicts = [judge(*each) for each in zip(found, known, strict=True)]
            for k, v in enumerate(verdicts):
                if (
                    v.outcome is Outcome.WRONG_SOLUTION
                    and kind in MIXES
                    and _another(truth, samples[k], found[k], known[k])
                ):
                    verdicts[k] = Verdict(Outcome.UNJUDGED, "another solution")
            yield None, way, verdicts


def _another(truth: Reference, values: Sequence[Array], found: FoundHere, known: Known) -> bool:
    """Whether the point is another solution that is as good: linear mixes may have several."""
    assert known.x is not None
    (here, over), (there, _) = truth.worth(values, found.x), truth.worth(values, known.x)
    return over <= 1e-7 and abs(here - there) <= 1e-7 * (1 + abs(there))


@dataclass(frozen=True)
class Known:
    """x by both solvers (None: no solution); slopes of c'x by central differences, and the gaps between one-sided
    ones: with the large step and the small one, then the same by the other solver; relative error that is wrong."""

    x: Array | None
    other: Array | None
    slopes: tuple[float, ...] = (np.nan,) * 4
    gaps: tuple[float, ...] = (np.nan,) * 4
    wrong: float = WRONG


def _known(truth: Reference, values: Sequence[Array], c: Array, direction: Sequence[Array]) -> Known:
    if isinstance(truth.family, Touching):
        slope = float(c @ truth.family.moves(values[0], direction[0]))
        return Known(truth.family.at, truth.family.at, (slope,) * 4, (0.0,) * 4, WRONG_EXACTLY)

    def at(t: float, solver: int = 0) -> Array | None:
        return truth.solve([v + t * d for v, d in zip(values, direction, strict=True)], truth.solvers[solver])

    x, other = at(0.0), at(0.0, 1)
    slopes, gaps = [], []
    for solver, here in enumerate((x, other)):
        for step in (STEP, SMALL):
            right, left = at(step, solver), at(-step, solver)
            if here is None or right is None or left is None:
                return Known(x, other)
            slopes.append(float(c @ (right - left)) / (2 * step))
            gaps.append(float(c @ (right - here) + c @ (left - here)) / step)
    return Known(x, other, tuple(slopes), tuple(gaps))


@dataclass(frozen=True)
class FoundHere:
    status: str
    x: Array
    terms: Array  # of the slope along the direction
    good: bool
    reasons: Sequence[str]


def _run(
    layer: FFOLayer,
    way: Way,
    samples: Sequence[Sequence[Array]],
    cs: Sequence[Array],
    directions: Sequence[Sequence[Array]],
) -> list[FoundHere]:
    stack = lambda lists: [torch.tensor(np.stack(each)) for each in zip(*lists, strict=True)]  # noqa: E731
    tensors, moves, c = stack(samples), stack(directions), torch.tensor(np.stack(cs))
    flat = lambda out: torch.cat([v.reshape(len(v), -1) for v in out], dim=1)  # noqa: E731
    if way.derivative == "forward":
        with forward_ad.dual_level():
            out = layer(*(forward_ad.make_dual(t, d) for t, d in zip(tensors, moves, strict=True)))
            parts = [forward_ad.unpack_dual(v) for v in out]
            x, terms = flat([p.primal for p in parts]), c * flat([p.tangent for p in parts])
    else:
        for t in tensors:
            t.requires_grad_()
        x = flat(layer(*tensors))
        gradients = torch.autograd.grad((c * x.nan_to_num(0.0)).sum(), tensors)
        terms = flat([g * d for g, d in zip(gradients, moves, strict=True)])
    info = layer.info
    assert info is not None
    good, x, terms = info.certificate.good, x.detach().numpy(), terms.detach().numpy()
    return [
        FoundHere(s.name.lower(), x[k], terms[k], bool(good[k]), info.certificate.reasons(k))
        for k, s in enumerate(info.status)
    ]


def judge(found: FoundHere, known: Known) -> Verdict:
    """Judge a solution and its derivative. A note ends with FLAGGED if a derivative without a verdict is flagged."""
    if known.x is None or known.other is None:
        return Verdict(Outcome.UNJUDGED)
    if found.status != "solved":
        return Verdict(Outcome.FALSE_REFUSAL, found.status)
    size, apart = np.abs(known.x).max() + 1e-3, np.abs(known.x - known.other).max()
    off = min(np.abs(found.x - known.x).max(), np.abs(found.x - known.other).max())
    if apart > 1e-2 * size:
        return Verdict(Outcome.UNJUDGED, "the other solvers disagree")
    if off > SOLUTION * size + 10 * apart:
        return Verdict(Outcome.WRONG_SOLUTION, f"off by {off:.1e} of {size:.1e}")
    if np.isnan(known.slopes).any():
        return Verdict(Outcome.UNJUDGED, "no solution nearby")
    value, slope = float(found.terms.sum()), known.slopes[1]
    scale = float(np.abs(found.terms).sum()) + abs(slope) + 1e-3 * size
    if not np.abs(known.gaps[:3]).max() <= WRONG * scale:
        # the gap of a smooth function vanishes with the step, and noise differs each time: a kink is in all four
        if np.abs(np.diff(known.gaps)).max() > 0.05 * np.abs(known.gaps).max():
            return Verdict(Outcome.UNJUDGED, f"the differences disagree{'' if found.good else FLAGGED}")
        return Verdict(Outcome.WRONG_GRADIENT if found.good else Outcome.FLAGGED, f"a kink: {known.gaps}")
    doubt = max(abs(slope - known.slopes[0]), abs(known.slopes[0] - known.slopes[2]))
    if not doubt <= WRONG / 4 * scale:
        return Verdict(Outcome.UNJUDGED, f"the differences disagree{'' if found.good else FLAGGED}")
    off = abs(value - slope)
    if found.good:
        wrong = not off <= known.wrong * scale
        return Verdict(Outcome.WRONG_GRADIENT if wrong else Outcome.RIGHT, f"{value:.6g} called good, {slope:.6g}")
    if not off <= min(known.wrong * scale, BEYOND * doubt + ROUNDING * scale):
        return Verdict(Outcome.FLAGGED)
    return Verdict(Outcome.FALSE_ALARM, "; ".join(found.reasons))
