"""Least-squares solutions of singular symmetric systems, from factors with hardly any regularisation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ffo.ghost.factors import SharpFactors

N = 6


def repeated(copies: int) -> tuple[np.ndarray, np.ndarray]:
    """K of min |x|^2 / 2 with one row given several times, and where its diagonal is positive."""
    rng = np.random.default_rng(copies)
    A = np.repeat(rng.standard_normal((1, N)), copies, axis=0)
    return np.block([[np.eye(N), A.T], [A, np.zeros((copies, copies))]]), np.arange(N + copies) < N


@pytest.mark.parametrize("copies", [2, 3, 6])
@pytest.mark.parametrize("share", [1e-3, 1.0, 1e3])
def test_what_cannot_be_met_is_told_from_what_can(copies: int, share: float) -> None:
    """Whatever the share of the right-hand side that lies in the null space."""
    K, positive = repeated(copies)
    rng = np.random.default_rng(0)
    null = np.zeros(len(K))
    null[N:] = rng.standard_normal(copies)
    null[N:] -= null[N:].mean()
    met = K @ rng.standard_normal(len(K))
    size = np.linalg.norm(met)
    null *= share * size / np.linalg.norm(null)
    z, left, _ = SharpFactors(sp.csr_array(K), positive, np.ones(len(K))).solve(met + null)
    rounding = 1e-4 * max(share, 1.0) * size  # a residual in the null space makes steps of its size over 1e-11
    assert np.linalg.norm(left - null) < rounding
    assert np.linalg.norm(K @ z - met) < rounding
