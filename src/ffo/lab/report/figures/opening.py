"""The picture that opens the report: time against error of the gradient, for every method on the three tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ffo.lab.report import words
from ffo.lab.report.drawing import INCHES, LETTER, Axis, Panel, bounded, panel, scale, stroke
from ffo.lab.report.figures.base import Looks
from ffo.lab.report.looks import PALETTE, is_ours, rank
from ffo.lab.report.results import Results
from ffo.lab.report.standings import CLOSE, PAPER_SIZE, Setting, Standing, settings_of, standings
from ffo.lab.report.verdicts import Check, ClaimVerdict

HEIGHT = 3.7
TIME = Axis("time per step: faster to the left", "seconds", log=True)
ERROR = Axis("error of the gradient, 1 − cosine", "error", log=True)
#: tasks of a panel, the first that was timed counts
TASKS = (("qp",), ("sudoku9", "sudoku4"), ("socp",))
#: height of a label, and distance from its point, in points
LINE, GAP = 11.0, 7.0
#: heights of a name above or below its point, in lines; far ones are joined to it
LIFTS = (0.0, 0.5, 0.9, 1.4, 2.0, 2.6, 3.2, 3.8)


#: edges of a box, in points of the figure; and a place for a name: its distance from the marker, and alignment
Box = tuple[float, float, float, float]
Choice = tuple[float, float, str]


@dataclass(frozen=True)
class Opening:
    """Panels, the sentence that sums them up, and what they leave out."""

    panels: tuple[Panel, ...]
    sentence: str
    caption: str


@dataclass(frozen=True)
class Place:
    """A method in the picture: seconds, error, and whether its answer is wrong."""

    method: str
    x: float
    y: float
    wrong: bool


def opening(results: Results, look: Looks, by_far: ClaimVerdict, right: ClaimVerdict) -> Opening:
    """The picture and the verdict in one sentence, from the claims about speed and accuracy at the paper's sizes."""
    panels, lacking = [], []
    for tasks in TASKS:
        setting = chosen(results, tasks)
        if setting is None:
            continue
        table = standings(results, setting)
        places = [place for each in table.values() if (place := placed(each)) is not None]
        able = [each for each in table.values() if each.family != "qp" or setting.task != "socp"]
        lacking += [each.method for each in able if each.total is None]
        if places:
            panels.append(drawn(setting, places, look))
    caption = (
        "Every method on the paper's three tasks: the time of one training step, forward and backward, against the "
        "error of its gradient, the worst over seeds. Lower left is better. ✗ marks a wrong answer, however fast: in "
        "the shaded band the direction of the gradient is wrong, below it its length or the solution."
    )
    if lacking:
        names = words.listing(sorted(set(lacking), key=rank))
        caption += f" Without a time in some panel, because they were stopped or cannot run: {names}."
    return Opening(tuple(panels), sentence(by_far, right), caption)


def chosen(results: Results, tasks: Sequence[str]) -> Setting | None:
    """The paper's size, or the largest, of the first of these tasks that was timed."""
    for task in tasks:
        settings = settings_of(results, task)
        exact = [each for each in settings if each.d_y == PAPER_SIZE]
        if settings:
            return (exact or settings)[-1]
    return None


def placed(each: Standing) -> Place | None:
    cosine, total = each.accuracy.cosine, each.total
    if cosine is None or total is None:
        return None
    return Place(each.method, total.median, bounded(max(0.0, 1 - cosine), ERROR), each.accuracy.wrong)


def drawn(setting: Setting, places: Sequence[Place], look: Looks) -> Panel:
    """One task: markers with their names, ours in front."""
    bad, bar = PALETTE["bad"][0], 1 - CLOSE
    ordered = sorted(places, key=lambda place: (not is_ours(place.method), place.x))

    def draw(axes: Axes) -> None:
        scale(axes, "x", TIME, [place.x for place in places])
        scale(axes, "y", ERROR, [*(place.y for place in places), bar], most=5)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.25)  # room for names on the right
        bottom, top = axes.get_ylim()
        top = max(top, 30.0)
        axes.set_ylim(bottom / 4, top)
        axes.axhspan(bar, top, color=bad, alpha=0.12, linewidth=0)
        axes.text(0.015, 0.985, "wrong", transform=axes.transAxes, va="top", color=bad, fontweight="bold")
        taken: list[Box] = []
        for place in ordered:
            style = stroke(look[place.method], size=10 if is_ours(place.method) else 7)
            axes.plot([place.x], [place.y], **style, zorder=4 if is_ours(place.method) else 3)
            at = axes.transData.transform((place.x, place.y)) * 72 / axes.figure.dpi
            taken.append((at[0] - 5, at[1] - 5, at[0] + 5, at[1] + 5))
        for place in ordered:
            name(axes, place, taken)

    text = "; ".join(
        f"{place.method} {words.seconds(place.x)}, error {words.number(place.y)}{', wrong' if place.wrong else ''}"
        for place in ordered
    )
    title = setting.label + (f", batch {setting.batch}" if setting.batch else "")
    alt = f"{title}: error of the gradient against time per step. {text}"
    return panel(f"opening-{setting.task}", title, alt, draw, height=HEIGHT)


def name(axes: Axes, place: Place, taken: list[Box]) -> None:
    """Write a method's name near its marker, as close as possible without meeting other markers and names; a thin
    line joins them if it is not right beside it."""
    label = place.method + (" ✗" if place.wrong else "")
    x, y = axes.transData.transform((place.x, place.y)) * 72 / axes.figure.dpi
    width = (0.95 if is_ours(place.method) else 0.86) * LETTER * len(label)
    frame = tuple(edge * 72 / axes.figure.dpi for edge in axes.bbox.extents)

    def cost(choice: Choice) -> float:
        dx, dy, _ = choice
        box = box_at(x, y, width, choice)
        out = max(frame[0] - box[0], 0.0) + max(box[2] - 72 * INCHES[0] + 4, 0.0)
        out += max(frame[1] - box[1], 0.0) + max(box[3] - frame[3], 0.0)
        met = sum(overlap(box, other) for other in taken)
        crossed = sum(crosses((x, y), (x + dx, y + dy), other) for other in taken if not inside((x, y), other))
        return 20 * out + 12 * met + 30 * crossed + abs(dy) + 0.2 * abs(dx)

    sides: list[Choice] = [
        (sign * gap, sign_y * lift * LINE, side)
        for lift in LIFTS
        for sign_y in (1, -1)
        for gap in (GAP, 4 * GAP)
        for sign, side in ((1, "left"), (-1, "right"))
    ]
    best = min([*sides, (0.0, 1.2 * LINE, "center"), (0.0, -1.2 * LINE, "center")], key=cost)
    taken.append(box_at(x, y, width, best))
    apart = abs(best[1]) > 1.2 * LINE or abs(best[0]) > GAP
    axes.annotate(
        label,
        (place.x, place.y),
        xytext=best[:2],
        textcoords="offset points",
        ha=best[2],
        va="center",
        fontsize=8.5,
        fontweight="bold" if is_ours(place.method) else "normal",
        color=PALETTE["bad" if place.wrong else "ink"][0],
        arrowprops={"arrowstyle": "-", "color": PALETTE["muted"][0], "linewidth": 0.6, "shrinkA": 0} if apart else None,
    )


def box_at(x: float, y: float, width: float, choice: Choice) -> Box:
    """The box of a name beside a point, in points of the figure."""
    dx, dy, side = choice
    start = x + dx - width * {"left": 0.0, "center": 0.5, "right": 1.0}[side]
    return start - 2, y + dy - LINE / 2, start + width + 2, y + dy + LINE / 2


def inside(point: tuple[float, float], box: Box) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def crosses(start: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    """Whether a line meets a box, tried at a few places."""
    between = (((1 - t) * start[0] + t * end[0], (1 - t) * start[1] + t * end[1]) for t in (0.2, 0.4, 0.6, 0.8, 1.0))
    return any(inside(point, box) for point in between)


def overlap(a: Box, b: Box) -> float:
    """The smaller side of what two boxes share."""
    return max(0.0, min(min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])))


def sentence(by_far: ClaimVerdict, right: ClaimVerdict) -> str:
    """The verdict: how much faster than the nearest right peer at the paper's sizes, and where that is missed.

    On a task that both defaults take, the smaller figure counts.
    """
    worst: dict[str, Check] = {}
    for check in by_far.checks:
        task = _task(check.where)
        if check.margin and (task not in worst or check.margin < worst[task].margin):
            worst[task] = check
    if not worst:
        return "Not decided by this run: the paper's sizes were not timed."
    ratios = words.listing([f"{check.measured} on {task}" for task, check in worst.items()])
    text = f"At the paper's sizes our defaults are faster than every layer with a right gradient: {ratios}."
    if any(check.margin <= 1 for check in worst.values()):
        text = (
            "At the paper's sizes our defaults are not the fastest everywhere (time of the nearest layer with a right "
            f"gradient, over our defaults': {ratios})."
        )
    below = {_task(check.where): None for check in by_far.checks if check.state == "not reached"}
    if below:
        text += f" The target of 3× is missed on {words.listing(list(below))}."
    unknown = {_task(check.where): None for check in by_far.checks if _task(check.where) not in worst}
    if unknown:
        text += f" Not measured: {words.listing(list(unknown))}."
    accuracy = {
        "reached": "Their gradients are right everywhere.",
        "not reached": f"Their gradients are not right everywhere: see {right.decisive.where}.",
        "not measured": "Their gradients were not compared everywhere.",
    }
    return f"{text} {accuracy[right.state]}"


def _task(where: str) -> str:
    """The task of a check as the sentence names it: "Decision-focused QP, d_y = 800, FFOCP" -> "the QP"."""
    name = where.split(", ")[0]
    if name.startswith("Sudoku"):
        return name
    return "the " + " ".join(word for word in name.replace("Dense", "dense").split() if "ecision-" not in word)
