"""The derivative of a linear program: zero at a vertex, useful with smoothing.

A shop splits an hour between three products, z >= 0 and sum z <= 1, by their predicted costs p. As the cost
of the first product falls, the whole hour jumps to it. Prints the derivative with and without smoothing and
saves a picture to examples/output/lp_smoothing.svg (or to the path given as the first argument).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ffo.torch import FFOQPLayer, Smoothing

D = torch.float64
OUTPUT = Path(__file__).parent / "output" / "lp_smoothing.svg"
OTHERS = (-1.0, -0.6)
SCALE, DRAWS, TAU = 0.3, 2000, 0.5


def first_share(
    layer: FFOQPLayer, costs: torch.Tensor, Q: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Time given to the first product at each of its costs, and the derivative in that cost."""
    costs = costs.clone().requires_grad_()
    others = torch.tensor(OTHERS, dtype=D).expand(len(costs), 2)
    p = torch.cat([costs[:, None], others], dim=1)
    z = layer(Q, p, torch.ones(1, 3, dtype=D), torch.ones(1, dtype=D), lb=torch.zeros(3, dtype=D))
    (slope,) = torch.autograd.grad(z[:, 0].sum(), costs)
    return z[:, 0].detach(), slope


def curves(points: int = 61) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    costs = torch.linspace(-2.013, 0.0, points, dtype=D)
    smooth = FFOQPLayer(smoothing=Smoothing(costs=SCALE, draws=DRAWS))
    return costs, {
        "linear program": first_share(FFOQPLayer(), costs),
        f"smoothing costs={SCALE}": first_share(smooth, costs),
        f"quadratic term {TAU} |z|²/2": first_share(FFOQPLayer(), costs, TAU * torch.eye(3, dtype=D)),
    }


def draw(path: Path, costs: torch.Tensor, found: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    # the same file on every run, and a small one
    matplotlib.rcParams |= {"svg.hashsalt": "ffo", "svg.fonttype": "none"}
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for (name, (share, slope)), style in zip(found.items(), ("k-", "C0-", "C1--"), strict=True):
        left.plot(costs, share, style, label=name, linewidth=1.5)
        right.plot(costs, slope, style, linewidth=1.5)
    left.set(xlabel="cost of the first product", ylabel="its share of the hour")
    right.set(xlabel="cost of the first product", ylabel="derivative")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    costs, found = curves()
    for name, (_, slope) in found.items():
        print(f"{name:32s} largest derivative {slope.abs().max():.3f}")
    draw(path, costs, found)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
