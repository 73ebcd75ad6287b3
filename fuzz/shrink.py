"""Reduces a failure to a small one, and writes it as a test."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from fuzz.exact import QP
from fuzz.judge import Outcome, Verdict
from fuzz.routes import Route
from fuzz.run import Case

Array = np.ndarray
Failure = tuple[Case, Route]

#: decimals and powers of two tried in this order
ROUNDINGS: tuple[Callable[[Array], Array], ...] = (
    lambda v: np.round(v),
    lambda v: np.round(4 * v) / 4,
    lambda v: np.array([float(f"{x:.1g}") for x in v.flat]).reshape(v.shape),
    lambda v: np.array([float(f"{x:.3g}") for x in v.flat]).reshape(v.shape),
)


def shrink(case: Case, route: Route, outcome: Outcome, seconds: float = 20.0) -> Failure:
    """A smaller case with the same outcome; greedy, one change at a time, until none helps or time is up."""
    end = time.monotonic() + seconds
    best, found = (case, route), True
    while found and time.monotonic() < end:
        found = False
        for smaller in _smaller(*best):
            if time.monotonic() > end:
                break
            if any(v.outcome is outcome for v in _verdicts(smaller)):
                best, found = smaller, True
                break
    return best


def _verdicts(failure: Failure) -> list[Verdict]:
    try:
        return failure[0].verdicts(failure[1])
    except Exception:  # not a valid program any more
        return []


def _smaller(case: Case, route: Route) -> Iterator[Failure]:
    for k in range(len(case.samples) if len(case.samples) > 1 else 0):
        for some in ([k], [j for j in range(len(case.samples)) if j != k]):
            yield replace(case, samples=[case.samples[j] for j in some], cs=[case.cs[j] for j in some]), route
    for f in fields(route):
        if getattr(route, f.name) != f.default:
            yield case, replace(route, **{f.name: f.default})
    if len(route.wanted) > 1:
        for name in route.wanted:
            yield case, replace(route, wanted=tuple(other for other in route.wanted if other != name))
    yield from ((_all(case, change), route) for change in _without(case.samples[0], route))
    for j in range(case.samples[0].n if case.samples[0].n > 1 else 0):
        fewer = _all(case, lambda qp, j=j: _without_column(qp, j))
        yield replace(fewer, cs=[np.delete(c, j) for c in case.cs]), route
    for rounding in ROUNDINGS:
        for name in case.samples[0].blocks:
            rounded = _all(case, lambda qp, n=name, r=rounding: replace(qp, **{n: r(getattr(qp, n))}))
            if any(
                not np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True)
                for a, b in zip(case.samples, rounded.samples, strict=True)
            ):
                yield rounded, route


def _all(case: Case, change: Callable[[QP], QP]) -> Case:
    return replace(case, samples=[change(qp) for qp in case.samples])


def _without(qp: QP, route: Route) -> Iterator[Callable[[QP], QP]]:
    """Programs without a block, or without a row of one."""
    for names in (("A", "b"), ("G", "h", "lower"), ("lower",), ("lb",), ("ub",), ("Q",)):
        if getattr(qp, names[0]) is not None and not set(names) & set(route.wanted):
            yield lambda qp, names=names: replace(qp, **dict.fromkeys(names))
    for names in (("A", "b"), ("G", "h", "lower")):
        for i in range(len(getattr(qp, names[0])) if getattr(qp, names[0]) is not None else 0):
            yield lambda qp, names=names, i=i: replace(
                qp, **{n: np.delete(getattr(qp, n), i, axis=0) for n in names if getattr(qp, n) is not None}
            )


def _without_column(qp: QP, j: int) -> QP:
    new = {}
    for name, v in qp.blocks.items():
        if name in ("G", "A"):
            new[name] = np.delete(v, j, axis=1)
        elif name == "Q":
            new[name] = np.delete(np.delete(v, j, axis=0), j, axis=1)
        elif name in ("p", "lb", "ub"):
            new[name] = np.delete(v, j)
    return replace(qp, **new)


TEMPLATE = '''"""Found by the fuzzer, seed {seed}, batch {index} of "{kind}": {note}."""

import numpy as np
from numpy import array, inf, nan  # noqa: F401

from fuzz.exact import QP
from fuzz.routes import Route
from fuzz.run import Case

SAMPLES = [
{samples}
]


def test_{name}() -> None:
    case = Case(SAMPLES, {cs}, seed={case_seed}, masked={masked})
    route = {route}
    assert not [v for v in case.verdicts(route) if v.outcome.value == {outcome!r}]
'''


def snippet(failure: Failure, verdict: Verdict, seed: int, index: int, kind: str) -> str:
    """A test that fails as long as the failure exists."""
    case, route = failure
    with np.printoptions(floatmode="unique", threshold=10**6, linewidth=100):
        samples = [
            "    QP(" + ", ".join(f"{name}={_shown(v)}" for name, v in qp.blocks.items()) + ")," for qp in case.samples
        ]
        cs = "[" + ", ".join(_shown(c) for c in case.cs) + "]"
    return TEMPLATE.format(
        seed=seed,
        index=index,
        kind=kind,
        note=verdict.note,
        samples="\n".join(samples),
        cs=cs,
        name=_name(kind, index),
        case_seed=case.seed,
        masked=case.masked,
        route=route,
        outcome=verdict.outcome.value,
    )


REPLAY = '''"""Found by the fuzzer: {note}."""

from fuzz.families import play


def test_{name}() -> None:
    for _, way, verdicts in play({seed}, {index}, {kind!r}):
        assert not [f"{{way}}: {{v}}" for v in verdicts if v.outcome.value == {outcome!r}]
'''


def replay(verdict: Verdict, seed: int, index: int, kind: str) -> str:
    """The same for a batch of a family, as it was drawn."""
    values = {"seed": seed, "index": index, "kind": kind, "name": _name(kind, index)}
    return REPLAY.format(note=verdict.note, outcome=verdict.outcome.value, **values)


def _shown(v: Array) -> str:
    return f"np.zeros({v.shape})" if not v.size else repr(v)


def _name(kind: str, index: int) -> str:
    return re.sub(r"\W+", "_", f"{kind}_{index}")


def write_down(folder: Path, failure: Failure | None, verdict: Verdict, seed: int, index: int, kind: str) -> Path:
    """Write the test of a failure (None: of a family) into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_{_name(kind, index)}_{_name(verdict.outcome.value, seed)}.py"
    path.write_text(snippet(failure, verdict, seed, index, kind) if failure else replay(verdict, seed, index, kind))
    return path
