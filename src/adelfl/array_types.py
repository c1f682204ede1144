"""Types of arrays, and dataclasses of arrays."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Array = Any
"""An array of NumPy or a tensor of torch."""

Record = TypeVar("Record", bound="DataclassInstance")


def select(record: Record, some: Ints | Bools) -> Record:
    """Return a copy of a dataclass that has some entries of each of its arrays."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return replace(record, **{name: value[some] for name, value in values.items() if isinstance(value, np.ndarray)})
