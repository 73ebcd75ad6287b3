"""Claims of the paper beyond time, accuracy and memory: growth, batches, and tolerances of the backward solve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ffo.lab.report import words
from ffo.lab.report.results import Results, Spread, by, task_name
from ffo.lab.report.standings import CLOSE, COSINE, Accuracy
from ffo.lab.report.verdicts import LOSS_GAP, Check, ClaimVerdict, State, accurate
from ffo.lab.rows import Row

#: experiments that time steps at several dimensions, the largest exponent that counts as sublinear growth, and the
#: paper's claim about which methods
SCALING, LINEAR = ("scaling_qp", "scaling_dense", "scaling_socp"), 1.0
GROWING = ("FFOCP", "FFOQP", "FFOCP (paper)")
#: how many times cheaper a sample becomes in the largest batch: "orders of magnitude" is at least one
AMORTISED = 10.0
#: the configurations of the paper
PAPER = ("FFOCP (paper)", "FFOQP (paper)")
#: the method whose backward pass is a solve to a tolerance
RESOLVING = "FFOCP (paper)"


def claims(results: Results) -> list[ClaimVerdict]:
    """The verdicts on these claims, in the order of the paper."""
    return [
        ClaimVerdict(
            f"Gradients of the paper's own configurations, {' and '.join(PAPER)}, have a cosine of at least 0.9999",
            "Cosine of the paper's configurations",
            "≥ 0.9999",
            tuple(accurate(results, PAPER)),
        ),
        ClaimVerdict(
            "The time of a step of ours grows sublinearly in d_y",
            "Exponent of growth in d_y",
            "< 1",
            tuple(growth(results)),
        ),
        ClaimVerdict(
            "A large batch makes a sample of ours cheaper by an order of magnitude",
            "Time of a sample alone, over one in the largest batch",
            "≥ 10×",
            tuple(amortisation(results)),
        ),
        ClaimVerdict(
            f"{RESOLVING} is insensitive to the tolerance of its backward solve",
            "Cosine at the loosest tolerance",
            "≥ 0.9999",
            tuple(insensitivity(results)),
        ),
        ClaimVerdict(
            "LPGD, with its perturbation fixed, has a wrong gradient at loose tolerances and a right one at tight ones",
            "Cosine of LPGD at the loosest tolerance",
            "< 0.999",
            tuple(instability(results)),
        ),
    ]


def exponent(rows: Sequence[Row], field: str = "total_s") -> Spread | None:
    """The slope of log time against log d_y, fitted for each seed; None without two sizes."""
    slopes = []
    for group in by(rows, "seed").values():
        points = sorted({(row.d_y, getattr(row, field)) for row in group if row.d_y and getattr(row, field)})
        if len({d_y for d_y, _ in points}) > 1:
            sizes, times = np.log(np.array(points, dtype=float)).T
            slopes.append(float(np.polyfit(sizes, times, 1)[0]))
    return Spread.of(slopes)


def span(spread: Spread) -> str:
    """An exponent with its range over seeds."""
    low, high = f"{spread.low:.2f}", f"{spread.high:.2f}"
    return f"{spread.median:.2f}" + (f" ({low}–{high})" if low != high else "")


def growth(results: Results) -> Iterator[Check]:
    """Exponents of ours, beside those of the peers whose gradients are not wrong."""
    for experiment in SCALING:
        rows = results.of(experiment)
        batches = by(rows, "batch")
        # sizes timed with other batches do not belong on one line
        rows = max(batches.values(), key=lambda group: len({row.d_y for row in group}), default=[])
        found = {method: exponent(group) for method, group in by(rows, "method").items()}
        known = {method: each for method, each in found.items() if each is not None}
        where = task_name(rows[0].task) if rows else ""
        peers = [
            f"{method} {span(each)}"
            for method, each in known.items()
            if not method.startswith("FFO") and not Accuracy.of([row for row in rows if row.method == method]).wrong
        ]
        for method in GROWING:
            if method in known:
                mine = known[method]
                state: State = "reached" if mine.median < LINEAR else "not reached"
                sizes = sorted({row.d_y for row in rows if row.method == method and row.d_y is not None})
                text = f"{method} grows like d_y to the power {span(mine)} from d_y = {sizes[0]} to {sizes[-1]}"
                text += f"; peers: {', '.join(peers)}" if peers else ""
                yield Check(f"{where}, {method}", state, text, LINEAR - mine.median, span(mine))
    if not any(results.of(experiment) for experiment in SCALING):
        yield Check("Scaling", "not measured", "no two sizes were timed")


def amortisation(results: Results) -> Iterator[Check]:
    """Time of a sample in a batch of one over that in the largest batch."""
    rows = results.of("batch")
    for method in GROWING:
        sizes = {
            batch: spread
            for batch, group in by((row for row in rows if row.method == method), "batch").items()
            if (spread := Spread.of(row.total_s / batch for row in group if row.total_s)) is not None
        }
        if len(sizes) < 2:
            yield Check(method, "not measured", "no two batch sizes were timed")
            continue
        small, large = min(sizes), max(sizes)
        ratio = sizes[small].median / sizes[large].median
        state: State = "reached" if ratio >= AMORTISED else "not reached"
        text = (
            f"{words.seconds(sizes[small].median)} for a sample in a batch of {small}, "
            f"{words.seconds(sizes[large].median)} in one of {large}"
        )
        yield Check(method, state, text, ratio - AMORTISED, words.ratio(ratio))


def insensitivity(results: Results) -> Iterator[Check]:
    """Gradients at every tolerance of the backward solve, and the losses they lead to."""
    rows = [row for row in results.of("tolerance", method=RESOLVING) if row.backward_tolerance is not None]
    if not rows:
        yield Check(RESOLVING, "not measured", "no tolerance of the backward solve was varied")
    for task, group in by(rows, "task").items():
        at = {value: Accuracy.of(own) for value, own in sorted(by(group, "backward_tolerance").items())}
        losses = Spread.of(row.train_loss for row in group if row.seed == group[0].seed)
        moved = (losses.high - losses.low) / abs(losses.median) if losses and losses.median else 0.0
        loosest = max(at)
        cosines = [each.cosine for each in at.values() if each.cosine is not None]
        right = bool(cosines) and min(cosines) >= COSINE and moved <= LOSS_GAP
        text = (
            f"cosine {words.cosine(at[loosest].cosine)} at a tolerance of {words.power(loosest)}, "
            f"{words.cosine(at[min(at)].cosine)} at {words.power(min(at))}; final losses differ by {moved:.2%}"
        )
        state: State = "not measured" if not cosines or len(at) < 2 else "reached" if right else "not reached"
        yield Check(task_name(task), state, text, measured=words.cosine(at[loosest].cosine))


def instability(results: Results) -> Iterator[Check]:
    """LPGD's gradient at its loosest and its tightest tolerance, with one perturbation."""
    rows = [row for row in results.of("tolerance", method="LPGD") if row.tolerance is not None]
    if not rows:
        yield Check("LPGD", "not measured", "its tolerance was not varied")
    for task, group in by(rows, "task").items():
        at = {value: Accuracy.of(own).cosine for value, own in sorted(by(group, "tolerance").items())}
        known = {value: cosine for value, cosine in at.items() if cosine is not None}
        if len(known) < 2:
            yield Check(task_name(task), "not measured", "no two tolerances were measured")
            continue
        tight, loose = min(known), max(known)
        falls = all(a >= b - 1e-9 for (_, a), (_, b) in pairwise(known.items()))
        state: State = "reached" if known[loose] < CLOSE <= known[tight] else "not reached"
        text = (
            f"cosine {words.cosine(known[loose])} at a tolerance of {words.power(loose)}, "
            f"{words.cosine(known[tight])} at {words.power(tight)}" + ("" if falls else "; not monotone in between")
        )
        yield Check(task_name(task), state, text, measured=words.cosine(known[loose]))
