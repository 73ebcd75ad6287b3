"""Build hook of hatchling: the README with absolute links, as an index shows it.

The README's links are relative, so that they work in a clone, on a branch and offline. An index shows the README alone,
so there they lead to the repository: to the tag of a release, or to the main branch for a development version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: `](target)` of Markdown links and images; targets that are absolute, or in the page itself, are left alone
RELATIVE = re.compile(r"(?P<image>!\[[^\]]*)?\]\((?!https?:|#|mailto:)(?P<target>[^)\s]+)\)")


def absolute_links(text: str, repository: str, ref: str) -> str:
    """Markdown text whose relative links lead to `ref` of the repository: pages to view, images to load."""

    def replaced(match: re.Match[str]) -> str:
        kind = "raw" if match["image"] else "blob"
        return f"{match['image'] or ''}]({repository}/{kind}/{ref}/{match['target']})"

    return RELATIVE.sub(replaced, text)


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dynamic field `readme`."""
        ref = "main" if "dev" in metadata["version"] else f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Repository"], ref)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
