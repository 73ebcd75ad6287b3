"""Docstrings are plain text with code between backticks: characters with a meaning in reStructuredText are escaped.

Without this, the shape `(*batch, n)` would begin an emphasis that never ends.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

#: code between backticks, or a character to escape
TOKEN = re.compile(r"(``.*?``|`[^`]*`)|([*|])|(?<=\w)(_)(?!\w)")


def _escaped(line: str) -> str:
    return TOKEN.sub(lambda found: found[1] or f"\\{found[2] or found[3]}", line)


def escape(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # an escaped line break; napoleon would read the first line as "type: description"
    code = None  # indentation of an example, whose lines are not touched
    for k, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith((">>>", "...")):
            code = indent
        elif not line.strip() or (code is not None and indent < code):
            code = None
        if code is None:
            lines[k] = _escaped(line)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", escape, priority=100)  # before napoleon
    return {"parallel_read_safe": True}
