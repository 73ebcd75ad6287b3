"""Active sets remembered on a device: right ones save a solve, wrong ones do no harm."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from qps import same

from ffo.errors import InfeasibleError
from ffo.torch import FFOQPLayer, qp
from ffo.torch.dense import interior, pivoting
from ffo.torch.dense.warm import Remembered

D = torch.float64
BATCH = 6
Blocks = dict[str, torch.Tensor]
SIZES = {"in place": (8, 6), "gathered": (24, 20)}
size = pytest.mark.parametrize(("n", "rows"), SIZES.values(), ids=SIZES)


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are treated like device tensors."""
    monkeypatch.setattr(qp, "worthwhile", lambda given: True)


def program(n: int, rows: int, seed: int = 0) -> Blocks:
    """Equalities, two-sided rows and bounds, some of each active; all batched but A."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, dtype=D, generator=generator)  # noqa: E731
    M, G, A, z = normal(BATCH, n, n), normal(BATCH, rows, n), normal(2, n), 0.1 * normal(BATCH, n)
    value = (G @ z.unsqueeze(2)).squeeze(2)
    return {
        "Q": M @ M.mT / n + 0.1 * torch.eye(n, dtype=D),
        "p": 2 * normal(BATCH, n),
        "G": G,
        "h": value + 0.5,
        "lower": value - 0.5,
        "A": A,
        "b": z @ A.mT,
        "lb": z - 0.6,
        "ub": z + 0.6,
    }


def step(layer: FFOQPLayer, blocks: Blocks, **call: object) -> list[torch.Tensor]:
    """Solution, multipliers, and gradients of a fixed loss in all blocks."""
    leaves = {name: v.detach().clone().requires_grad_() for name, v in blocks.items()}
    outputs = layer(**leaves, **call)
    loss = sum((torch.linspace(-1, 1, v.numel(), dtype=D, device=v.device).reshape(v.shape) * v).sum() for v in outputs)
    return [v.detach() for v in outputs] + list(torch.autograd.grad(loss, list(leaves.values())))


def cold(blocks: Blocks) -> list[torch.Tensor]:
    return step(FFOQPLayer(duals=True, solver_args={"eps": 1e-10}), blocks)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Samples passed to a solver, call by call (pivoting followed by the interior-point method counts once)."""
    counts: list[int] = []

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def count(given: object, *rest: object) -> object:
            batch = getattr(given, "program", given).batch  # type: ignore[attr-defined]
            if counts[-1:] != [batch]:
                counts.append(batch)
            return original(given, *rest)

        return count

    for method in (pivoting, interior):
        monkeypatch.setattr(method, "start", counted(method.start))
    return counts


@size
def test_right_sets_save_the_solver(n: int, rows: int, asked: list[int]) -> None:
    layer, blocks = FFOQPLayer(duals=True), program(n, rows)
    step(layer, blocks, keys=range(BATCH))
    assert layer.info.warm_hits == 0
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = {name: v if v.ndim == (1 if name not in "QGA" else 2) else v[order] for name, v in blocks.items()}
    moved["p"] = moved["p"] * (1 + 1e-7)
    found = step(layer, moved, keys=order)
    assert asked == [BATCH]
    assert layer.info.warm_hits == BATCH
    assert layer.info.solver == ("",) * BATCH
    assert (layer.info.iterations == 0).all()
    assert layer.info.certificate.good.all()
    same(found, cold(moved))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@size
def test_sets_of_samples_on_a_device(n: int, rows: int, asked: list[int]) -> None:
    layer, blocks = FFOQPLayer(duals=True), program(n, rows)
    there = {name: v.cuda() for name, v in blocks.items()}
    found = [step(layer, there, keys=range(BATCH)) for _ in range(2)]
    assert asked == [BATCH]
    assert layer.info.warm_hits == BATCH
    for outcome in found:
        assert all(v.is_cuda for v in outcome)
        same([v.cpu() for v in outcome], cold(blocks))


@size
def test_wrong_sets_are_given_up(n: int, rows: int, asked: list[int]) -> None:
    layer, blocks = FFOQPLayer(duals=True), program(n, rows)
    step(layer, blocks, keys=range(BATCH))
    changed = {**blocks, "p": blocks["p"].clone()}
    changed["p"][[1, 4]] *= -3.0
    found = step(layer, changed, keys=range(BATCH))
    assert asked == [BATCH, 2]
    assert layer.info.warm_hits == BATCH - 2
    assert [bool(name) for name in layer.info.solver] == [False, True, False, False, True, False]
    assert (layer.info.iterations[[1, 4]] > 0).all()
    assert layer.info.certificate.good.all()
    same(found, cold(changed))


def test_samples_without_a_set_are_solved_beside_the_others(asked: list[int]) -> None:
    layer, blocks = FFOQPLayer(duals=True), program(8, 6)
    step(layer, blocks, keys=range(BATCH))
    found = step(layer, blocks, keys=[0, 1, 2, 3, "new", "newer"])
    assert layer.info.warm_hits == 4
    found_few = step(layer, blocks, keys=[0, *"abcde"])  # not worth a try
    assert layer.info.warm_hits == 0
    assert asked == [BATCH, 2, BATCH]
    same(found, cold(blocks))
    same(found_few, cold(blocks))


def test_sets_that_keep_failing_are_not_tried_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    original = Remembered.guess
    monkeypatch.setattr(Remembered, "guess", lambda r, p: tried.append(original(r, p)) or tried[-1])
    layer = FFOQPLayer(duals=True)
    for seed in range(8):  # other data under the same keys
        blocks = program(8, 6, seed)
        same(step(layer, blocks, keys=range(BATCH)), cold(blocks))
    assert 0 < sum(guess is not None for guess in tried) < 7


def test_a_bound_that_is_gone() -> None:
    layer, blocks = FFOQPLayer(duals=True), program(8, 6)
    step(layer, blocks, keys=range(BATCH))
    open_ended = {**blocks, "ub": torch.full_like(blocks["ub"], torch.inf)}
    found = layer(**open_ended, keys=range(BATCH))
    for f, e in zip(found, cold({name: v for name, v in blocks.items() if name != "ub"}), strict=False):
        torch.testing.assert_close(f, e, rtol=1e-6, atol=1e-8)


def test_another_structure_of_the_same_size() -> None:
    layer, blocks = FFOQPLayer(duals=True), program(8, 6)
    for _ in range(2):
        step(layer, blocks, keys=range(BATCH))
    other = {**blocks, "A": blocks["A"][:1], "b": blocks["b"][:, :1]}
    other["G"] = torch.cat([blocks["G"], blocks["A"][1:].expand(BATCH, 1, -1)], dim=1)
    other["h"] = torch.cat([blocks["h"], blocks["b"][:, 1:] + 0.1], dim=1)
    other["lower"] = torch.cat([blocks["lower"], blocks["b"][:, 1:] - 0.1], dim=1)
    same(step(layer, other, keys=range(BATCH)), cold(other))


def test_infeasible_data_under_a_known_key() -> None:
    layer, blocks = FFOQPLayer(duals=True), program(8, 6)
    step(layer, blocks, keys=range(BATCH))
    lower = blocks["lower"].clone()
    lower[2, 0] = blocks["h"][2, 0] + 1.0
    with pytest.raises(InfeasibleError, match="sample 2"):
        layer(**{**blocks, "lower": lower}, keys=range(BATCH))
    same(step(layer, blocks, keys=range(BATCH)), cold(blocks))
    assert layer.info.warm_hits == BATCH


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"]
)
def test_copies_start_without_sets(twin: object) -> None:
    layer, blocks = FFOQPLayer(duals=True), program(8, 6)
    expected = step(layer, blocks, keys=range(BATCH))
    other = twin(layer)
    same(step(other, blocks, keys=range(BATCH)), expected)
    assert other.info.warm_hits == 0
    step(layer, blocks, keys=range(BATCH))
    assert layer.info.warm_hits == BATCH
