"""Every Python block of the README runs, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_readme_blocks_run() -> None:
    text = README.read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks, "the README shows no example"
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        # padded with newlines, so that a traceback shows the line of the README
        exec(compile("\n" * line + block.group(1), str(README), "exec"), namespace)


def test_readme_names_files_that_exist() -> None:
    root = README.parent
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README.read_text()):
        assert (root / target).exists(), f"README links to {target}"
