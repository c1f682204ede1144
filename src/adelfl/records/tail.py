"""Reader of rows while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from adelfl.errors import ConfigError
from adelfl.records.reader import open_record_file
from adelfl.records.schema import Row


class RowTail:
    """Reads the rows of a run as its file grows: complete lines, each once.

    ``edition`` increases when the file was replaced or truncated; it is then read again from its beginning. ``error``
    states why no further rows can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edition, self.error = 0, None  # type: int, str | None
        self._inode, self._end = 0, 0
        self._offsets: dict[int, int] = {}

    def skip(self) -> None:
        """Skip the rows that the file has now."""
        if (status := self._status()) is not None:
            self._inode, self._end = status.st_ino, status.st_size

    def _status(self) -> os.stat_result | None:
        try:
            return self.path.stat()
        except OSError:  # not created yet, or removed
            return None

    def read(self) -> list[Row]:
        """Return the rows that were completed since the last call."""
        status = self._status()
        if self._end > 0 and (status is None or status.st_size < self._end or status.st_ino != self._inode):
            self.edition += 1
            self._end, self._offsets = 0, {}
        rows: list[Row] = []
        self.error = None
        if status is None:
            return rows
        self._inode = status.st_ino
        try:
            with open_record_file(self.path) as file:
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    rows.append(Row.from_json(json.loads(line)))
                    self._offsets[rows[-1].round] = self._end
                    self._end += len(line)
        except ConfigError as error:
            self.error = str(error).removeprefix(f"{self.path.parent}: ")
        return rows

    def row(self, number: int) -> Row | None:
        """Return one of the rows that were read, by its round; None if there is no such row."""
        if number not in self._offsets:
            return None
        with open_record_file(self.path) as file:
            file.seek(self._offsets[number])
            return Row.from_json(json.loads(file.readline()))


def rows_backwards(path: Path, size: int = 1 << 14) -> Iterator[Row]:
    """Yield the complete rows in the last ``size`` bytes of a file, the last one first; read more if there is none."""
    with open_record_file(path) as file:
        end = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, end - size))
        lines = file.read(end - start).split(b"\n")[start > 0 : -1]
        for line in reversed(lines):
            yield Row.from_json(json.loads(line))
    if not lines and start > 0:
        yield from rows_backwards(path, 16 * size)
