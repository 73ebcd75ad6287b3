"""PyEPO and this package find the same losses, gradients and regrets for the same decisions, in both directions."""

from __future__ import annotations

import subprocess
import sys

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.torch.decision import FixedRegion, SPOPlus, normalized_regret

pyepo = pytest.importorskip("pyepo", reason="PyEPO is not installed")
N, BATCH = 5, 8


def region(maximize: bool, integer: bool = True) -> FixedRegion:
    x = cp.Variable(N, boolean=integer)
    weights = np.arange(1.0, N + 1)
    return FixedRegion(x, [weights @ x <= 7, cp.sum(x) >= 2, x >= 0, x <= 1], maximize=maximize)


def costs(seed: int) -> torch.Tensor:
    return torch.rand(BATCH, N, generator=torch.Generator().manual_seed(seed)) + 0.1


@pytest.mark.parametrize("maximize", [False, True], ids=["minimize", "maximize"])
@pytest.mark.parametrize("integer", [False, True], ids=["continuous", "integer"])
def test_a_region_as_a_model_of_pyepo(maximize: bool, integer: bool) -> None:
    from ffo.torch.decision.pyepo import RegionModel

    layer, c, guess = region(maximize, integer), costs(0), costs(1).requires_grad_()
    model = RegionModel(layer)
    assert model.num_cost == N
    x = layer.solve(c)
    values = (c * x).sum(1, keepdim=True)
    theirs = pyepo.func.SPOPlus(model, processes=1)(guess, c, x, values)
    ours = SPOPlus(layer)(guess, c, x)
    torch.testing.assert_close(ours, theirs)
    (g,), (h,) = (torch.autograd.grad(loss, [guess]) for loss in (ours, theirs))
    torch.testing.assert_close(g, h)


def test_the_regret_of_a_predictor_by_pyepo() -> None:
    from ffo.torch.decision.pyepo import RegionModel

    layer, c = region(maximize=True), costs(0)
    features = torch.randn(BATCH, 3)
    predictor = torch.nn.Linear(3, N)
    dataset = pyepo.data.dataset.optDataset(RegionModel(layer), features.numpy(), c.numpy())
    theirs = pyepo.metric.regret(predictor, RegionModel(layer), torch.utils.data.DataLoader(dataset, batch_size=4))
    ours = normalized_regret(layer, predictor(features), c)
    assert float(ours) == pytest.approx(theirs, abs=1e-5)


def test_a_model_of_pyepo_as_an_oracle() -> None:
    from ffo.torch.decision.pyepo import ModelOracle, RegionModel

    layer, c, guess = region(maximize=True), costs(0).double(), costs(1).double()
    oracle = ModelOracle(RegionModel(layer))
    assert (oracle.shape, oracle.maximize) == ((N,), True)
    torch.testing.assert_close(SPOPlus(oracle)(guess, c), SPOPlus(layer)(guess, c))


def test_models_are_copied_and_rebuilt() -> None:
    from ffo.torch.decision.pyepo import RegionModel

    model = RegionModel(region(maximize=False))
    for other in (model, model.copy(), model.rebuild()):
        other.setObj(np.arange(N))
        x, value = other.solve()
        assert value == pytest.approx(float(np.arange(N) @ x))
        assert x.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_without_pyepo_the_message_names_the_extra() -> None:
    code = "import sys\nsys.modules['pyepo'] = None\nimport ffo.torch.decision.pyepo"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'needs PyEPO: pip install "ffo[pyepo]"' in found.stderr
