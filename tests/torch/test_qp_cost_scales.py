"""The certificate of a quadratic program does not depend on the unit of its costs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from qps import call, known_qp, tensors

from ffo.errors import GradientWarning
from ffo.torch import FFOQPLayer

SCALES = (1e-12, 1e-4, 1.0, 1e2, 1e4, 1e8, 1e12)


def nearly_dependent(seed: int, apart: float) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """A program with two active rows that are close to each other, weights of a loss, and its gradient in p."""
    rng = np.random.default_rng(seed)
    n, active = 6, 3
    M, z, G, w = rng.normal(size=(n, n)), rng.normal(size=n), rng.normal(size=(4, n)), rng.normal(size=n)
    G[1] = G[0] + apart * rng.normal(size=n)
    Q = M @ M.T + 0.3 * np.eye(n)
    blocks = {"Q": Q, "p": -(Q @ z + G.T @ [1.0, 0.7, 0.5, 0.0]), "G": G, "h": G @ z + [0.0, 0.0, 0.0, 1.0]}
    kkt = np.block([[Q, G[:active].T], [G[:active], np.zeros((active, active))]])
    wanted = np.concatenate([-w, np.zeros(active)])
    found = np.zeros(n + active, dtype=np.longdouble)
    for _ in range(6):  # refined in extended precision: the matrix is nearly singular
        found = found + np.linalg.solve(kkt, (wanted - kkt.astype(np.longdouble) @ found).astype(float))
    return blocks, w, found[:n].astype(float)


@pytest.mark.parametrize("options", [{}, {"solver": "CLARABEL"}], ids=["own", "core"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("apart", [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8])
def test_no_wrong_gradient_is_called_good(apart: float, scale: float, options: dict[str, object]) -> None:
    good = 0
    for seed in range(10):
        blocks, w, expected = nearly_dependent(seed, apart)
        p = torch.tensor(scale * blocks["p"], requires_grad=True)
        layer = FFOQPLayer(**options)
        z = layer(torch.tensor(scale * blocks["Q"]), p, torch.tensor(blocks["G"]), torch.tensor(blocks["h"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientWarning)
            (z * torch.tensor(w)).sum().backward()
        if layer.info.certificate.good.all():
            good += 1
            np.testing.assert_allclose(scale * p.grad, expected, atol=1e-5 * np.abs(expected).max(), err_msg=str(seed))
    assert good == 10 or apart < 1e-5 or not 1e-4 <= scale <= 1e8


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("output", range(4), ids=["z", "nu", "lam", "mu"])
def test_no_right_gradient_is_doubted(output: int, scale: float) -> None:
    for seed in range(10):
        known = known_qp(seed, 10, 8, 2, lower=True, bounds=True)
        layer, found = FFOQPLayer(duals=True), []
        for unit in (1.0, scale):
            blocks = tensors({name: unit * v if name in ("Q", "p") else v for name, v in known.blocks.items()})
            solution = call(layer, blocks)[output]
            (solution * torch.cos(torch.arange(len(solution)))).sum().backward()
            assert layer.info.certificate.good.all()
            found.append(blocks["h"].grad / (unit if output else 1.0))
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)
