"""The page in a real browser, at a desk and on a phone, light and dark.

Screenshots are left in build/screenshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.report.browser import Browser, find_browser
from lab.report.synthetic import synthetic_rows, write_results

from ffo.lab.report import write_report

OUTPUT = Path(__file__).parents[3] / "build" / "screenshots"
SIZES = {"desktop": 1280, "phone": 390}

#: boxes that stick out of the page sideways, but for what scrolls inside its own container
OVERFLOW = """[...document.querySelectorAll('body *')].filter(e => !e.closest('svg, .scroll, pre')
  && (e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5
      || e.getBoundingClientRect().left < -0.5)).map(e => e.outerHTML.slice(0, 120))"""
FIGURES = """[...document.querySelectorAll('.panels > svg')].map(e => {
  const box = e.getBoundingClientRect();
  return [box.width, box.height, parseFloat(getComputedStyle(e.querySelector('text')).fontSize)
          * box.width / e.viewBox.baseVal.width]; })"""
CLIPPED = """[...document.querySelectorAll('.panels > svg')].flatMap(e => {
  const box = e.getBoundingClientRect();
  return [...e.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1; })
    .map(t => t.textContent); })"""
COLLIDING = """[...document.querySelectorAll('.panels > svg')].flatMap(e => {
  const boxes = [...e.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
    && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3).map(([b, q]) => a + ' / ' + b)); })"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium here: `make browser` installs one where it may")
    with Browser(executable) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_results(tmp_path_factory.mktemp("results"), synthetic_rows()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_page_looks_right(browser: Browser, page: Path, size: str, scheme: str, record_property: Any) -> None:
    browser.requests.clear()
    browser.open(page, SIZES[size], scheme)
    record_property("screenshot", str(browser.screenshot(OUTPUT / f"report-{size}-{scheme}.png")))
    browser.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert browser.evaluate("document.documentElement.clientWidth") <= SIZES[size]
    assert browser.evaluate(
        "[document.documentElement.scrollWidth, document.body.scrollWidth].every(w => w <= window.innerWidth)"
    )
    assert browser.evaluate(OVERFLOW) == []
    figures = browser.evaluate(FIGURES)
    assert len(figures) > 40
    assert all(width > 300 and height > 70 for width, height, _ in figures)
    assert all(letters > 9.5 for _, _, letters in figures)
    assert browser.evaluate(CLIPPED) == []
    assert browser.evaluate(COLLIDING) == []
    assert browser.trouble == []
    assert browser.requests == [page.resolve().as_uri()]
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    assert dark == (scheme == "dark")


def test_wide_tables_scroll_inside_their_container(browser: Browser, page: Path) -> None:
    browser.open(page, SIZES["phone"])
    wide = browser.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)")
    assert max(wide) > 100
    moved = browser.evaluate(
        "(e => { e.scrollLeft = 100; return [e.scrollLeft, window.scrollX]; })(document.querySelector('.scroll'))"
    )
    assert moved == [100, 0]


def test_an_empty_run_still_shows_a_page(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_report(write_results(tmp_path, [])), SIZES["phone"])
    assert browser.evaluate(OVERFLOW) == []
    assert "Not measured" in browser.evaluate("document.body.innerText")
    assert browser.trouble == []
