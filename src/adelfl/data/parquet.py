"""Decoding of images in parquet files of the Hugging Face layout: image|img {bytes, path}, label."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adelfl.data.cache import Split
from adelfl.data.progress import Progress
from adelfl.data.sources import Files, Source, optional
from adelfl.errors import ConfigError

_BATCH = 2048  # rows in memory at once
_MODES = {1: "L", 3: "RGB"}


def decode(source: Source, files: Files, progress: Progress) -> tuple[Split, Split]:
    """Decode both splits to 8-bit pixels, channels first."""
    opened = {path: _open(path) for path in (*files.train, *files.test)}
    total = sum(file.metadata.num_rows for file in opened.values())
    done = 0

    def split(paths: Sequence[Path]) -> Split:
        nonlocal done
        rows = sum(opened[path].metadata.num_rows for path in paths)
        if rows == 0:
            raise ConfigError(f"{paths[0]}: holds no images")
        x = np.empty((rows, *source.shape), dtype=np.uint8)
        y = np.empty(rows, dtype=np.int64)
        start = 0
        for path in paths:
            for images, labels in _batches(path, opened[path]):
                stop = start + len(images)
                y[start:stop] = labels
                _decode_images(path, images, x[start:stop])
                start, done = stop, done + len(images)
                progress(done, total)
        wrong = (y < 0) | (y >= len(source.class_names))
        if wrong.any():
            raise ConfigError(
                f"{paths[0].parent}: label must be 0 to {len(source.class_names) - 1} in {source.name}, "
                f"not {y[np.argmax(wrong)]}"
            )
        return x, y

    return split(files.train), split(files.test)


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


def _batches(path: Path, file: Any) -> Iterator[tuple[list[bytes], Any]]:  # noqa: ANN401
    column = "image" if "image" in file.schema_arrow.names else "img"
    try:
        for batch in file.iter_batches(_BATCH, columns=[column, "label"]):
            labels = batch.column("label").to_numpy(zero_copy_only=False)
            if labels.dtype.kind not in "iu":  # a gap turns whole numbers into floats
                raise ConfigError(f"{path}: column 'label' must hold whole numbers without gaps")
            yield batch.column(column).field("bytes").to_pylist(), labels
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read in the layout {column} {{bytes, path}}, label ({error})") from None


def _decode_images(path: Path, images: list[bytes], out: np.ndarray) -> None:
    image_module = optional("PIL.Image", "pillow")
    channels, height, width = out.shape[1:]
    mode = _MODES[channels]
    for row, encoded in enumerate(images):
        try:
            with image_module.open(io.BytesIO(encoded)) as image:
                if image.mode != mode or image.size != (width, height):
                    raise ConfigError(
                        f"{path}: expected images of {width} × {height} pixels, mode {mode}, "
                        f"not {image.size[0]} × {image.size[1]}, mode {image.mode}; is it another data set's file?"
                    )
                pixels = np.frombuffer(image.tobytes(), dtype=np.uint8)
        # Pillow raises OSError, SyntaxError, ValueError and others for a broken image; TypeError is a missing one.
        except (OSError, SyntaxError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: an image cannot be decoded ({error})") from None
        out[row] = pixels.reshape(height, width, channels).transpose(2, 0, 1)
