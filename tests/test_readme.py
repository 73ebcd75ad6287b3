"""Every Python block of the README and of docs/ runs, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
page = pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)


@page
def test_blocks_run(path: Path) -> None:
    text = path.read_text()
    namespace: dict[str, object] = {"__name__": path.stem}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        # padded with newlines, so that a traceback shows the line of the page
        exec(compile("\n" * line + block.group(1), str(path), "exec"), namespace)


def test_the_readme_shows_examples() -> None:
    assert BLOCK.search(PAGES[0].read_text())


@page
def test_links_lead_to_files_that_exist(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"
