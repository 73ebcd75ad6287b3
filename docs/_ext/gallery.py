"""The gallery: links to it, its order, its thumbnails, and the state in which each example starts.

Pages link to `../examples/gallery/plot_name.py`, which is right in the repository; on the site, the link leads to the
page of that example, and a link to the folder leads to the gallery.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from PIL import Image
from sphinx.application import Sphinx

STYLE = Path(__file__).parents[1] / "_static" / "ffo.mplstyle"
EXAMPLE = re.compile(r"\]\((?:\.\./)+examples/gallery/(plot_\w+)\.py\)")
FOLDER = re.compile(r"\]\((?:\.\./)+examples/gallery/README\.rst\)")
PICTURE = re.compile(r'<img [^>]*class = "sphx-glr-single-img"/>')
#: width over height, and width in pixels, of thumbnails
SHAPE, WIDTH = 1.45, 480
#: decisions and markets first, then learning, then what needs more mathematics
ORDER = (
    "portfolio battery crane power_market location preferences sudoku denoising transport max_cut poisoning "
    "bilevel active_sets"
).split()


class Order:
    """Sort key of the examples; new ones come last, by name."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __call__(self, filename: str) -> tuple[int, str]:
        name = Path(filename).stem.removeprefix("plot_")
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)


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


def crop_thumbnails(app: Sphinx) -> None:
    """Thumbnails show the left part of wide pictures: all panels side by side would be too small."""
    images = Path(app.srcdir) / "gallery" / "images"
    for path in images.glob("sphx_glr_plot_*_001.png"):
        picture = Image.open(path)
        width = min(picture.width, round(SHAPE * picture.height))
        part = picture.crop((0, 0, width, picture.height)).convert("RGB")
        small = part.resize((WIDTH, round(WIDTH * part.height / part.width)), Image.Resampling.LANCZOS)
        small.save(images / "thumb" / path.name.replace("_001", "_thumb"))


def wrap_pictures(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Pictures in a frame of their own, in which they can be moved sideways on a phone."""
    if "body" in context:
        context["body"] = PICTURE.sub(lambda found: f'<div class="wide-picture">{found[0]}</div>', context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", rewrite)
    app.connect("builder-inited", crop_thumbnails, priority=900)  # after the gallery has been made
    app.connect("html-page-context", wrap_pictures)
    return {"parallel_read_safe": True}
