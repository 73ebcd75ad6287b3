"""FFOQPLayer on a device: solutions, multipliers and gradients are those of the core, however a program is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ffo.torch import FFOQPLayer, qp

D, INF, BATCH = torch.float64, torch.inf, 5
Blocks = dict[str, torch.Tensor | None]


class Draw:
    """Random numbers, and a program with an interior point."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self.n, self.generator = n, torch.Generator().manual_seed(seed)
        M = self.normal(BATCH, n, n)
        self.Q, self.G, self.z = M @ M.mT / n + 0.1 * self.eye, self.normal(BATCH, n + 2, n), self.normal(BATCH, n)
        self.h = (self.G @ self.z.unsqueeze(2)).squeeze(2) + self.uniform(BATCH, n + 2)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=D)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=D)

    @property
    def eye(self) -> torch.Tensor:
        return torch.eye(self.n, dtype=D)

    @property
    def zeros(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=D)


def equalities(d: Draw) -> Blocks:
    A = d.normal(3, d.n)
    return {"Q": d.Q, "p": 3 * d.normal(BATCH, d.n), "G": d.G, "h": d.h, "lower": d.h - 1.5, "A": A, "b": d.z @ A.mT}


def bounds(d: Draw) -> Blocks:
    return {"Q": d.Q, "p": 3 * d.normal(BATCH, d.n), "G": d.G, "h": d.h, "lb": d.z - 0.5, "ub": d.z + 0.5}


def shared(d: Draw) -> Blocks:
    return {"Q": d.Q[0], "p": 3 * d.normal(BATCH, d.n), "G": d.G[0], "h": d.h[0].abs() + 0.1}


def budget(d: Draw, *, rows: bool) -> Blocks:
    """The decision-focused problem of the paper, with bounds or with rows of G."""
    total, one = torch.tensor([0.2 * d.n], dtype=D), torch.ones(1, d.n, dtype=D)
    if rows:
        G, h = torch.cat([d.eye, -2 * d.eye, one]), torch.cat([d.zeros + 1, d.zeros, total])
        return {"Q": d.eye, "p": d.normal(BATCH, d.n), "G": G, "h": h}
    return {"Q": d.eye, "p": d.normal(BATCH, d.n), "G": one, "h": total, "lb": d.zeros, "ub": d.zeros + 1}


def singles(d: Draw) -> Blocks:
    """Rows with one entry, several on some variables, of both signs, with lower bounds and a bound on the variable."""
    G = torch.cat([d.eye, -2 * d.eye, 3 * d.eye[:4], d.normal(2, d.n)])
    h, low = d.uniform(BATCH, len(G)) + 0.1, -d.uniform(BATCH, len(G)) - 0.2
    low[:, d.n : 2 * d.n] = -INF
    return {"Q": d.Q, "p": 2 * d.normal(BATCH, d.n), "G": G, "h": h, "lower": low, "lb": d.zeros - 0.3}


def simplex(d: Draw) -> Blocks:
    A = d.normal(3, d.n)
    Q = torch.diag(d.uniform(d.n) + 0.1)
    return {"Q": Q, "p": d.normal(BATCH, d.n), "A": A, "b": d.z.abs() @ A.mT, "lb": d.zeros}


def linear(d: Draw) -> Blocks:
    h = (d.G[0] @ d.z.unsqueeze(2)).squeeze(2) + 1
    return {"Q": None, "p": d.normal(BATCH, d.n), "G": d.G[0], "h": h, "lb": d.z - 1, "ub": d.z + 1}


FORMS: dict[str, Callable[[Draw], Blocks]] = {
    "two-sided rows and equalities": equalities,
    "bounds": bounds,
    "shared matrices": shared,
    "budget, bounds": lambda d: budget(d, rows=False),
    "budget, rows": lambda d: budget(d, rows=True),
    "rows with one entry": singles,
    "equalities and a diagonal": simplex,
    "linear": linear,
}


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("duals", [False, True], ids=["solutions", "multipliers"])
@pytest.mark.parametrize("n", [9, 24])
@pytest.mark.parametrize("form", FORMS)
def test_solutions_and_gradients_are_those_of_the_core(
    form: str, n: int, duals: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU tensors are treated like device tensors, too."""
    blocks = FORMS[form](Draw(n))
    found = []
    for on_device in (True, False):
        monkeypatch.setattr(qp, "worthwhile", lambda given, answer=on_device: answer)
        layer = FFOQPLayer(duals=duals)
        place = device if on_device else "cpu"
        inputs = {name: None if v is None else v.to(place, copy=True).requires_grad_() for name, v in blocks.items()}
        out = layer(**inputs)  # type: ignore[arg-type]
        outputs = list(out) if duals else [out]
        generator = torch.Generator().manual_seed(1)
        loss = sum((v * torch.randn(v.shape, generator=generator, dtype=D).to(place)).sum() for v in outputs)
        loss.backward()  # type: ignore[union-attr]
        results = [*(v.detach() for v in outputs), *(v.grad for v in inputs.values() if v is not None)]
        assert all(v.device.type == place for v in results)
        found.append([v.cpu() for v in results])
        assert layer.info is not None
        assert all(name.startswith("batched") for name in layer.info.solver) == on_device
        assert not any("not recorded" in name for name in layer.info.solver)
    for mine, core in zip(*found, strict=True):
        torch.testing.assert_close(mine, core, rtol=1e-10, atol=1e-10)
