"""The keys under which samples are remembered between calls, as users give them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ffo.errors import InputError


def call_keys(
    keys: Iterable[Hashable] | None, warm_start: bool | None, by_position: bool, batch: int | None
) -> list[Hashable] | None:
    """The keys under which the samples of a call are remembered; None: they are not.

    Args:
        keys, warm_start: as in `FFOLayer.forward`; by_position: the layer's own `warm_start`.
    """
    if warm_start not in (None, True, False):
        raise InputError(f"warm_start must be true or false, not {warm_start!r}")
    given = None if keys is None or warm_start is False else sample_keys(keys, batch)
    if given is None and (by_position if warm_start is None else warm_start):
        return list(range(batch or 1))
    return given


def sample_keys(keys: Iterable[Hashable] | None, batch: int | None) -> list[Hashable] | None:
    """The keys of a call (a sequence, array or tensor) as a list, checked: one per sample, distinct."""
    if keys is None:
        return None
    try:
        listed = keys.tolist() if hasattr(keys, "tolist") else list(keys)
    except RuntimeError as error:
        raise InputError(f"keys have no values inside a transform: pass the keys of a whole batch ({error})") from None
    except TypeError:
        listed = keys
    if isinstance(keys, str) or not isinstance(listed, list):
        raise InputError(f"keys must be a sequence with one hashable per sample, not {keys!r}")
    if len(listed) != (batch or 1):
        raise InputError(f"keys must name every sample: got {len(listed)} keys for a batch of {batch or 1}")
    try:
        distinct = len(set(listed))
    except TypeError as error:
        raise InputError(f"keys must be hashable, such as the samples' indices in the data set: {error}") from None
    if distinct != len(listed):
        raise InputError("keys must be distinct within a batch")
    return listed
