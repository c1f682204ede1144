"""Decoding of images in parquet files of the Hugging Face layout: image|img {bytes, path}, label."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.data.progress import with_bar
from adelfl.data.sources import Source, optional
from adelfl.errors import ConfigError

_BATCH = 2048  # rows in memory at once
_MODES = {1: "L", 3: "RGB"}


def decode(source: Source, splits: dict[str, list[Path]]) -> dict[str, NDArray[Any]]:
    """Decode both splits to ``x_train``, ``y_train``, … : 8-bit pixels, channels first, and labels."""
    arrays: dict[str, NDArray[Any]] = {}
    for split, paths in splits.items():
        files = {path: _open(path) for path in paths}
        rows = sum(file.metadata.num_rows for file in files.values())
        if rows == 0:
            raise ConfigError(f"{paths[0]}: holds no images")
        x = np.empty((rows, *source.shape), dtype=np.uint8)
        y = np.empty(rows, dtype=np.int64)
        samples = (sample for path, file in files.items() for sample in _samples(path, file, source))
        for i, (image, label) in enumerate(with_bar(samples, f"decoding {source.name}, {split}", rows)):
            x[i], y[i] = image, label
        arrays |= {f"x_{split}": x, f"y_{split}": y}
    return arrays


def _open(path: Path) -> Any:  # noqa: ANN401 - pyarrow comes without types
    parquet = optional("pyarrow.parquet", "pyarrow")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a parquet file ({error})") from None
    names = file.schema_arrow.names
    if "label" not in names or not {"image", "img"} & set(names):
        raise ConfigError(f"{path}: expected the columns 'label' and 'image' or 'img', not {', '.join(names)}")
    return file


def _samples(path: Path, file: Any, source: Source) -> Iterator[tuple[NDArray[np.uint8], int]]:  # noqa: ANN401
    """Yield the images, channels first, and labels of a file."""
    column = "image" if "image" in file.schema_arrow.names else "img"
    classes = len(source.class_names)
    try:
        for batch in file.iter_batches(_BATCH, columns=[column, "label"]):
            images, labels = batch.column(column).field("bytes").to_pylist(), batch.column("label").to_pylist()
            for encoded, label in zip(images, labels, strict=True):
                if not isinstance(label, int) or not 0 <= label < classes:
                    raise ConfigError(f"{path}: label must be 0 to {classes - 1} in {source.name}, not {label}")
                yield _pixels(path, encoded, source.shape), label
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read in the layout {column} {{bytes, path}}, label ({error})") from None


def _pixels(path: Path, encoded: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    channels, height, width = shape
    try:
        with optional("PIL.Image", "pillow").open(io.BytesIO(encoded)) as image:
            if image.mode != _MODES[channels] or image.size != (width, height):
                raise ConfigError(
                    f"{path}: expected images of {width} × {height} pixels, mode {_MODES[channels]}, "
                    f"not {image.size[0]} × {image.size[1]}, mode {image.mode}; is it another data set's file?"
                )
            return np.asarray(image, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
    # Pillow raises OSError, SyntaxError, ValueError and others for a broken image; TypeError is a missing one.
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: an image cannot be decoded ({error})") from None
