"""PyEPO: a fixed region as a PyEPO `optModel`, and an `optModel` as an oracle for this package's losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffo.errors import InputError
from ffo.torch.decision.region import Oracle

try:
    from pyepo import EPO
    from pyepo.model.opt import optModel
except ImportError as error:
    raise ImportError('ffo.torch.decision.pyepo needs PyEPO: pip install "ffo[pyepo]"') from error


class RegionModel(optModel):  # type: ignore[misc]
    """An oracle, such as a `FixedRegion`, as an `optModel` for the losses, datasets and metrics of PyEPO.

    PyEPO's costs are vectors: those of the oracle, flattened.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.modelSense = EPO.MAXIMIZE if oracle.maximize else EPO.MINIMIZE
        super().__init__()
        self._costs = torch.zeros(oracle.shape, dtype=torch.float64)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"oracle": self.oracle}

    def _getModel(self) -> tuple[Oracle, list[int]]:
        return self.oracle, list(range(int(np.prod(self.oracle.shape))))

    def setObj(self, c: Any) -> None:
        """Set the costs (size,)."""
        values = torch.as_tensor(np.asarray(c, dtype=np.float64)).flatten()
        if len(values) != self.num_cost:
            raise InputError(f"the model has {self.num_cost} costs, got {len(values)}")
        self._costs = values.reshape(self.oracle.shape)

    def solve(self) -> tuple[np.ndarray, float]:
        """The optimal decision (size,) and its value."""
        found = self.oracle.solve(self._costs.unsqueeze(0))[0]
        return found.flatten().numpy(), float((self._costs * found).sum())


class ModelOracle:
    """A PyEPO `optModel` as an oracle for the losses of `ffo.torch.decision`."""

    def __init__(self, model: optModel) -> None:
        self.model = model

    @property
    def shape(self) -> tuple[int, ...]:
        return (int(self.model.num_cost),)

    @property
    def maximize(self) -> bool:
        return bool(self.model.modelSense == EPO.MAXIMIZE)

    def solve(self, costs: Tensor) -> Tensor:
        """Optimal decisions (batch, n) for costs of that shape."""
        found = []
        for one in costs.detach().cpu().double().numpy():
            self.model.setObj(one)
            found.append(np.asarray(self.model.solve()[0], dtype=np.float64))
        return torch.from_numpy(np.stack(found)).to(costs)
