"""The same programs through other packages: how often an answer is wrong without any warning.

Every sample is a batch of its own, differentiated in p; each package is called as its documentation shows, with its
own defaults. Bounds are rows of G for qpth and cvxpylayers, infinite bounds are left out, and cvxpylayers gets a square
root of Q (a parametric quadratic form is not DPP). Exceptions, NaN and printed warnings count as refusals; a package
without a certificate calls every derivative good. All are judged with the tolerances of single precision: 1e-4 of a
solution, 1e-3 of a derivative.
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np
import torch

from fuzz import routes
from fuzz.exact import QP
from fuzz.judge import Outcome, Verdict, judge
from fuzz.routes import Found, Route, SkipError
from fuzz.run import NAMES, draw_case
from fuzz.table import markdown

Array = np.ndarray
#: what is shown of each package
COLUMNS = ("cases", "refused or flagged", "wrong solution", "wrong gradient", "kink unnoticed", "wrong per thousand")


def ours(layer: str) -> Callable[[QP, Array], Found]:
    def solve(qp: QP, c: Array) -> Found:
        direction = {"p": np.zeros_like(qp.p)}
        return routes.run(Route(layer, alone=True, wanted=("p",)), [qp], [c], [direction], [None])[0]  # type: ignore[list-item]

    return solve


def differentiated(c: Array, p: torch.Tensor, z: torch.Tensor) -> Found:
    """Answer and gradient of another package."""
    value = z.detach().double().reshape(-1).numpy()
    if not np.isfinite(value).all():
        return Found("not finite", np.full_like(value, np.nan))
    (torch.tensor(c) * z.reshape(-1)).sum().backward()
    assert p.grad is not None
    return Found("solved", value, 0.0, True, (), {"p": p.grad.double().reshape(-1).numpy()})


def one_sided(qp: QP) -> tuple[Array, Array]:
    """All inequalities as rows of Gz <= h, without infinite bounds."""
    G: list[Array] = [np.zeros((0, qp.n))]
    h: list[Array] = [np.zeros(0)]
    eye = np.eye(qp.n)
    for name, rows, sign in (("h", qp.G, 1.0), ("lower", qp.G, -1.0), ("ub", eye, 1.0), ("lb", eye, -1.0)):
        side = getattr(qp, name)
        if side is not None and rows is not None:
            kept = ~np.isinf(side)
            G.append(sign * rows[kept])
            h.append(sign * side[kept])
    return np.concatenate(G), np.concatenate(h)


def qpth(qp: QP, c: Array) -> Found:
    from qpth.qp import QPFunction

    G, h = one_sided(qp)
    if qp.Q is None or not len(h):
        raise SkipError("qpth needs Q and G")
    p = torch.tensor(qp.p, requires_grad=True)
    empty = torch.zeros(0, dtype=torch.float64)
    A, b = (empty, empty) if qp.A is None or not len(qp.A) else (torch.tensor(qp.A), torch.tensor(qp.b))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        z = QPFunction()(torch.tensor(qp.Q), p, torch.tensor(G), torch.tensor(h), A, b)
    if "warning" in printed.getvalue():
        return Found("inaccurate", np.full(qp.n, np.nan))
    return differentiated(c, p, z)


def qplayer(qp: QP, c: Array) -> Found:
    from proxsuite.torch.qplayer import QPFunction

    n, eye, far = qp.n, np.eye(qp.n), np.inf
    Q = np.zeros((n, n)) if qp.Q is None else qp.Q
    A, b = (np.zeros((0, n)), np.zeros(0)) if qp.A is None else (qp.A, qp.b)
    G, u = (np.zeros((0, n)), np.zeros(0)) if qp.G is None else (qp.G, qp.h)
    low = np.full(len(u), -far) if qp.lower is None else qp.lower
    if qp.lb is not None or qp.ub is not None:
        G = np.vstack([G, eye])
        u = np.concatenate([u, np.full(n, far) if qp.ub is None else qp.ub])
        low = np.concatenate([low, np.full(n, -far) if qp.lb is None else qp.lb])
    if not len(u):
        raise SkipError("QPLayer needs inequalities")
    p = torch.tensor(qp.p, requires_grad=True)
    sides = [torch.tensor(np.clip(v, -1e20, 1e20)) for v in (low, u)]
    z, *_ = QPFunction()(torch.tensor(Q), p, torch.tensor(A), torch.tensor(b), torch.tensor(G), *sides)
    return differentiated(c, p, z)


@lru_cache(maxsize=256)
def _cvxpy_layer(n: int, rank: int, rows: int, equalities: int) -> Any:
    from cvxpylayers.torch import CvxpyLayer

    z, p, R = cp.Variable(n), cp.Parameter(n), cp.Parameter((rank, n)) if rank else None
    G, h = (cp.Parameter((rows, n)), cp.Parameter(rows)) if rows else (None, None)
    A, b = (cp.Parameter((equalities, n)), cp.Parameter(equalities)) if equalities else (None, None)
    cost = p @ z + (0.5 * cp.sum_squares(R @ z) if R is not None else 0.0)
    constraints = ([G @ z <= h] if rows else []) + ([A @ z == b] if equalities else [])
    parameters = [v for v in (p, R, G, h, A, b) if v is not None]
    return CvxpyLayer(cp.Problem(cp.Minimize(cost), constraints), parameters, [z])


def cvxpylayers(qp: QP, c: Array) -> Found:
    G, h = one_sided(qp)
    R = np.zeros((0, qp.n))
    if qp.Q is not None:
        if not np.isfinite(qp.Q).all():
            raise SkipError("a matrix with NaN has no square root")
        values, vectors = np.linalg.eigh((qp.Q + qp.Q.T) / 2)
        if values.min() < -1e-9 * max(values.max(), 1e-300):
            raise SkipError("an indefinite matrix has no square root")
        R = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    A, b = (np.zeros((0, qp.n)), np.zeros(0)) if qp.A is None else (qp.A, qp.b)
    p = torch.tensor(qp.p, requires_grad=True)
    blocks = [torch.tensor(v) for v in (R, G, h, A, b) if v.size]
    if not len(h) and not len(b):
        raise SkipError("no constraints")
    layer = _cvxpy_layer(qp.n, len(R), len(h), len(b))
    return differentiated(c, p, layer(p, *blocks)[0])


CONTENDERS: dict[str, Callable[[QP, Array], Found]] = {
    "FFOQPLayer": ours("qp"),
    "FFOLayer": ours("cvxpy"),
    "cvxpylayers": cvxpylayers,
    "qpth": qpth,
    "QPLayer (proxsuite)": qplayer,
}


def play(seed: int, index: int, kind: str) -> list[tuple[str, Verdict]]:
    """One batch, sample by sample, through every package that takes it."""
    case, _ = draw_case(seed, index, kind)
    found = []
    for truth in case.truths():
        direction = truth.direction(case.samples[0].blocks, 1, case.masked)
        for name, solve in CONTENDERS.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    said = solve(truth.qp, truth.c)
            except SkipError:
                continue
            except ImportError:
                continue
            except Exception as error:  # counts as a refusal
                said = Found(type(error).__name__, np.full(truth.qp.n, np.nan))
            found.append((name, judge(said, truth, ("p",), direction, single=True)))
    return found


def run(minutes: float, batches: int, seed: int, kinds: Sequence[str] = NAMES) -> str:
    """The table, in Markdown."""
    counts: Counter[tuple[str, str]] = Counter()
    end, index = time.monotonic() + 60 * minutes, 0
    torch.set_num_threads(1)
    while time.monotonic() < end and index < batches:
        for name, verdict in play(seed, index, kinds[index % len(kinds)]):
            if verdict.outcome is not Outcome.UNJUDGED:
                counts[name, _column(verdict)] += 1
        index += 1
    rows = []
    for name in CONTENDERS:
        mine = [counts[name, column] for column in COLUMNS[1:5]]
        total = sum(mine) + counts[name, "right"]
        if total:
            rows.append((name, total, *mine, f"{1000 * sum(mine[1:]) / total:.1f}"))
    return markdown(("package", *COLUMNS), rows)


def _column(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.WRONG_GRADIENT:
        return "wrong gradient" if "exact" in verdict.note or "finite" in verdict.note else "kink unnoticed"
    if verdict.outcome is Outcome.WRONG_SOLUTION:
        return "wrong solution"
    return "right" if verdict.outcome is Outcome.RIGHT else "refused or flagged"
