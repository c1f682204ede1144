"""Export to rounds.csv in the run's folder: a line per round, values per device as minimum, median and maximum."""

from __future__ import annotations

import csv
import io

from adelfl.atomic import write_output
from adelfl.export.logs import SCALARS, SPREADS, Entry, ExportedRun
from adelfl.records.schema import RunResult


class CsvLog:
    """Writes rounds.csv."""

    def __init__(self, run: ExportedRun) -> None:
        self._path = run.folder / "rounds.csv"
        spreads = [f"{name}/{word}" for name in SPREADS for word in ("min", "median", "max")]
        # The file of a finished run is written as a whole.
        self._file = self._path.open("w", newline="", encoding="utf-8") if run.live else io.StringIO(newline="")
        self._lines = csv.DictWriter(self._file, ["round", *SCALARS, *spreads, *run.layers])
        self._lines.writeheader()

    def add(self, entry: Entry) -> None:
        """Write a line; missing values stay empty."""
        self._lines.writerow({"round": entry.round, **entry.scalars, **entry.quantiles})

    def close(self, result: RunResult | None) -> str:
        """Write the file, or close it."""
        if isinstance(self._file, io.StringIO):
            write_output(self._path, self._file.getvalue())
        self._file.close()
        return str(self._path)

    def discard(self) -> None:
        """Discard the lines."""
        self._file.close()
