"""Claims of the paper about bilevel optimization: calls to a stationary point, and the cost of a hypergradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ffo.lab.bilevel.jobs import ALGORITHM_ONE, PENALTY
from ffo.lab.report.results import Results, Spread, by, task_name
from ffo.lab.report.verdicts import Check, ClaimVerdict, State
from ffo.lab.rows import Row

#: largest exponent of 1/epsilon; windows are whole numbers of calls, which affects the fit
STATIONARY, FIT = 3.0, 0.1
#: exponents of 1/error: O(log 1/epsilon) has one near zero, O(1/epsilon) has one
LOGARITHMIC = 0.5
#: contenders with a certificate, and the lower level whose random gradients make it uncertain
CERTIFIED, RANDOM = ("GoldsteinDescent", "minimize"), "smoothed"


def bilevel_claims(results: Results) -> list[ClaimVerdict]:
    """The verdicts on these claims."""
    return [
        ClaimVerdict(
            "A (δ, ε)-Goldstein stationary point takes at most O(ε⁻³) calls of the oracle",
            "Exponent of the calls in 1/ε",
            "≤ 3",
            tuple(stationary(results)),
        ),
        ClaimVerdict(
            "A hypergradient of Algorithm 1 takes O(log 1/ε) gradients, one of a penalty method O(1/ε)",
            "Exponents of the gradients in 1/error: Algorithm 1, penalty",
            "< 0.5, ≥ 0.5",
            tuple(logarithmic(results)),
        ),
    ]


def power(points: Sequence[tuple[float, float]]) -> float | None:
    """The exponent of y in x, fitted to pairs (x, y); None without two places."""
    if len({x for x, _ in points}) < 2:
        return None
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def stationary(results: Results) -> Iterator[Check]:
    """Exponents of calls, and the known distance of the points that were found."""
    rows = [row for row in results.of("bilevel", record="curve") if row.method in CERTIFIED]
    for (task, method), group in by(rows, "task", "method").items():
        where = f"{task_name(task)}, {method}"
        slopes = Spread.of(
            power([(1 / row.epsilon, row.calls) for row in own if row.epsilon and row.calls])
            for own in by(group, "seed").values()
        )
        if slopes is None:
            yield Check(where, "not measured", "no two values of ε were reached")
            continue
        missed = sum(row.calls is None for row in group)
        false = 0 if task == RANDOM else sum((row.distance or 0.0) > (row.epsilon or 0.0) for row in group if row.calls)
        reached = slopes.high <= STATIONARY + FIT and not missed and not false
        state: State = "reached" if reached else "not reached"
        text = f"calls grow like 1/ε to the power {slopes.median:.2f}"
        text += f"; {missed} of {len(group)} walks ended without one" if missed else ""
        text += f"; {false} of {len(group)} points are not as stationary as certified" if false else ""
        yield Check(where, state, text, STATIONARY - slopes.high, f"{slopes.median:.2f}")
    if not rows:
        yield Check("Bilevel", "not measured", "no walk was run")


def logarithmic(results: Results) -> Iterator[Check]:
    """Exponents of gradients in one over the error."""
    rows = [row for row in results.of("hypergradient", record="curve") if row.delta is None]
    for task, group in by(rows, "task").items():
        found = {method: _exponent(own) for method, own in by(group, "method").items()}
        ours, penalty = found.get(ALGORITHM_ONE), found.get(PENALTY)
        if ours is None or penalty is None:
            yield Check(task_name(task), "not measured", "not both methods were run at two accuracies")
            continue
        state: State = "reached" if ours.high < LOGARITHMIC <= penalty.low else "not reached"
        text = (
            f"gradients grow like 1/error to the power {ours.median:.2f} with Algorithm 1, "
            f"{penalty.median:.2f} with a penalty"
        )
        yield Check(task_name(task), state, text, LOGARITHMIC - ours.high, f"{ours.median:.2f}, {penalty.median:.2f}")
    if not rows:
        yield Check("Bilevel", "not measured", "no hypergradient was computed")


def _exponent(rows: Sequence[Row]) -> Spread | None:
    return Spread.of(
        power([(1 / row.l2, row.calls) for row in own if row.l2 and row.calls]) for own in by(rows, "seed").values()
    )
