"""Functions run by spawned test processes; they must be importable by name."""

from __future__ import annotations

import gc

import numpy as np
import torch
import zoo
from layers import make_layer
from torch.nn.parallel import DistributedDataParallel

SAMPLES, STEPS = 8, 3


class Model(torch.nn.Module):
    """A linear prediction of b, followed by constrained least squares."""

    def __init__(self) -> None:
        super().__init__()
        case = zoo.build("constrained_least_squares")
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 6, dtype=torch.float64)
        self.matrix = torch.nn.Parameter(torch.tensor(case.values[0]))  # unbatched: gradients are sums
        self.layer = make_layer(case)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.layer(self.matrix, self.net(z))[0]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    return torch.tensor(rng.normal(size=(SAMPLES, 3))), torch.tensor(rng.uniform(size=(SAMPLES, 4)))


def train(model: torch.nn.Module, z: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(z) - target).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def train_distributed(rank: int, world: int, rendezvous: str, results: str) -> None:
    """One process of `world`, with its share of the data."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    z, target = data()
    trained = train(DistributedDataParallel(Model()), z[rank::world], target[rank::world])
    if rank == 0:
        torch.save(trained, results)
    # Gloo may hang in its destructors when one process is gone before the other has finished, or when
    # a model outlives its process group.
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def solve_in_a_worker(layer: torch.nn.Module, values: list[np.ndarray]) -> list[np.ndarray]:
    torch.set_num_threads(1)
    params = [torch.tensor(v, requires_grad=True) for v in values]
    (x,) = layer(*params)
    x.sum().backward()
    return [x.detach().numpy(), *(p.grad.numpy() for p in params)]
