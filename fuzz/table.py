"""Tables of the fuzzer in a Markdown page, between markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table, the first column left-aligned, the others to the right."""
    lines = [list(header), ["---", *["--:"] * (len(header) - 1)], *([str(v) for v in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_block(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name: begin ... -->` and `<!-- name: end -->`."""
    old = page.read_text(encoding="utf-8")
    marks = re.compile(rf"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    if not marks.search(old):
        raise ValueError(f"{page} has no block '<!-- {name}: begin -->'")
    page.write_text(marks.sub(lambda found: f"{found[1]}{text}\n{found[2]}", old), encoding="utf-8")
