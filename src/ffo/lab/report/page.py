"""The report: one self-contained HTML page, the same in Markdown, and the rows in other formats."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ffo.lab.report import raw, words
from ffo.lab.report.bilevel import bilevel_claims
from ffo.lab.report.claims import claims
from ffo.lab.report.drawing import swatch
from ffo.lab.report.figures import plots
from ffo.lab.report.figures.opening import opening
from ffo.lab.report.looks import PAGE, PALETTE, looks
from ffo.lab.report.raw import CSV
from ffo.lab.report.results import Results, distinct
from ffo.lab.report.tables import (
    features_table,
    figures_table,
    machine_table,
    ratio_tables,
    trouble_table,
    version_table,
)
from ffo.lab.report.verdicts import verdicts
from ffo.lab.rows import EXPERIMENTS, ROWS

#: places of the claims that the opening sentence is about
RIGHT, BY_FAR = 2, 5
HTML, MARKDOWN, PARQUET = "report.html", "report.md", "rows.parquet"


def write_report(folder: Path | str) -> Path:
    """Write `report.html`, `report.md`, `rows.csv` and `rows.parquet` into a results folder.

    Any set of rows gives a report, which names what is missing.

    Args:
        folder: with the `rows.jsonl` and `machine.json` that `ffo lab` wrote.

    Returns:
        The path of `report.html`.
    """
    results = Results.read(Path(folder))
    text = raw.csv_text(results.rows)
    (results.folder / CSV).write_text(text, encoding="utf-8")
    parquet = raw.write_parquet(results.folder / PARQUET, results.rows)
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0))
    values = content(results) | {"parquet": parquet, "packed": packed, "pictures": {}}
    for name in (MARKDOWN, HTML):
        page = environment(html=name == HTML).get_template(name).render(values)
        (results.folder / name).write_text(page, encoding="utf-8")
    return results.folder / HTML


def content(results: Results) -> dict[str, Any]:
    """The values for both templates."""
    found = verdicts(results)
    look = looks(distinct(results.rows, "method"))
    return {
        "results": results,
        "machine": results.machine,
        "opening": opening(results, look, found[BY_FAR], found[RIGHT]),
        "verdicts": [*found, *claims(results), *bilevel_claims(results)],
        "figures": figures_table([each for each in found if each is not found[BY_FAR]]),
        "features": features_table(results),
        "ratios": ratio_tables(results),
        "plots": plots(results),
        "trouble": trouble_table(results),
        "machine_table": machine_table(results),
        "versions": version_table(results),
        "missing": [EXPERIMENTS[name] for name in results.missing],
        "progress": progress(results),
        "names": {"html": HTML, "markdown": MARKDOWN, "csv": CSV, "parquet": PARQUET, "rows": ROWS},
        "no_parquet": raw.NO_PARQUET,
    }


def progress(results: Results) -> str:
    """How much of the preset has been run, and what is left; empty if that was not recorded."""
    total, left = sum(results.machine.planned.values()), results.left
    if not total:
        return ""
    if not left:
        return f"All {total} jobs of the {results.machine.preset} preset have been run."
    unrun = sum(count for count, _ in left.values())
    listed = words.listing([f"{EXPERIMENTS[name]} ({count} of {total})" for name, (count, total) in left.items()])
    return f"{total - unrun} of the {total} jobs of the {results.machine.preset} preset have been run. Left: {listed}."


def _no_markup(value: object) -> str:
    """Text escaped for Markdown: no tags, no links."""
    return str(value).replace("<", "&lt;").replace("](", "]\\(")


def environment(*, html: bool) -> jinja2.Environment:
    """The templates of this package, with their filters."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("ffo.lab.report"),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        finalize=None if html else _no_markup,
    )
    found.filters["svg"] = Markup
    found.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    found.filters["superscript"] = lambda mark: mark.translate(words.SUPERSCRIPT)
    found.globals["swatch"] = lambda look: Markup(swatch(look))
    found.globals["palette"] = [(name, *colours) for name, colours in PALETTE.items()]
    found.globals["page"] = PAGE
    return found
