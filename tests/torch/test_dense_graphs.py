"""Recordings on a GPU: nothing is lost when buffers are reused; and small programs in one kernel."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import torch

from ffo.errors import InputError
from ffo.torch import FFOQPLayer
from ffo.torch.dense import answer, graphs, pivoting
from ffo.torch.dense.graphs import Eager, Kept, copied, flatten, rebuild
from ffo.torch.dense.program import DenseProgram

D = torch.float64
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@dataclass(frozen=True)
class Pair:
    first: torch.Tensor
    second: tuple[torch.Tensor | None, str]


def test_what_is_taken_apart_is_put_together() -> None:
    value = (Pair(torch.ones(2), (None, "x")), Pair(torch.zeros(3), (torch.ones(1), "y")), 3)
    tensors, spec = flatten(value)
    assert len(tensors) == 3
    hash(spec)
    assert flatten(rebuild(spec, iter(tensors)))[1] == spec
    again = copied(value)
    assert again[1].second[1] == "y"
    assert again[0].first is not value[0].first
    torch.testing.assert_close(again[0].first, value[0].first)


def test_what_leaves_its_place_is_a_copy() -> None:
    place = torch.ones(2)
    kept = Kept((place, None), None)
    kept.own()
    place.zero_()
    with kept.reading() as ((value, nothing), run):
        assert value.tolist() == [1.0, 1.0]
        assert nothing is None
        assert type(run) is Eager


def random_blocks(batch: int, n: int, seed: int = 0, device: str = "cuda") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    M, G = (torch.randn(batch, n, n, dtype=D, generator=generator) for _ in range(2))
    p, z = (torch.randn(batch, n, dtype=D, generator=generator) for _ in range(2))
    h = (G @ z.unsqueeze(2)).squeeze(2) + 0.3
    blocks = {"Q": M @ M.mT / n + 0.1 * torch.eye(n, dtype=D), "p": p, "G": G, "h": h}
    return {name: v.to(device).requires_grad_() for name, v in blocks.items()}


def gradients(z: torch.Tensor, blocks: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(z.square().sum(), list(blocks.values()), retain_graph=True))


@gpu
@pytest.mark.parametrize("n", [10, 40])
def test_a_gradient_taken_after_another_solve_is_the_same(n: int) -> None:
    layer, one, two = FFOQPLayer(), random_blocks(16, n, 0), random_blocks(16, n, 1)
    first = layer(**one)
    at_once = gradients(first, one)
    second = layer(**two)
    later = gradients(first, one)
    twice = gradients(second, two), gradients(second, two)
    for a, b in zip([*at_once, *twice[0]], [*later, *twice[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@gpu
def test_a_copy_made_on_another_stream_is_waited_for() -> None:
    layer, one, two = FFOQPLayer(), random_blocks(16, 40, 0), random_blocks(16, 40, 1)
    first = layer(**one)
    at_once = gradients(first, one)
    first = layer(**one)
    busy = torch.cuda.Stream()
    busy.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(busy):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        recorder = next(r for r in answer._recorders.found.values() if r.kept is not None and r.kept() is not None)
        with recorder.held(), torch.inference_mode():
            recorder.vacate()
            for place in recorder.places.values():
                place.zero_()
    for a, b in zip(at_once, gradients(first, one), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(**two), FFOQPLayer()(**two), rtol=1e-12, atol=1e-12)


@gpu
def test_as_many_recorders_are_kept_as_there_is_room_for() -> None:
    layer = FFOQPLayer()
    for batch in range(2, 6 + graphs.KEPT):
        blocks = random_blocks(batch, 5)
        gradients(layer(**blocks), blocks)
    assert len(answer._recorders.found) <= graphs.KEPT
    assert len(answer._recognised) <= graphs.KEPT


@gpu
def test_streams_and_threads_have_their_own_answers() -> None:
    layer = FFOQPLayer()
    given = [random_blocks(32, 12, seed) for seed in range(6)]
    expected = [gradients(layer(**blocks), blocks) for blocks in given]
    found: dict[int, list[torch.Tensor]] = {}

    def work(k: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[k] = gradients(layer(**given[k]), given[k])
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(given))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, values in enumerate(expected):
        for a, b in zip(found[k], values, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # nothing was captured before the error
def test_a_capture_of_ones_own_is_refused_in_words() -> None:
    layer, blocks = FFOQPLayer(), random_blocks(4, 5)
    layer(**blocks)
    with pytest.raises(InputError, match="part of a CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        layer(**blocks)


@gpu
def test_a_structure_that_is_gone_is_noticed() -> None:
    layer, eye = FFOQPLayer(), torch.eye(6, dtype=D, device="cuda")
    p = torch.randn(8, 6, dtype=D, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    G, h = torch.cat([eye, -eye]), torch.ones(12, dtype=D, device="cuda")
    for Q, rows in ((eye, G), (eye + 0.1, G), (eye, G), (eye, G + 0.1), (eye + 0.1, G + 0.1), (0 * eye, G)):
        found = layer(Q, p, rows, h)
        torch.testing.assert_close(found.cpu(), FFOQPLayer()(Q.cpu(), p.cpu(), rows.cpu(), h.cpu()), rtol=0, atol=1e-9)


@gpu
def test_one_kernel_takes_the_steps_of_pivoting() -> None:
    from ffo.torch.dense.fused import pivots

    for n, rows, equalities in ((10, 10, 0), (7, 5, 2), (24, 20, 3), (100, 90, 5), (200, 180, 0)):
        generator = torch.Generator().manual_seed(n)
        M, R = (torch.randn(64, k, n, dtype=D, generator=generator) for k in (n, rows))
        upp = (R @ torch.randn(64, n, 1, dtype=D, generator=generator)).squeeze(2) + 0.1
        low = torch.where(torch.arange(rows) < equalities, upp, upp - 9.0)
        wide = torch.full((64, n), torch.inf, dtype=D)
        p = torch.randn(64, n, dtype=D, generator=generator)
        tensors = (M @ M.mT / n + 0.1 * torch.eye(n, dtype=D), p, R, low, upp, -wide, wide)
        program = DenseProgram(*(t.cuda() for t in tensors), equalities, bounded=False)
        made = pivoting.prepare(program)
        state = pivoting.start(made)
        for _ in range(pivoting.STEPS):
            state = pivoting.step(state, made)
        found = pivots(made)
        both = state.ended & found.ended
        assert both.sum() >= 60
        torch.testing.assert_close(found.lam[both], state.lam[both], rtol=1e-9, atol=1e-9)
