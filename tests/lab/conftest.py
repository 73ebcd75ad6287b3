"""Jobs so small that they take milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ffo.lab.jobs import Job
from ffo.lab.tasks import TaskSizes

TINY = TaskSizes(d_y=6, samples=20, d_x=5, hidden=4, learning_rate=1e-2)


@pytest.fixture
def tiny() -> Callable[..., Job]:
    """A job of the QP task with FFOQP, with what is given changed."""

    def make(**changes: Any) -> Job:
        given: dict[str, Any] = {
            "experiment": "dfl",
            "task": "qp",
            "method": "FFOQP",
            "seed": 0,
            "sizes": TINY,
            "batch": 8,
            "kind": "train",
            "epochs": 2,
            "steps": 2,
        }
        return Job(**{**given, **changes})

    return make
