"""The house rules that a reader relies on: light imports, short files. Import rules: [tool.importlinter]."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ffo"
FILES = sorted(SOURCE.rglob("*.py"))

SOLVER_PACKAGES = set("clarabel scs osqp piqp proxsuite qoco highspy moreau gurobipy daqp qpsolvers quadprog".split())
LONGEST_FUNCTION = 60
LONGEST_FILE = 400


def part_of(path: Path) -> str:
    """The part of the package a file belongs to: its folder, or its name at the top level."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def fresh_modules(code: str) -> set[str]:
    """Top-level names of sys.modules after running `code` in a new interpreter."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_are_short_and_silent(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _lines(node)
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):  # docstrings do not count
                length -= _lines(first)
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and part_of(path) != "lab":
            assert node.func.id != "print", f"print at line {node.lineno}"


#: names and attributes that execute what they read, or pass it to a shell; modules: contracts of import-linter
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "execv", "execvp"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_that_is_read_is_executed(path: Path) -> None:
    """Saved results, rows and caches are data: JSON, NumPy without pickles, torch with weights only; and no shell."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "") if method else "builtins"
        keywords = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        where = f"line {node.lineno}"
        assert name not in FORBIDDEN_CALLS or owner not in ("builtins", "os"), where  # model.eval() is allowed
        assert not keywords.get("shell"), where
        assert not keywords.get("allow_pickle"), where
        assert (owner, name) != ("torch", "load") or keywords.get("weights_only") is True, where


#: the same layer for two frameworks, under the same name in both
FRONT_ENDS, LAYERS = ["torch", "jax"], {"FFOLayer", "FFOQPLayer"}


def test_a_class_name_means_one_class() -> None:
    where: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(part_of(path))
    twice = {name: sorted(parts) for name, parts in where.items() if len(parts) > 1}
    assert twice == dict.fromkeys(LAYERS, sorted(FRONT_ENDS))


def test_import_ffo_imports_no_framework_and_no_solver() -> None:
    loaded = fresh_modules("import ffo")
    assert loaded.isdisjoint({"torch", "jax", "cvxpy", "numpy", "scipy", *SOLVER_PACKAGES})


def test_names_of_the_package_itself_come_on_first_use() -> None:
    loaded = fresh_modules("from ffo import solve_qp_batch")
    assert loaded.isdisjoint({"torch", "jax", "cvxpy", *SOLVER_PACKAGES})
    import ffo

    assert set(ffo.__all__) <= set(dir(ffo))
    assert all(hasattr(ffo, name) for name in ffo.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        ffo.no_such_name  # noqa: B018


def test_import_ffo_torch_imports_no_solver_of_its_own() -> None:
    by_others = fresh_modules("import torch, cvxpy")
    loaded = fresh_modules("import ffo.torch")
    assert "jax" not in loaded - by_others
    assert (loaded - by_others).isdisjoint(SOLVER_PACKAGES)


def test_import_ffo_jax_imports_neither_torch_nor_a_solver_of_its_own() -> None:
    by_others = fresh_modules("import jax, cvxpy")
    loaded = fresh_modules("import ffo.jax")
    assert "torch" not in loaded - by_others
    assert "jax" in loaded
    assert (loaded - by_others).isdisjoint(SOLVER_PACKAGES)


def test_import_ffo_jax_leaves_the_configuration_of_jax_alone() -> None:
    state = "(dict(jax.config.values), dict(os.environ), list(warnings.filters))"
    code = f"import os, warnings, cvxpy, jax\nbefore = {state}\nimport ffo.jax\nassert {state} == before"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_bilevel_needs_neither_cvxpy_nor_a_progress_bar() -> None:
    loaded = fresh_modules("import ffo.bilevel") - fresh_modules("import torch")
    assert loaded.isdisjoint({"jax", "cvxpy", "rich", *SOLVER_PACKAGES})


def test_import_leaves_global_state_alone() -> None:
    state = (
        "(torch.get_default_dtype(), torch.get_num_threads(), torch.get_num_interop_threads(), "
        "torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled(), "
        "np.geterr(), list(warnings.filters), dict(os.environ))"
    )
    code = (
        "import os, warnings, numpy as np, torch, cvxpy\n"
        f"before = {state}\nimport ffo, ffo.torch, ffo.bilevel\nafter = {state}\n"
        "assert before == after, (before, after)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    import ffo

    assert ffo.__version__ == version("ffo")
