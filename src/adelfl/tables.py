"""Reading of CSV and Parquet files into columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import ConfigError
from adelfl.plugins import optional

Columns = dict[str, Sequence[Any]]


def read_csv(path: str | Path) -> Columns:
    """Return the columns of a CSV file by the names in its first line, as text."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as a CSV file ({error})") from None
    header = [name.strip() for name in header]
    if repeated := [name for name in header if header.count(name) > 1]:
        raise ConfigError(f"{path}: column {repeated[0]!r} appears twice; name each column once")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ConfigError(f"{path}: row {line} has {len(row)} fields; the first line has {len(header)}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def read_parquet(path: Path) -> Columns:
    """Return the columns of a Parquet file by their names, as Python objects; needs the extra ``data``."""
    try:
        return dict(optional("pyarrow.parquet", "pyarrow").read_table(path).to_pydict())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a parquet file ({error})") from None


def numbers(path: str | Path, name: str, values: Sequence[Any], missing: set[str] | None = None) -> NDArray[np.float64]:
    """Convert a column to numbers, with NaN for the words in ``missing``."""
    array = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            array[i] = np.nan if missing and str(value).strip().lower() in missing else float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{path}: row {i + 2}, column {name!r}: {value!r} is not a number") from None
    return array
