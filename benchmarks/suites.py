"""Which packages are compared on which case, and the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import compile as compiling
from benchmarks import (
    cores,
    cuda,
    families,
    forms,
    growth,
    jax_layers,
    latency,
    lift,
    notebooks,
    peers,
    problems,
    qp_layers,
    trust,
    warm,
)
from benchmarks import maros as collection
from benchmarks.accuracy import compare, probes
from benchmarks.functions import functions
from benchmarks.memory import footprint
from benchmarks.problems import Case, decision_qp
from benchmarks.report import Figure, Suite
from benchmarks.timing import Entry, Timing, measure


@dataclass(frozen=True)
class Options:
    """How thoroughly to measure; `progress` is told what is running.

    `large` lets packages take more memory than most machines have: cvxpylayers takes more than 24 GB to build
    the SOCP with n=800; without `large` its build is assisted.
    """

    repeats: int
    large: bool
    progress: Callable[[str], None]


def qp(options: Options) -> Suite:
    """The decision-focused QP of the paper, batch 32, gradient in q."""
    against_layers = measure(
        [*_ours(500), Entry("cvxpylayers", peers.cvxpylayers, decision_qp(500, quad_form=False))],
        options.repeats,
        progress=options.progress,
    )
    against_moreau = measure(
        [*_ours(800), Entry("Moreau, sparse values", peers.moreau, decision_qp(800))],
        options.repeats,
        progress=options.progress,
    )
    figures = [
        _speedup("QP n=500: step against cvxpylayers", against_layers, 10.0),
        _speedup("QP n=800: step against Moreau called directly", against_moreau, 1.0),
    ]
    return Suite("QP", figures, [*_rows("QP n=500", against_layers), *_rows("QP n=800", against_moreau)])


def socp(options: Options) -> Suite:
    """The same with |y| <= 1."""
    figures, rows = [], []
    for n, target in ((200, 3.0), (400, None), (800, 6.0)):
        constant = decision_qp(n, quad_form=False, norm_ball=True, constant=True)
        parametric = decision_qp(n, quad_form=False, norm_ball=True)
        peer = Entry("cvxpylayers", peers.cvxpylayers, parametric)
        if n > 500 and not options.large:
            peer = Entry("cvxpylayers, memory-lean build", peers.cvxpylayers_lean, parametric)
        entries = [
            *_ours(n, norm_ball=True),
            Entry("cvxpylayers, Q and G constant", peers.cvxpylayers, constant),
            peer,
        ]
        timings = measure(entries, options.repeats, progress=options.progress)
        if target is not None:
            figures.append(_speedup(f"SOCP n={n}: step against cvxpylayers", timings, target))
        rows += _rows(f"SOCP n={n}", timings)
    return Suite("SOCP", figures, rows)


def small(options: Options) -> Suite:
    """Constrained least squares, n=10, batch 128, batched A and b."""
    case = problems.small_least_squares()
    entries = [Entry("ffo", peers.ffo, case), Entry("cvxpylayers", peers.cvxpylayers, case)]
    timings = measure(entries, 2 * options.repeats, progress=options.progress)
    figures = [_speedup("small: step against cvxpylayers", timings, 10.0)]
    return Suite("small", figures, _rows(case.name, timings))


def memory(options: Options) -> Suite:
    """Build time and peak memory of the whole process on the QP, each in a fresh process."""
    runs = [("ffo", "qp", 500), ("ffo", "qp", 800), ("ffo", "qp", 1000), ("ffo", "qp-factor", 800)]
    runs += [("moreau", "qp", 800), ("cvxpylayers", "qp-factor", 200), ("cvxpylayers", "qp-factor", 500)]
    prints = {}
    for run in runs:
        options.progress(f"memory: {run[0]} on {run[1]} n={run[2]}")
        prints[run] = footprint(*run)
    at_800, at_1000 = prints["ffo", "qp", 800], prints["ffo", "qp", 1000]
    figures = [
        Figure("QP n=800: build", at_800.build, 1.5, "s", False, at_800.reason),
        Figure("QP n=800: peak memory", at_800.peak, 1000, "MB", False, at_800.reason),
        Figure("QP n=1000: peak memory", at_1000.peak, 1500, "MB", False, at_1000.reason),
    ]
    return Suite("memory", figures, [p.as_dict() for p in prints.values()])


def iterative(options: Options) -> Suite:
    """Memory of the iterative backward pass as a sparse QP grows; nonzeros are proportional to n."""
    sizes = (2_000, 4_000, 8_000)  # a random pattern fills in: the forward solve limits the size
    prints = []
    for contender in ("ffo-iterative", "ffo"):
        for n in sizes:
            options.progress(f"iterative: {contender} n={n}")
            prints.append(footprint(contender, "sparse", n))
    first, last = prints[0], prints[len(sizes) - 1]
    grown = math.log(last.backward / first.backward) / math.log(last.n / first.n)
    name = "iterative backward: exponent of memory in the nonzeros"
    figure = Figure(name, grown, 1.05, "", False, first.reason or last.reason)
    return Suite("iterative", [figure], [p.as_dict() for p in prints])


def qplayer(options: Options) -> Suite:
    """FFOQPLayer against qpth, QPLayer, and Moreau through cvxpylayers and called directly."""
    outcomes = [qp_layers.play(match, options.repeats, options.progress) for match in qp_layers.MATCHES]
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    return Suite("QP layers", figures, [row for outcome in outcomes for row in outcome.rows])


def accuracy(options: Options) -> Suite:
    """Gradients at default settings against differences of tight solves."""
    figures, rows = [], []
    for case, peer_case, target in _accuracy_cases():
        options.progress(f"accuracy: reference for {case.name}")
        reference = probes(case)
        options.progress(f"accuracy: {case.name}")
        ours = compare("ffo", peers.ffo, case, reference)
        figures.append(Figure(f"{case.name}: gradient error", ours.error, target, "", False, ours.reason))
        rows.append(ours.as_dict())
        if peer_case is not None:
            rows.append(compare("cvxpylayers", peers.cvxpylayers, peer_case, reference).as_dict())
    return Suite("accuracy", figures, rows)


def maros(options: Options) -> Suite:
    """Problems of the Maros-Meszaros collection: residuals, and gradients against differences."""
    return collection.suite(options.progress)


SUITES: dict[str, Callable[[Options], Suite]] = {
    "qp": qp,
    "socp": socp,
    "small": small,
    "qplayer": qplayer,
    "memory": memory,
    "iterative": iterative,
    "accuracy": accuracy,
    "maros": maros,
    "warm": lambda options: warm.suite(options.repeats, options.progress),
    "growth": lambda options: growth.suite(options.progress),
    "functions": functions,
    "families": lambda options: families.suite(families.SMALL, options.repeats, options.progress),
    "families-large": lambda options: families.suite(families.LARGE, options.repeats, options.progress),
    "cores": lambda options: cores.suite(options.repeats, options.progress),
    "cuda": lambda options: cuda.suite(options.repeats, options.progress),
    "latency": lambda options: latency.suite(options.repeats, options.progress),
    "lift": lambda options: lift.suite(options.repeats, options.progress),
    "notebooks": lambda options: notebooks.suite(options.repeats, options.progress),
    "forms": lambda options: forms.suite(options.repeats, options.progress),
    "compile": lambda options: compiling.suite(options.progress),
    "trust": lambda options: trust.suite(options.progress),
    "jax": lambda options: jax_layers.suite(options.repeats, options.progress),
}


#: excluded from --all: they take over a quarter of an hour, or need sixteen cores or a GPU
LONG = ("maros", "families-large", "cuda")


def _ours(n: int, norm_ball: bool = False) -> list[Entry]:
    """Both ways of writing the objective: quad_form(y, Q), and |Ry|^2 as cvxpylayers needs it."""
    return [
        Entry("ffo", peers.ffo, decision_qp(n, norm_ball=norm_ball)),
        Entry("ffo, |Ry|^2", peers.ffo, decision_qp(n, quad_form=False, norm_ball=norm_ball)),
    ]


def _accuracy_cases() -> list[tuple[Case, Case | None, float]]:
    """(case, the form a peer accepts or None, target)."""
    cases: list[tuple[Case, Case | None, float]] = [
        (decision_qp(n, norm_ball=ball), decision_qp(n, norm_ball=ball, quad_form=False) if n == 200 else None, 1e-6)
        for ball in (False, True)
        for n in (200, 500, 800)
    ]
    curved = [problems.semidefinite(order) for order in (3, 4, 6, 8, 10)]
    curved += [problems.entropy(), problems.log_sum_exp(), problems.p_norm(), problems.power_utility()]
    smooth = problems.small_least_squares()
    return [*cases, (smooth, smooth, 1e-6), *((case, case, 1e-5) for case in curved)]


def _speedup(name: str, timings: Sequence[Timing], target: float) -> Figure:
    """Speed-up of the first entry's step over the last one's.

    The smaller of the ratios of medians and of best times.
    """
    ours, peer = timings[0], timings[-1]
    reason = "; ".join(f"{t.label}: {t.reason}" for t in (ours, peer) if t.reason)
    ratio = min(peer.total / ours.total, peer.best / ours.best)
    return Figure(name, ratio, target, reason=reason)


def _rows(case: str, timings: Sequence[Timing]) -> list[dict[str, object]]:
    """The measurements, with the time of each relative to the first."""
    return [{"case": case, "against ffo": t.total / timings[0].total, **t.as_dict()} for t in timings]
