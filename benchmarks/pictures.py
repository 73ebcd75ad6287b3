"""Pictures of the bilevel benchmark, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.report import RESULTS

if TYPE_CHECKING:
    from benchmarks.bilevel import Run, Slope
    from benchmarks.hypergradient import Errors

Array = np.ndarray
#: contender -> colour (from Okabe and Ito's palette), marker, label
STYLES = {
    "theory": ("#0072B2", "o", "steps of the theory"),
    "minimize": ("#009E73", "s", "ffo.bilevel.minimize"),
    "SGD": ("#E69F00", "^", "SGD, best step size"),
    "Adam": ("#CC79A7", "v", "Adam, best step size"),
}


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "ffo", "svg.fonttype": "none", "axes.spines.top": False}
    matplotlib.rcParams |= {"axes.spines.right": False, "axes.titlesize": 10, "legend.fontsize": 8, "font.size": 9}
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, name: str) -> Path:
    RESULTS.mkdir(exist_ok=True)
    for kind in ("svg", "png"):
        figure.savefig(RESULTS / f"{name}.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    _pyplot().close(figure)
    return RESULTS / f"{name}.svg"


def calls(runs: Sequence[Run], slopes: Sequence[Slope], counts: Array, by_draws: Array) -> Path:
    """Oracle calls over epsilon, one panel per problem, and the error of the smoothed gradient over the draws."""
    plt = _pyplot()
    names = list(dict.fromkeys(r.problem for r in runs))
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6.4), layout="constrained")
    for axis, name in zip(axes.flat, names, strict=False):
        _calls_panel(axis, [r for r in runs if r.problem == name], [s for s in slopes if s.problem == name])
        axis.set_title(name)
    last = axes.flat[len(names)]
    last.loglog(counts, by_draws, "o-", color="#0072B2", label="measured")
    last.loglog(counts, by_draws[0] / np.sqrt(counts), "k--", linewidth=1, label="1/√draws")
    last.set(title="smoothed gradient at the kink", xlabel="draws", ylabel="error")
    last.legend(frameon=False)
    figure.suptitle("oracle calls until a (δ, ε)-Goldstein stationary point is certified (numbers: fitted slopes)")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return _save(figure, "bilevel_calls")


def _calls_panel(axis: Any, runs: Sequence[Run], slopes: Sequence[Slope]) -> None:
    epsilons = sorted({r.epsilon for r in runs})
    top = None
    for contender, (colour, marker, label) in STYLES.items():
        own = [[r.calls for r in runs if r.contender == contender and r.epsilon == e] for e in epsilons]
        low, middle, high = np.array([np.nanquantile(c, (0.0, 0.5, 1.0)) for c in own]).T
        axis.fill_between(epsilons, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.loglog(epsilons, middle, color=colour, marker=marker, markersize=4, label=label)
        slope = next(s for s in slopes if s.contender == contender)
        axis.annotate(
            f"{slope.slope:.1f}", (epsilons[0], middle[0]), xytext=(-6, 0), textcoords="offset points",
            ha="right", va="center", color=colour,
        )  # fmt: skip
        top = middle if top is None else top
    assert top is not None
    guide = 3 * top[-1] * (np.array(epsilons) / epsilons[-1]) ** -3.0
    axis.loglog(epsilons, guide, "k--", linewidth=1, label="slope of the bound, 3")
    axis.set(xlabel="ε", ylabel="oracle calls", xlim=(epsilons[0] * 0.72, epsilons[-1] * 1.1))
    axis.set_xticks(epsilons, [f"{e:.2g}" for e in epsilons])
    axis.minorticks_off()


def errors(found: Errors) -> Path:
    """Error of the hypergradient over delta, and over the number of gradient evaluations."""
    from benchmarks.hypergradient import DELTAS

    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.8), layout="constrained")
    looks = (("#0072B2", "-"), ("#56B4E9", "--"), ("#009E73", "-."))
    for (tolerance, rows), (colour, style) in zip(found.by_delta.items(), looks, strict=True):
        words = f"Algorithm 1, solves to {tolerance:.0e}"
        left.loglog(DELTAS, np.median(rows, axis=0), style, color=colour, label=words)
        left.fill_between(DELTAS, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    truncation = np.median(found.by_delta[min(found.by_delta)], axis=0)[-1]
    left.loglog(DELTAS, 3 * truncation * DELTAS / DELTAS[-1], "k--", linewidth=1, label="slope 1")
    marks = (("#D55E00", "o"), ("#E69F00", "^"))
    for (target, row), (colour, marker) in zip(found.on_layers.items(), marks, strict=True):
        words = f"FFOLayer, the {target} problem re-solved"
        left.loglog(DELTAS[::2], row, marker, color=colour, markersize=4, label=words)
    left.set(xlabel="δ", ylabel="relative error of the hypergradient", title="against the perturbation: O(δ)")
    for k, (c, e) in enumerate(zip(found.calls, found.by_calls, strict=True)):
        words = "Algorithm 1, δ² = inner error, five problems" if k == 0 else None
        right.semilogy(c, e, "o-", color="#0072B2", markersize=3, linewidth=1, alpha=0.7, label=words)
    right.set(
        xlabel="gradient evaluations, both solves", ylabel="relative error", title="against oracle calls: O(log 1/ε)"
    )
    right.legend(frameon=False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return _save(figure, "hypergradient_error")
