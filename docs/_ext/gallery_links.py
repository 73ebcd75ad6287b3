"""Links between pages, the gallery and the repository; and the state of each example.

Pages link to `../examples/gallery/plot_name.py`, which is right in the repository; on the site, the link leads to the
page of that example, and a link to the folder leads to the gallery.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

STYLE = Path(__file__).parents[1] / "_static" / "ffo.mplstyle"
EXAMPLE = re.compile(r"\]\((?:\.\./)+examples/gallery/(plot_\w+)\.py\)")
FOLDER = re.compile(r"\]\((?:\.\./)+examples/gallery/README\.rst\)")


def rewrite(_app: Sphinx, _docname: str, source: list[str]) -> None:
    found = EXAMPLE.sub(r"](/gallery/\1.rst)", source[0])
    source[0] = FOLDER.sub("](/gallery/index.rst)", found)


def reset(_conf: dict[str, Any], _name: str) -> None:
    """Every example starts with the same random numbers, the same dtype and the same style."""
    import matplotlib.pyplot as plt
    import torch

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    plt.style.use(["default", str(STYLE)])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True}
