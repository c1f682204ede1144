"""A record as a CSV file, rounds.csv in the run's folder: a line per round, spreads as least, median and largest."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from adelfl.export.entry import SCALARS, SPREADS, Entry, Source


class CsvLog:
    """Writes rounds.csv."""

    def __init__(self, source: Source) -> None:
        self._path = source.folder / "rounds.csv"
        spreads = [f"{name}/{word}" for name in SPREADS for word in ("min", "median", "max")]
        self._file = self._path.open("w", newline="", encoding="utf-8")
        self._lines = csv.DictWriter(self._file, ["round", *SCALARS, *spreads, *source.layers])
        self._lines.writeheader()

    def add(self, entry: Entry) -> None:
        """Write a line; what the round does not have stays empty."""
        self._lines.writerow({"round": entry.round, **entry.scalars, **entry.quantiles})

    def close(self, result: Mapping[str, Any] | None) -> str:
        """Close the file."""
        self._file.close()
        return str(self._path)
