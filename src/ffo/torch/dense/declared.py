"""Declared attributes of parameters on a device: which samples might break them (`program.declared` is the judge)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ffo.program.declared import ASYMMETRY, TOLERANCE, Declaration
from ffo.torch.dense.program import Tensor


def doubtful(declared: Sequence[Declaration], values: Sequence[Tensor]) -> Tensor:
    """(batch or 1,) samples that must be examined by the core; values are (batch or 1, size)."""
    found = torch.zeros(1, dtype=torch.bool, device=values[0].device)
    for one in declared:
        found = found | _breaks(one, values[one.parameter])
    return found


def _breaks(one: Declaration, value: Tensor) -> Tensor:
    size = value.abs().amax(dim=1)
    bad = torch.zeros_like(size, dtype=torch.bool)
    for sign, _ in one.signs:
        bad = bad | ((sign * value).amin(dim=1) < -TOLERANCE * size)
    if one.bounds is not None:
        low, high = (torch.as_tensor(v, dtype=value.dtype, device=value.device) for v in one.bounds)
        low, high = (v.expand(one.shape).reshape(1, -1) for v in (low, high))
        bad = bad | (torch.maximum(low - value, value - high).amax(dim=1) > TOLERANCE * size)
    for word, which in one.entries:
        part = value[:, torch.as_tensor(which, device=value.device)]
        whole = part.round().clamp(0.0, 1.0) if word == "boolean" else part.round()
        distance = part.abs() if word == "sparse" else (part - whole).abs()
        limit = TOLERANCE * (size if word == "sparse" else size.clamp_min(1.0))
        bad = bad | (distance > limit.unsqueeze(1)).any(dim=1)
    if not (one.symmetric or one.diagonal or one.definite):
        return bad
    matrix = value.reshape(len(value), -1, *one.shape[-2:])
    eye = torch.eye(one.shape[-1], dtype=value.dtype, device=value.device)
    if one.diagonal:
        bad = bad | ((matrix * (1 - eye)).abs().amax(dim=(1, 2, 3)) > TOLERANCE * size)
    if one.symmetric:
        bad = bad | ((matrix - matrix.mT).abs().amax(dim=(1, 2, 3)) > ASYMMETRY * size)
    if one.definite:
        shift = (TOLERANCE * one.shape[-1] * size).reshape(-1, 1, 1, 1)
        failed = torch.linalg.cholesky_ex(0.5 * one.definite * (matrix + matrix.mT) + shift * eye)[1]
        bad = bad | (failed != 0).any(dim=1)
    return bad
