"""Every test: one whose solver is not installed is skipped. Some extras have no wheels on some platforms."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from ffo.errors import MissingSolverError


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    try:
        yield
    except MissingSolverError as error:
        pytest.skip(str(error))
