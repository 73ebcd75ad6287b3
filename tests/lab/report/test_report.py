"""The report as files: whole, from partial results, in HTML, Markdown, CSV and Parquet."""

from __future__ import annotations

import base64
import csv
import gzip
import importlib.util
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lab.report.synthetic import MACHINE_OF_THE_ROWS, synthetic_rows, write_results

from ffo.lab.report import raw, write_report
from ffo.lab.report.page import content
from ffo.lab.report.results import Results
from ffo.lab.rows import COLUMNS, EXPERIMENTS, ROWS, Row

VOID = {"meta", "link", "path", "use", "rect", "br", "img"}


class Page(HTMLParser):
    """Tags with their attributes, checked to be nested as they should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return synthetic_rows()


@pytest.fixture(scope="module")
def folder(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole run."""
    written = write_results(tmp_path_factory.mktemp("results"), rows)
    assert write_report(written) == written / "report.html"
    return written


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_stands_alone(page: Page, folder: Path) -> None:
    """No script, and no address but those of the files beside the page and of places in it."""
    assert page.all("script") == page.all("iframe") == page.all("img") == []
    assert [attributes["rel"] for attributes in page.all("link")] == ["icon"]
    targets = {attributes["href"] for attributes in page.all("a") + page.all("use") + page.all("link")}
    outside = {target for target in targets if target and not target.startswith(("#", "data:"))}
    assert outside == {"rows.jsonl", "rows.csv", "rows.parquet", "report.md"}
    assert all((folder / name).exists() for name in outside)
    assert "http" not in re.sub(r'href="data:[^"]*"', "", (folder / "report.html").read_text(encoding="utf-8"))


def test_ids_are_unique_and_every_reference_is_answered(page: Page, folder: Path) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    text = (folder / "report.html").read_text(encoding="utf-8")
    references = {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    references |= {str(attributes["aria-labelledby"]) for attributes in page.all("section")}
    assert references <= set(ids)


def test_pictures_and_tables_have_words(page: Page) -> None:
    pictures = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(pictures) > 40
    assert all(len(str(attributes["aria-label"])) > 30 for attributes in pictures)
    assert all("aria-hidden" in attributes for attributes in page.all("svg") if attributes not in pictures)
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert all(attributes["aria-label"] for attributes in page.all("table"))


def test_colours_of_figures_follow_the_scheme(folder: Path) -> None:
    """No colour is fixed inside a figure: all are variables of the page, set for light and for dark."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    style, body = text.split("</style>", 1)
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r'href="[^"]*"', "", body)) == []
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for variable in set(re.findall(r"var\((--[a-z]+)\)", body)):
        assert f"{variable}:" in light
        assert f"{variable}:" in dark


def test_every_experiment_is_drawn(rows: list[Row], folder: Path) -> None:
    plots = content(Results.read(folder))["plots"]
    assert all(plot.panels for plot in plots)
    assert {plot.paper for plot in plots} >= {f"Figure {number}" for number in range(3, 14)}
    drawn = " ".join(panel.alt for plot in plots for panel in plot.panels)
    assert all(row.method in drawn for row in rows if row.status == "ok")


def test_a_legend_entry_means_one_look(rows: list[Row], tmp_path: Path) -> None:
    """Also where a sweep was interrupted, and one task has fewer values than another."""
    swept = [row for row in rows if row.experiment == "tolerance"]
    cut = [row for row in swept if row.task == "qp" or 1e-3 in (row.tolerance, row.backward_tolerance)]
    plot = next(p for p in content(Results.read(write_results(tmp_path, cut)))["plots"] if p.name == "tolerance")
    assert len({(look.colour, look.marker) for _, look in plot.legend}) == len(plot.legend) == 8


def test_markdown_tells_the_same(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    results = Results.read(folder)
    for verdict in content(results)["verdicts"]:
        assert f"**{verdict.state.capitalize()}**" in text
        assert all(check.text in text for check in verdict.checks)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) > 10
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    assert "\n\n\n" not in text


def test_raw_rows_survive(rows: list[Row], folder: Path, page: Page) -> None:
    columns = pq.read_table(folder / "rows.parquet").to_pylist()
    assert [Row(**entry) for entry in columns] == rows
    text = (folder / "rows.csv").read_text(encoding="utf-8")
    table = list(csv.DictReader(text.splitlines()))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == len(rows)
    for entry, row in zip(table, rows, strict=True):
        assert entry["total_s"] == ("" if row.total_s is None else repr(row.total_s))
        assert entry["reason"] == row.reason
    embedded = next(attributes for attributes in page.all("a") if attributes.get("download") == "rows.csv.gz")
    packed = str(embedded["href"]).removeprefix("data:application/gzip;base64,")
    assert gzip.decompress(base64.b64decode(packed)).decode() == text


def test_a_report_without_pyarrow_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else found(name, *rest)
    )
    text = write_report(write_results(tmp_path, [])).read_text(encoding="utf-8")
    assert not (tmp_path / "rows.parquet").exists()
    assert raw.NO_PARQUET in text
    assert 'href="rows.parquet"' not in text


def test_the_same_rows_give_the_same_page(folder: Path) -> None:
    first = (folder / "report.html").read_bytes()
    write_report(folder)
    assert (folder / "report.html").read_bytes() == first


def only(rows: list[Row], *experiments: str) -> list[Row]:
    return [row for row in rows if row.experiment in experiments]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_one_experiment_alone(experiment: str, rows: list[Row], tmp_path: Path) -> None:
    """As after an interruption: a valid page that names what is missing."""
    text = write_report(write_results(tmp_path, only(rows, experiment))).read_text(encoding="utf-8")
    missing = "; ".join(title for name, title in EXPERIMENTS.items() if name != experiment)
    assert f"Not measured in this run: {missing}.\n" in "".join(Page(text).words)


def test_no_rows_at_all(tmp_path: Path) -> None:
    path = write_report(write_results(tmp_path, []))
    verdicts = content(Results.read(tmp_path))["verdicts"]
    assert {verdict.state for verdict in verdicts} == {"not measured"}
    assert "Nothing was timed" in path.read_text(encoding="utf-8")


def test_failures_alone(rows: list[Row], tmp_path: Path) -> None:
    """Every job failed: nothing is drawn as if measured, every reason is on the page."""
    broken = [
        replace(row, status="failed", reason="killed by <signal> 9 | out of memory", total_s=None, forward_s=None)
        for row in rows
        if row.record == "result"
    ]
    text = write_report(write_results(tmp_path, broken)).read_text(encoding="utf-8")
    assert "killed by &lt;signal&gt; 9 | out of memory" in text
    results = Results.read(tmp_path)
    assert set(results.missing) == set(EXPERIMENTS)
    assert {verdict.state for verdict in content(results)["verdicts"]} == {"not measured"}
    drawn = [plot for plot in content(results)["plots"] if plot.panels]
    assert [plot.name for plot in drawn] == ["solvers"]
    assert all(panel.alt.count("killed by") == panel.alt.count(";") + 1 for plot in drawn for panel in plot.panels)
    assert "killed by &lt;signal> 9 \\| out of memory" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_row_cut_short_is_left_out(rows: list[Row], tmp_path: Path) -> None:
    write_results(tmp_path, rows[:20])
    text = (tmp_path / ROWS).read_text(encoding="utf-8")
    (tmp_path / ROWS).write_text(text[:-40], encoding="utf-8")
    assert len(Results.read(tmp_path).rows) == 19
    Page(write_report(tmp_path).read_text(encoding="utf-8"))


def test_of_repeated_measurements_the_last_counts(rows: list[Row], tmp_path: Path) -> None:
    first = next(row for row in rows if row.record == "result" and row.status == "ok")
    again = replace(first, total_s=123.0)
    failed = replace(first, status="failed", reason="killed")
    assert Results.read(write_results(tmp_path, [failed, first, again])).rows == (again,)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a results folder"):
        write_report(tmp_path)


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    """What comes from outside (processor, reasons, methods) cannot become markup."""
    machine = replace(MACHINE_OF_THE_ROWS, cpu="<script>alert(1)</script>")
    row = Row("dfl", "qp", '<b onload="x">', "qp", 0, d_y=5, batch=2, total_s=1.0, forward_s=0.5, backward_s=0.5)
    page = Page(write_report(write_results(tmp_path, [row], machine)).read_text(encoding="utf-8"))
    assert page.all("script") == page.all("b") == []


HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></svg><script>alert(2)</script>",
    "'onmouseover='alert(3)", "[click](javascript:alert(4))", "]]><b>{{ 7*7 }}</b>", "a | b\n| c | d |",
)  # fmt: skip


def test_nothing_that_rows_say_becomes_markup(rows: list[Row], tmp_path: Path) -> None:
    """In every field of text, of rows that are drawn, tabulated, failed and skipped."""
    ours, text = {"FFOCP", "FFOQP"}, " ".join(HOSTILE)
    names = sorted({row.method for row in rows} - ours)
    suffix = {name: HOSTILE[k % len(HOSTILE)] for k, name in enumerate(names)}
    changed = [
        replace(
            row,
            method=row.method + suffix.get(row.method, ""),
            reason=text if row.status != "ok" else row.reason,
            solver=text if row.solver else row.solver,
            job=row.job and text,
        )
        for row in rows
    ] + [replace(rows[0], status="failed", reason=text, seed=99, record="result")]
    fields = ("cpu", "platform", "python", "preset", "command", "date")
    machine = replace(MACHINE_OF_THE_ROWS, packages={text: text}, **dict.fromkeys(fields, text))
    written = write_report(write_results(tmp_path, changed, machine)).read_text(encoding="utf-8")
    page = Page(written)
    assert page.all("script") == page.all("img") == page.all("b") == page.all("iframe") == []
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not [a for a in page.all("a") if "javascript" in str(a.get("href"))]
    assert "49" not in {word.strip() for word in page.words}
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<" not in markdown
    assert "](javascript" not in markdown


def test_reading_rows_executes_nothing(tmp_path: Path) -> None:
    """Rows are JSON: what is not is left out or refused, whatever it says."""
    write_results(tmp_path, [Row("dfl", "qp", "FFOQP", "qp", 0)])
    with (tmp_path / ROWS).open("a", encoding="utf-8") as file:
        file.write("__import__('pathlib').Path('hit').touch()")
    assert len(Results.read(tmp_path).rows) == 1
    assert not Path("hit").exists()
