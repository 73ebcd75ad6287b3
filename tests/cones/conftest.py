"""Every test of the contract that names a `case` runs once for each case of its cone."""

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(metafunc.cls.cases))
