"""The report as a page of the documentation site, and the pages that are part of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from lab.report.synthetic import MACHINE_OF_THE_ROWS, synthetic_rows, write_results

from ffo.lab.report import publish
from ffo.lab.report.page import content, progress
from ffo.lab.report.raw import csv_text, read_csv
from ffo.lab.report.results import Results

DOCS = Path(__file__).parents[3] / "docs"
PUBLISHED = sorted(path.parent for path in (DOCS / "results").glob("*/machine.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results"), synthetic_rows())


def test_rows_survive_csv(folder: Path, tmp_path: Path) -> None:
    rows = Results.read(folder).rows
    (tmp_path / "rows.csv").write_text(csv_text(rows), encoding="utf-8")
    assert tuple(read_csv(tmp_path / "rows.csv")) == rows
    assert read_csv(tmp_path / "none.csv") == []


def test_a_published_page_has_its_pictures_and_is_written_again_from_its_own_rows(folder: Path, tmp_path: Path) -> None:
    first = publish(folder, tmp_path / "first")
    text = first.read_text(encoding="utf-8")
    pictures = set(re.findall(r"\]\(([^)]*\.svg)\)", text))
    assert {"opening-qp.svg", "opening-socp.svg", "opening-sudoku9.svg"} < pictures
    assert pictures == {path.name for path in first.parent.glob("*.svg")}
    second = publish(first.parent, tmp_path / "second")
    assert second.read_text(encoding="utf-8") == text
    assert (second.parent / "rows.csv").read_bytes() == (first.parent / "rows.csv").read_bytes()


def test_a_picture_stands_alone(folder: Path, tmp_path: Path) -> None:
    for path in publish(folder, tmp_path).parent.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg" width="')
        assert "var(--" not in text


def test_a_report_says_how_much_of_its_preset_has_been_run(folder: Path) -> None:
    results = Results.read(folder)
    assert progress(results) == ""
    jobs = len({row.job for row in results.rows if row.experiment == "dfl"})
    whole = replace(results, machine=replace(MACHINE_OF_THE_ROWS, planned={"dfl": jobs}))
    assert progress(whole) == f"All {jobs} jobs of the quick preset have been run."
    part = replace(results, rows=results.rows[:1], machine=replace(MACHINE_OF_THE_ROWS, planned={"dfl": 5, "adam": 2}))
    assert progress(part) == (
        "1 of the 7 jobs of the quick preset have been run. Left: Synthetic decision-focused learning (4 of 5) and "
        "The epsilon of Adam (2 of 2)."
    )


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda path: path.name)
def test_the_pages_of_the_site_say_what_their_rows_say(folder: Path) -> None:
    """After a change: `ffo lab report docs/results/NAME --publish docs/results/NAME`."""
    results = Results.read(folder)
    found, page = content(results), (folder / "index.md").read_text(encoding="utf-8")
    overview = (DOCS / "results" / "index.md").read_text(encoding="utf-8")
    assert found["opening"].sentence in page
    assert found["progress"] in page
    assert found["opening"].sentence in " ".join(overview.split())
    assert f"{folder.name}/index.md" in overview
    assert all((folder / name).exists() for name in re.findall(r"\]\(([^)]*\.svg)\)", page))
