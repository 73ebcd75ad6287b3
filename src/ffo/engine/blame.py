"""Which parameters make the data of a sample invalid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ffo.program.blocks import SIDES
from ffo.program.canonical import CanonicalProblem
from ffo.program.convexity import NOT_CONVEX
from ffo.program.quadratic import Name

Array = np.ndarray

NOT_FINITE = "the problem data has NaN or infinite entries"
_NOT_CONVEX = NOT_CONVEX.split(":")[0]


def blamed(text: str, sample: int, canonical: CanonicalProblem, values: Sequence[Array]) -> str:
    """What is wrong with a sample, with the names of the parameters that cause it.

    Args:
        text: what is wrong with it.
        values: of the parameters, (size,) or (batch, size).
    """
    if text == NOT_FINITE:
        mine = [v if v.ndim == 1 else v[sample] for v in values]
        for word, bad in (("NaN", np.isnan), ("infinite", np.isinf)):
            for label, value in zip(canonical.labels, mine, strict=True):
                ignored = SIDES.get(cast(Name, label), np.nan) if canonical.open_sides else np.nan
                if (bad(value) & (value != ignored)).any():
                    return f"{text}: {label} has {word} entries"
    if text.startswith(_NOT_CONVEX):
        owners = dict.fromkeys(canonical.labels[e.parameter] for e in canonical.map.entries if "P" in e.maps)
        return f"{text} ({', '.join(owners)})" if owners else text
    return text
