"""The claims, each with the numbers that decide it: reached, not reached, or not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from ffo.lab.baselines import BASELINES
from ffo.lab.report import words
from ffo.lab.report.results import Results, Spread, by, task_name
from ffo.lab.report.standings import (
    PAPER_SIZE,
    SOURCES,
    Accuracy,
    Setting,
    Standing,
    peers,
    standings,
    timed_settings,
    trained_settings,
)
from ffo.lab.rows import Row

State = Literal["reached", "not reached", "not measured"]

LOSS_GAP = 0.01
#: task -> the paper's size, and how much faster ours should be there
LARGEST: dict[str, int | None] = {"qp": PAPER_SIZE, "qp_dense": PAPER_SIZE, "socp": PAPER_SIZE, "sudoku9": None}
BY_FAR = 3.0
MEMORY_GROWTH = 1.5
MEMORY_SIZES = (200, 1000)
#: display name of what is trained -> tasks
TRAINED = {task_name("qp"): ("qp",), "Sudoku": ("sudoku4", "sudoku9"), task_name("socp"): ("socp",)}


@dataclass(frozen=True)
class Check:
    """One claim at one setting: the number that decides it, and a sentence about it.

    Of checks in the same state, the one with the smallest `margin` is closest to its target.
    """

    where: str
    state: State
    text: str
    margin: float = 0.0
    measured: str = words.UNKNOWN
    note: str = ""


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim over all its settings: missed if missed anywhere, reached if reached everywhere.

    `figure` names what is measured in a few words; `target` is the value to reach.
    """

    claim: str
    figure: str
    target: str
    checks: tuple[Check, ...]

    @property
    def state(self) -> State:
        states = {check.state for check in self.checks}
        if "not reached" in states:
            return "not reached"
        return "reached" if states == {"reached"} else "not measured"

    @property
    def decisive(self) -> Check:
        """The check that decides the state: of those in that state, the one with the smallest margin."""
        return min((check for check in self.checks if check.state == self.state), key=lambda check: check.margin)

    @property
    def count(self) -> str:
        """How far the claim got, in words."""
        reached = sum(check.state == "reached" for check in self.checks)
        unknown = sum(check.state == "not measured" for check in self.checks)
        text = f"{reached} of {len(self.checks)} reached"
        return text + (f", {unknown} not measured" if unknown else "")


def verdicts(results: Results) -> list[ClaimVerdict]:
    """The claims about time, accuracy, losses and memory, in the order of the headline; `claims` has the others."""
    return [
        ClaimVerdict(
            "FFOCP takes less time per step than every general convex layer whose gradient is not wrong",
            "Time of the nearest general layer, over FFOCP's",
            "> 1×",
            tuple(fastest(results, "FFOCP", "conic", tuple(SOURCES))),
        ),
        ClaimVerdict(
            "FFOQP takes less time per step than every QP layer whose gradient is not wrong",
            "Time of the nearest QP layer, over FFOQP's",
            "> 1×",
            tuple(fastest(results, "FFOQP", "qp", ("qp", "qp_dense", "sudoku4", "sudoku9"))),
        ),
        ClaimVerdict(
            "Gradients of FFOCP and FFOQP have a cosine of at least 0.9999 to a tight reference",
            "Cosine of our gradients",
            "≥ 0.9999",
            tuple(accurate(results, ("FFOCP", "FFOQP"))),
        ),
        ClaimVerdict(
            "Final training losses are at most 1% above the exact methods'",
            "Our final loss, over an exact method's",
            "≤ 1%",
            tuple(losses(results)),
        ),
        ClaimVerdict(
            "FFOCP's peak memory beyond the data grows by less than 1.5× from d_y = 200 to d_y = 1000",
            "Growth of FFOCP's memory",
            "< 1.5×",
            (memory(results),),
        ),
        ClaimVerdict(
            "At the paper's sizes, our defaults are at least three times as fast as every layer of their kind whose "
            "gradient is not wrong",
            "Time of the nearest layer, over ours, at the paper's sizes",
            "≥ 3×",
            tuple(by_far(results)),
        ),
    ]


def settings_to_judge(results: Results, tasks: Sequence[str]) -> Iterator[tuple[str, Setting | None]]:
    """Every timed setting of these tasks; a task or the paper's size that was not measured, as None."""
    found = [setting for setting in timed_settings(results) if setting.task in tasks]
    yield from ((setting.label, setting) for setting in found)
    measured = {(setting.task, setting.d_y) for setting in found}
    for task in ("qp", "qp_dense", "socp"):
        if task in tasks and (task, PAPER_SIZE) not in measured:
            yield task_name(task, PAPER_SIZE), None
    if "sudoku9" in tasks and not any(task.startswith("sudoku") for task, _ in measured):
        yield "Sudoku", None


def fastest(results: Results, ours: str, family: str, tasks: Sequence[str]) -> Iterator[Check]:
    """At each setting: is ours right, and faster than every right peer of its family?"""
    for where, setting in settings_to_judge(results, tasks):
        table = standings(results, setting) if setting else {}
        mine = table.get(ours)
        if mine is not None and mine.failed:
            state: State = "not reached" if any(each.total for each in table.values()) else "not measured"
            yield Check(where, state, f"{ours} failed: {mine.reason}")
        elif mine is None or mine.total is None:
            yield Check(where, "not measured", (mine.reason if mine else "") or f"no run of {ours}")
        else:
            yield race(where, mine, peers(table, family))


def by_far(results: Results) -> Iterator[Check]:
    """Each default at the paper's sizes: of all decision-focused tasks, and the large Sudoku board."""
    for task, (ours, family) in product(LARGEST, (("FFOCP", "conic"), ("FFOQP", "qp"))):
        if task == "socp" and family == "qp":
            continue
        where = task_name(task, LARGEST[task])
        nothing = Check(where, "not measured", f"no run of {ours}")
        check = next((each for each in fastest(results, ours, family, (task,)) if each.where == where), nothing)
        missed = check.state == "reached" and check.margin < BY_FAR
        yield replace(check, where=f"{where}, {ours}", state="not reached" if missed else check.state)


def race(where: str, mine: Standing, others: Sequence[Standing]) -> Check:
    """Ours against its peers at one setting. A peer whose gradient is wrong does not count; a faster one whose
    accuracy was not measured leaves the claim undecided."""
    assert mine.total is not None
    timed = [(ratio, peer) for peer in others if (ratio := peer.ratio_to(mine)) is not None]
    rivals = sorted(((ratio, peer) for ratio, peer in timed if peer.accuracy.rival), key=lambda each: each[0].median)
    unknown = [ratio.median < 1 for ratio, peer in timed if peer.accuracy.judgement == "not measured"]
    sentences = [f"{mine.method} {words.seconds(mine.total.median)} per step"]
    measured, note = words.UNKNOWN, ""
    if rivals:
        ratio, nearest = rivals[0]
        measured, note = words.ratio(ratio.median), nearest.method
        time = words.seconds(nearest.total.median if nearest.total else None)
        sentences.append(
            f"the nearest of {len(rivals)} whose gradient is not wrong is {nearest.method}: "
            f"{time}, {words.times_as_long(ratio)}"
        )
    sentences += remarks(timed, others, mine)
    state: State
    if mine.accuracy.judgement == "not measured":
        state = "not measured"
        sentences.append(f"accuracy of {mine.method} not measured")
    elif not mine.accuracy.right:
        state = "not reached"
        sentences.append(f"the gradient of {mine.method} is not right ({error_of(mine.accuracy)})")
    elif rivals and rivals[0][0].median <= 1:
        state = "not reached"
    else:
        state = "reached" if rivals and not any(unknown) else "not measured"
    return Check(where, state, "; ".join(sentences), rivals[0][0].median if rivals else 0.0, measured, note)


def remarks(timed: Sequence[tuple[Spread, Standing]], others: Sequence[Standing], mine: Standing) -> Iterator[str]:
    """Remarks on peers that do not count: wrong, of unknown accuracy, or without a time."""
    for ratio, peer in timed:
        if peer.accuracy.wrong:
            pace = "faster" if ratio.median < 1 else "slower"
            what = "solution" if peer.accuracy.judgement == "wrong solution" else "gradient"
            yield f"{peer.method} is {pace}, its {what} wrong ({error_of(peer.accuracy)})"
        elif not peer.accuracy.rival:
            yield f"{peer.method}, {words.times_as_long(ratio)}, has no measured accuracy"
    untimed: dict[str, list[str]] = {}
    for peer in others:
        bound = peer.bound_to(mine)
        if bound is not None:
            yield f"{peer.method} {words.bound(bound.ratio)}: {words.bound_note(bound.built, peer.reason)}"
        elif peer.total is None:
            untimed.setdefault(peer.reason, []).append(peer.method)
    yield from (f"no time for {words.listing(names)}: {reason}" for reason, names in untimed.items())


def error_of(accuracy: Accuracy) -> str:
    """What is wrong with a gradient or its solution, as a number."""
    if accuracy.judgement == "wrong solution":
        return f"off by {words.number(accuracy.solution)}"
    if accuracy.judgement == "wrong length":
        return f"right direction, relative distance {words.number(accuracy.l2)}"
    return f"cosine {words.cosine(accuracy.cosine)}"


def accurate(results: Results, methods: Sequence[str]) -> Iterator[Check]:
    """The worst cosine of these methods at each setting."""
    for where, setting in settings_to_judge(results, tuple(SOURCES)):
        table = standings(results, setting) if setting else {}
        ours = {name: table[name].accuracy for name in methods if name in table and table[name].rows}
        text = "; ".join(
            f"{name}: cosine {words.cosine(accuracy.cosine)}, relative distance {words.number(accuracy.l2)}"
            for name, accuracy in ours.items()
        )
        state: State
        judged = {accuracy.judgement for accuracy in ours.values()}
        if judged - {"right", "not measured"}:
            state = "not reached"
        else:
            state = "reached" if judged == {"right"} else "not measured"
        worst = min((accuracy.cosine for accuracy in ours.values() if accuracy.cosine is not None), default=None)
        margin = 0.0 if worst is None else worst - 1
        yield Check(where, state, text or "no gradient was compared", margin, words.cosine(worst))


def losses(results: Results) -> Iterator[Check]:
    """The worst gap of FFOCP and FFOQP to a peer with an exact gradient; a lower loss is no gap.

    Judged where models were trained, whatever the size: sweeps over sizes do not train.
    """
    trained = trained_settings(results)
    missing = {name: None for name, tasks in TRAINED.items() if not any(s.task in tasks for s in trained)}
    for where, setting in [*((setting.label, setting) for setting in trained), *missing.items()]:
        table = standings(results, setting) if setting else {}
        exact = [peer for peer in peers(table) if peer.accuracy.right and is_exact(peer.method)]
        gaps = {
            (name, peer.method): gap
            for name in ("FFOCP", "FFOQP")
            if name in table
            for peer in exact
            if (gap := loss_gap(table[name], peer)) is not None
        }
        if not gaps:
            yield Check(where, "not measured", "no training run to compare with an exact method")
            continue
        (name, peer), worst = max(gaps.items(), key=lambda item: item[1].median)
        state: State = "reached" if worst.median <= LOSS_GAP else "not reached"
        low, high = words.percent(worst.low), words.percent(worst.high)
        text = f"largest gap of {len(gaps)}: {name} {words.percent(worst.median)} against {peer}{after(table[name])}"
        text += f" (over seeds {low} to {high})" if low != high else ""
        yield Check(where, state, text, LOSS_GAP - worst.median, words.percent(worst.median), f"{name} against {peer}")


def is_exact(method: str) -> bool:
    """Whether a method's gradient is exact by design, as it declares (Table 1 of the paper)."""
    return method not in BASELINES or BASELINES[method].exact


def after(standing: Standing) -> str:
    """How long a model was trained."""
    steps = max((row.step for row in standing.rows if row.step is not None), default=None)
    return "" if steps is None else f" after {steps} steps"


def loss_gap(mine: Standing, peer: Standing) -> Spread | None:
    """(ours − theirs) / |theirs| after the same number of epochs, seed by seed."""
    theirs = {(row.seed, row.epoch): row.train_loss for row in peer.rows if row.train_loss}
    return Spread.of(
        (row.train_loss - theirs[row.seed, row.epoch]) / abs(theirs[row.seed, row.epoch])
        for row in mine.rows
        if row.train_loss is not None and (row.seed, row.epoch) in theirs
    )


def peak_rows(rows: Sequence[Row]) -> list[Row]:
    """Of each memory job, the phase with the highest peak."""
    jobs = by((row for row in rows if row.peak_mb is not None), "task", "method", "seed", "d_y", "batch")
    return [max(group, key=lambda row: row.peak_mb or 0.0) for group in jobs.values()]


def memory(results: Results) -> Check:
    """Growth of the peak without the data; the figure without interpreter and packages is also given."""
    where = f"{task_name('qp')}, d_y = {MEMORY_SIZES[0]} to {MEMORY_SIZES[1]}"
    peaks = by(peak_rows(results.of("memory", record="phase", task="qp", method="FFOCP")), "d_y")
    above = spreads(peaks, lambda row: (row.peak_mb or 0.0) - (row.data_mb or 0.0))
    layer = spreads(peaks, lambda row: (row.peak_mb or 0.0) - (row.data_mb or 0.0) - (row.base_mb or 0.0))
    judged = all(size in above for size in MEMORY_SIZES)
    if len(above) < 2:
        return Check(where, "not measured", "no two sizes of FFOCP were measured")
    small, large = MEMORY_SIZES if judged else (min(above), max(above))
    growth = above[large].median / above[small].median
    text = (
        f"{words.megabytes(above[small].median)} at d_y = {small}, {words.megabytes(above[large].median)} "
        f"at d_y = {large}: {words.ratio(growth)}, interpreter and packages included; without them "
        f"{words.megabytes(layer[small].median)} and {words.megabytes(layer[large].median)}"
    )
    if not judged:
        return Check(where, "not measured", f"d_y = {MEMORY_SIZES[0]} and {MEMORY_SIZES[1]} were not both run; {text}")
    state: State = "reached" if growth < MEMORY_GROWTH else "not reached"
    return Check(where, state, text, measured=words.ratio(growth))


def spreads(groups: dict[int, list[Row]], value: Callable[[Row], float]) -> dict[int, Spread]:
    """The spread of a value in each group."""
    found = {key: Spread.of(value(row) for row in rows) for key, rows in groups.items()}
    return {key: spread for key, spread in found.items() if spread is not None}
