"""Fleets of devices: compute speeds, upload times, and numbers of equal devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adelfl.array_types import Bools, Floats, Ints, select
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for
from adelfl.tables import numbers, read_csv

MAX_DEVICES = 100_000_000
"""Largest number of devices in a fleet."""

MAX_RATE = 1e30
"""Largest speed and upload time; products of both stay finite."""

COLUMNS = ("compute", "upload", "count", "name", "samples", "overhead", "spread")
"""Columns of a CSV file that describes a fleet."""


def _vector(name: str, value: ArrayLike, size: int) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.size not in (1, size)):
        raise ConfigError(f"{name} must be one number or {size} of them, not shape {array.shape}")
    return np.broadcast_to(array.reshape(-1), (size,)).copy()


@dataclass(frozen=True, eq=False)
class Fleet:
    """Groups of equal devices. Build one with :meth:`of`, :meth:`lognormal` or another class method."""

    compute: Floats
    """P_u, layers of one sample that a device backpropagates per second, shape (groups,)."""
    upload: Floats
    """B_u, seconds that a device needs to send its update, shape (groups,)."""
    count: Ints
    """Number of devices in each group."""
    names: tuple[str, ...] = ()
    """A name per group, or empty."""
    samples: Floats | None = None
    """Training samples of each device in the group, which its batches do not exceed; infinite where unknown, None if
    unknown for all."""
    overhead: Floats | None = None
    """s₀: cost of a step besides its samples, in samples: a layer takes (S + s₀)/P_u on average; None for 0."""
    spread: Floats | None = None
    """Standard deviation of a layer's time over its mean (a gamma law): 0 for steady times, 1 for the paper's
    exponential ones; None for 1."""

    def __post_init__(self) -> None:
        if self.compute.size == 0:
            raise ConfigError("the fleet is empty; give at least two devices")
        for key, low, high, allowed in (
            ("compute", 1.0 / MAX_RATE, MAX_RATE, f"a positive number from {1.0 / MAX_RATE:g} to {MAX_RATE:g}"),
            ("upload", 0.0, MAX_RATE, f"zero or a positive number of seconds, at most {MAX_RATE:g}"),
            ("count", 1, np.inf, "at least 1"),
            ("samples", 1, np.inf, "a whole number of at least 1"),
            ("overhead", 0.0, 1e9, "zero or a positive number, at most 1e+09"),
            ("spread", 0.0, 10.0, "zero or a positive number, at most 10"),
        ):
            values = getattr(self, key)
            if values is None:
                continue
            valid = (low <= values) & (values <= high) & ((key != "samples") | (values == np.floor(values)))
            if not valid.all():
                i = int(np.argmin(valid))
                raise ConfigError(f"{key} of {self.name(i)} must be {allowed}, not {values[i]:g}")
        devices = float(self.count.sum(dtype=np.float64))
        if devices > MAX_DEVICES:
            raise ConfigError(f"count adds up to {devices:,.0f} devices; at most {MAX_DEVICES:,} are supported")

    @classmethod
    def of(
        cls,
        compute: ArrayLike,
        upload: ArrayLike = 0.0,
        count: ArrayLike = 1,
        names: Sequence[str] = (),
        samples: ArrayLike | None = None,
        overhead: ArrayLike | None = None,
        spread: ArrayLike | None = None,
    ) -> Fleet:
        """Build a fleet from numbers or arrays with one entry per group; the arguments are the class's attributes."""
        values = {"compute": compute, "upload": upload, "count": count}
        values |= {k: v for k, v in (("samples", samples), ("overhead", overhead), ("spread", spread)) if v is not None}
        sizes = [np.size(v) for v in values.values()]
        size = max(sizes) if all(sizes[:3]) else 0
        vectors: dict[str, Any] = {key: _vector(key, v, size) for key, v in values.items()}
        if not np.all(np.isfinite(vectors["count"]) & (vectors["count"] == np.round(vectors["count"]))):
            raise ConfigError("count must be whole numbers, one per group")
        if names and len(names) != size:
            raise ConfigError(f"names must be {size} names, one per group, not {len(names)}")
        vectors["count"] = np.minimum(vectors["count"], 4e18).astype(np.int64)
        return cls(**vectors, names=tuple(names))

    @classmethod
    def lognormal(
        cls, size: int, *, compute: float, sigma: float, upload: float = 0.0, upload_sigma: float = 0.0, seed: int
    ) -> Fleet:
        """Draw devices whose speeds (and uploads) are lognormal with the given medians and log-deviations."""
        rng = rng_for(seed, "fleet")
        speeds = compute * np.exp(sigma * rng.standard_normal(size))
        uploads = upload * np.exp(upload_sigma * rng.standard_normal(size))
        return cls.of(speeds, uploads)

    @classmethod
    def uniform(cls, size: int, *, low: float, high: float, upload: float = 0.0, seed: int) -> Fleet:
        """Draw devices whose speeds are uniform between two numbers."""
        return cls.of(rng_for(seed, "fleet").uniform(low, high, size), upload)

    @classmethod
    def two_class(
        cls, size: int, *, fast: float, slow: float, slow_share: float, upload: float = 0.0, seed: int
    ) -> Fleet:
        """Draw a given share of slow devices among fast ones."""
        speeds = np.full(size, fast)
        speeds[rng_for(seed, "fleet").permutation(size)[: round(slow_share * size)]] = slow
        return cls.of(speeds, upload)

    @classmethod
    def phones(cls, size: int, *, compute: float, update_megabytes: float, seed: int) -> Fleet:
        """Draw phones with a median speed ``compute``, a realistic spread of speeds, and uplinks around 3 MB/s.

        Lognormal speeds with a log-deviation of 1.31, fitted to the public p10/p50/p90 = 9.9/30/281 ms of MobileNet-V2
        inference (AI-Benchmark, 403 phones); lognormal uplinks with median 3.1 MB/s and a log-deviation of 0.70, fitted
        to the means of 19 measured users (FLASH).
        """
        upload = update_megabytes / 3.1
        return cls.lognormal(size, compute=compute, sigma=1.31, upload=upload, upload_sigma=0.70, seed=seed)

    @classmethod
    def from_csv(cls, path: str | Path) -> Fleet:
        """Read a fleet from a CSV file with the column compute, and optionally those of :data:`COLUMNS`."""
        columns = read_csv(path)
        if unknown := [name for name in columns if name not in COLUMNS]:
            allowed = f"{', '.join(COLUMNS[:-1])} and {COLUMNS[-1]}"
            raise ConfigError(f"{path}: unknown column {unknown[0]!r}; allowed are {allowed}")
        if "compute" not in columns:
            raise ConfigError(f"{path}: column 'compute' is missing; the first line must name the columns")
        values = {key: numbers(path, key, column) for key, column in columns.items() if key != "name"}
        names = columns.get("name", [f"row {i + 2}" for i in range(len(columns["compute"]))])
        try:
            return cls.of(**values, names=names)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return int(self.count.sum())

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.compute.size)

    def name(self, i: int) -> str:
        """Return the name of group i for messages."""
        return self.names[i] if self.names else f"device #{i + 1}"

    def overhead_of(self, groups: Ints | slice = slice(None)) -> Floats:
        """Return s₀ of some groups."""
        return (np.zeros(self.groups) if self.overhead is None else self.overhead)[groups]

    def subset(self, keep: Bools) -> Fleet:
        """Return the groups where ``keep`` is true."""
        return replace(select(self, keep), names=tuple(compress(self.names, keep)))
