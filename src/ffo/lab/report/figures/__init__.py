"""The figures of the paper, redrawn from rows."""

from __future__ import annotations

from ffo.lab.report.figures.base import Plot
from ffo.lab.report.figures.bilevel import hypergradients, stationarity
from ffo.lab.report.figures.settings import batches, perturbations, solvers, tolerances
from ffo.lab.report.figures.sizes import memory_by_phase, memory_peak, scaling
from ffo.lab.report.figures.training import (
    adam_epsilon,
    convergence,
    costs,
    lpgd_tolerance,
    qpth_on_a_gpu,
    similarity,
    trade_off,
)
from ffo.lab.report.looks import looks
from ffo.lab.report.results import Results, distinct

__all__ = ["Plot", "plots"]


def plots(results: Results) -> list[Plot]:
    """Every figure, in the order of the paper; one that lacks its rows says so."""
    look = looks(distinct(results.rows, "method"))
    return [
        convergence(results, look),
        costs(results, look),
        trade_off(results, look),
        scaling(results, look, "scaling_qp", "Figure 5"),
        scaling(results, look, "scaling_socp", "Figure 10"),
        scaling(results, look, "scaling_dense", ""),
        scaling(results, look, "scaling_sudoku", ""),
        memory_peak(results, look),
        memory_by_phase(results, look),
        lpgd_tolerance(results, look),
        adam_epsilon(results, look),
        qpth_on_a_gpu(results, look),
        similarity(results, look),
        batches(results, look),
        tolerances(results, look),
        perturbations(results, look),
        solvers(results),
        stationarity(results),
        hypergradients(results),
    ]
