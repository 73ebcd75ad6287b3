"""Cases of the fuzzer: drawn from a seed, run on several routes, judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fuzz.exact import QP, Weights
from fuzz.judge import Direction, Outcome, Truth, Verdict, judge
from fuzz.programs import KINDS, draw_batch
from fuzz.routes import Route, SkipError, draw_route, run, smoothing_radius, vary

Array = np.ndarray
NAMES = (*KINDS, "mixed")
#: routes per batch
ROUTES = 6
#: most variables; and, because exact arithmetic is slow, most in one of RARE batches
SMALL, LARGE, RARE = 5, 10, 50


@dataclass(frozen=True)
class Case:
    """A batch and a loss c'z for each sample; `seed` and `masked` say in which directions derivatives are judged."""

    samples: Sequence[QP]
    cs: Sequence[Array]
    seed: int = 0
    masked: bool = False

    def truths(self) -> list[Truth]:
        return [Truth(qp, c, self.seed) for qp, c in zip(self.samples, self.cs, strict=True)]

    def verdicts(self, route: Route, truths: Sequence[Truth] | None = None) -> list[Verdict]:
        """A verdict on each sample; empty if the route does not support such programs."""
        truths = truths or self.truths()
        weights = [Weights.draw(qp, self.seed) for qp in self.samples]
        if route.duals:
            cs = [0.0 * t.c if route.duals == "only" else t.c for t in truths]
            truths = [t.with_loss(c, w) for t, c, w in zip(truths, cs, weights, strict=True)]
        directions: list[Direction] = [t.direction(self.samples[0].blocks, 1, self.masked) for t in truths]
        try:
            found = run(route, self.samples, self.cs, directions, weights)
        except SkipError:
            return []
        except Exception as error:  # anything else is a finding
            return [Verdict(Outcome.ERROR, f"{type(error).__name__}: {error}")] * len(self.samples)
        radius = smoothing_radius(self.samples) if route.smoothed else 0.0
        return [
            judge(f, t, route.wanted, d, route.single, radius)
            for f, t, d in zip(found, truths, directions, strict=True)
        ]  # fmt: skip


def draw_case(seed: int, index: int, kind: str) -> tuple[Case, list[Route]]:
    """The case of this number; equal numbers give equal cases."""
    rng = np.random.default_rng([seed, index, *map(ord, kind)])
    samples = draw_batch(rng, kind, LARGE if index % RARE == RARE - 1 else SMALL)
    cs = [rng.integers(-4, 5, qp.n).astype(float) for qp in samples]
    cs = [c if c.any() else c + 1.0 for c in cs]
    case = Case(samples, cs, index, bool(rng.random() < 0.5))
    single = all(np.array_equal(v.astype(np.float32), v, equal_nan=True) for qp in samples for v in qp.blocks.values())
    wanted = [name for name, v in samples[0].blocks.items() if v.size]
    if "Q" in wanted and not all(t.strict or t.answer.status != "solved" for t in case.truths()):
        wanted.remove("Q")  # a singular Q must not be moved: it would become indefinite
    routes = [draw_route(rng, wanted, single and rng.random() < 0.3, case.masked) for _ in range(ROUTES)]
    other = np.random.default_rng([seed, index, 1, *map(ord, kind)])
    return case, [vary(route, other) for route in routes]


def play(seed: int, index: int, kind: str) -> Iterator[tuple[Case, Route, list[Verdict]]]:
    """One batch on all its routes."""
    case, routes = draw_case(seed, index, kind)
    truths = case.truths()
    for route in routes:
        yield case, route, case.verdicts(route, truths)
