"""What the translated atoms need of an array library, in NumPy's spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

Array = np.ndarray


class Namespace:
    """A library that uses NumPy's names (NumPy itself, `jax.numpy`), and an error function beside it.

    A library that does not is adapted by a class with the same names: `asarray`, `take`, `reshape`, `transpose`,
    `broadcast_to`, `concatenate`, `stack`, `where`, `sum`, `prod`, `max`, `min`, `sort`, `cumsum`, `cumprod`, `matmul`,
    elementwise functions, and `eigvalsh`, `eigvals`, `svdvals`, `slogdet`, `inv`, `cholesky`.
    """

    def __init__(self, module: Any, erf: Callable[[Any], Any]) -> None:
        self._module = module
        self.erf = erf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def eigvalsh(self, x: Any) -> Any:
        return self._module.linalg.eigvalsh(x)

    def svdvals(self, x: Any) -> Any:
        return self._module.linalg.svd(x, compute_uv=False)

    def slogdet(self, x: Any) -> tuple[Any, Any]:
        sign, logarithm = self._module.linalg.slogdet(x)
        return sign, logarithm

    def inv(self, x: Any) -> Any:
        return self._module.linalg.inv(x)

    def eigvals(self, x: Any) -> Any:
        return self._module.linalg.eigvals(x)

    def cholesky(self, x: Any) -> Any:
        return self._module.linalg.cholesky(x)


class HostNamespace(Namespace):
    """NumPy in one precision. A matrix without a spectrum, an inverse or a factor has NaN instead, and raises nothing.

    Args:
        precision: to which constants are converted.
    """

    def __init__(self, precision: Any = np.float64) -> None:
        super().__init__(np, scipy.special.erf)
        self.precision = precision

    def asarray(self, value: Array) -> Array:
        return value.astype(self.precision, copy=False) if value.dtype.kind == "f" else value

    def eigvalsh(self, x: Array) -> Array:
        return _each(np.linalg.eigvalsh, x)

    def eigvals(self, x: Array) -> Array:
        return _each(np.linalg.eigvals, x)

    def svdvals(self, x: Array) -> Array:
        return _each(super().svdvals, x)

    def inv(self, x: Array) -> Array:
        return _each(np.linalg.inv, x)

    def cholesky(self, x: Array) -> Array:
        return _each(np.linalg.cholesky, x)


def beside(where: Any, v: Any) -> Any:
    """A mask (batch,) or () in a shape that broadcasts against values (batch, ...)."""
    return where.reshape((*where.shape, *(1,) * (v.ndim - where.ndim)))


def _each(function: Callable[[Array], Array], x: Array) -> Array:
    try:
        return function(x)
    except np.linalg.LinAlgError:
        if x.ndim > 2:
            return np.stack([_each(function, one) for one in x])
        return np.full_like(function(np.eye(*x.shape, dtype=x.dtype)), np.nan)
