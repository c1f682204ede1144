"""Location of the parquet files of a data set, in a folder or on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from adelfl.errors import ConfigError, MissingExtraError


@dataclass(frozen=True)
class Source:
    """An image data set in the Hugging Face layout."""

    name: str
    repo: str
    """Name on the hub, ``owner/name``."""
    shape: tuple[int, int, int]
    """Channels, height, width."""
    class_names: tuple[str, ...]


def optional(module: str, package: str) -> Any:  # noqa: ANN401 - a module
    """Import a module of the extra ``data``, or raise an error that names the package."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtraError(package, "data") from None
    except ImportError as error:  # installed, but not for this Python or this numpy
        raise ConfigError(f"{package} is installed but cannot be imported ({error}); install it anew") from None


def locate(source: Source, data_dir: str | Path | None) -> dict[str, list[Path]]:
    """Find the files of ``train`` and ``test`` in ``data_dir`` or $ADELFL_DATA; if neither is given, on the hub."""
    given = data_dir or os.environ.get("ADELFL_DATA")
    if not given:
        return _from_hub(source)
    folder = Path(given).expanduser()
    if (files := find(source, folder)) is None:
        origin = "data_dir" if data_dir else "$ADELFL_DATA"
        problem = f"holds no {source.name}" if folder.is_dir() else "is not a folder"
        raise ConfigError(
            f"{folder} ({origin}) {problem}: expected {source.name}/train-*.parquet and {source.name}/test-*.parquet "
            f"in it, as in huggingface.co/datasets/{source.repo}; put them there, or give no folder to fetch them from "
            "the hub"
        )
    return files


def find(source: Source, folder: Path) -> dict[str, list[Path]] | None:
    """Look for both splits in one place under ``folder``, nearest to the plain layout first."""
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
            raise ConfigError(
                f"{paths[0].parent}: shard {missing[0]:05d}-of-{total:05d} is missing beside {paths[0].name}; "
                "fetch the complete set"
            )
    return paths


def _from_hub(source: Source) -> dict[str, list[Path]]:
    advice = f"name a folder that holds {source.name}/train-*.parquet as data_dir or in $ADELFL_DATA"
    try:
        hub = optional("huggingface_hub", "huggingface_hub")
    except MissingExtraError as missing:
        missing.args = (f"{missing}; or {advice}",)
        raise
    # The files on the hub do not change, so a local copy is used if there is one.
    for local in (True, False):
        try:
            folder = hub.snapshot_download(
                source.repo, repo_type="dataset", allow_patterns="*.parquet", local_files_only=local
            )
            if (files := find(source, Path(folder))) is not None:
                return files
            reason = "it holds no parquet files of the expected names"
        # The hub's client raises its own errors, its HTTP library's and the operating system's.
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ConfigError(
        f"{source.name} cannot be fetched from huggingface.co/datasets/{source.repo} ({reason}); {advice}"
    )
