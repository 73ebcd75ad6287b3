"""Parts of a program that have nothing to do with each other."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ffo.program.cone import ConeProgram

Array = np.ndarray


class Components:
    """The connected components of variables and rows: links are the entries of P and A, and the blocks of cones.

    Attributes:
        variables: (n,) and rows: (m,) the number of the component that each belongs to.
    """

    def __init__(self, program: ConeProgram) -> None:
        n, m, P, A = program.n, program.m, program.P, program.A
        first = np.arange(m)
        for group in program.cones.groups:
            first[group.index] = group.index[:, :1]
        columns = [np.repeat(np.arange(n), np.diff(M.indptr)) for M in (P, A)]
        links = np.concatenate([P.indices, n + A.indices, n + first]), np.concatenate([*columns, n + np.arange(m)])
        graph = coo_array((np.ones(len(links[0])), links), shape=(n + m, n + m))
        self.count, part = connected_components(graph, directed=False)
        self.variables, self.rows = part[:n], part[n:]

    def largest(self, u: Array, w: Array) -> Array:
        """(samples, components) largest magnitudes of vectors of variables (samples, n) and rows (samples, m)."""
        found = np.zeros((self.count, len(u)))
        np.maximum.at(found, self.variables, np.abs(u).T)
        np.maximum.at(found, self.rows, np.abs(w).T)
        return found.T
