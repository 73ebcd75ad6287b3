"""Which parameter is to blame for data that cannot be solved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ffo.program.affine import AffineMap
from ffo.program.blocks import SIDES
from ffo.program.convexity import NOT_CONVEX

Array = np.ndarray

NOT_FINITE = "the problem data has NaN or infinite entries"
_NOT_CONVEX = NOT_CONVEX.split(":")[0]


def blamed(text: str, sample: int, affine: AffineMap, values: Sequence[Array], open_sides: bool) -> str:
    """What is wrong with a sample, with the names of the parameters that make it so.

    Args:
        values: of the parameters, (size,) or (batch, size); open_sides: whether infinite bounds mean no constraint.
    """
    if text == NOT_FINITE:
        mine = [v if v.ndim == 1 else v[sample] for v in values]
        for word, bad in (("NaN", np.isnan), ("infinite", np.isinf)):
            for label, value in zip(affine.labels, mine, strict=True):
                allowed = SIDES.get(label) if open_sides else None  # type: ignore[call-overload]
                if (bad(value) & (value != allowed if allowed is not None else True)).any():
                    return f"{text}: {label} has {word} entries"
    if text.startswith(_NOT_CONVEX):
        owners = dict.fromkeys(affine.labels[e.parameter] for e in affine.entries if "P" in e.maps)
        return f"{text} ({', '.join(owners)})" if owners else text
    return text
