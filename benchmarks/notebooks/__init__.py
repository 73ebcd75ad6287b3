"""The problems of cvxpylayers' example notebooks and of OptNet's model classes, against their packages.

Each problem has the size and the batch of its notebook, or a batch of one where a notebook calls the layer once per
sample. The data are random. Both packages use all cores. Gradients at default settings are judged against differences
of tight solves (`benchmarks.accuracy`), those of quadratic programs against linear algebra on the active set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import peers, qp_layers
from benchmarks.accuracy import Accuracy, compare, probes
from benchmarks.families import Outcome, cvxpylayers
from benchmarks.notebooks import control, decisions, learning, optnet
from benchmarks.peers import Contender
from benchmarks.problems import Case
from benchmarks.report import Figure, Suite
from benchmarks.timing import Entry, measure

NOTEBOOKS: tuple[Callable[..., Case], ...] = (*control.NOTEBOOKS, *decisions.NOTEBOOKS, *learning.NOTEBOOKS)
MODELS: tuple[Callable[..., Case], ...] = optnet.MODELS
#: no problem is to be slower than with its package
RATIO = 1.0
#: largest gradient error, beyond the uncertainty of the reference
GRADIENT_ERROR = 1e-6
#: samples and directions of the reference
SAMPLES, DIRECTIONS = 2, 3
#: samples whose gradients are summed in the reference of a quadratic program
CHECKED = 3


def suite(repeats: int, progress: Callable[[str], None]) -> Suite:
    """All notebooks and all models."""
    notebooks = [_play(build, peers.ffo, cvxpylayers, _by_differences, repeats, progress) for build in NOTEBOOKS]
    models = [_play(build, peers.ffo_qp, peers.qpth, _by_active_set, repeats, progress) for build in MODELS]
    figures = [*_figures("cvxpylayers", notebooks), *_figures("qpth", models)]
    return Suite("notebooks", figures, [outcome.as_row() for outcome in (*notebooks, *models)])


Judge = Callable[[Callable[..., Case], tuple[Contender, ...]], list[Accuracy]]


def _play(
    build: Callable[..., Case],
    ours: Contender,
    peer: Contender,
    judge: Judge,
    repeats: int,
    progress: Callable[[str], None],
) -> Outcome:
    case = build()
    progress(f"{case.name}: gradients")
    errors = judge(build, (ours, peer))
    batch = len(next(iter(case.draw(0).values())))
    entries = [Entry("ffo", ours, case), Entry("peer", peer, case)]
    # One sample takes milliseconds: more repetitions cost nothing and steady the medians.
    count = repeats if batch > 1 else 4 * repeats
    timings = measure(entries, count, progress=lambda what: progress(f"{case.name}: {what}"))
    return Outcome(case.name, batch, *timings, *errors)


def _by_differences(build: Callable[..., Case], contenders: tuple[Contender, ...]) -> list[Accuracy]:
    case = build(SAMPLES)
    reference = probes(case, samples=SAMPLES, directions=DIRECTIONS)
    return [compare("", contender, case, reference) for contender in contenders]


def _by_active_set(build: Callable[..., Case], contenders: tuple[Contender, ...]) -> list[Accuracy]:
    case = build(CHECKED)
    reference = qp_layers.reference_gradients(case, CHECKED)
    return [_accuracy(case, contender, reference) for contender in contenders]


def _accuracy(case: Case, contender: Contender, reference: dict[str, np.ndarray]) -> Accuracy:
    try:
        error = qp_layers.difference(qp_layers.gradients(contender, case), reference)
    except Exception as failure:
        return Accuracy(case.name, "", reason=f"{type(failure).__name__}: {failure}".splitlines()[0][:160])
    return Accuracy(case.name, "", error, 0.0)


def _figures(peer: str, outcomes: Sequence[Outcome]) -> list[Figure]:
    """The smallest ratio and the largest error; failures of this package are not hidden by others."""
    ratios = np.array([o.ratio for o in outcomes])
    slowest = outcomes[int(np.argmin(np.nan_to_num(ratios, nan=-np.inf)))]
    worst = max(outcomes, key=lambda o: np.nan_to_num(o.excess, nan=np.inf))
    reason = next((f"{t.label}: {t.reason}" for t in (slowest.ours, slowest.peer) if t.reason), "")
    mean = float(np.exp(np.nanmean(np.log(ratios))))
    return [
        Figure(
            f"least of {len(outcomes)} steps against {peer} ({slowest.family})", slowest.ratio, RATIO, reason=reason
        ),
        Figure(f"{len(outcomes)} steps against {peer}, geometric mean", mean, RATIO, reason=reason),
        Figure(
            f"largest gradient error ({worst.family})", worst.excess, GRADIENT_ERROR, "", False, worst.our_error.reason
        ),
    ]
