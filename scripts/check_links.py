"""Checks the links of a built site: every internal link, anchor, image, style sheet and script must exist.

python scripts/check_links.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and what can be linked to on it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := found.get(name)))
        self.links += [value for name in ("href", "src") if (value := found.get(name))]


def broken_links(site: Path) -> list[str]:
    """`page: link` for each internal link that leads nowhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            anchors = next((p.anchors for q, p in pages.items() if q.resolve() == target), None)
            missing = parts.fragment and anchors is not None and unquote(parts.fragment) not in anchors
            if not target.exists() or missing:
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def main() -> None:
    site = Path(sys.argv[1])
    broken = broken_links(site)
    if broken or not (site / "index.html").exists():
        sys.exit("\n".join(["links that lead nowhere:", *broken]))


if __name__ == "__main__":
    main()
