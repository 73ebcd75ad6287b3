"""Printing of tables: with rich if it is installed, else as plain text.

A machine used for its many cores may have little more than torch installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

#: columns of a screen that is a file or a pipe
WIDTH = 160


class Screen(Protocol):
    """Lines, tables, and a note of what is running."""

    def line(self, text: str, style: str = "") -> None: ...

    def table(self, title: str, columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> None:
        """`columns`: by name, whether they are aligned to the right; cells may hold rich's markup."""

    def status(self, name: str) -> Any:
        """A context whose value is called with a description of what is running."""


def open_screen() -> Screen:
    try:
        from rich.console import Console
    except ImportError:
        return PlainScreen()
    return RichScreen(Console(width=None if sys.stdout.isatty() else WIDTH))


class RichScreen:
    def __init__(self, console: Any) -> None:
        self._console = console

    def line(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style or None, soft_wrap=True)

    def table(self, title: str, columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> None:
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for name, right in columns.items():
            table.add_column(name, justify="right" if right else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    @contextmanager
    def status(self, name: str) -> Iterator[Callable[[str], None]]:
        with self._console.status(name) as status:
            yield status.update


class PlainScreen:
    def line(self, text: str, style: str = "") -> None:
        print(text)

    def table(self, title: str, columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> None:
        plain = [list(columns), *([re.sub(r"\[/?[a-z ]*\]", "", cell) for cell in row] for row in rows)]
        widths = [max(map(len, cells)) for cells in zip(*plain, strict=True)]
        print(f"\n{title}")
        for row in plain:
            aligned = zip(row, widths, columns.values(), strict=True)
            print("  ".join(cell.rjust(w) if right else cell.ljust(w) for cell, w, right in aligned).rstrip())

    @contextmanager
    def status(self, name: str) -> Iterator[Callable[[str], None]]:
        yield lambda _: None
