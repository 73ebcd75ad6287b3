"""What `make docs` relies on: the check of internal links, and examples that state and check a claim."""

from __future__ import annotations

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


def load(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "picture.png").touch()
    page = '<a href="deep/page.html#here">a</a> <img src="picture.png"> <a href="#me" id="me">b</a>'
    (tmp_path / "index.html").write_text(page)
    page = '<p id="here"><a href="../">up</a> <a href="https://example.org/x">c</a></p>'
    (tmp_path / "deep" / "page.html").write_text(page)
    return tmp_path


def test_a_site_whose_links_exist_has_no_broken_ones(site: Path) -> None:
    assert load(ROOT / "scripts" / "check_links.py").broken_links(site) == []


@pytest.mark.parametrize("link", ["nowhere.html", "deep/page.html#there", "#not-me", "deep/picture.png"])
def test_a_link_that_leads_nowhere_is_found(site: Path, link: str) -> None:
    (site / "other.html").write_text(f'<a href="{link}">d</a>')
    assert load(ROOT / "scripts" / "check_links.py").broken_links(site) == [f"other.html: {link}"]


def test_the_gallery_has_twelve_examples_or_more() -> None:
    assert len(EXAMPLES) >= 12


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_has_a_title_a_picture_and_a_claim_that_is_checked(path: Path) -> None:
    """The scripts themselves run when the site is built; their assertions are checked there."""
    tree = ast.parse(path.read_text())
    title, underline = (ast.get_docstring(tree) or "").splitlines()[:2]
    assert set(underline) == {"="}
    assert len(underline) == len(title)
    assert any(isinstance(node, ast.Assert) for node in tree.body)
    assert path.read_text().rstrip().endswith("plt.show()")
