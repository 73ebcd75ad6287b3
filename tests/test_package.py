"""What is published: an sdist, the wheel built from it, and that wheel installed where nothing else of ffo is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that `build` makes from it, without downloads."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executables of a new environment, with the wheel and the dependencies that are installed for this test."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    paths = sysconfig.get_paths("venv", vars={"base": str(folder), "platbase": str(folder)})
    python = Path(paths["scripts"]) / Path(sys.executable).name
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # A path in a .pth file is searched last, and the .pth files in it, such as that of an editable ffo, are not read.
    Path(paths["purelib"], "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python.parent


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    files = {p.relative_to(source).as_posix() for p in (source / "ffo").rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == files
    assert {"ffo/py.typed", "ffo/lab/report/templates/report.html"} <= names


def test_the_sdist_holds_what_tests_and_the_makefile_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    top = {name.split("/")[0] for name in names}
    assert {"src", "tests", "benchmarks", "fuzz", "examples", "docs", "scripts"} <= top
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", "constraints.txt"} <= names


def test_the_readme_of_an_index_has_absolute_links_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        _, text = archive.read(name).decode().split("\n\n", 1)
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)
    own = re.findall(rf"\]\({re.escape(REPOSITORY)}/(blob|raw)/main/([^)#]+)", text)
    assert {kind for kind, _ in own} == {"blob", "raw"}
    assert all((ROOT / target).exists() for _, target in own)


def test_the_installed_wheel_is_imported_with_its_version_and_command(installed: Path) -> None:
    python = installed / Path(sys.executable).name
    code = "import ffo, ffo.torch, ffo.jax, ffo.bilevel, ffo.lab; print(ffo.__file__, ffo.__version__)"
    file, version = run(python, "-W", "ignore", "-c", code).split()
    assert Path(file).is_relative_to(installed.parent)
    assert version == PROJECT["version"]
    assert "lab" in run(installed / "ffo", "--help")


def test_the_address_of_the_repository_is_written_once() -> None:
    """A move, or a fork, changes [project.urls] and nothing else."""
    patterns = ("*.md", "*.cff", "docs/**/*.md", ".github/**/*", "src/**/*.py")
    files = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    assert [path for path in files if REPOSITORY.split("://")[1] in path.read_text(encoding="utf-8")] == []


def test_every_requirement_has_one_lower_bound() -> None:
    pins = dict(line.split("==") for line in run(sys.executable, ROOT / "scripts" / "lowest.py").splitlines())
    assert {"numpy", "scipy", "cvxpy", "torch", "jax", "pytest"} <= set(pins)
    assert run(sys.executable, ROOT / "scripts" / "lowest.py", "scipy==9").count("scipy==9\n") == 1
