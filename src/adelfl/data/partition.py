"""Partition of the training samples among the devices.

The N samples of a data set are distributed without replacement, so that no two devices hold the same one. More than
N // ``min_size`` devices cannot all have samples of their own; they are split into as few groups of equal size as
possible, and the whole data set is distributed to each group. No device holds a sample twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from adelfl.atomic import replacing
from adelfl.data.arrays import Ints, as_array, as_labels
from adelfl.data.label_skew import draw_label_counts
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for

SMALLEST_ALPHA = 1e-9
"""Smallest α; even with much larger values every device already holds one label."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Sequence with the positions of each device's samples in the training set.

    Build one with :func:`iid`, :func:`dirichlet` or :meth:`of`.
    """

    indices: Ints
    """Positions in the training set, device after device."""
    offsets: Ints
    """Device u holds ``indices[offsets[u]:offsets[u + 1]]``."""
    samples: int
    """Size of the training set."""

    def __post_init__(self) -> None:
        for key, array in (("indices", self.indices), ("offsets", self.offsets)):
            if array.dtype != np.int64 or array.ndim != 1:
                raise ConfigError(f"partition: {key} must be an int64 vector, not {array.dtype}, shape {array.shape}")
        if self.offsets.size < 2:
            raise ConfigError("partition: there must be at least one device")
        if self.offsets[0] != 0 or self.offsets[-1] != self.indices.size:
            raise ConfigError(f"partition: offsets must run from 0 to the number of indices, {self.indices.size}")
        if (empty := np.flatnonzero(np.diff(self.offsets) < 1)).size:
            raise ConfigError(f"partition: device #{empty[0] + 1} holds no samples; each needs at least one")
        wrong = (self.indices < 0) | (self.indices >= self.samples)
        if wrong.any():
            i = int(np.argmax(wrong))
            u = int(np.searchsorted(self.offsets, i, side="right"))
            raise ConfigError(
                f"partition: device #{u} holds sample {self.indices[i]}; the training set has 0 to {self.samples - 1}"
            )

    @classmethod
    def of(cls, devices: Sequence[ArrayLike], samples: int) -> Partition:
        """Build a partition of ``samples`` training samples from one sequence of positions per device."""
        parts = []
        for u, part in enumerate(devices, start=1):
            array = as_array(f"partition: device #{u}", part)
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise ConfigError(f"partition: device #{u} must hold a list of whole numbers")
            parts.append(array.astype(np.int64))
        sizes = np.array([part.size for part in parts], dtype=np.int64)
        indices = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return cls(indices, _offsets(sizes), samples)

    def __len__(self) -> int:
        return int(self.offsets.size - 1)

    def __getitem__(self, u: int) -> Ints:
        if not -len(self) <= u < len(self):
            raise IndexError(f"there is no device {u}; the partition has {len(self)}")
        u %= len(self)
        return self.indices[self.offsets[u] : self.offsets[u + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[u] for u in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        names = ("samples", "offsets", "indices")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    @property
    def sizes(self) -> Ints:
        """Number of samples on each device, shape (devices,)."""
        return np.diff(self.offsets)

    def label_counts(self, y: ArrayLike) -> Ints:
        """Count the labels of each device, shape (devices, max(y) + 1)."""
        labels = as_labels("labels", y)
        if labels.size != self.samples:
            raise ConfigError(f"labels must be {self.samples}, one per training sample, not {labels.size}")
        width = int(labels.max()) + 1
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * width + labels[self.indices], minlength=len(self) * width)
        return flat.reshape(len(self), width).astype(np.int64, copy=False)

    def spared(self, kept: Ints, held_out: Ints) -> tuple[Ints, Ints]:
        """Move samples from ``held_out`` to ``kept`` so that each device keeps one; both results are ascending."""
        is_kept = np.zeros(self.samples, dtype=np.bool_)
        is_kept[kept] = True
        first = self.indices[self.offsets[:-1]]
        is_kept[first[np.logical_or.reduceat(is_kept[self.indices], self.offsets[:-1]) == 0]] = True
        if is_kept.all():
            raise ConfigError("data.validation: must be 0, because each device holds a single sample")
        return np.flatnonzero(is_kept), np.flatnonzero(~is_kept)

    def restricted(self, kept: Ints) -> Partition:
        """Return the partition of the training samples at the ascending positions ``kept``, renumbered from 0."""
        place = np.full(self.samples, -1, dtype=np.int64)
        place[kept] = np.arange(kept.size)
        moved = place[self.indices]
        sizes = np.add.reduceat((moved >= 0).astype(np.int64), self.offsets[:-1])
        return Partition(moved[moved >= 0], _offsets(sizes), int(kept.size))

    def save(self, path: str | Path) -> None:
        """Write to an .npz file atomically."""
        arrays = {"indices": self.indices, "offsets": self.offsets, "samples": np.array(self.samples, dtype=np.int64)}
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, shared=True) as temporary, open(temporary, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for allow_pickle
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a file that :meth:`save` wrote."""
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                return cls(archive["indices"], archive["offsets"], int(archive["samples"]))
        except ConfigError:
            raise
        except Exception as error:  # zipfile, zlib, struct and numpy raise various exceptions for a damaged file
            reason = getattr(error, "strerror", None) or "it is damaged, or was not written by adelfl partition --save"
            raise ConfigError(f"{path}: cannot be read as a partition ({reason})") from None


def by_user(users: ArrayLike) -> Partition:
    """Assign the samples of each user to one device; ``users`` numbers the user of each sample from 0."""
    owner = as_labels("users", users)
    return Partition(np.argsort(owner, kind="stable"), _offsets(np.bincount(owner)), owner.size)


def iid(labels: ArrayLike, devices: int, seed: int, *, min_size: int = 1) -> Partition:
    """Distribute the samples at random, in equal parts (up to one sample).

    More than N // ``min_size`` devices share samples as described in :mod:`adelfl.data.partition`.
    """
    y = as_labels("labels", labels)

    def deal(group: int, sizes: Ints) -> Ints:
        return rng_for(seed, "partition", "iid", group).permutation(y.size)

    return _deal_to_groups(y.size, devices, min_size, deal)


def dirichlet(labels: ArrayLike, devices: int, alpha: float, seed: int, min_size: int = 1) -> Partition:
    """Distribute the samples such that each device has its own label shares, after Hsu, Qi and Brown (2019).

    Device u draws its label shares q_u ~ Dir(C α p), where p are the shares of the C labels in the training set, and
    then its samples, without replacement, by q_u (:mod:`adelfl.data.label_skew`). With equally frequent labels that is
    Dir(α, …, α), the Dirichlet(α) of later papers and other libraries; in Hsu's own notation α is divided by C. Large α
    approaches :func:`iid`, small α leaves a device with one label. Sizes are equal (up to one sample), and devices
    share samples as in :func:`iid`.
    """
    y = as_labels("labels", labels)
    _, label, pool = np.unique(y, return_inverse=True, return_counts=True)
    concentration = alpha * pool.size
    if not (np.isfinite(alpha) and concentration >= SMALLEST_ALPHA):
        raise ConfigError(f"alpha must be a number above {SMALLEST_ALPHA:g}, not {alpha:g}; for α = ∞ use iid")

    def deal(group: int, sizes: Ints) -> Ints:
        rng = rng_for(seed, "partition", "dirichlet", group)
        counts = draw_label_counts(rng, pool, sizes, concentration)
        # The samples of a label are distributed in random order; then each device's samples are shuffled.
        shuffled = rng.permutation(y.size)
        samples = shuffled[np.argsort(label[shuffled], kind="stable")]
        owner = np.repeat(np.tile(np.arange(sizes.size), pool.size), counts.T.ravel())
        mixed = rng.permutation(y.size)
        return samples[mixed[np.argsort(owner[mixed], kind="stable")]]

    return _deal_to_groups(y.size, devices, min_size, deal)


def _deal_to_groups(samples: int, devices: int, min_size: int, deal: Callable[[int, Ints], Ints]) -> Partition:
    """Distribute the whole data set to each group of devices; ``deal(group, sizes)`` orders the samples by device."""
    if devices < 1:
        raise ConfigError(f"devices must be at least 1, not {devices}")
    if not 1 <= min_size <= samples:
        raise ConfigError(f"min_size must be 1 to {samples}, the size of the training set, not {min_size}")
    groups = -(-devices // (samples // min_size))
    sizes = [_equal(samples, int(count)) for count in _equal(devices, groups)]
    indices = [deal(group, part) for group, part in enumerate(sizes)]
    return Partition(np.concatenate(indices), _offsets(np.concatenate(sizes)), samples)


def _equal(total: int, parts: int) -> Ints:
    """Split a number into parts that differ by one at most."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def _offsets(sizes: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def split_validation(labels: ArrayLike, fraction: float, seed: int) -> tuple[Ints, Ints]:
    """Split the positions of the training set into training and validation, stratified by label; both are ascending.

    ``fraction`` is the validation share of every label (up to one sample); every label keeps a training sample.
    """
    y = as_labels("labels", labels)
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"fraction must lie between 0 and 1, not {fraction:g}")
    _, label, pool = np.unique(y, return_inverse=True, return_counts=True)
    quota = _apportion(fraction * pool, round(fraction * y.size), pool - 1)
    if quota.sum() == 0:
        raise ConfigError(f"fraction {fraction:g} of {y.size} samples is an empty validation set; give a larger one")
    order = rng_for(seed, "validation").permutation(y.size)
    order = order[np.argsort(label[order], kind="stable")]
    rank = np.arange(y.size) - np.repeat(np.cumsum(pool) - pool, pool)
    held_out = np.zeros(y.size, dtype=bool)
    held_out[order[rank < np.repeat(quota, pool)]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _apportion(shares: np.ndarray, total: int, most: Ints) -> Ints:
    """Round shares to whole numbers that add up to ``total``, largest remainders first, each at most ``most``."""
    whole: Ints = np.minimum(np.floor(shares).astype(np.int64), most)
    room = np.flatnonzero(whole < most)
    first = room[np.argsort(whole[room] - shares[room], kind="stable")]
    whole[first[: max(0, total - int(whole.sum()))]] += 1
    return whole
