"""A record as a CSV file, rounds.csv in the run's folder: a line per round, spreads as least, median and largest."""

from __future__ import annotations

import csv
import io

from adelfl.atomic import write_output
from adelfl.export.entry import SCALARS, SPREADS, Entry, Source
from adelfl.records.schema import RunResult


class CsvLog:
    """Writes rounds.csv."""

    def __init__(self, source: Source) -> None:
        self._path = source.folder / "rounds.csv"
        spreads = [f"{name}/{word}" for name in SPREADS for word in ("min", "median", "max")]
        # Unless the run is still going, the file is written at once when it is complete.
        self._file = self._path.open("w", newline="", encoding="utf-8") if source.live else io.StringIO(newline="")
        self._lines = csv.DictWriter(self._file, ["round", *SCALARS, *spreads, *source.layers])
        self._lines.writeheader()

    def add(self, entry: Entry) -> None:
        """Write a line; what the round does not have stays empty."""
        self._lines.writerow({"round": entry.round, **entry.scalars, **entry.quantiles})

    def close(self, result: RunResult | None) -> str:
        """Write the file, or close it."""
        if isinstance(self._file, io.StringIO):
            write_output(self._path, self._file.getvalue())
        self._file.close()
        return str(self._path)

    def discard(self) -> None:
        """Forget the lines."""
        self._file.close()
