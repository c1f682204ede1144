"""Data sets for training and testing: built in, from parquet files, or from a user's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.data.arrays import Floats32, Ints, as_array, as_floats, as_labels
from adelfl.data.images import Source, load_images, with_bar
from adelfl.errors import ConfigError

_DIGITS = tuple("0123456789")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SOURCES = {
    "mnist": Source("mnist", "ylecun/mnist", (1, 28, 28), _DIGITS),
    "cifar10": Source("cifar10", "uoft-cs/cifar10", (3, 32, 32), _CIFAR10),
}

DATASETS = ("digits", *_SOURCES)
"""Names of data sets for :func:`load_dataset`."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels. Build one with :func:`load_dataset`, :meth:`from_arrays` or :meth:`from_torch`."""

    name: str
    x_train: Floats32 = field(repr=False)
    """Training samples, float32, shape (N, ...); images are channels first."""
    y_train: Ints = field(repr=False)
    """Training labels, int64, shape (N,), 0 to ``classes`` − 1."""
    x_test: Floats32 = field(repr=False)
    y_test: Ints = field(repr=False)
    classes: int
    class_names: tuple[str, ...] = ()
    """Name of each label, or empty."""
    users: Ints | None = field(default=None, repr=False)
    """User of each training sample, numbered from 0, if the samples have users."""

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ConfigError(f"{self.name}: classes must be at least 2, not {self.classes}")
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigError(f"{self.name}: class_names must be {self.classes} names, not {len(self.class_names)}")
        for split, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if x.dtype != np.float32 or y.dtype != np.int64:
                raise ConfigError(
                    f"{self.name}: x_{split} must be float32 and y_{split} int64, not {x.dtype} and {y.dtype}; "
                    "Dataset.from_arrays converts them"
                )
            if x.ndim < 2 or y.ndim != 1 or x.shape[0] != y.size:
                raise ConfigError(
                    f"{self.name}: x_{split} must have shape (N, ...) and y_{split} shape (N,) with one N, "
                    f"not {x.shape} and {y.shape}"
                )
            if x.size == 0:
                raise ConfigError(f"{self.name}: x_{split} is empty, shape {x.shape}; give at least one sample")
            # The extremes are tested, since np.isfinite(x) would allocate another large array.
            if not (np.isfinite(x.min()) and np.isfinite(x.max())):
                raise ConfigError(f"{self.name}: x_{split} holds NaN or infinite values; remove them first")
            if y.min() < 0 or y.max() >= self.classes:
                wrong = y.min() if y.min() < 0 else y.max()
                raise ConfigError(f"{self.name}: labels y_{split} must be 0 to {self.classes - 1}, not {wrong}")
        if self.users is not None and self.users.shape != self.y_train.shape:
            raise ConfigError(f"{self.name}: users must be one per training sample, not shape {self.users.shape}")
        if (train := self.x_train.shape[1:]) != (test := self.x_test.shape[1:]):
            raise ConfigError(f"{self.name}: training and test samples must have one shape, not {train} and {test}")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample; (channels, height, width) for an image."""
        return self.x_train.shape[1:]

    @classmethod
    def from_arrays(
        cls,
        x_train: Any,  # noqa: ANN401
        y_train: Any,  # noqa: ANN401
        x_test: Any,  # noqa: ANN401
        y_test: Any,  # noqa: ANN401
        *,
        name: str = "custom",
        classes: int | None = None,
        class_names: Sequence[str] = (),
    ) -> Dataset:
        """Build a data set from arrays or tensors: anything with ``__array__`` or ``.numpy()``.

        Samples of shape (N, ...) are used as they are: scale them first, for example to −1 … 1. Labels are numbered
        from 0; there are as many as ``class_names``, or by default the largest label plus one. float32 samples and
        int64 labels are not copied.
        """
        x = [as_floats(f"{name}: x_{split}", value) for split, value in (("train", x_train), ("test", x_test))]
        y = [as_labels(f"{name}: y_{split}", value) for split, value in (("train", y_train), ("test", y_test))]
        if classes is None:
            classes = len(class_names) or max(2, 1 + int(max(labels.max() for labels in y)))
        return cls(name, x[0], y[0], x[1], y[1], classes, tuple(class_names))

    @classmethod
    def from_torch(
        cls,
        train: Any,  # noqa: ANN401
        test: Any,  # noqa: ANN401
        *,
        name: str = "custom",
        classes: int | None = None,
        class_names: Sequence[str] = (),
    ) -> Dataset:
        """Build a data set from two map-style data sets of (x, y) pairs, such as those of torchvision.

        Every sample is read once: a random transform is applied once, not once per epoch.
        """
        (x_train, y_train), (x_test, y_test) = _gather(f"{name}: train", train), _gather(f"{name}: test", test)
        return cls.from_arrays(x_train, y_train, x_test, y_test, name=name, classes=classes, class_names=class_names)


def _gather(what: str, data: Any) -> tuple[Floats32, Ints]:  # noqa: ANN401
    """Read all pairs of a map-style data set."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or len(data) == 0:
        raise ConfigError(f"{what} must be a map-style data set with at least one sample")
    x, y = np.empty(0, dtype=np.float32), []
    for i in with_bar(range(len(data)), f"reading {what}", len(data)):
        pair = data[i]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ConfigError(f"{what}: sample {i} must be a pair (x, y), not {type(pair).__name__}")
        # A PIL image would be converted with channels last and pixels from 0 to 255.
        if hasattr(pair[0], "getbands"):
            raise ConfigError(
                f"{what}: sample {i} is an image, not a tensor; "
                "give the data set a transform, such as torchvision.transforms.ToTensor()"
            )
        sample, label = as_array(f"{what}: sample {i}", pair[0]), as_array(f"{what}: label {i}", pair[1])
        if i == 0:
            x = np.empty((len(data), *sample.shape), dtype=np.float32)
        if sample.shape != x.shape[1:] or label.size != 1:
            raise ConfigError(
                f"{what}: sample {i} has shape {sample.shape} and {label.size} labels; "
                f"every sample must have shape {x.shape[1:]}, as the first, and one label"
            )
        x[i] = sample
        y.append(label.item())
    return x, as_labels(f"{what}: labels", y)


def load_dataset(name: str, data_dir: str | Path | None = None, cache_dir: str | Path | None = None) -> Dataset:
    """Load a data set by name, with pixels scaled to −1 … 1.

    ``digits`` is part of the package: 1,438 training and 359 test images, 8 × 8. ``mnist`` and ``cifar10`` are read
    from parquet files in the layout of the Hugging Face hub; without a folder they are downloaded from there. Decoded
    images are cached.

    Parameters
    ----------
    name : str
        One of :data:`DATASETS`.
    data_dir : path, optional
        Folder with ``<name>/train-*.parquet`` and ``<name>/test-*.parquet``, or with these files themselves; by default
        $ADELFL_DATA. If a folder is given, nothing is downloaded.
    cache_dir : path, optional
        Folder for decoded images; by default $ADELFL_CACHE, or ~/.cache/adelfl.
    """
    if name == "digits":
        # The split is stored in the file, since NumPy does not guarantee the same random draws in later versions.
        with (files("adelfl.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return _images("digits", dict(archive), 16, _DIGITS)
    if name not in _SOURCES:
        raise ConfigError(f"there is no data set {name!r}; allowed are {', '.join(DATASETS)}; see Dataset.from_arrays")
    arrays = load_images(_SOURCES[name], data_dir, cache_dir)
    return _images(name, arrays, 255, _SOURCES[name].class_names)


def _images(name: str, arrays: dict[str, NDArray[Any]], top: int, class_names: tuple[str, ...]) -> Dataset:
    """Return the images scaled as (x / top − 0.5) / 0.5, computed as x / (top / 2) − 1, which is exact at both ends."""
    scaled: dict[str, NDArray[Any]] = {}
    for split in ("train", "test"):
        x = np.divide(arrays.pop(f"x_{split}"), np.float32(top / 2), dtype=np.float32)  # popped to save memory
        x -= 1.0
        scaled |= {f"x_{split}": x, f"y_{split}": arrays[f"y_{split}"].astype(np.int64, copy=False)}
    return Dataset(name, **scaled, classes=len(class_names), class_names=class_names)
