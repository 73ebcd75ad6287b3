from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ffo.lab.baselines import BASELINES
from ffo.lab.cli import app, lab
from ffo.lab.experiments import PRESETS, plan
from ffo.lab.machine import this_machine
from ffo.lab.rows import EXPERIMENTS, read_machine, read_rows

runner = CliRunner()


@pytest.mark.parametrize("missing", ["typer", "rich", "psutil", "jinja2", "matplotlib", "pyarrow", "torch"])
def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    code = f"import sys\nsys.modules[{missing!r}] = None\nsys.argv = ['ffo', '--help']\n"
    code += "from ffo.lab.command import main\nmain()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    needed = missing in ("typer", "rich", "psutil", "torch")  # the others are imported by the report
    assert found.returncode == (1 if needed else 0), found.stderr
    assert ('pip install "ffo[lab]"' in found.stderr and missing in found.stderr) is needed
    assert "Traceback" not in found.stderr


def test_list_names_everything() -> None:
    shown = runner.invoke(app, ["lab", "list"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert all(name in shown.output for name in (*EXPERIMENTS, *BASELINES))
    assert "not installed" in shown.output or all(b.packages == () for b in BASELINES.values())


def test_run_takes_what_it_is_told(tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--experiments", "scaling_qp,memory", "--methods", "FFOCP,QPTH"]
    options += ["--seeds", "3", "--sizes", "10,20", "--time-limit", "60", "--memory-limit", "8", "--threads", "1"]
    shown = runner.invoke(lab, ["run", *options])
    assert shown.exit_code == 0, shown.output
    rows = read_rows(tmp_path)
    timed = {(row.method, row.d_y, row.seed) for row in rows if row.experiment == "scaling_qp"}
    assert timed == {(method, d_y, 3) for method in ("FFOCP", "QPTH") for d_y in (10, 20)}
    weighed = {(row.method, row.d_y) for row in rows if row.experiment == "memory"}
    assert weighed == {("FFOCP", 10), ("FFOCP", 20)}
    assert all(row.status == "ok" for row in rows if row.method == "FFOCP")
    machine = read_machine(tmp_path)
    assert (machine.preset, machine.seeds, machine.threads) == ("quick", [3], 1)
    assert machine.methods == ["FFOCP", "QPTH"]
    jobs = plan(PRESETS["quick"], ["dfl"], list(BASELINES))  # of which --seeds leaves one in two
    assert machine.planned["dfl"] == len(jobs) // 2


def test_a_run_in_pieces_ends_up_in_one_folder(tmp_path: Path) -> None:
    """Rows of an earlier piece stay, and its jobs are not run again."""
    options = ["run", "--out", str(tmp_path), "--methods", "FFOQP", "--seeds", "0", "--sizes", "10", "--d-y", "8"]
    for experiments, count in (("scaling_qp", "1 of 1"), ("scaling_qp,dfl", "1 of 2"), ("dfl", "0 of 1")):
        shown = runner.invoke(lab, [*options, "--time-limit", "60", "--experiments", experiments])
        assert shown.exit_code == 0, shown.output
        assert f"{count} jobs to run" in shown.output
    assert {row.experiment for row in read_rows(tmp_path)} == {"scaling_qp", "dfl"}
    page = tmp_path / "site" / "index.md"
    shown = runner.invoke(lab, ["report", str(tmp_path), "--publish", str(page.parent)])
    assert shown.exit_code == 0, shown.output
    assert "jobs of the quick preset have been run" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("typed", [["ffo", "lab", "run", "--out", "x y"], ["__main__.py", "run", "--out", "x y"]])
def test_the_command_is_the_one_to_type(typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", typed)
    assert this_machine("quick", [0], [], [], 1).command == "ffo lab run --out 'x y'"


def test_adam_s_epsilon_can_be_chosen(tmp_path: Path) -> None:
    options = ["--experiments", "dfl,adam", "--methods", "FFOQP", "--seeds", "0", "--d-y", "8", "--adam-eps", "1e-6"]
    shown = runner.invoke(lab, ["run", "--out", str(tmp_path), "--time-limit", "60", *options])
    assert shown.exit_code == 0, shown.output
    used = {(row.experiment, row.adam_eps) for row in read_rows(tmp_path)}
    assert used == {("dfl", 1e-6), ("adam", 1e-8), ("adam", 1e-5)}


def test_the_authors_setting_can_be_chosen(tmp_path: Path) -> None:
    options = ["--experiments", "dfl", "--methods", "FFOQP", "--seeds", "0", "--d-y", "8", "--time-limit", "60"]
    shown = runner.invoke(lab, ["run", "--out", str(tmp_path), "--setting", "authors", *options])
    assert shown.exit_code == 0, shown.output
    rows = read_rows(tmp_path)
    assert {row.setting for row in rows} == {read_machine(tmp_path).setting} == {"authors"}
    (result,) = (row for row in rows if row.record == "result")
    assert (result.status, result.cosine) == ("ok", pytest.approx(1.0, abs=1e-9))
    assert result.train_loss is not None
    assert -1 <= result.train_loss <= 0
    shown = runner.invoke(lab, ["report", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    for name in ("report.html", "report.md"):
        assert "tasks as in the authors" in (tmp_path / name).read_text(encoding="utf-8")
    mixed = runner.invoke(lab, ["run", "--out", str(tmp_path), *options], env={"COLUMNS": "400"})
    assert mixed.exit_code == 2
    assert "has results of the setting 'authors'" in mixed.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--experiments", "nonsense"], "no experiment 'nonsense'"),
        (["--methods", "FFOCP,Nobody"], "no method 'Nobody'"),
        (["--preset", "huge"], "no preset 'huge'"),
        (["--setting", "mine"], "no setting 'mine'"),
        (["--device", "tpu"], "no device 'tpu'"),
        (["--seeds", "a"], "numbers separated by commas"),
        (["--jobs", "9999"], "every job needs one of its own"),
        (["--jobs", "1", "--ray", "auto"], "for this machine alone"),
    ],
)
def test_wrong_options_are_named(options: list[str], said: str, tmp_path: Path) -> None:
    shown = runner.invoke(lab, ["run", "--out", str(tmp_path / "none"), *options], env={"COLUMNS": "200"})
    assert shown.exit_code == 2
    assert said in shown.output
    assert not (tmp_path / "none").exists()


def test_help_names_the_commands() -> None:
    shown = runner.invoke(app, ["lab", "--help"])
    assert all(name in shown.output for name in ("run", "report", "list"))
