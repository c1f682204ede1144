"""MNIST and CIFAR-10 from parquet files of the Hugging Face layout, image|img {bytes, path} and label.

The files are in a folder or on the hub. Decoded images are cached under a name that depends on the files' names, sizes
and times; if the cache is damaged, they are decoded again.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adelfl.atomic import replacing
from adelfl.errors import ConfigError, MissingExtraError
from adelfl.plugins import optional
from adelfl.tables import read_parquet

T = TypeVar("T")

_FORMAT = 1  # raise it when the decoder's output changes
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Source:
    """An image data set in the Hugging Face layout."""

    name: str
    repo: str  # name on the hub, ``owner/name``
    shape: tuple[int, int, int]  # channels, height, width
    class_names: tuple[str, ...]


def with_bar(items: Iterable[T], title: str, total: int) -> Iterator[T]:
    """Yield the items, with a progress bar on stderr if that is a terminal."""
    # isatty, because rich's own test is also true for a log file if FORCE_COLOR is set.
    if sys.stderr is None or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total, console=Console(stderr=True), transient=True)


def load_images(source: Source, data_dir: str | Path | None, cache_dir: str | Path | None) -> dict[str, NDArray[Any]]:
    """Return ``x_train``, ``y_train``, ``x_test`` and ``y_test``: 8-bit pixels, channels first, and labels."""
    splits = _locate(source, data_dir)
    stats = [(path.name, path.stat()) for paths in splits.values() for path in paths]
    key = repr([_FORMAT, source.name, *((name, s.st_size, s.st_mtime_ns) for name, s in stats)])
    folder = Path(cache_dir or os.environ.get("ADELFL_CACHE") or "~/.cache/adelfl").expanduser()
    cache = folder / f"{source.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    try:
        with open(cache, "rb") as file, np.load(file, allow_pickle=False) as archive:
            # Reading also checks the CRC-32 of each array.
            return {f"{kind}_{split}": archive[f"{kind}_{split}"] for kind in "xy" for split in splits}
    except Exception:  # zipfile, zlib, struct and numpy raise various exceptions for a damaged file
        arrays: dict[str, NDArray[Any]] = {}
    for split, paths in splits.items():
        arrays[f"x_{split}"], arrays[f"y_{split}"] = _decoded(source, split, paths)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(cache, shared=True) as temporary, open(temporary, "wb") as new:
            np.savez(new, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for allow_pickle
    except OSError as error:
        warnings.warn(
            f"{cache}: decoded images cannot be kept ({error.strerror or error}) and will be decoded again next "
            "time; give a writable folder as cache_dir or in $ADELFL_CACHE",
            stacklevel=3,
        )
    return arrays


def _decoded(source: Source, split: str, paths: list[Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    samples = [(path, encoded, label) for path in paths for encoded, label in _samples(path)]
    if not samples:
        raise ConfigError(f"{paths[0]}: holds no images; download it again")
    classes = len(source.class_names)
    x = np.empty((len(samples), *source.shape), dtype=np.uint8)
    y = np.empty(len(samples), dtype=np.int64)
    for i, (path, encoded, label) in enumerate(with_bar(samples, f"decoding {source.name}, {split}", len(samples))):
        if not isinstance(label, int) or not 0 <= label < classes:
            raise ConfigError(f"{path}: label must be 0 to {classes - 1} in {source.name}, not {label}")
        x[i], y[i] = _pixels(path, encoded, source.shape), label
    return x, y


def _samples(path: Path) -> Iterable[tuple[bytes, object]]:
    """Return the encoded images and the labels of a file."""
    columns = read_parquet(path)
    column = "image" if "image" in columns else "img"
    if not {"label", column} <= columns.keys():
        raise ConfigError(f"{path}: expected the columns 'label' and 'image' or 'img', not {', '.join(columns)}")
    try:
        return zip([image["bytes"] for image in columns[column]], columns["label"], strict=True)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read in the layout {column} {{bytes, path}}, label ({error})") from None


def _pixels(path: Path, encoded: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    channels, height, width = shape
    try:
        with optional("PIL.Image", "pillow").open(io.BytesIO(encoded)) as image:
            if image.mode != _MODES[channels] or image.size != (width, height):
                raise ConfigError(
                    f"{path}: expected images of {width} × {height} pixels, mode {_MODES[channels]}, "
                    f"not {image.size[0]} × {image.size[1]}, mode {image.mode}; is it the file of another data set?"
                )
            return np.asarray(image, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
    # Pillow raises OSError, SyntaxError, ValueError and others for a broken image, TypeError for a missing one.
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: an image cannot be decoded ({error})") from None


def _locate(source: Source, data_dir: str | Path | None) -> dict[str, list[Path]]:
    """Find the files of ``train`` and ``test`` in ``data_dir`` or $ADELFL_DATA; if neither is given, on the hub."""
    given = data_dir or os.environ.get("ADELFL_DATA")
    if not given:
        return _from_hub(source)
    folder = Path(given).expanduser()
    if (files := _find(source, folder)) is None:
        origin = "data_dir" if data_dir else "$ADELFL_DATA"
        problem = f"holds no {source.name}" if folder.is_dir() else "is not a folder"
        raise ConfigError(
            f"{folder} ({origin}) {problem}: expected {source.name}/train-*.parquet and {source.name}/test-*.parquet "
            f"in it, as in huggingface.co/datasets/{source.repo}; put them there, or give no folder to download them"
        )
    return files


def _find(source: Source, folder: Path) -> dict[str, list[Path]] | None:
    """Find both splits in one of the usual places under ``folder``."""
    owner, short = source.repo.split("/")
    snapshots = folder / f"datasets--{owner}--{short}" / "snapshots"
    bases = (folder / source.name, folder / owner / short, folder / f"{owner}--{short}")
    for base in (*bases, *sorted(snapshots.glob("*")), folder):
        for config in ("", source.name, "plain_text", "data", "default"):
            splits = {split: _files_of(base / config, split) for split in ("train", "test")}
            if all(splits.values()):
                return splits
    return None


def _files_of(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in the order of their shards; empty if there are none."""
    patterns = (f"{split}-*.parquet", f"{split}/*.parquet", f"{split}.parquet")
    paths: list[Path] = next(filter(None, (sorted(folder.glob(pattern)) for pattern in patterns)), [])
    shards = [re.search(r"-(\d{5})-of-(\d{5})", path.name) for path in paths]
    numbers = {(int(m[1]), int(m[2])) for m in shards if m}
    for _, total in numbers:
        if missing := [i for i in range(total) if (i, total) not in numbers]:
            shard = f"{missing[0]:05d}-of-{total:05d}"
            raise ConfigError(f"{paths[0].parent}: shard {shard} is missing; download the complete data set")
    return paths


def _from_hub(source: Source) -> dict[str, list[Path]]:
    advice = f"name a folder that holds {source.name}/train-*.parquet as data_dir or in $ADELFL_DATA"
    try:
        hub = optional("huggingface_hub", "huggingface_hub")
    except MissingExtraError as missing:
        raise MissingExtraError(missing.package, missing.extra, advice) from None
    # The files on the hub do not change, so a local copy is used if there is one.
    for local in (True, False):
        try:
            folder = hub.snapshot_download(
                source.repo, repo_type="dataset", allow_patterns="*.parquet", local_files_only=local
            )
            if (files := _find(source, Path(folder))) is not None:
                return files
            reason = "it holds no parquet files of the expected names"
        except Exception as error:  # of the hub's client, its HTTP library or the operating system
            reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ConfigError(
        f"{source.name} cannot be fetched from huggingface.co/datasets/{source.repo} ({reason}); {advice}"
    )
