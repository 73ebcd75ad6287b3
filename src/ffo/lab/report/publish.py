"""The report as a page of a documentation site: Markdown, a few pictures, and the rows it is made from."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

from ffo.lab.report import raw
from ffo.lab.report.drawing import Panel
from ffo.lab.report.looks import PAGE, PALETTE
from ffo.lab.report.page import MARKDOWN, content, environment
from ffo.lab.report.results import Results
from ffo.lab.rows import MACHINE

INDEX = "index.md"
#: figures whose panels name their methods, and hence need no legend
LABELLED = ("costs",)


def publish(folder: Path, target: Path) -> Path:
    """Write the report of a results folder as a page with pictures into `target`, with its rows and machine, from which
    the same command writes it again.

    Returns:
        The path of the page.
    """
    results = Results.read(folder)
    values = content(results)
    shown = [*values["opening"].panels, *(p for plot in values["plots"] if plot.name in LABELLED for p in plot.panels)]
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.svg"):
        old.unlink()
    for panel in shown:
        (target / picture(panel)).write_text(standalone(panel), encoding="utf-8")
    (target / raw.CSV).write_text(raw.csv_text(results.rows), encoding="utf-8")
    (target / MACHINE).write_text(json.dumps(asdict(results.machine), indent=1) + "\n", encoding="utf-8")
    values |= {"pictures": {panel.name: picture(panel) for panel in shown}, "parquet": False}
    page = environment(html=False).get_template(MARKDOWN).render(values)
    (target / INDEX).write_text(page, encoding="utf-8")
    return target / INDEX


def picture(panel: Panel) -> str:
    """Its file."""
    return f"{panel.name}.svg"


def standalone(panel: Panel) -> str:
    """The panel as an image file: on a light background, since an image does not know the colours of its page."""
    box = re.findall(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', panel.svg)[0]
    size = f'xmlns="http://www.w3.org/2000/svg" width="{box[0]}pt" height="{box[1]}pt"'
    rules = "text { font-family: system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }"
    opened = panel.svg.replace("<svg ", f"<svg {size} ", 1)
    head, rest = opened.split(">", 1)
    text = f'{head}>\n<style>{rules}</style>\n<rect width="100%" height="100%" fill="{PAGE[0]}"/>{rest}'
    for name, (light, _) in PALETTE.items():
        text = text.replace(f"var(--{name})", light)
    return text.replace("var(--page)", PAGE[0])
