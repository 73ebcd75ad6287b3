"""Magnitudes and products of vectors (batch, ·), sample by sample."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def largest(v: Array) -> Array:
    """(batch, 1) largest magnitudes."""
    return np.abs(v).max(axis=1, keepdims=True, initial=0.0)


def unit(v: Array) -> Array:
    """Vectors scaled to a largest component of 1."""
    size = largest(v)
    return v / np.where(size > 0, size, 1.0)


def inner(u: Array, v: Array) -> Array:
    """(batch,) inner products."""
    return np.einsum("ij,ij->i", u, v)
