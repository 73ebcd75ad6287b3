"""Memory does not grow with the number of training steps; ten thousand are measured by `faults/growth.py`."""

from __future__ import annotations

import pytest
from faults.growth import STEPS, grown


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.parametrize("name", [name for name in STEPS if name != "FFOFunctionLayer"])  # its steps take longer
def test_memory_does_not_grow(name: str) -> None:
    """An object kept at every step would be 800; Python's free lists still grow by a hundred or two."""
    assert grown(STEPS[name](), first=300, last=1100) < 500
