"""Records of solves for their derivatives, and the tokens by which traced programs refer to them (`engine.records`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffo.engine.call import LayerCall, LayerRecord

Array = np.ndarray
#: the token of a solve that has to be repeated
AGAIN = np.array([0, 1], dtype=np.uint32)


@dataclass(frozen=True)
class SolvedCall:
    """A call, and what its derivatives need."""

    call: LayerCall
    record: LayerRecord

    def is_of(self, values: Sequence[Array], samples: Array) -> bool:
        """Whether it was solved for these values, which have its shapes, at least for the given samples."""
        pairs = zip(values, self.record.values, self.call.batched, strict=True)
        return all(
            np.array_equal(v[samples].reshape(-1, k.shape[-1]), k[samples], equal_nan=True)
            if batched
            else np.array_equal(v.ravel(), k.ravel(), equal_nan=True)
            for v, k, batched in pairs
        )
