"""Types of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Array = Any
"""An array of NumPy or a tensor of torch."""
