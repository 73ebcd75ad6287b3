"""Runs the code of docs/quickstart.md and draws its picture: `python docs/figures/quickstart.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_page() -> dict[str, Any]:
    """What the page's code leaves behind."""
    namespace: dict[str, Any] = {}
    for block in BLOCK.findall((DOCS / "quickstart.md").read_text()):
        exec(block, namespace)
    return namespace


def main() -> None:
    plt.switch_backend("Agg")
    plt.style.use(DOCS / "_static" / "ffo.mplstyle")
    found = run_page()
    x, seen = found["x"][:, 0], found["seen"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, title, shares in zip(
        axes, ("Before training", "After 300 steps"), (found["before"], found["after"]), strict=True
    ):
        for k, name in enumerate(("ice cream", "biscuits", "soup")):
            axis.plot(x, shares[:, k].detach(), color=f"C{k}", label=name)
            axis.plot(x[::3], seen[::3, k], "o", color=f"C{k}", markersize=3.5, alpha=0.6)
        axis.set(title=title, xlabel="temperature x", ylim=(-0.05, 1.0))
    axes[0].set_ylabel("share of the shelf")
    axes[1].legend(loc="upper center")
    figure.savefig(DOCS / "img" / "quickstart.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
