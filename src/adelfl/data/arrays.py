"""Conversion of lists, numpy arrays and torch tensors to samples (float32) and labels (int64)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.array_types import Ints as Ints
from adelfl.errors import ConfigError

Floats32 = NDArray[np.float32]


def as_array(name: str, value: Any) -> NDArray[Any]:  # noqa: ANN401 - any array-like
    """Convert anything with ``__array__`` or ``.numpy()`` to an array of real numbers, without importing torch."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        if not isinstance(value, np.ndarray) and callable(getattr(value, "numpy", None)):
            value = value.numpy()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as an array of numbers ({error})") from None
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{name} must hold real numbers, not {array.dtype}")
    return array


def as_floats(name: str, value: Any) -> Floats32:  # noqa: ANN401
    """Convert samples to float32, contiguous and writeable (torch.from_numpy warns otherwise)."""
    with np.errstate(over="ignore"):  # an overflow becomes an infinity, which Dataset rejects
        return np.require(as_array(name, value), dtype=np.float32, requirements=["C", "W"])


def as_labels(name: str, value: Any) -> Ints:  # noqa: ANN401
    """Convert labels to int64, shape (N,); fractions, negative numbers and other shapes are rejected."""
    array = as_array(name, value)
    if array.ndim != 1:
        raise ConfigError(f"{name} must be one whole number per sample, shape (N,), not shape {array.shape}")
    if array.size == 0:
        raise ConfigError(f"{name} is empty; give at least one sample")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array) & (array == np.round(array))):
        raise ConfigError(f"{name} must be whole numbers")
    # Checked before the conversion, in which a large unsigned number would become negative.
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        wrong = array.min() if array.min() < 0 else array.max()
        raise ConfigError(f"{name} must be numbered from 0, not {wrong:g}")
    return np.require(array, dtype=np.int64, requirements=["C", "W"])
